package supervisor

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/notify"
	"github.com/agentguard/agentguard/trace"
)

// recordNotified gives what a filter's listener tells to a recorder.
func recordNotified(t *testing.T, plan *Plan, events ...notify.Event) ([]trace.Event, *recorder) {
	t.Helper()
	var b bytes.Buffer
	r := &recorder{plan: plan, w: trace.NewWriter(&b, trace.Options{})}
	for i := range events {
		events[i].Process = notify.Process{PID: 7, PPID: 6, NSPID: 2, UID: 5, Start: 70, ParentStart: 60}
		events[i].TID, events[i].Time = 8, 99
		r.notified(&events[i])
	}
	r.flushAll()
	must(t, r.w.Flush())
	return readBack(t, &b), r
}

func texts(list ...string) [][]byte {
	var out [][]byte
	for _, s := range list {
		out = append(out, []byte(s))
	}
	return out
}

func TestNotifiedExec(t *testing.T) {
	exec := notify.Event{Type: notify.Exec, NR: unix.SYS_EXECVE, Path: []byte("bin/x"), Dir: []byte("/srv/ws"), Argv: texts("x", "a b", ""), Argc: 3, Env: texts("A", "PATH")}
	done := exec
	done.Outcome, done.Image = notify.Done, notify.Image{Path: []byte("/usr/bin/y"), Dev: unix.Mkdev(8, 1), Inode: 12, Ctime: 13}
	list, _ := recordNotified(t, recordPlan(), done)
	e := only(t, list)
	if e.Kind != trace.KindExec || string(e.Path) != "/usr/bin/y" || string(e.PathGiven) != "bin/x" || e.PathSource != trace.PathKernel || e.Ino != 12 || e.DevMajor != 8 ||
		e.Ctime != 13 || len(e.Argv) != 3 || string(e.Argv[1]) != "a b" || e.ArgvLen != 0 || len(e.Env) != 2 || string(e.Env[1]) != "PATH" || e.EnvLen != 0 {
		t.Errorf("%+v", e)
	}
	if p := e.Proc; p.Pid != 7 || p.PPid != 6 || p.NSPid != 2 || p.UID != 5 || p.Start != 70 || p.PStart != 60 || e.Phase != trace.PhaseCommand || e.CPUSeq != 0 {
		t.Errorf("%+v", p)
	}

	done.ArgvCut, done.EnvCut, done.Launcher = true, true, true
	done.Image.Path, done.Image.Deleted = []byte("/memfd:evil"), true
	list, _ = recordNotified(t, recordPlan(), done)
	if e = only(t, list); e.ArgvLen != 8 || e.EnvLen == 0 || !e.Memfd || !e.Deleted || string(e.Path) != "memfd:evil" || e.Phase != trace.PhaseEnvelope {
		t.Errorf("cut, of a memfd: %+v", e)
	}

	list, _ = recordNotified(t, recordPlan(), exec)
	if e = only(t, list); e.Kind != trace.KindExec || string(e.Path) != "/srv/ws/bin/x" || e.PathSource != trace.PathUser || e.Ino != 0 || e.Text == "" || len(e.Argv) != 3 {
		t.Errorf("unsettled: %+v", e)
	}
}

func TestNotifiedExecFailed(t *testing.T) {
	failed := notify.Event{Type: notify.Exec, Outcome: notify.Failed, NR: unix.SYS_EXECVE, Path: []byte("/opt/prog"), Errno: unix.ENOENT}
	list, r := recordNotified(t, recordPlan(), failed)
	if e := only(t, list); e.Kind != trace.KindExecFail || e.Errno != int32(unix.ENOENT) || e.Layer != trace.LayerMount || e.Certainty != trace.Inferred || r.denied.total != 1 {
		t.Errorf("%+v", e)
	}
	failed.Errno = 0
	list, r = recordNotified(t, recordPlan(), failed)
	if e := only(t, list); e.Kind != trace.KindExecFail || e.Errno != 0 || e.Verdict != "" || r.denied.total != 0 {
		t.Errorf("for an unknown reason: %+v", e)
	}
	// A search by execvp(3) that ends well is no denial.
	found := notify.Event{Type: notify.Exec, Outcome: notify.Done, NR: unix.SYS_EXECVE, Path: []byte("/usr/bin/prog"), Image: notify.Image{Path: []byte("/usr/bin/prog"), Inode: 3}}
	failed.Errno = unix.ENOENT
	if list, r = recordNotified(t, recordPlan(), failed, found); len(list) != 2 || r.denied.total != 0 {
		t.Errorf("%d events, %d denials", len(list), r.denied.total)
	}
}

