package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/landlock"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// materials are the descriptors that the command's program uses.
type materials struct {
	mounts  *mountSet
	ruleset *os.File   // nil: the host has no Landlock
	join    []*os.File // v1 tasks files, and cgroup.procs when the birth was outside
	filter  []byte     // sock_filter array of the command
	notify  *os.File   // where PID 2 sends the filter's listener; nil: it has none
	watch   int        // fanotify group that marks what the process mounts itself
	watched bool       // there is one

	late      bool // the process was born before its caller was known
	oneOutput bool // then: stderr is to be what stdout is

	// Of a run without namespaces.
	outside  int    // O_PATH: a directory that no rule grants, in which everybody may read the file
	readable string // of this name
}

// placeholders stand for the materials of a run that will not be: the list of
// calls, and with it the canary, is known before anything exists.
func placeholders(p *Plan) materials {
	return materials{ // a nil File is descriptor -1
		mounts: &mountSet{mounts: map[string]*os.File{}, masked: map[string]bool{}}, watch: -1, watched: p.Host.ExecEvents,
	}
}

// Close releases the mounts and the ruleset; what is attached stays. Safe to
// call twice.
func (m *materials) Close() error {
	err := m.mounts.Close()
	if m.ruleset != nil {
		err = errors.Join(err, m.ruleset.Close())
		m.ruleset = nil
	}
	return err
}

// builder writes the program of the command: the order of an envelope, from an
// empty mount namespace to execve, is the order of the calls in [commandProgram].
type builder struct {
	*initproc.Program
	plan   *Plan
	m      materials
	procfs initproc.Slot // a mounted /proc that waits for its place; see openProc
}

// commandProgram is the envelope. Read it from top to bottom: this is every
// system call between birth and the command's first instruction.
func commandProgram(p *Plan, m materials) *initproc.Program {
	if p.Host.shared() {
		return sharedProgram(p, m)
	}
	p.Canary = nil // the canary notes its probes as they are added
	b := &builder{Program: &initproc.Program{}, plan: p, m: m}
	b.inherit()     // what it has not had from its parent
	b.descriptors() // nothing but 0, 1, 2 survives execve
	b.session()     // own session, own cgroup view, default signals
	if !p.off("mount") {
		b.attachView() // the prepared mounts become the only tree
		b.proc()       // a /proc of the new PID namespace, its dangerous parts masked
		b.sealRoot()   // the synthetic root becomes read-only
	}
	b.limits() // resource limits
	b.countTasks()
	b.identity() // ids, groups, capabilities, no_new_privs
	b.restrict() // Landlock, then seccomp
	b.canary()   // each layer shows that it bites
	b.files()    // how many it may have open, which these calls open some of
	b.exec()     // the command
	return b.Program
}

// noteCanary puts the probes into a plan, which has them before the program exists.
func noteCanary(p *Plan) {
	p.Canary = nil
	b := &builder{Program: &initproc.Program{}, plan: p, m: placeholders(p)}
	if p.Host.shared() {
		b.sharedCanary()
	} else {
		b.canary()
	}
}

const cwd = ^uint64(99) // AT_FDCWD (-100)

func at() initproc.Arg   { return initproc.Value(cwd) }
func zero() initproc.Arg { return initproc.Value(0) }

func (b *builder) descriptors() {
	b.Call("descriptors", "close_range(3, ~0, CLOSE_RANGE_CLOEXEC)", unix.SYS_CLOSE_RANGE,
		initproc.Value(3), initproc.Value(uint32(0xffffffff)), initproc.Value(unix.CLOSE_RANGE_CLOEXEC))
	b.Call("descriptors", "umask(022)", unix.SYS_UMASK, initproc.Value(0o022))
}

// lastSignal is the highest signal number. A caller may have ignored any
// (nohup, shells, a runtime that ignores SIGPIPE), and that survives execve.
const lastSignal = 64

