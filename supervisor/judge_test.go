package supervisor

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/trace"
)

// onPath is a refused call on a path, with the flags of an openat.
func onPath(nr int, errno unix.Errno, p string, flags uint64) bpf.Event {
	e := denied(nr, errno)
	e.Call.Path = []byte(p)
	e.Call.Args[2] = flags
	return e
}

func TestJudge(t *testing.T) {
	grantable := "process.seccomp_allow: [ptrace] in a policy file"
	if !seccomp.Permissible("ptrace") {
		grantable = ""
	}
	const roClause, wsClause = "filesystem.read_only_mounts", "filesystem.workspace"
	args := func(e bpf.Event, a ...uint64) bpf.Event { copy(e.Call.Args[:], a); return e }
	compat := denied(unix.SYS_MOUNT, unix.EPERM)
	compat.Flags = bpf.Compat
	v4 := []byte{unix.AF_INET, 0, 0, 80, 192, 0, 2, 1}
	for _, c := range []struct {
		name    string
		ev      bpf.Event
		kind    trace.Kind
		layer   trace.Layer
		certain bool
		rule    string
		source  string
		remedy  string
	}{
		{"not in the view", onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/data", 0), trace.KindOpen, trace.LayerLandlock, false, roClause, "default", "--ro /home/u/data"},
		{"not in the view, for writing", onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/data", unix.O_WRONLY), trace.KindOpen, trace.LayerLandlock, false, roClause, "default", "--rw /home/u/data"},
		{"a credential", onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/.ssh/id_rsa", 0), trace.KindOpen, trace.LayerLandlock, false, roClause, "default", ""},
		{"granted, and closed by its own mode", onPath(unix.SYS_OPENAT, unix.EACCES, "/srv/ws/secret", 0), trace.KindOpen, trace.LayerDAC, false, wsClause, "default", ""},
		{"granted for writing, closed by its mode", onPath(unix.SYS_OPENAT, unix.EACCES, "/srv/ws/secret", unix.O_RDWR), trace.KindOpen, trace.LayerDAC, false, wsClause, "default", ""},
		{"readable, and closed by its own mode", onPath(unix.SYS_OPENAT, unix.EACCES, "/srv/ro/x", 0), trace.KindOpen, trace.LayerDAC, false, roClause, "p.yaml:4:3", ""},
		{"writing where only reading is granted", onPath(unix.SYS_OPENAT, unix.EACCES, "/srv/ro/x", unix.O_WRONLY), trace.KindOpen, trace.LayerLandlock, false, roClause, "p.yaml:4:3", "--rw /srv/ro/x"},
		{"read-only mount", onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ro/x", unix.O_WRONLY), trace.KindOpen, trace.LayerMount, true, roClause, "p.yaml:4:3", "--rw /srv/ro/x"},
		{"the grant itself", onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ro", unix.O_WRONLY), trace.KindOpen, trace.LayerMount, true, roClause, "p.yaml:4:3", "--rw /srv/ro"},
		{"creation", onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ro/new", unix.O_WRONLY|unix.O_CREAT), trace.KindCreate, trace.LayerMount, true, roClause, "p.yaml:4:3", "--rw /srv/ro"},
		{"mkdir", onPath(unix.SYS_MKDIRAT, unix.EACCES, "/srv/ro/d", 0), trace.KindMkdir, trace.LayerLandlock, false, roClause, "p.yaml:4:3", "--rw /srv/ro"},
		{"unlink", onPath(unix.SYS_UNLINKAT, unix.EROFS, "/srv/ro/d", 0), trace.KindUnlink, trace.LayerMount, true, roClause, "p.yaml:4:3", "--rw /srv/ro"},
		{"granted for writing, on a read-only file system of the host's", onPath(unix.SYS_OPENAT, unix.EROFS, "/srv/ws/x", unix.O_WRONLY), trace.KindOpen, trace.LayerDAC, false, wsClause, "default", ""},
		{"a part of every run's view", onPath(unix.SYS_OPENAT, unix.EROFS, "/usr/lib/x", unix.O_WRONLY), trace.KindOpen, trace.LayerMount, true, roClause, "default", ""},
		{"nothing but an errno", denied(unix.SYS_SETPRIORITY, unix.EACCES), trace.KindDeny, trace.LayerDAC, false, "", "", ""},
		{"chmod of what is another's", onPath(unix.SYS_FCHMODAT, unix.EPERM, "/srv/ws/x", 0), trace.KindChmod, trace.LayerDAC, false, wsClause, "default", ""},
		{"refused by the filter", denied(unix.SYS_MOUNT, unix.EPERM), trace.KindDeny, trace.LayerSeccomp, true, "process.seccomp_allow", "default", ""},
		{"refused by the filter, another errno", denied(unix.SYS_MOUNT, unix.EACCES), trace.KindDeny, trace.LayerDAC, false, "", "", ""},
		{"a 32-bit call of that number", compat, trace.KindDeny, trace.LayerDAC, false, "", "", ""},
		{"absent", denied(unix.SYS_CLONE3, unix.ENOSYS), trace.KindDeny, trace.LayerSeccomp, true, "process.seccomp_allow", "default", ""},
		{"of a newer kernel", denied(700, unix.ENOSYS), trace.KindDeny, trace.LayerSeccomp, true, "process.seccomp_allow", "default", ""},
		{"by its argument", args(denied(unix.SYS_SOCKET, unix.EPERM), unix.AF_PACKET, unix.SOCK_RAW), trace.KindSocket, trace.LayerSeccomp, true, "process.seccomp_allow", "default", ""},
		{"by an argument's low half", args(denied(unix.SYS_IOCTL, unix.EPERM), 0, unix.TIOCSTI|1<<40), trace.KindDeny, trace.LayerSeccomp, true, "process.seccomp_allow", "default", ""},
		{"an allowed ioctl", args(denied(unix.SYS_IOCTL, unix.EPERM), 0, unix.TCGETS), trace.KindDeny, trace.LayerDAC, false, "", "", ""},
		{"connect", withAddr(unix.SYS_CONNECT, unix.EPERM, v4), trace.KindConnect, trace.LayerBPF, false, "network.egress", "default", ""},
		{"connect to a socket file", withAddr(unix.SYS_CONNECT, unix.EACCES, []byte("\x01\x00/run/x\x00")), trace.KindConnect, trace.LayerDAC, false, "network.unix", "default", ""},
		{"signal", denied(unix.SYS_KILL, unix.EPERM), trace.KindSignal, trace.LayerLandlock, false, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, r := record(t, recordPlan(), c.ev)
			e := only(t, list)
			if e.Kind != c.kind || e.Layer != c.layer || (e.Certainty == trace.Certain) != c.certain || e.Verdict != trace.VerdictDeny {
				t.Errorf("%s refused by %s (%s), want %s by %s, certain %v", e.Kind, e.Layer, e.Certainty, c.kind, c.layer, c.certain)
			}
			if e.Rule != c.rule || e.RuleSource != c.source {
				t.Errorf("rule %q (%s), want %q (%s)", e.Rule, e.RuleSource, c.rule, c.source)
			}
			if !strings.HasPrefix(e.Remedy, "process.") && e.Remedy != c.remedy {
				t.Errorf("remedy %q, want %q", e.Remedy, c.remedy)
			}
			if e.Layer == trace.LayerSeccomp && (e.Remedy != "") != seccomp.Permissible(e.Syscall) {
				t.Errorf("remedy %q, but grantable: %v", e.Remedy, seccomp.Permissible(e.Syscall))
			}
			if r.denied.total != 1 || int32(-c.ev.Ret) != e.Errno {
				t.Errorf("%d denials, errno %d", r.denied.total, e.Errno)
			}
		})
	}
	list, _ := record(t, recordPlan(), denied(unix.SYS_PTRACE, unix.EPERM))
	if e := only(t, list); e.Layer == trace.LayerSeccomp && e.Remedy != grantable {
		t.Errorf("remedy %q, want %q", e.Remedy, grantable)
	}
}

// Layers that the host lacks are not blamed, and calls that the policy allows
// are not the filter's.
func TestJudgeByPlan(t *testing.T) {
	plan := recordPlan()
	plan.LandlockABI = 0
	list, _ := record(t, plan, onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/data", 0))
	if e := only(t, list); e.Layer != trace.LayerDAC {
		t.Errorf("without Landlock: %+v", e)
	}
	plan.LandlockABI = 5
	list, _ = record(t, plan, denied(unix.SYS_KILL, unix.EPERM))
	if e := only(t, list); e.Layer != trace.LayerDAC {
		t.Errorf("a signal before ABI 6: %+v", e)
	}
	for nr := range 450 {
		name := seccomp.Name(nr)
		if !seccomp.Permissible(name) || (seccomp.Config{}).Decide(nr, [6]uint64{}).Errno() != unix.EPERM {
			continue
		}
		plan.SeccompExtra = []string{name}
		list, _ = record(t, plan, denied(nr, unix.EPERM))
		if e := only(t, list); e.Layer == trace.LayerSeccomp {
			t.Errorf("%s is allowed by the policy, and blamed on the filter", name)
		}
		return
	}
	t.Error("no call can be granted")
}

// A path that was cut, or could not be read, says so.
func TestRecordPathQuality(t *testing.T) {
	cut := onPath(unix.SYS_OPENAT, unix.EACCES, "/home/u/"+strings.Repeat("x", 4088), 0)
	cut.Flags = bpf.Truncated
	list, _ := record(t, recordPlan(), cut)
	if e := only(t, list); int(e.PathLen) <= len(e.Path) || e.Remedy != "" || e.PathSource != trace.PathUser {
		t.Errorf("cut: %+v", e)
	}
	unreadable := onPath(unix.SYS_OPENAT, unix.EACCES, "", 0)
	unreadable.Flags = bpf.Unreadable
	list, _ = record(t, recordPlan(), unreadable)
	if e := only(t, list); e.PathSource != trace.PathUnreadable || len(e.Path) != 0 {
		t.Errorf("unreadable: %+v", e)
	}
	two := onPath(unix.SYS_RENAMEAT2, unix.EROFS, "/srv/ro/a", 0)
	two.Call.Path2 = []byte("/srv/ws/b")
	list, _ = record(t, recordPlan(), two)
	if e := only(t, list); e.Kind != trace.KindRename || string(e.To) != "/srv/ws/b" {
		t.Errorf("rename: %+v", e)
	}
}

func TestExecFail(t *testing.T) {
	e := onPath(unix.SYS_EXECVE, unix.ENOENT, "/usr/bin/nothing", 0)
	e.Type = bpf.ExecFail
	list, r := record(t, recordPlan(), e)
	if got := only(t, list); got.Kind != trace.KindExecFail || got.Errno != int32(unix.ENOENT) || string(got.Path) != "/usr/bin/nothing" || got.Verdict != "" || r.denied.total != 0 {
		t.Errorf("%+v", got)
	}
}

// Each act has one kind, whichever call it was made by.
func TestDenyKind(t *testing.T) {
	for nr, kind := range map[int]trace.Kind{
		unix.SYS_OPENAT: trace.KindOpen, unix.SYS_OPENAT2: trace.KindOpen, unix.SYS_MKNODAT: trace.KindCreate, unix.SYS_UNLINKAT: trace.KindUnlink,
		unix.SYS_RENAMEAT2: trace.KindRename, unix.SYS_LINKAT: trace.KindLink, unix.SYS_SYMLINKAT: trace.KindLink, unix.SYS_TRUNCATE: trace.KindTruncate,
		unix.SYS_FCHMOD: trace.KindChmod, unix.SYS_FCHOWNAT: trace.KindChown, unix.SYS_LSETXATTR: trace.KindSetxattr, unix.SYS_REMOVEXATTR: trace.KindSetxattr,
		unix.SYS_CONNECT: trace.KindConnect, unix.SYS_SENDMMSG: trace.KindSend, unix.SYS_SOCKETPAIR: trace.KindSocket, unix.SYS_TGKILL: trace.KindSignal,
		unix.SYS_PIDFD_SEND_SIGNAL: trace.KindSignal, unix.SYS_EXECVEAT: trace.KindExecFail, unix.SYS_MOUNT: trace.KindDeny,
	} {
		if got := callOf(nr).kind; got != kind {
			t.Errorf("%s is %s, want %s", seccomp.Name(nr), got, kind)
		}
	}
	if callOf(unix.SYS_REBOOT).kind != trace.KindDeny || callOf(99999).kind != trace.KindDeny {
		t.Error("a call without a kind of its own has one")
	}
}

// What needs a word under unsafe is no advice.
func TestRemedyOf(t *testing.T) {
	for path, want := range map[string]string{"/var/cache": "", "/usr/local": "", "/home/u": "", "/srv/x/y": "--rw /srv/x", "/var/cache/x": "--rw /var/cache"} {
		if got := remedyOf(&trace.Event{Kind: trace.KindMkdir, Path: []byte(path)}); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