func TestNotifiedRefusal(t *testing.T) {
	call := notify.Event{Type: notify.Refused, NR: unix.SYS_PTRACE, Errno: unix.EPERM, Count: 9}
	list, r := recordNotified(t, recordPlan(), call)
	e := only(t, list)
	if e.Kind != trace.KindDeny || e.Syscall != "ptrace" || e.Layer != trace.LayerSeccomp || e.Certainty != trace.Certain || e.Count != 9 || r.denied.total != 9 || !strings.Contains(e.Remedy, "ptrace") {
		t.Errorf("%+v", e)
	}
	call = notify.Event{Type: notify.Refused, NR: unix.SYS_FCHMODAT, Args: [6]uint64{3, 0, 0o4755}, Errno: unix.EPERM, Path: []byte("f"), Dir: []byte("/srv/ws"), Launcher: true}
	list, r = recordNotified(t, recordPlan(), call)
	if e = only(t, list); e.Kind != trace.KindChmod || string(e.Path) != "/srv/ws/f" || e.Mode != 0o4755 || e.Certainty != trace.Certain || e.Denied() || r.denied.total != 0 {
		t.Errorf("of the launcher: %+v", e)
	}
}

func TestNotifiedEnd(t *testing.T) {
	for _, c := range []struct {
		status unix.WaitStatus
		known  bool
		code   int32
		signal int32
	}{{3 << 8, true, 3, 0}, {9, true, 0, 9}, {0, true, 0, 0}, {0, false, trace.ExitUnknown, 0}} {
		list, _ := recordNotified(t, recordPlan(), notify.Event{Type: notify.Exit, NR: -1, Status: c.status, StatusKnown: c.known, User: 5, System: 6})
		if e := only(t, list); e.Kind != trace.KindExit || e.ExitCode != c.code || e.Signal != c.signal || e.UTime != 5 || e.STime != 6 || e.Proc.PStart != 60 {
			t.Errorf("%+v: %+v", c, e)
		}
	}
	child := notify.Event{Type: notify.Fork, NR: -1, Child: notify.Process{PID: 9, NSPID: 3, Start: 80}}
	list, _ := recordNotified(t, recordPlan(), child)
	if e := only(t, list); e.Kind != trace.KindFork || e.Child.Pid != 9 || e.Child.NSPid != 3 || e.Child.Start != 80 || e.Proc.Pid != 7 {
		t.Errorf("%+v", e)
	}
}

func TestNotifiedAddress(t *testing.T) {
	in4 := func(last byte) []byte { return []byte{unix.AF_INET, 0, 1, 187, 192, 0, 2, last} }
	for _, c := range []struct {
		name   string
		e      notify.Event
		egress bool
		denied bool
		object string
	}{
		{"connect, nowhere to go", notify.Event{Type: notify.Connect, NR: unix.SYS_CONNECT, Addr: in4(1)}, false, true, "192.0.2.1:443"},
		{"connect, an allowlist", notify.Event{Type: notify.Connect, NR: unix.SYS_CONNECT, Addr: in4(1)}, true, false, "192.0.2.1:443"},
		{"connect, loopback", notify.Event{Type: notify.Connect, NR: unix.SYS_CONNECT, Addr: []byte{unix.AF_INET, 0, 0, 80, 127, 0, 0, 1}}, false, false, "127.0.0.1:80"},
		{"send", notify.Event{Type: notify.Send, NR: unix.SYS_SENDTO, Addr: in4(2)}, false, true, "192.0.2.2:443"},
		{"bind", notify.Event{Type: notify.Bind, NR: unix.SYS_BIND, Addr: in4(3)}, false, false, "192.0.2.3:443"},
		{"unix", notify.Event{Type: notify.Connect, NR: unix.SYS_CONNECT, Addr: append([]byte{unix.AF_UNIX, 0}, "/run/x\x00junk"...)}, false, false, "/run/x"},
		{"cut", notify.Event{Type: notify.Connect, NR: unix.SYS_CONNECT, Addr: []byte{2}, Unreadable: true}, false, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := recordPlan()
			if c.egress {
				plan.Egress = &Egress{}
			}
			list, _ := recordNotified(t, plan, c.e)
			e := only(t, list)
			if e.Kind != callOf(c.e.NR).kind || e.Denied() != c.denied || trace.Object(&e) != c.object || c.denied != (e.Certainty == trace.Inferred) || (e.PathSource == trace.PathUnreadable) != c.e.Unreadable {
				t.Errorf("%+v", e)
			}
		})
	}
}

// The calls of the refused paths are known on every architecture by their own numbers.
func TestRefusedPaths(t *testing.T) {
	paths := refusedPaths()
	if at := paths[unix.SYS_OPENAT]; at != (notify.PathArg{Path: 1, Dir: 0}) {
		t.Errorf("openat: %+v", at)
	}
	if at := paths[unix.SYS_MOUNT]; at != (notify.PathArg{Path: 1, Dir: -1}) {
		t.Errorf("mount: %+v", at)
	}
}
