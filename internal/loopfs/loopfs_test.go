package loopfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// diskDir is a directory in which an image can be made, or the end of the test.
// AGENTGUARD_TEST_DISK is where, on a machine whose temporary directories are all in memory.
func diskDir(t *testing.T) *os.File {
	t.Helper()
	testenv.Root(t)
	why := ""
	for _, base := range []string{os.Getenv("AGENTGUARD_TEST_DISK"), os.TempDir(), "/var/tmp"} { // the second may be a tmpfs
		if base == "" {
			continue
		}
		name, err := os.MkdirTemp(base, "agentguard-test-")
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close(); os.Remove(name) })
		if _, why = Look(dir); why == "" {
			return dir
		}
	}
	testenv.Missing(t, "loop", why)
	return nil
}

func make1(t *testing.T, size, files int64) (root, dir *os.File) {
	t.Helper()
	dir = diskDir(t)
	m, err := Make(dir, size, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	fd, err := unix.Openat(int(m.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	root = os.NewFile(uintptr(fd), "root")
	t.Cleanup(func() { root.Close() })
	return root, dir
}

// The limit is met to the block, by whatever takes room, and says ENOSPC.
func TestSize(t *testing.T) {
	for _, size := range []int64{4096, 1 << 20, 64 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			root, _ := make1(t, size, -1)
			at := "/proc/self/fd/" + strconv.Itoa(int(root.Fd()))
			f, err := os.Create(at + "/f")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var n int64
			for buf := make([]byte, 4096); err == nil; n += 4096 {
				_, err = f.Write(buf)
			}
			n -= 4096
			if !errors.Is(err, unix.ENOSPC) || n > size || n < size*9/10-4096 {
				t.Errorf("%d of %d bytes, then %v", n, size, err)
			}
			if err := unix.Fallocate(int(f.Fd()), 0, n, 1<<20); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("fallocate: %v", err)
			}
			if err := f.Sync(); err != nil { // all of it has its place on the disk
				t.Error(err)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	root, _ := make1(t, 8<<20, 100)
	n := 0
	var err error
	for ; err == nil; n++ {
		err = unix.Mknodat(int(root.Fd()), strconv.Itoa(n), unix.S_IFREG|0o600, 0)
	}
	if n-1 != 100 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d files, then %v", n-1, err)
	}
}

// Nothing of it has a name on the host, and nothing is left when it is let go.
func TestNothingLeft(t *testing.T) {
	root, dir := make1(t, 1<<20, -1)
	if list, err := os.ReadDir(dir.Name()); err != nil || len(list) > 0 {
		t.Fatalf("%v %v", list, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	minor := strconv.Itoa(int(unix.Minor(st.Dev)))
	backing := "/sys/block/loop" + minor + "/loop/backing_file"
	if b, err := os.ReadFile(backing); err != nil || !bytes.Contains(b, []byte("(deleted)")) {
		t.Errorf("%s: %q %v", backing, b, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), "/dev/loop"+minor+" ") {
		t.Errorf("it is mounted where all see it: %v", err)
	}
}

// A disk without the room says so at the start.
func TestNoRoom(t *testing.T) {
	dir := diskDir(t)
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	m, err := Make(dir, int64(st.Blocks)*st.Bsize, -1)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, %v", m, err)
	}
}

func TestMissingInMemory(t *testing.T) {
	testenv.Root(t)
	dir, err := os.Open("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, why := Look(dir); !strings.Contains(why, "memory") {
		t.Errorf("%q", why)
	}
}
