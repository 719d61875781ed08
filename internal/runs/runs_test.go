package runs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestNewID(t *testing.T) {
	now := time.Date(2026, 11, 29, 18, 36, 24, 0, time.FixedZone("", 7200))
	seen := map[string]bool{}
	for range 1000 {
		id := NewID(now)
		if !regexp.MustCompile(`^20261129-163624-[0-9a-z]{6}$`).MatchString(id) || !validID(id) {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d of 1000 ids are different", len(seen))
	}
}

func TestInvalidIDs(t *testing.T) {
	s := openState(t)
	for _, id := range []string{"", ".", "..", "-a", "a/b", "../x", "A", "a_b", ".new-x", "a\x00", "a\nb", strings.Repeat("a", 65)} {
		if _, err := s.Create(id); err == nil {
			t.Errorf("Create(%q) is accepted", id)
		}
		if _, err := s.Open(id); err == nil {
			t.Errorf("Open(%q) is accepted", id)
		}
		if err := s.Remove(id); err == nil {
			t.Errorf("Remove(%q) is accepted", id)
		}
	}
}

func create(t *testing.T, s *State, id string) *RunDir {
	t.Helper()
	d, err := s.Create(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestRunFiles(t *testing.T) {
	s := openState(t)
	d := create(t, s, "r1")
	if d.ID() != "r1" || d.Path() != s.Path()+"/runs/r1" {
		t.Errorf("id %s, path %s", d.ID(), d.Path())
	}
	if _, err := s.Create("r1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create: %v", err)
	}
	f, err := d.Create(TraceFile)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "one\n")
	f.Truncate(0) // the file is for appending: what follows lands at the start
	io.WriteString(f, "two\n")
	f.Close()
	if st, err := os.Stat(d.Path() + "/" + TraceFile); err != nil || st.Mode() != 0o600 || st.Size() != 4 {
		t.Errorf("%v %v", st, err)
	}
	if _, err := d.Create(TraceFile); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Create of a file: %v", err)
	}
	os.Symlink("/etc/passwd", d.Path()+"/link")
	unix.Mkfifo(d.Path()+"/fifo", 0o600)
	os.Mkdir(d.Path()+"/dir", 0o700)
	for _, name := range []string{"", ".", "..", "a/b", "../r1/x", "link", "fifo", "dir", "missing"} {
		if f, err := d.Open(name); err == nil {
			f.Close()
			t.Errorf("Open(%q) is accepted", name)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "link", "fifo", "dir"} {
		if f, err := d.Create(name); err == nil {
			f.Close()
			t.Errorf("Create(%q) is accepted", name)
		}
	}
	if err := d.WriteFile("../x", nil, false); err == nil {
		t.Error("WriteFile outside of the run is accepted")
	}
}

func TestSub(t *testing.T) {
	d := create(t, openState(t), "r")
	for range 2 { // made, then opened
		sub, err := d.Sub("code")
		if err != nil {
			t.Fatal(err)
		}
		f, err := sub.Create("x")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := sub.Create("x"); !errors.Is(err, fs.ErrExist) {
			t.Errorf("made twice: %v", err)
		}
		if err := errors.Join(sub.Unlink("x"), sub.Close()); err != nil {
			t.Error(err)
		}
	}
	st, err := os.Stat(d.Path() + "/code")
	if err != nil || st.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := os.Symlink("code", d.Path()+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "..", "a/b", "link", "../r"} {
		if sub, err := d.Sub(bad); err == nil {
			sub.Close()
			t.Errorf("%q was opened", bad)
		}
		if bad != "link" && d.Unlink(bad) == nil {
			t.Errorf("%q was removed", bad)
		}
	}
}

func TestWriteFile(t *testing.T) {
	d := create(t, openState(t), "r1")
	os.WriteFile(d.Path()+"/.plan.json.tmp", []byte("of a writer that was killed"), 0o600)
	for i, durable := range []bool{false, true} {
		want := fmt.Sprintf("plan %d", i)
		if err := d.WriteFile(PlanFile, []byte(want), durable); err != nil {
			t.Fatal(err)
		}
		f, err := d.Open(PlanFile)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(f)
		f.Close()
		if string(got) != want {
			t.Errorf("got %q", got)
		}
	}
	if names, _ := readNames(d.dir); len(names) != 1 {
		t.Errorf("files left: %q", names)
	}
	// A link that somebody put there is replaced, not followed.
	outside := t.TempDir() + "/outside"
	os.WriteFile(outside, []byte("safe"), 0o600)
	os.Symlink(outside, d.Path()+"/"+ResultFile)
	if err := d.WriteFile(ResultFile, []byte("result"), false); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(outside); string(b) != "safe" {
		t.Errorf("written through a link: %q", b)
	}
}

func result(id string) *Result {
	return &Result{
		ID: id, Version: "0.1.0", Argv: []string{"make", "test"}, Reason: ReasonExit,
		Started: time.Date(2026, 11, 29, 16, 36, 24, 0, time.UTC), Ended: time.Date(2026, 11, 29, 16, 36, 25, 0, time.UTC),
	}
}

// TestMain lets the test binary stand for a supervisor that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("RUNS_TEST_SUPERVISOR"); dir != "" {
		s, err := OpenState(dir, os.Geteuid())
		if err == nil {
			_, err = s.Create("r1")
		}
		fmt.Println(err)
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller has two of its own, from its first use on
		r.SetDeadline(time.Now())
		r.Close()
		w.Close()
	}
	before := descriptors()
	code := m.Run()
	if after := descriptors(); code == 0 && after > before {
		fmt.Fprintf(os.Stderr, "%d descriptors before the tests, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

func descriptors() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

func TestKilledSupervisor(t *testing.T) {
	s := openState(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "RUNS_TEST_SUPERVISOR="+s.Path())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	io.ReadFull(out, ready)
	if string(ready) != "<nil>\n" || !live(s, "r1") {
		t.Errorf("live: %v, said %q", live(s, "r1"), ready)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	if live(s, "r1") {
		t.Error("live although its supervisor was killed")
	}
	if err := s.Remove("r1"); err != nil {
		t.Error(err)
	}
}

func BenchmarkCreate(b *testing.B) {
	s, err := OpenState(b.TempDir()+"/state", os.Geteuid())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := 0; b.Loop(); i++ {
		d, err := s.Create(fmt.Sprintf("r%d", i))
		if err != nil {
			b.Fatal(err)
		}
		d.Close()
	}
}

func BenchmarkOpenState(b *testing.B) {
	dir := b.TempDir() + "/state"
	for b.Loop() {
		s, err := OpenState(dir, os.Geteuid())
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// TestFullDisk writes a result on a disk without room: the error says so, the
// old content stays, nothing half-written is left.
func TestFullDisk(t *testing.T) {
	testenv.Root(t)
	dir := base(t)
	err := inMountNamespace(func() error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
			return err
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		s, err := OpenState(dir+"/state", 0)
		if err != nil {
			return err
		}
		defer s.Close()
		d, err := s.Create("r1")
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.WriteFile(PlanFile, []byte("old"), true); err != nil {
			return err
		}
		if err := d.WriteFile(PlanFile, make([]byte, 1<<20), true); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("WriteFile: %v", err)
		}
		if b, err := os.ReadFile(d.Path() + "/" + PlanFile); string(b) != "old" {
			t.Errorf("the old content is gone: %q, %v", b, err)
		}
		if names, err := readNames(d.dir); len(names) != 1 {
			t.Errorf("left: %q, %v", names, err)
		}
		for i := 0; err == nil && i < 1000; i++ { // until the inodes are used up
			var x *RunDir
			if x, err = s.Create(fmt.Sprintf("x%d", i)); err == nil {
				x.Close()
			}
		}
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Create: %v", err)
		}
		return nil
	})
	if errors.Is(err, errNoNamespace) {
		testenv.Missing(t, "mount-namespace", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}
