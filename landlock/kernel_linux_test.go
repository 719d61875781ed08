package landlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

// What cannot be undone is done by this binary again, in the directory of this variable.
const baseVariable = "AGENTGUARD_LANDLOCK_BASE"

func TestMain(m *testing.M) {
	if base := os.Getenv(baseVariable); base != "" {
		if err := restricted(base); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testenv.Main(m))
}

// kinds are the directories of the test, each granted as its name says.
var kinds = map[string]Kind{"list": List, "read": Read, "write": Write, "device": Device, "proc": Proc, "plain": Plain}

// acts are tried in each directory; each answers with its errno.
var acts = map[string]func(dir string) error{
	"list": func(dir string) error { return opened(dir, unix.O_RDONLY|unix.O_DIRECTORY) },
	"read": func(dir string) error { return opened(dir+"/file", unix.O_RDONLY) },
	// "file" is executable and no program: the kernel opens it before it finds out.
	"execute":  func(dir string) error { _, err := syscall.ForkExec(dir+"/file", nil, nil); return err },
	"write":    func(dir string) error { return opened(dir+"/file", unix.O_WRONLY) },
	"truncate": func(dir string) error { return unix.Truncate(dir+"/cut", 0) },
	"create":   func(dir string) error { return opened(dir+"/new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL) },
	"mkdir":    func(dir string) error { return unix.Mkdir(dir+"/newdir", 0o755) },
	"symlink":  func(dir string) error { return unix.Symlink("x", dir+"/newlink") },
	"fifo":     func(dir string) error { return unix.Mkfifo(dir+"/newfifo", 0o600) },
	"node":     func(dir string) error { return unix.Mknod(dir+"/newnode", unix.S_IFCHR, int(unix.Mkdev(1, 3))) },
	"unlink":   func(dir string) error { return unix.Unlink(dir + "/old") },
	"rename":   func(dir string) error { return unix.Rename(dir+"/moved", dir+"/sub/moved") },
}

func opened(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// allowed says what a grant lets the command do; nothing else is.
var allowed = map[string][]string{
	"list":   {"list"},
	"read":   {"list", "read", "execute"},
	"plain":  {"list", "read"},
	"proc":   {"list", "read"},
	"device": {"list", "read", "write", "truncate"},
	"write":  {"list", "read", "execute", "write", "truncate", "create", "mkdir", "symlink", "fifo", "node", "unlink", "rename"},
	"none":   nil,
}

// restricted is the child: it makes rules on detached mounts, attaches them,
// enforces the ruleset on its thread, and prints what each act answered.
func restricted(base string) error {
	runtime.LockOSThread()
	abi, err := ABI()
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	trees, grants := map[string]int{}, []Grant(nil)
	for name := range allowed {
		tree, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(base, name), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open_tree: %w", err)
		}
		trees[name] = tree
		if kind, ok := kinds[name]; ok {
			grants = append(grants, Grant{FD: tree, Kind: kind, Dir: true, Name: name})
		}
	}
	single, err := unix.Open(base+"/none/single", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	grants = append(grants, Grant{FD: single, Kind: Read, Name: "single"})
	rules, err := NewRuleset(abi, grants)
	if err != nil {
		return err
	}
	if err := addLate(int(rules.Fd()), base+"/none/late", abi); err != nil {
		return err
	}
	for name, tree := range trees { // only now are the mounts put where they are used
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, filepath.Join(base, "at", name), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(SysRestrictSelf, rules.Fd(), uintptr(RestrictFlags(abi)), 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	report(base)
	return nil
}

// addLate adds a rule as the run's own process does: from the bytes of
// PathBeneath, with the descriptor filled in.
func addLate(ruleset int, path string, abi int) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	rule := PathBeneath(Rights(Proc, abi, false))
	binary.LittleEndian.PutUint32(rule[ParentFDOffset:], uint32(fd))
	if _, _, errno := unix.RawSyscall6(SysAddRule, uintptr(ruleset), RulePathBeneath, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule: %w", errno)
	}
	return unix.Close(fd)
}

func report(base string) {
	for name := range allowed {
		for act, do := range acts {
			fmt.Println(name, act, answer(do(base+"/at/"+name)))
		}
	}
	fmt.Println("single read", answer(opened(base+"/at/none/single", unix.O_RDONLY)))
	fmt.Println("single write", answer(opened(base+"/at/none/single", unix.O_WRONLY)))
	fmt.Println("late read", answer(opened(base+"/at/none/late", unix.O_RDONLY)))
	fmt.Println("late write", answer(opened(base+"/at/none/late", unix.O_WRONLY)))
	fmt.Println("host read", answer(opened("/etc/passwd", unix.O_RDONLY)))
	fmt.Println("outside signal", answer(unix.Kill(os.Getppid(), 0)))
	fmt.Println("outside abstract", answer(connectAbstract(base)))
}

// connectAbstract connects to the socket that the test listens on.
func connectAbstract(base string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + base})
}

func answer(err error) string {
	switch err {
	case nil:
		return "ok"
	case unix.EACCES, unix.EPERM:
		return "refused"
	case unix.ENOEXEC:
		return "ok" // execve came as far as the file's content
	}
	return err.Error()
}

// newTree makes the directories of the test.
func newTree(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	for name := range allowed {
		for _, d := range []string{name + "/sub", "at/" + name} {
			if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"file", "cut", "old", "moved", "single", "late"} {
			if err := os.WriteFile(filepath.Join(base, name, f), []byte("\x00no program"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return base
}

// Rules on detached mounts hold after the mounts are attached, and each kind
// grants what it says and no more, to root too.
func TestKernelEnforcesKinds(t *testing.T) {
	testenv.Root(t)
	abi, err := ABI()
	if err != nil {
		testenv.Missing(t, "landlock", err.Error())
	}
	base := newTree(t)
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(listener)
		err = errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: "@" + base}), unix.Listen(listener, 5))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), baseVariable+"="+base)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := map[string]string{"single read": "ok", "single write": "refused", "late read": "ok", "late write": "refused", "host read": "refused"}
	if abi >= 6 {
		want["outside signal"], want["outside abstract"] = "refused", "refused"
	} else {
		want["outside signal"], want["outside abstract"] = "ok", "ok"
	}
	for name, acts2 := range allowed {
		for act := range acts {
			want[name+" "+act] = map[bool]string{true: "ok", false: "refused"}[slices.Contains(acts2, act)]
		}
	}
	got := map[string]string{}
	for l := range strings.Lines(string(out)) {
		if f := strings.SplitN(strings.TrimSpace(l), " ", 3); len(f) == 3 {
			got[f[0]+" "+f[1]] = f[2]
		}
	}
	unguarded := map[string]int{"truncate": 3, "rename": 2} // before this ABI
	for what, w := range want {
		_, act, _ := strings.Cut(what, " ")
		if abi < unguarded[act] {
			continue
		}
		if got[what] != w {
			t.Errorf("%s: %q, want %q", what, got[what], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d answers, want %d:\n%s", len(got), len(want), out)
	}
}

// A rule that the kernel does not take is an error that names its place; a
// ruleset is never weaker than what was asked for.
func TestNewRulesetErrors(t *testing.T) {
	abi, err := ABI()
	if err != nil {
		testenv.Missing(t, "landlock", err.Error())
	}
	file, err := os.Open(filepath.Join(newTree(t), "none/file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name  string
		grant Grant
		want  error // nil: accepted
	}{
		{"no descriptor", Grant{FD: -1, Kind: Read, Dir: true, Name: "/x"}, unix.EBADF},
		{"directory rights on a file", Grant{FD: int(file.Fd()), Kind: Read, Dir: true, Name: "/x"}, unix.EINVAL},
		{"file rights on a file", Grant{FD: int(file.Fd()), Kind: Write, Name: "/x"}, nil},
		{"nothing is left to grant", Grant{FD: int(file.Fd()), Kind: List, Name: "/x"}, nil},
	} {
		f, err := NewRuleset(abi, []Grant{c.grant})
		if !errors.Is(err, c.want) || (err != nil && !strings.Contains(err.Error(), "landlock rule for /x")) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if f != nil {
			f.Close()
		}
	}
	if f, err := NewRuleset(0, nil); err == nil { // handles nothing: it would enforce nothing
		f.Close()
		t.Error("a ruleset that handles nothing was made")
	}
}

func TestRestrictFlags(t *testing.T) {
	for abi, want := range map[int]uint32{1: 0, 6: 0, 7: 1, 9: 1} {
		if got := RestrictFlags(abi); got != want {
			t.Errorf("ABI %d: flags %d, want %d", abi, got, want)
		}
	}
}

func TestPathBeneath(t *testing.T) {
	b := PathBeneath(0x0102030405060708)
	if len(b) != 12 || binary.LittleEndian.Uint64(b) != 0x0102030405060708 || binary.LittleEndian.Uint32(b[ParentFDOffset:]) != 0 {
		t.Errorf("% x", b)
	}
}
