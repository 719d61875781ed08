package codewatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestParseMounts(t *testing.T) {
	const text = `24 1 254:0 / / rw,relatime - ext4 /dev/vda rw
25 24 0:22 /a /mnt/with\040blank rw shared:1 master:2 - fuse.sshfs host:/ rw
26 25 0:23 / /mnt/with\040blank/b rw - fuseblk /dev/sda rw
27 24 0:24 / /v rw - virtiofs tag rw
short line
28 24 x:y / /bad rw - tmpfs t rw
`
	got := parseMounts([]byte(text))
	if len(got) != 4 || got[0].dev != unix.Mkdev(254, 0) || got[1].point != "/mnt/with blank" || got[2].parent != 25 {
		t.Fatalf("%+v", got)
	}
	for i, fuse := range []bool{false, true, true, false} {
		if got[i].as(false).fuse != fuse {
			t.Errorf("%s: fuse %v", got[i].kind, !fuse)
		}
	}
}

// Mounts in a granted directory are found with their places, and no others.
func TestSubmounts(t *testing.T) {
	testenv.Root(t)
	usr, err := os.OpenFile("/usr", unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	defer usr.Close()
	id, err := mountID(int(usr.Fd()))
	must(t, err)
	host := []hostMount{
		{id: id, parent: 1, dev: 7, point: "/"},
		{id: id + 1000, parent: id, point: "/usr/local"},
		{id: id + 1001, parent: id + 1000, point: "/usr/local/a/b"},
		{id: id + 1002, parent: id, point: "/usrlocal"},
		{id: id + 1003, parent: id, point: "/usr"}, // beside it: usr was opened below
		{id: id + 1004, parent: 3, point: "/usr/elsewhere"},
	}
	top, below, err := submounts(usr, host)
	must(t, err)
	var places []string
	for _, b := range below {
		places = append(places, b.point)
	}
	if got := strings.Join(places, " "); top.dev != 7 || got != "local local/a/b" {
		t.Errorf("%+v, %q", top, got)
	}
}

func TestDecode(t *testing.T) {
	good := make([]byte, eventSize)
	good[0], good[4], good[10] = eventSize, unix.FANOTIFY_METADATA_VERSION, unix.FAN_OPEN_EXEC_PERM>>16
	copy(good[16:], []byte{0xff, 0xff, 0xff, 0xff, 7})
	if e, rest, err := decode(good); err != nil || len(rest) != 0 || e.fd != -1 || e.pid != 7 {
		t.Errorf("%+v, %d, %v", e, len(rest), err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"short":   func(b []byte) []byte { return b[:eventSize-1] },
		"version": func(b []byte) []byte { b[4]++; return b },
		"long":    func(b []byte) []byte { b[0]++; return b },
		"empty":   func(b []byte) []byte { b[0] = 0; return b },
	} {
		if _, rest, err := decode(change(append([]byte(nil), good...))); err == nil || rest != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c, err := OpenCache(dir, "boot")
	must(t, err)
	defer c.Close()
	k, sum := key{1, 2, Version{3, 4}}, strings.Repeat("ab", 32)
	if _, ok := c.get(k); ok {
		t.Error("found in an empty cache")
	}
	c.put(k, sum)
	c.put(k, sum)
	if got, ok := c.get(k); !ok || got != sum {
		t.Errorf("%q, %v", got, ok)
	}
	for name, other := range map[string]key{"dev": {9, 2, Version{3, 4}}, "ino": {1, 9, Version{3, 4}}, "ctime": {1, 2, Version{9, 4}}, "size": {1, 2, Version{3, 9}}} {
		// Even in the very slot of the first.
		must(t, os.RemoveAll(filepath.Join(dir, slot(c.text(other)))))
		must(t, os.Symlink(c.text(k)+"="+sum, filepath.Join(dir, slot(c.text(other)))))
		if got, ok := c.get(other); ok {
			t.Errorf("another %s: %q", name, got)
		}
	}
	later := &Cache{c.dir, "boot2"}
	if _, ok := later.get(k); ok {
		t.Error("it outlives the boot")
	}
	must(t, os.Chmod(dir, 0o755))
	if c, err := OpenCache(dir, "boot"); err == nil {
		c.Close()
		t.Error("a directory that others may enter is trusted")
	}
	must(t, os.Symlink(dir, dir+".link"))
	if c, err := OpenCache(dir+".link", "boot"); err == nil {
		c.Close()
		t.Error("a link is followed")
	}
	var none *Cache
	none.put(k, sum)
	if _, ok := none.get(k); ok || none.Close() != nil {
		t.Error("no cache")
	}
}

func TestStore(t *testing.T) {
	dir := dirStore(t.TempDir())
	s := &store{dir: dir, left: 10}
	must(t, os.Symlink("/nowhere", filepath.Join(string(dir), "link")))
	for _, c := range []struct {
		name, content string
		size          int64
		want          bool
	}{
		{"a", "12345", 5, true},
		{"a", "", 5, true}, // is there
		{"b", "123456", 6, false},
		{"c", "1234", 5, false}, // not all of it
		{"link", "1", 1, false},
		{"d", "12345", 5, true},
		{"e", "1", 1, false},
		{"f", "", 0, true},
	} {
		if got := s.put(c.name, []byte(c.content), c.size); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if stored, dropped := s.totals(); stored != 10 || dropped != 4 {
		t.Errorf("%d bytes, %d dropped", stored, dropped)
	}
	if st, err := os.Stat(filepath.Join(string(dir), "a")); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestAwaitTick(t *testing.T) {
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	awaitTick(now.Nano())
	var then unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &then))
	if then.Nano() <= now.Nano() {
		t.Error("the clock stands still")
	}
	awaitTick(now.Nano() + 3600e9) // of a clock that was set back: nothing to wait for
}

// However many reads fail in a row, somebody goes on to answer.
func TestServeGoesOn(t *testing.T) {
	f, err := os.Open(t.TempDir()) // a read of it fails
	must(t, err)
	w := &Watch{group: &group{file: f, fd: -1}}
	w.Start()
	for deadline := time.Now().Add(time.Minute); w.Counts().Failed <= 1000; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("gave up after %d", w.Counts().Failed)
		}
	}
	must(t, f.Close())
	w.tasks.Wait()
}

// What a process opens to execute without ever doing so takes no more than so much room.
func TestLinksAreBounded(t *testing.T) {
	w := New(Config{Limits: DefaultLimits})
	t.Cleanup(func() { must(t, w.Close()) })
	last := &File{}
	for range 5 * maxLinks {
		w.opened(1, &File{})
	}
	w.opened(1, last)
	got := w.Executed(1, bootTime())
	if len(got) > maxLinks || len(got) < maxLinks/2 || got[len(got)-1] != last {
		t.Errorf("%d files", len(got))
	}
}
