package supervisor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// What a command does to a copy-on-write grant is in the upper, which outlives
// the run's mounts, and nowhere else.
func TestCow(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	must(t, os.MkdirAll(base+"/ws/a/b/ro", 0o755), os.WriteFile(base+"/ws/a/f", []byte("old\n"), 0o600), unix.Chmod(base+"/ws", 0o2750))
	e := newEnvelope(t, "cow="+base+"/ws", "ro="+base+"/ws/a/b/ro")
	var upper *os.File
	e.prepared = func() {
		for i := range e.plan.View {
			if v := &e.plan.View[i]; v.Op == "cow" {
				upper = e.mounts.takeUppers(e.plan.View)[v.Layer]
			}
		}
	}
	got := e.run(t, "cd "+base+"/ws; echo new >a/f && cat a/f; mv a/b a/c 2>/dev/null || echo pinned; mkdir n; rm -f a/b/ro/x; stat -c '%a' .; stat -c '%u' a/f")
	if want := "new\npinned\n2750\n" + itoa(e.identity.UID) + "\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if b, err := os.ReadFile(base + "/ws/a/f"); string(b) != "old\n" || err != nil {
		t.Errorf("the granted file: %q, %v", b, err)
	}
	if _, err := os.Lstat(base + "/ws/n"); err == nil {
		t.Error("a directory was made on the host")
	}
	var st unix.Stat_t
	must(t, unix.Fstatat(int(upper.Fd()), "a/f", &st, unix.AT_SYMLINK_NOFOLLOW), unix.Fstatat(int(upper.Fd()), "n", &st, 0), upper.Close())
	if st.Uid != uint32(e.identity.UID) {
		t.Errorf("a new directory belongs to %d", st.Uid)
	}
}

// Where a file system cannot map ids, root's files stay root's and the top
// directory is the run's own.
func TestCowWithoutIDMap(t *testing.T) {
	testenv.Root(t)
	base := publicDir(t)
	must(t, os.WriteFile(base+"/f", []byte("old\n"), 0o644))
	e := newEnvelope(t, "cow="+base)
	e.noUserNS = true
	got := e.run(t, "cd "+base+"; echo new 2>/dev/null >f || echo kept; echo x >n && cat f n")
	if got != "kept\nold\nx\n" {
		t.Errorf("%q", got)
	}
}