// joinCgroups enters those that the process was not born in.
func (b *builder) joinCgroups() {
	for _, f := range b.m.join {
		b.Call("cgroup", "write(\"0\") to "+f.Name(), unix.SYS_WRITE, b.File(int(f.Fd())), b.String("0"), initproc.Value(1))
	}
}

func (b *builder) session() {
	b.joinCgroups()
	if !b.plan.Terminal { // where there is one, PID 1 leads the session that it controls
		b.Call("session", "setsid()", unix.SYS_SETSID)
	}
	b.Call("session", "unshare(CLONE_NEWCGROUP)", unix.SYS_UNSHARE, initproc.Value(unix.CLONE_NEWCGROUP))
	b.signals()
	b.Call("session", "sethostname("+Hostname+")", unix.SYS_SETHOSTNAME, b.String(Hostname), initproc.Value(len(Hostname)))
}

// signals undoes what a caller has ignored or blocked, and its advantage over others.
func (b *builder) signals() {
	dfl := b.Bytes(make([]byte, 32)) // struct sigaction of zeros: SIG_DFL
	for s := 1; s <= lastSignal; s++ {
		if s != int(unix.SIGKILL) && s != int(unix.SIGSTOP) {
			b.Call("session", "sigaction("+signalName(s)+", SIG_DFL)", unix.SYS_RT_SIGACTION, initproc.Value(s), dfl, zero(), initproc.Value(8))
		}
	}
	b.Call("session", fmt.Sprintf("prctl(PR_SET_TIMERSLACK, %d)", defaultSlack), unix.SYS_PRCTL, initproc.Value(unix.PR_SET_TIMERSLACK), initproc.Value(defaultSlack), zero(), zero(), zero())
	if b.plan.Nice < 0 { // getpriority's 20 - nice is undone: a caller's advantage is not the command's
		b.Call("session", "setpriority(PRIO_PROCESS, 0, 0)", unix.SYS_SETPRIORITY, initproc.Value(unix.PRIO_PROCESS), zero(), zero())
	}
	b.Call("session", "sigprocmask(SIG_SETMASK, {})", unix.SYS_RT_SIGPROCMASK, initproc.Value(unix.SIG_SETMASK), dfl, zero(), initproc.Value(8))
}

// ownDir is agentguard's own place in the synthetic root, covered in the end.
const ownDir = ".agentguard"

// scratchAt is where the scratch file system is attached as a whole, in a
// directory that only root may enter. It stays there: its parts are cloned from
// it (a detached mount cannot be, before Linux 6.15), and an umount would cost
// one more RCU grace period at every start.
const scratchAt = ownDir + "/scratch"

