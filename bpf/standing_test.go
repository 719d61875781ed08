package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// objectsOf pairs each call of the command with what the kernel told from inside it.
func objectsOf(t *testing.T, events []Event) map[*Event]*ObjectInfo {
	t.Helper()
	last := map[uint32]*Event{}
	of := map[*Event]*ObjectInfo{}
	for i := range events {
		ev := &events[i]
		switch ev.Type {
		case Object:
			last[ev.TID] = ev
		case Call, Deny, ExecFail:
			o := last[ev.TID]
			if ev.Call.Object == 0 {
				continue
			}
			if o == nil || o.Time != ev.Call.Object || o.NR != ev.NR {
				t.Errorf("the object of another call: %s", describe(ev))
				continue
			}
			of[ev] = &o.Object
		}
	}
	return of
}

// Names come as the kernel has looked them up, through links and relative paths,
// of calls that succeed and of those that fail; where no such program loads,
// there is nothing of it.
func TestNamesOfTheKernel(t *testing.T) {
	for _, c := range []struct {
		name  string
		tier1 bool
	}{{"as it loads", false}, {"tier 1", true}} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.cfg.tier1 = c.tier1
			p := h.open()
			dir := t.TempDir()
			events, _ := h.observe(p, RunConfig{}, "names", dir)
			var got []string
			of := objectsOf(t, events)
			for i := range events {
				if o := of[&events[i]]; o != nil {
					ev := &events[i]
					s := fmt.Sprintf("%d %s %s %s", ev.Ret, o.Path.Text, o.Path2.Text, o.Text)
					got = append(got, strings.TrimRight(strings.ReplaceAll(s, dir+"/", ""), " "))
				}
			}
			var want []string
			if p.resolves {
				want = []string{
					"0 real", "0  link real", "0 real/d", "0 real/f real/g", "0 real/g real/h", "0  real/s some text", "0 real/g", "0 real/g", "0 real/g",
					"0 real/p", "0   user.one", "0   user.one", "0 real/h", "0 real/d", "0 real/e",
				}
			}
			if c.tier1 && p.Tier() != "tracepoints" && p.resolves {
				t.Errorf("tier %s", p.Tier())
			}
			if !slices.Equal(got, want) {
				t.Errorf("tier %s: got %q, want %q", p.Tier(), got, want)
			}
		})
	}
}

// A thread that changes the name while it is used does not change the record.
func TestNamesCannotBeRaced(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	dir := t.TempDir()
	rec := h.start(p, RunConfig{RingBytes: 4 << 20})
	gone, err := act(rec.leaf, "flip", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	events, _ := rec.finish(t)
	of := objectsOf(t, events)
	var told, said []byte
	for i := range events {
		ev := &events[i]
		if ev.Type != Call || ev.NR != unix.SYS_UNLINKAT || filepath.Dir(string(ev.Call.Path)) != dir {
			continue
		}
		said = append(said, ev.Call.Path[len(ev.Call.Path)-1])
		if o := of[ev]; o != nil {
			told = append(told, o.Path.Text[len(o.Path.Text)-1])
		}
	}
	if len(said) != len(gone) || p.resolves && string(told) != string(gone) || !p.resolves && len(told) != 0 {
		t.Errorf("tier %s:\nremoved %s\nkernel  %s\nmemory  %s", p.Tier(), gone, told, said)
	}
}

// Landlock says itself what it refused, in the call that it refused and in no other.
func TestRefusalsOfLandlock(t *testing.T) {
	h := sharedHost(t)
	p := h.open()
	dir := t.TempDir()
	for _, d := range []string{"ok", "no"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"no/f", "ok/g"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("no", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	events, _ := h.observe(p, RunConfig{}, "refused", dir)
	of := objectsOf(t, events)
	var got []string
	for i := range events {
		ev := &events[i]
		if ev.Type != Call && ev.Type != Deny || !strings.HasPrefix(string(ev.Call.Path), dir) && string(ev.Call.Path) != "/none" || ev.Ret >= 0 {
			continue
		}
		s := fmt.Sprintf("%d %d %x", -ev.Ret, ev.Call.Refused.By, ev.Call.Refused.Access)
		if o := of[ev]; o != nil && o.Refused {
			s += " " + strings.TrimPrefix(string(o.Path.Text), dir+"/")
		}
		if ev.Call.Refused.Own {
			t.Errorf("which domain is the run's own is not known here: %s", describe(ev))
		}
		got = append(got, s)
	}
	want := []string{"13 0 0", "13 0 0", "13 0 0", "13 0 0", "13 0 0", "2 0 0", "2 0 0"}
	if p.refusals {
		want = []string{"13 3 4 no/f", "13 3 100 no", "13 3 20", "13 3 80", "13 3 2100", "2 0 0", "2 0 0"}
		if !p.resolves {
			t.Errorf("tier %s: a kernel with tracepoints of Landlock's and without fentry is new", p.Tier())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("tier %s: got %q, want %q", p.Tier(), got, want)
	}
}

// The record of a descriptor says what came in.
func TestReceivedDescriptors(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 1)
	events, stats := h.observe(h.open(), RunConfig{}, "receive-fd", dir)
	var got []string
	for _, ev := range ofType(events, Receive) {
		path := strings.ReplaceAll(string(ev.File.Path.Text), dir, "DIR")
		got = append(got, fmt.Sprintf("%d %s %o %d", ev.NR, path, ev.File.Mode&unix.S_IFMT, ev.File.FMode&3))
		if ev.Ret < 3 || ev.File.Inode == 0 {
			t.Errorf("%+v", ev)
		}
	}
	file, many := fmt.Sprint(unix.SYS_RECVMSG, " DIR/f0 100000 3"), fmt.Sprint(unix.SYS_RECVMMSG, " DIR/f0 100000 3")
	want := []string{file, fmt.Sprint(unix.SYS_RECVMSG, " UNIX 140000 3"), many, many, many}
	if !slices.Equal(got, want) || stats.Classes[Bulk].Dropped != 0 {
		t.Errorf("got %q, want %q, %+v", got, want, stats.Classes)
	}
}

// One call that makes many mappings executable names the file of each.
func TestRangeOfMappings(t *testing.T) {
	h := sharedHost(t)
	dir := fileDir(t, 3)
	events, _ := h.observe(h.open(), RunConfig{}, "range", dir)
	var got []string
	for _, ev := range ofType(events, File) {
		if ev.File.How == MappedExec && ev.NR == unix.SYS_MPROTECT && strings.HasPrefix(string(ev.File.Path.Text), dir) {
			got = append(got, filepath.Base(string(ev.File.Path.Text)))
		}
	}
	if want := []string{"f0", "f1", "f2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What a process without threads opens is certain: nobody else can have put
// another file at the descriptor.
func TestOpensOfOneThread(t *testing.T) {
	h := sharedHost(t)
	rec := h.start(h.open(), RunConfig{})
	dir := fileDir(t, 1)
	cmd := exec.Command("/bin/cat", dir+"/f0")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(rec.leaf.Fd()), Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if out, err := act(rec.leaf, "opens", dir, "1", "1", "2").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	events, _ := rec.finish(t)
	var got []bool
	for _, ev := range ofType(events, File) {
		if string(ev.File.Path.Text) == dir+"/f0" {
			got = append(got, ev.File.Object)
		}
	}
	if want := []bool{true, false, false}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
