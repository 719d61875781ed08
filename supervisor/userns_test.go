package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// Two runs at once never have one uid; the lowest that is free is taken.
func TestTakeUID(t *testing.T) {
	run := t.TempDir()
	var taken []*uidSlot
	for i := range 3 {
		s, err := takeUID(run)
		must(t, err)
		if s.uid() != ownUIDBase+i {
			t.Errorf("slot %d has uid %d", i, s.uid())
		}
		taken = append(taken, s)
	}
	must(t, taken[1].Close())
	again, err := takeUID(run)
	must(t, err)
	if again.uid() != ownUIDBase+1 {
		t.Errorf("the free uid is %d, got %d", ownUIDBase+1, again.uid())
	}
	must(t, taken[0].Close(), taken[2].Close(), again.Close())
	var st unix.Stat_t
	must(t, unix.Stat(run+"/uid", &st))
	if st.Mode&0o077 != 0 {
		t.Errorf("the locks' directory has mode %o", st.Mode)
	}
}

// A slot is held by the process: when it is killed, the uid is free.
func TestTakeUIDAfterDeath(t *testing.T) {
	run := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), actVariable+"=hold-uid", "RUN_DIR="+run)
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	var held int
	if _, err := fmt.Fscan(out, &held); err != nil || held != ownUIDBase {
		t.Fatalf("child holds %d, %v", held, err)
	}
	ours, err := takeUID(run)
	must(t, err)
	defer ours.Close()
	if ours.uid() == held {
		t.Error("two processes have one uid")
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	freed, err := takeUID(run)
	must(t, err)
	defer freed.Close()
	if freed.uid() != held {
		t.Errorf("got %d, but %d is free", freed.uid(), held)
	}
}

func holdUID() {
	s, err := takeUID(os.Getenv("RUN_DIR"))
	if err != nil {
		panic(err)
	}
	fmt.Println(s.uid())
	for {
		_ = unix.Pause() // select{} would be a deadlock to the runtime, which ends the process
	}
}

func TestTakeUIDExhausted(t *testing.T) {
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur < ownUIDs+100 {
		testenv.Missing(t, "descriptors", fmt.Sprintf("RLIMIT_NOFILE is %d", limit.Cur))
	}
	run := t.TempDir()
	var taken []*uidSlot
	for range ownUIDs {
		s, err := takeUID(run)
		must(t, err)
		taken = append(taken, s)
		if len(taken) == 40 { // the rest would take 4096 * 4096 / 2 locks: hold them by hand
			break
		}
	}
	for n := 40; n < ownUIDs; n++ {
		f, err := os.OpenFile(filepath.Join(run, "uid", itoa(n)), os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		taken = append(taken, &uidSlot{f, n})
	}
	before := testenv.Descriptors()
	_, err := takeUID(run)
	if r := refusal(t, err); r.What != "all 4096 user ids for runs are in use" || r.Remedy != "wait for other runs to end" {
		t.Errorf("%+v", r)
	}
	if testenv.Since(before) != 0 {
		t.Errorf("%d descriptors are left", testenv.Since(before))
	}
	for _, s := range taken {
		must(t, s.Close())
	}
}

// A link in the place of a lock is not followed.
func TestTakeUIDRefusesALink(t *testing.T) {
	run := t.TempDir()
	must(t, os.Mkdir(run+"/uid", 0o700), os.Symlink(run+"/victim", run+"/uid/0"))
	if s, err := takeUID(run); !errors.Is(err, unix.ELOOP) {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := os.Lstat(run + "/victim"); err == nil {
		t.Error("the link's target was made")
	}
}

// pinDir is a directory whose user namespaces are unpinned at the end.
func pinDir(t *testing.T) string {
	t.Helper()
	testenv.Root(t)
	run := t.TempDir()
	t.Cleanup(func() {
		pins, _ := filepath.Glob(run + "/userns/*")
		for _, p := range pins {
			if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
				t.Error(err)
			}
		}
	})
	return run
}

func nsID(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Ino
}

func TestUserNSIsKept(t *testing.T) {
	run := pinDir(t)
	s, err := takeUID(run)
	must(t, err)
	defer s.Close()
	first, err := s.userns(run)
	must(t, err)
	defer first.Close()
	again, err := s.userns(run)
	must(t, err)
	defer again.Close()
	if nsID(t, first) != nsID(t, again) {
		t.Error("the second use made another namespace")
	}
	other := &uidSlot{n: 1}
	second, err := other.userns(run)
	must(t, err)
	defer second.Close()
	if nsID(t, first) == nsID(t, second) {
		t.Error("two slots share a namespace")
	}
	for f, uid := range map[*os.File]int{first: ownUIDBase, second: ownUIDBase + 1} {
		if got := ownerThrough(t, f); got != uid {
			t.Errorf("root's file is shown as %d's, want %d", got, uid)
		}
	}
}

// ownerThrough returns who owns a file of root's on a mount with f's ids.
func ownerThrough(t *testing.T, f *os.File) int {
	t.Helper()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(f.Fd())}
	o := mustOpen(t, t.TempDir())
	tree, err := cloneTree(o.File, &attr)
	must(t, err)
	defer tree.Close()
	var st unix.Stat_t
	must(t, unix.Fstat(int(tree.Fd()), &st))
	return int(st.Uid)
}