func signalName(s int) string {
	if name := unix.SignalName(unix.Signal(s)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", s)
}

// mountFlagsEmpty lets move_mount take both ends by descriptor.
const mountFlagsEmpty = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH

func (b *builder) attachView() {
	empty, root := b.String(""), b.String("/")
	b.openProc(empty)
	b.Call("mount", "mount / MS_REC|MS_PRIVATE", unix.SYS_MOUNT, zero(), root, zero(), initproc.Value(unix.MS_REC|unix.MS_PRIVATE), zero())
	b.Call("mount", "move_mount(root, /)", unix.SYS_MOVE_MOUNT, b.File(int(b.m.mounts.root.Fd())), empty, at(), root, initproc.Value(unix.MOVE_MOUNT_F_EMPTY_PATH))
	b.Call("mount", "fchdir(root)", unix.SYS_FCHDIR, b.File(int(b.m.mounts.root.Fd())))
	b.Call("mount", "move_mount(scratch, "+scratchAt+")", unix.SYS_MOVE_MOUNT, b.File(int(b.m.mounts.scratch.Fd())), empty, at(), b.String(scratchAt),
		initproc.Value(unix.MOVE_MOUNT_F_EMPTY_PATH))
	for i := range b.plan.View {
		b.attach(&b.plan.View[i], empty)
	}
	b.limitFiles()
	b.coverOwn(empty)
	dot := b.String(".")
	b.Call("mount", pivotLabel, unix.SYS_PIVOT_ROOT, dot, dot)
	b.Call("mount", "umount2(., MNT_DETACH)", unix.SYS_UMOUNT2, dot, initproc.Value(unix.MNT_DETACH))
	b.Call("mount", "chdir(/)", unix.SYS_CHDIR, root)
}

// attach puts one entry's mount in its place. The place is opened without
// following links and mounted onto by descriptor.
func (b *builder) attach(e *Entry, empty initproc.Arg) {
	switch e.Op {
	case "scratch":
		b.moveTo(b.watched(b.clone(scratchAt+"/"+e.From), e.At, codewatch.MarkMount), e.At, empty)
	case "mask":
		if b.m.mounts.masked[e.At] {
			b.cloneTo(scratchAt+"/"+maskFile, e.At, empty)
		}
	case "cow":
		b.attachCow(e, empty)
	case "pin":
		b.pinMount(e, empty)
	case "bind", "devpts":
		b.moveTo(b.File(int(b.m.mounts.mounts[e.At].Fd())), e.At, empty)
	case "cgroup":
		for _, place := range sortedKeys(b.m.mounts.mounts) {
			if within(place, e.At) {
				b.moveTo(b.File(int(b.m.mounts.mounts[place].Fd())), place, empty)
			}
		}
	}
}

// cloneTo mounts a part of the scratch file system in its place.
func (b *builder) cloneTo(from, to string, empty initproc.Arg) {
	b.moveTo(b.clone(from), to, empty)
}

func (b *builder) clone(from string) initproc.Arg {
	src := b.NewSlot()
	b.Call("mount", "open_tree("+from+", CLONE)", unix.SYS_OPEN_TREE, at(), b.String(from), initproc.Value(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Save(src)
	return b.Saved(src)
}

// watched marks a directory's mount, which goes to at, before anything in it can
// be executed. The mark is the group's of the supervisor.
func (b *builder) watched(tree initproc.Arg, at string, kind codewatch.MarkFlags) initproc.Arg {
	if b.m.watched {
		b.Call("mount", "fanotify_mark("+at+", "+kind.String()+", OPEN_EXEC_PERM)", unix.SYS_FANOTIFY_MARK,
			b.File(b.m.watch), initproc.Value(uint64(kind)), initproc.Value(uint64(codewatch.MarkMask)), tree, b.String("."))
	}
	return tree
}

func (b *builder) moveTo(src initproc.Arg, to string, empty initproc.Arg) {
	dst := b.openBeneath(to)
	b.Call("mount", "move_mount to "+to, unix.SYS_MOVE_MOUNT, src, empty, b.Saved(dst), empty, initproc.Value(mountFlagsEmpty))
}

// openBeneath opens a place of the new root without following links.
func (b *builder) openBeneath(to string) initproc.Slot {
	how := make([]byte, 24) // struct open_how
	binary.LittleEndian.PutUint64(how, unix.O_PATH|unix.O_CLOEXEC)
	binary.LittleEndian.PutUint64(how[16:], unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	dst := b.NewSlot()
	b.Call("mount", "openat2("+to+", O_PATH, BENEATH|NO_SYMLINKS)", unix.SYS_OPENAT2, at(), b.String(strings.TrimPrefix(to, "/")), b.Bytes(how), initproc.Value(24)).Save(dst)
	return dst
}

// procReadOnly and procMasked are the parts of /proc that steer or show the
// machine. A uid without capabilities could not write most of them; this is
// the second layer, and the only one for --user 0.
var (
	procReadOnly = []string{"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"}
	procMasked   = []string{"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/sched_debug", "/proc/vmallocinfo"}
)

// userns reports whether the run is made in a user namespace of the supervisor's own.
func (b *builder) userns() bool { return b.plan.Host.Mode == ModeUserNS }

// readOnly is a struct mount_attr for what can be read and nothing else.
func (b *builder) readOnly() initproc.Arg {
	attr := make([]byte, 32)
	binary.LittleEndian.PutUint64(attr, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return b.Bytes(attr)
}

func (b *builder) proc() {
	empty := b.String("")
	if b.userns() {
		b.Call("proc", "move_mount to /proc", unix.SYS_MOVE_MOUNT, b.Saved(b.procfs), empty, at(), b.String("/proc"), initproc.Value(unix.MOVE_MOUNT_F_EMPTY_PATH))
	} else {
		b.Call("proc", "mount proc hidepid=2", unix.SYS_MOUNT, b.String("proc"), b.String("/proc"), b.String("proc"),
			initproc.Value(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), b.String(fmt.Sprintf("hidepid=2,gid=%d", GuardianUID))) // by default group 0 sees all
	}
	ro := b.readOnly()
	for _, p := range b.plan.ProcReadOnly {
		tree, name := b.NewSlot(), b.String(p)
		b.Call("proc", "open_tree("+p+", CLONE)", unix.SYS_OPEN_TREE, at(), name, initproc.Value(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)).Save(tree)
		b.Call("proc", "mount_setattr("+p+", RDONLY)", unix.SYS_MOUNT_SETATTR, b.Saved(tree), empty, initproc.Value(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), ro, initproc.Value(32))
		b.Call("proc", "move_mount to "+p, unix.SYS_MOVE_MOUNT, b.Saved(tree), empty, at(), name, initproc.Value(unix.MOVE_MOUNT_F_EMPTY_PATH))
	}
	if adj := strconv.Itoa(max(b.plan.OOMScoreAdj, 0)); b.plan.OOMScoreAdj < 0 || b.m.late { // the caller's protection from the OOM killer is not the command's
		fd := b.NewSlot()
		b.Call("proc", "open(/proc/self/oom_score_adj)", unix.SYS_OPENAT, at(), b.String("/proc/self/oom_score_adj"), initproc.Value(unix.O_WRONLY|unix.O_CLOEXEC), zero()).Save(fd)
		b.Call("proc", fmt.Sprintf("write(%q) to oom_score_adj", adj), unix.SYS_WRITE, b.Saved(fd), b.String(adj), initproc.Value(len(adj)))
	}
	null := b.String("/dev/null")
	for _, p := range b.plan.ProcMasked {
		b.Call("proc", "mount /dev/null on "+p, unix.SYS_MOUNT, null, b.String(p), zero(), initproc.Value(unix.MS_BIND), zero())
	}
	if b.plan.LandlockABI == 0 {
		return
	}
	rule := b.Bytes(landlock.PathBeneath(landlock.Rights(landlock.Proc, b.plan.LandlockABI, true)))
	b.Call("landlock", "open(/proc, O_PATH)", unix.SYS_OPENAT, at(), b.String("/proc"), initproc.Value(unix.O_PATH|unix.O_CLOEXEC), zero()).Save(b.Slot(rule, landlock.ParentFDOffset))
	b.Call("landlock", "landlock_add_rule(/proc)", landlock.SysAddRule, b.File(int(b.m.ruleset.Fd())), initproc.Value(landlock.RulePathBeneath), rule, zero())
}

func (b *builder) sealRoot() {
	attr := make([]byte, 32)
	binary.LittleEndian.PutUint64(attr, unix.MOUNT_ATTR_RDONLY)
	b.Call("mount", "mount_setattr(/, RDONLY)", unix.SYS_MOUNT_SETATTR, at(), b.String("/"), zero(), b.Bytes(attr), initproc.Value(32))
	b.Call("mount", "chdir("+b.plan.Dir+")", unix.SYS_CHDIR, b.String(b.plan.Dir))
}

// Securebits of a process that never regains capabilities by uid or execve:
// NOROOT, NO_SETUID_FIXUP, both locked, and KEEP_CAPS locked off (capabilities(7)).
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5

func (b *builder) identity() {
	identitySteps(b.Program, "identity", b.plan.Host.Mode, b.plan.Identity, b.plan.off("caps"))
	b.Call("identity", "prctl(PR_SET_NO_NEW_PRIVS)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_NO_NEW_PRIVS), initproc.Value(1), zero(), zero(), zero())
}

// identitySteps give up groups, ids and every capability, in the one order that works.
// In a user namespace that maps one user there is no other id to take, and groups cannot
// be given up (user_namespaces(7)).
func identitySteps(p *initproc.Program, stage, mode string, id Identity, keepCaps bool) {
	if mode != ModeUserNS {
		p.Call(stage, "setgroups(0)", unix.SYS_SETGROUPS, zero(), zero())
	}
	if keepCaps { // test seam: the second layer is shown to hold alone
		p.Call(stage, "prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_SECUREBITS), initproc.Value(1<<2), zero(), zero(), zero())
	} else {
		p.Call(stage, "prctl(PR_CAP_AMBIENT_CLEAR_ALL)", unix.SYS_PRCTL, initproc.Value(unix.PR_CAP_AMBIENT), initproc.Value(unix.PR_CAP_AMBIENT_CLEAR_ALL), zero(), zero(), zero())
		p.Call(stage, "prctl(PR_SET_SECUREBITS, 0x2f)", unix.SYS_PRCTL, initproc.Value(unix.PR_SET_SECUREBITS), initproc.Value(secureBits), zero(), zero(), zero())
	}
	if mode != ModeUserNS {
		g, u := initproc.Value(id.GID), initproc.Value(id.UID)
		p.Call(stage, fmt.Sprintf("setresgid(%d)", id.GID), unix.SYS_SETRESGID, g, g, g)
		p.Call(stage, fmt.Sprintf("setresuid(%d)", id.UID), unix.SYS_SETRESUID, u, u, u)
	}
	if keepCaps {
		return
	}
	p.Call(stage, "capset({})", unix.SYS_CAPSET, capHeader(p), capData(p, 0, 0))
}

// capHeader is a struct __user_cap_header_struct of this thread (capset(2)).
func capHeader(p *initproc.Program) initproc.Arg {
	header := make([]byte, 8) // version, pid 0
	binary.LittleEndian.PutUint32(header, unix.LINUX_CAPABILITY_VERSION_3)
	return p.Bytes(header)
}

// capData are two struct __user_cap_data_struct: of effective and permitted, and of
// inheritable capabilities, one bit each.
func capData(p *initproc.Program, permitted, inheritable uint64) initproc.Arg {
	b := make([]byte, 0, 24)
	for _, shift := range []int{0, 32} {
		for _, set := range []uint64{permitted, permitted, inheritable} {
			b = binary.LittleEndian.AppendUint32(b, uint32(set>>shift))
		}
	}
	return p.Bytes(b)
}

func (b *builder) restrict() {
	if b.plan.LandlockABI > 0 && !b.plan.off("landlock") {
		b.Call("landlock", restrictLabel, landlock.SysRestrictSelf, b.File(int(b.m.ruleset.Fd())), initproc.Value(landlock.RestrictFlags(b.plan.LandlockABI)))
	}
	switch {
	case b.plan.off("seccomp"):
	case b.plan.Notify:
		b.notifyStep()
	default:
		seccompStep(b.Program, "seccomp", b.m.filter)
	}
}

func seccompStep(p *initproc.Program, stage string, filter []byte) {
	prog := p.Words(initproc.Value(len(filter)/8), p.Bytes(filter)) // struct sock_fprog
	p.Call(stage, fmt.Sprintf("seccomp(SET_MODE_FILTER, %d instructions)", len(filter)/8), unix.SYS_SECCOMP, initproc.Value(unix.SECCOMP_SET_MODE_FILTER), zero(), prog)
}

func (b *builder) exec() {
	argv, env := b.Strings(b.plan.Argv), b.Strings(b.plan.Env)
	for i, c := range b.plan.Candidates {
		b.Exec("execve("+c+")", unix.SYS_EXECVE, i == 0, b.String(c), argv, env)
	}
}
