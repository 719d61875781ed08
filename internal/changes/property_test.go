package changes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// rounds is how many random trees a property test tries: so many in CI, a part of
// them on the emulated machines, where an act takes ten times as long, or as many as
// AGENTGUARD_TEST_ROUNDS says.
func rounds(t *testing.T, n, part int) int {
	t.Helper()
	if s := os.Getenv("AGENTGUARD_TEST_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		must(t, err)
		return n
	}
	if testing.Short() {
		return part
	}
	return n
}

// What a command does to a tree natively and what it does to an overlay that is
// committed afterwards is the same; and nothing is called changed that is not.
func TestCommitEqualsNative(t *testing.T) {
	for i := range rounds(t, 2000, 150) {
		seed := uint64(i + 1)
		if s := os.Getenv("AGENTGUARD_TEST_SEED"); s != "" {
			n, err := strconv.ParseUint(s, 10, 64)
			must(t, err)
			seed = n
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { equalsNative(t, seed, i >= 15) }) {
			return
		}
	}
}

func equalsNative(t *testing.T, seed uint64, memory bool) {
	t.Helper()
	c := newCase(t, seed, memory)
	want := listing(t, c.native)
	if got := listing(t, c.merged); !cmp.Equal(want, got) {
		t.Fatalf("the overlay itself differs (-native +overlay), after\n%s\n%s", c.log(), cmp.Diff(want, got))
	}
	before := listing(t, c.base)
	set := c.pack(t)
	if len(set.Findings) > 0 || !set.Ended {
		t.Fatalf("findings %q after\n%s", set.Findings, c.log())
	}
	for i := range set.Entries {
		e := &set.Entries[i]
		if e.Old != nil && e.New != nil && sameState(e.Old, e.New) && e.Old.MTime == e.New.MTime && !e.New.Shared {
			t.Errorf("%q is called changed", set.Path(e))
		}
	}
	if cmp.Equal(before, want) && !empty(set) {
		t.Errorf("changes are reported and there are none, after\n%s", c.log())
	}
	err := c.commit(t, set, nil)
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		t.Fatalf("conflicts %+v after\n%s", conflict.Conflicts, c.log())
	}
	must(t, err)
	if got := listing(t, c.base); !cmp.Equal(want, got) {
		t.Fatalf("after commit (-native +committed), after\n%s\n%s\n%s", c.log(), cmp.Diff(want, got), c.index(t))
	}
}

// A commit that is killed at any step is finished or undone by the next one.
func TestCommitCrash(t *testing.T) {
	for i := range rounds(t, 6, 2) {
		seed := uint64(1000 + i)
		c := newCase(t, seed, i > 0)
		want, before := listing(t, c.native), listing(t, c.base)
		set := c.pack(t)
		backup := t.TempDir()
		run(t, "cp", "-a", c.base+"/.", backup)
		for at := 0; ; at++ {
			_ = unix.Removexattr(c.base, "user.t") // cp -a sets what there was, and takes nothing away
			run(t, "sh", "-c", "chmod 00755 \"$1\"; rm -rf \"$1\"/..?* \"$1\"/.[!.]* \"$1\"/*; cp -a \"$2\"/. \"$1\"", "sh", c.base, backup)
			c.newJournal(t)
			where, over := c.crash(t, at)
			if over {
				break
			}
			if mid := listing(t, c.base); !c.begun(t, stateReady) && !cmp.Equal(before, without(mid, "/"+Stage("test"))) {
				t.Fatalf("seed %d, killed before %q: changed before it was ready (-before +now)\n%s", seed, where, cmp.Diff(before, mid))
			}
			must(t, c.commit(t, set, nil))
			if got := listing(t, c.base); !cmp.Equal(want, got) {
				t.Fatalf("seed %d, killed before %q (step %d), then committed (-native +committed), after\n%s\n%s", seed, where, at, c.log(), cmp.Diff(want, got))
			}
		}
	}
}

// crash commits in a process of its own that is killed (SIGKILL) before the act
// with number at; over says that there is none.
func (c *testCase) crash(t *testing.T, at int) (where string, over bool) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{killVar + "=" + strconv.Itoa(at)}
	cmd.ExtraFiles = []*os.File{open(t, c.set), c.journal, open(t, c.base)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	switch st := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case st.Signaled() && st.Signal() == unix.SIGKILL:
		return strings.TrimSpace(out.String()), false
	case st.Exited() && st.ExitStatus() == ended:
		return "", true
	}
	t.Fatalf("step %d: %v %s", at, err, errs.String())
	return "", false
}

// begun reports whether the journal has a state.
func (c *testCase) begun(t *testing.T, state string) bool {
	t.Helper()
	list, err := readJournal(c.journal)
	must(t, err)
	return slices.ContainsFunc(list, func(r record) bool { return r.State == state })
}