// What lies at a pin's place without being one is never used.
func TestUserNSDoesNotTrustThePin(t *testing.T) {
	for name, plant := range map[string]func(pin string) error{
		"file":  func(pin string) error { return os.WriteFile(pin, []byte("x"), 0o600) },
		"other": func(pin string) error { return os.Symlink("/proc/self/ns/user", pin) },
		"dir":   func(pin string) error { return os.Mkdir(pin, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			run := pinDir(t)
			must(t, os.MkdirAll(run+"/userns", 0o700), plant(run+"/userns/0"))
			s := &uidSlot{n: 0}
			before := testenv.Descriptors()
			f, err := s.userns(run)
			if err != nil {
				if !strings.Contains(err.Error(), "keeping a user namespace") || testenv.Since(before) != 0 {
					t.Errorf("%v, %d descriptors are left", err, testenv.Since(before))
				}
				return
			}
			defer f.Close()
			if got := ownerThrough(t, f); got != ownUIDBase {
				t.Errorf("the planted %s was used: root's file is shown as %d's", name, got)
			}
		})
	}
}

func TestOpenNSRefusesFiles(t *testing.T) {
	run := t.TempDir()
	must(t, os.WriteFile(run+"/file", nil, 0o600))
	before := testenv.Descriptors()
	if _, err := openNS(run + "/file"); err == nil || !strings.Contains(err.Error(), "is no user namespace") {
		t.Errorf("%v", err)
	}
	if _, err := openNS(run + "/gone"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	if testenv.Since(before) != 0 {
		t.Error("a descriptor is left")
	}
}

// Every id is mapped once, all to themselves but 0.
func TestIDMapCoversEveryID(t *testing.T) {
	for _, uid := range []int{ownUIDBase, ownUIDBase + ownUIDs - 1} {
		inside, outside := 0, 0
		for i, l := range idMap(uid) {
			if l.Inside != inside || l.Size <= 0 || (i == 0) != (l.Inside != l.Outside) {
				t.Errorf("line %+v", l)
			}
			inside += l.Size
			outside += l.Size
			if l.Inside <= uid && uid < l.Inside+l.Size {
				t.Errorf("uid %d is mapped twice on the outside", uid)
			}
			if i == 1 {
				inside++ // uid itself: it is 0's
			}
		}
		if inside != 1<<32-1 || outside != 1<<32-2 {
			t.Errorf("%d ids are mapped, up to %d", outside, inside)
		}
	}
}
