package supervisor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/seccomp"
	"github.com/agentguard/agentguard/landlock"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// restrictLabel is the step that fails with E2BIG after 16 layers.
const restrictLabel = "landlock_restrict_self()"

// sharedProgram is the envelope of a run without namespaces: every system call between its
// birth and the command's first instruction. [commandProgram] is that of the others.
func sharedProgram(p *Plan, m materials) *initproc.Program {
	p.Canary = nil // the canary notes its probes as they are added
	b := &builder{Program: &initproc.Program{}, plan: p, m: m}
	b.descriptors()
	b.joinCgroups()
	b.ownSession()
	b.signals()
	b.Call("session", "prctl(PR_SET_PDEATHSIG, SIGKILL)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_PDEATHSIG), initproc.Value(uint64(unix.SIGKILL)), zero(), zero(), zero())
	b.goTo(p.Dir)
	b.limits()
	b.Call("identity", "prctl(PR_CAP_AMBIENT_CLEAR_ALL)", unix.SYS_PRCTL, initproc.Value(unix.PR_CAP_AMBIENT), initproc.Value(unix.PR_CAP_AMBIENT_CLEAR_ALL), zero(), zero(), zero())
	b.Call("identity", "capset({})", unix.SYS_CAPSET, capHeader(b.Program), capData(b.Program, 0, 0))
	b.Call("identity", "prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NO_NEW_PRIVS), initproc.Value(1), zero(), zero(), zero())
	b.restrict()
	b.sharedCanary()
	b.files()
	b.exec()
	return b.Program
}

// ownSession makes the command a session of its own or, on a terminal, a job in the foreground of
// the guardian's ([guardian.lead] says why). Until it is there it would be stopped for saying so: it
// blocks SIGTTOU, and signals unblocks it.
func (b *builder) ownSession() {
	if !b.plan.Terminal {
		b.Call("session", "setsid()", unix.SYS_SETSID)
		return
	}
	set, own := make([]byte, 8), b.Bytes(make([]byte, 8))
	binary.LittleEndian.PutUint64(set, 1<<(unix.SIGTTOU-1))
	b.Call("session", "sigprocmask(SIG_BLOCK, SIGTTOU)", unix.SYS_RT_SIGPROCMASK, initproc.Value(unix.SIG_BLOCK), b.Bytes(set), zero(), initproc.Value(8))
	b.Call("session", "setpgid(0, 0)", unix.SYS_SETPGID, zero(), zero())
	b.Call("session", "getpid()", unix.SYS_GETPID).Save(b.Slot(own, 0))
	b.Call("session", "ioctl(terminal, TIOCSPGRP, self)", unix.SYS_IOCTL, zero(), initproc.Value(unix.TIOCSPGRP), own)
}

// goTo goes where the command starts: by descriptor where that is a grant, since no name is
// resolved twice.
func (b *builder) goTo(dir string) {
	for i := range b.plan.View {
		if e := &b.plan.View[i]; e.Op == "path" && e.At == dir {
			b.Call("session", "fchdir("+dir+")", unix.SYS_FCHDIR, b.File(int(e.open.File.Fd())))
			return
		}
	}
	b.Call("session", "chdir("+dir+")", unix.SYS_CHDIR, b.String(dir))
}

// sharedCanary shows that each layer bites. Every call would succeed, or fail otherwise,
// but for the layer that is named.
func (b *builder) sharedCanary() {
	b.probe("landlock", "open of a file that no rule grants", unix.EACCES, 0,
		unix.SYS_OPENAT, b.File(b.m.outside), b.String(b.m.readable), initproc.Value(unix.O_RDONLY), zero())
	b.probe("landlock", "creation of a file that no rule grants", unix.EACCES, 0,
		unix.SYS_OPENAT, b.File(b.m.outside), b.String("canary"), initproc.Value(unix.O_WRONLY|unix.O_CREAT), initproc.Value(0o600))
	if b.plan.LandlockABI >= 6 {
		b.probe("landlock", "kill(supervisor, 0)", unix.EPERM, 0, unix.SYS_KILL, initproc.Value(os.Getpid()), zero())
	}
	b.probeSeccomp()
	sock := func(label string, nr uintptr, family, kind int) {
		b.probe("seccomp", label, unix.EPERM, 0, nr, initproc.Value(family), initproc.Value(kind|unix.SOCK_CLOEXEC), zero(), b.Bytes(make([]byte, 8)))
	}
	sock("socket(AF_INET, SOCK_STREAM)", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM)
	sock("socket(AF_INET6, SOCK_DGRAM)", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM)
	sock("socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW)
	if !b.plan.Sharing.Unix {
		sock("socket(AF_UNIX, SOCK_STREAM)", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM)
		sock("socketpair(AF_UNIX, SOCK_DGRAM)", unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM)
	}
	nowhere := initproc.Value(8) // an address that nobody has: EFAULT, were it not for the filter
	b.probe("seccomp", "prlimit64(supervisor)", unix.EPERM, 0, unix.SYS_PRLIMIT64, initproc.Value(os.Getpid()), initproc.Value(unix.RLIMIT_CPU), nowhere, zero())
	b.probe("seccomp", "shmget(IPC_PRIVATE, 0)", unix.EPERM, 0, unix.SYS_SHMGET, zero(), zero(), zero())
	if !b.plan.Sharing.Metadata {
		b.probe("seccomp", "fchmodat(\"\")", unix.EPERM, 0, unix.SYS_FCHMODAT, at(), b.String(""), initproc.Value(0o600), zero())
	}
	b.probe("capabilities", "capset(CAP_SYS_ADMIN)", unix.EPERM, 0, unix.SYS_CAPSET, capHeader(b.Program), capData(b.Program, 1<<unix.CAP_SYS_ADMIN, 0))
}

// keeper is how a guardian without a PID namespace ends what it has begun, and what it does before
// its command is born, where it enters a domain by itself (doctor). The file is to be closed when
// that has been sent.
func keeper(abi int) (initproc.Keep, *initproc.Program, *os.File, error) {
	p, keep := &initproc.Program{}, initproc.KeepChildren
	var scope *os.File
	if abi >= 6 {
		var err error
		if scope, err = landlock.SignalScope(); err != nil {
			return 0, nil, nil, err
		}
		keep = initproc.KeepDomain
		p.Call("guardian", "prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NO_NEW_PRIVS), initproc.Value(1), zero(), zero(), zero())
		p.Call("guardian", restrictLabel, landlock.SysRestrictSelf, p.File(int(scope.Fd())), initproc.Value(landlock.RestrictFlags(abi))) // its kill(-1) is refused often, and is no news
	}
	keep.Adopt(p)
	return keep, p, scope, nil
}

// keeperProgram is the lockdown of such a guardian: it has nothing to give up but what it may call.
// It stays dumpable: on a /proc with hidepid the supervisor, which looks at its children, would not
// see it. The command is kept from it by its domain, and by the filter that refuses ptrace.
func keeperProgram() *initproc.Program {
	p := &initproc.Program{}
	p.Call("guardian", "prctl(PR_SET_NAME)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NAME), p.String("agentguard"), zero(), zero(), zero())
	p.Call("guardian", "prctl(PR_CAP_AMBIENT_CLEAR_ALL)", unix.SYS_PRCTL, initproc.Value(unix.PR_CAP_AMBIENT), initproc.Value(unix.PR_CAP_AMBIENT_CLEAR_ALL), zero(), zero(), zero())
	p.Call("guardian", "capset({})", unix.SYS_CAPSET, capHeader(p), capData(p, 0, 0))
	p.Call("guardian", "prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NO_NEW_PRIVS), initproc.Value(1), zero(), zero(), zero())
	seccompStep(p, "guardian", seccomp.KeeperFilter())
	return p
}

// withoutMounts takes from the policy what takes a mount, in a run that has none, and refuses
// what cannot be without.
func (r *Run) withoutMounts() error {
	if !r.host.Info.shared() {
		return nil
	}
	if err := impossible(r.cfg.Policy, r.host); err != nil {
		return err
	}
	if r.cfg.Continue != nil {
		return &Refusal{What: "--continue: changes cannot be staged without mounts", Remedy: helperRemedy}
	}
	r.cfg.Policy, r.lost = unstaged(r.cfg.Policy)
	return nil
}

// enterDomain makes the domain that the guardian is to be born in; twice is once.
func (r *Run) enterDomain() (err error) {
	if r.domain != nil {
		return nil
	}
	if r.domain, err = enterDomain(r.host.Info.Landlock); err == nil {
		r.release.push("domain", r.domain.leave)
	}
	return err
}

// cloneShared is the birth without namespaces.
func (r *Run) cloneShared(into *os.File) error {
	keep, before, start := initproc.KeepChildren, &initproc.Program{}, initproc.Start
	if r.host.Info.Landlock >= 6 {
		if err := r.enterDomain(); err != nil {
			return err
		}
		keep, start = initproc.KeepDomain, r.domain.start
	}
	keep.Adopt(before)
	p, err := start(initproc.Config{
		Cgroup: into, Stdin: r.stdio.childIn, Stdout: r.stdio.childOut, Stderr: r.stdio.childErr,
		Terminal: r.tty != nil, Keep: keep, Before: before, Guardian: keeperProgram(), Stopped: r.noteStop,
		FallbackExe: filepath.Join(r.runtime, "init"),
	})
	if err != nil {
		return err
	}
	r.proc = p
	return p.Locked(birthLimit)
}

// sharedMaterials are what the command's program uses in a run without mounts.
func (r *Run) sharedMaterials() (materials, error) {
	m := placeholders(r.plan)
	m.filter, m.outside, m.readable = r.filter, int(r.private.probe.Fd()), "probe"
	var err error
	m.ruleset, err = sharedRuleset(r.plan)
	return m, err
}

// tooManyLayers explains E2BIG of landlock_restrict_self(2).
func tooManyLayers(err error) *Refusal {
	return &Refusal{
		What: "this process has as many Landlock layers as the kernel takes, 16 (landlock(7))", Err: err,
		Remedy: fmt.Sprintf("start it outside of the other sandboxes: a run takes one layer, and %d without namespaces, so that agentguard in agentguard ends somewhere", layersAlone),
	}
}

// layersAlone are the layers of a run without namespaces: the guardian's and the command's.
const layersAlone = 2