// without leaves out what a listing has at and below p.
func without(list []string, p string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(l string) bool {
		return strings.HasPrefix(l, strconv.Quote(p)) || strings.HasPrefix(l, strings.TrimSuffix(strconv.Quote(p), `"`)+"/")
	})
}

// testCase is a random tree, edited natively and through an overlay.
type testCase struct {
	dir                         string
	base, native, merged, upper string
	set                         string // directory of the change set that was packed last
	user                        uint32 // who commits in a process of its own
	step                        int
	ops                         []string
	journal                     *os.File
}

func (c *testCase) log() string { return strings.Join(c.ops, "\n") }

// newCase makes it where tests have their files, or in memory: a sync of a disk that
// others write to takes longer than all the rest.
func newCase(t *testing.T, seed uint64, memory bool) *testCase {
	t.Helper()
	privateMounts(t)
	dir := t.TempDir()
	if memory {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
		t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	}
	return makeCase(t, dir, seed, false)
}

// newPlainCase makes only what git can hold: no hard links, pipes, exchanged names.
func newPlainCase(t *testing.T, seed uint64) *testCase {
	t.Helper()
	privateMounts(t)
	return makeCase(t, t.TempDir(), seed, true)
}

func makeCase(t *testing.T, dir string, seed uint64, plain bool) *testCase {
	t.Helper()
	c := &testCase{dir: dir, base: dir + "/base", native: dir + "/native", merged: dir + "/merged", upper: dir + "/tmpfs/upper"}
	must(t, os.Mkdir(c.base, 0o755), os.Mkdir(c.merged, 0o755), os.Mkdir(dir+"/tmpfs", 0o755))
	r := rand.New(rand.NewPCG(seed, 1))
	e := &editor{r: r, roots: []string{c.base}}
	for range 5 + r.IntN(40) {
		e.grow()
	}
	run(t, "cp", "-a", c.base, c.native)
	must(t, unix.Mount("tmpfs", dir+"/tmpfs", "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/tmpfs", unix.MNT_DETACH)) })
	must(t, os.Mkdir(c.upper, 0o755), os.Mkdir(dir+"/tmpfs/work", 0o755))
	must(t, unix.Mount("overlay", c.merged, "overlay", 0, "lowerdir="+c.base+",upperdir="+c.upper+",workdir="+dir+"/tmpfs/work,redirect_dir=on,metacopy=off,index=off,xino=auto"))
	t.Cleanup(func() { must(t, unix.Unmount(c.merged, unix.MNT_DETACH)) })
	e = &editor{r: r, roots: []string{c.native, c.merged}, plain: plain}
	for range 1 + r.IntN(40) {
		e.edit(t)
	}
	c.ops = e.log
	c.newJournal(t)
	t.Cleanup(func() { must(t, c.journal.Close()) })
	return c
}

func (c *testCase) newJournal(t *testing.T) {
	t.Helper()
	if c.journal != nil {
		must(t, c.journal.Close(), os.Remove(c.journal.Name()))
	}
	var err error
	c.journal, err = os.OpenFile(c.dir+"/journal", os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	must(t, err)
}

func (c *testCase) pack(t *testing.T) *Set {
	t.Helper()
	out := t.TempDir()
	c.set = out
	dir, upper, lower := open(t, out), open(t, c.upper), open(t, c.base)
	_, err := Pack(dir, []Tree{{Upper: upper, Lower: lower, Host: c.base}}, DefaultBounds())
	must(t, err)
	set, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, set.Close()) })
	return set
}

func (c *testCase) index(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, "journal"))
	must(t, err)
	return string(b)
}

func (c *testCase) commit(t *testing.T, set *Set, step func(string)) error {
	t.Helper()
	top := open(t, c.base)
	picks := make([]bool, len(set.Entries))
	for i := range picks {
		picks[i] = true
	}
	return set.Commit(top, set.at(1), picks, Options{ID: "test", Journal: c.journal, Step: step})
}

func open(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// listing describes every object below dir but for the times of directories.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	inodes := map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, dir)
		l := fmt.Sprintf("%q %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			l += fmt.Sprintf(" %.40q %d", b, st.Mtim.Nano())
			if first, ok := inodes[st.Ino]; ok && st.Nlink > 1 {
				l += " = " + first
			} else {
				inodes[st.Ino] = rel
			}
		case unix.S_IFLNK:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			l += " -> " + to
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			buf := make([]byte, 64)
			if n, err := unix.Lgetxattr(p, "user.t", buf); err == nil {
				l += " user.t=" + string(buf[:n])
			}
		}
		out = append(out, l)
		return nil
	}))
	return out
}

// gitListing describes what git knows of a tree.
func gitListing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel := strings.TrimPrefix(p, dir)
		if d.Type()&os.ModeSymlink != 0 {
			to, err := os.Readlink(p)
			out = append(out, fmt.Sprintf("%q -> %q", rel, to))
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(p)
		out = append(out, fmt.Sprintf("%q %v %q", rel, info.Mode()&0o100 != 0, b))
		return err
	}))
	return out
}
