package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/internal/outer"
	initproc "github.com/agentguard/agentguard/supervisor/init"
)

// Modes: who makes the envelope, and with what rights. Decision 0031.
const (
	ModeRoot     = "root"     // root, in this process or in the helper's
	ModeUserNS   = "userns"   // a user, in a user namespace of this process's own
	ModeLandlock = "landlock" // a user, without namespaces
)

// entered is what became of [Enter], which was called by the program that this process ran before.
var entered atomic.Pointer[entry]

type entry struct {
	err    error
	userns UserNS // why there is none, where nothing was done
}

// Entered reports whether this process has come back from [Enter], and with what: nil, it
// is in namespaces of its own; else a *Refusal that says which step failed and what forbids it.
func Entered() (bool, error) {
	e := entered.Load()
	if e == nil {
		return false, nil
	}
	return true, e.err
}

// mode is how this process makes an envelope; "": not at all.
func mode() string {
	switch e := entered.Load(); {
	case e == nil && os.Geteuid() == 0:
		return ModeRoot
	case e == nil:
		return ""
	case e.err == nil:
		return ModeUserNS
	case e.userns.Untouched:
		return ModeLandlock
	}
	return ""
}

// Lesser reports whether [Enter] has found no user namespace for this process, and left it
// as it was: runs are then confined by Landlock and seccomp alone.
func Lesser() bool { return mode() == ModeLandlock }

// HostRoot reports whether this process is root, and not only of a user namespace that a container
// engine made: such a root loads no program, and is a user like others.
func HostRoot() bool {
	return os.Geteuid() == 0 && !foreign(os.Readlink, "user", initialUserNS)
}

// capabilities that a supervisor in its own user namespace keeps: over that namespace and
// what belongs to it, and nothing of the host's.
var entryCaps = []struct {
	name string
	n    int
}{
	{"DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE}, // what the command made for nobody is read for its change set
	{"DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH},
	{"FOWNER", unix.CAP_FOWNER},
	{"SETPCAP", unix.CAP_SETPCAP},                   // securebits of the run's processes
	{"NET_BIND_SERVICE", unix.CAP_NET_BIND_SERVICE}, // the resolver of the run's network
	{"NET_ADMIN", unix.CAP_NET_ADMIN},               // its addresses
	{"NET_RAW", unix.CAP_NET_RAW},                   // its relay answers with whole packets
	{"SYS_CHROOT", unix.CAP_SYS_CHROOT},             // setns(2) to a mount namespace
	{"SYS_PTRACE", unix.CAP_SYS_PTRACE},             // /proc of PID 1, which is not dumpable
	{"SYS_ADMIN", unix.CAP_SYS_ADMIN},               // mounts and namespaces
	{"SYS_NICE", unix.CAP_SYS_NICE},                 // the monitor thread's timer slack
}

// entryCalls move a process that has one thread into a user and a mount namespace in which
// it is itself: the same ids, with capabilities over these namespaces that survive execve.
func entryCalls(uid, gid int) *initproc.Program {
	p := &initproc.Program{}
	p.Call("enter", "unshare(CLONE_NEWUSER|CLONE_NEWNS)", unix.SYS_UNSHARE, initproc.Value(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	mapOneself(p, "enter", uid, gid)
	// What the host mounts meanwhile is seen; nothing of ours is seen by the host.
	p.Call("enter", "mount(/, MS_REC|MS_SLAVE)", unix.SYS_MOUNT, zero(), p.String("/"), zero(), initproc.Value(unix.MS_REC|unix.MS_SLAVE), zero())
	var set uint64
	for _, c := range entryCaps {
		set |= 1 << c.n
	}
	p.Call("enter", "capset(permitted and inheritable)", unix.SYS_CAPSET, capHeader(p), capData(p, set, set))
	for _, c := range entryCaps {
		p.Call("enter", "prctl(PR_CAP_AMBIENT_RAISE, CAP_"+c.name+")", unix.SYS_PRCTL, initproc.Value(unix.PR_CAP_AMBIENT),
			initproc.Value(unix.PR_CAP_AMBIENT_RAISE), initproc.Value(c.n), zero(), zero())
	}
	return p
}

// mapOneself shows the ids of a process in the user namespace that it has just made, as
// they are outside.
func mapOneself(p *initproc.Program, stage string, uid, gid int) {
	for _, f := range []struct{ name, text string }{
		{"setgroups", "deny"}, // before a group can be mapped (user_namespaces(7))
		{"uid_map", fmt.Sprintf("%d %d 1", uid, uid)},
		{"gid_map", fmt.Sprintf("%d %d 1", gid, gid)},
	} {
		fd := p.NewSlot()
		p.Call(stage, "open(/proc/self/"+f.name+")", unix.SYS_OPENAT, at(), p.String("/proc/self/"+f.name), initproc.Value(unix.O_WRONLY|unix.O_CLOEXEC), zero()).Save(fd)
		p.Call(stage, "write("+f.text+") to "+f.name, unix.SYS_WRITE, p.Saved(fd), p.String(f.text), initproc.Value(len(f.text)))
	}
}

// Enter moves this process into a user and a mount namespace of its own: for a user
// without root, before anything else is done. The program is started anew, with the same
// arguments, environment and descriptors, and is told by [Entered]. Enter returns only
// when nothing was done.
func Enter() error {
	if in, _ := Entered(); in {
		return errors.New("already in namespaces of our own")
	}
	if restrictedByAppArmor() { // a namespace could be made, and only in it would we see that it is of no use
		if u := ProbeUserNS(); !u.OK {
			u.Untouched = true
			entered.Store(&entry{err: errors.Join(u.Refusal(), ownProcess()), userns: u})
			return u.Refusal()
		}
	}
	exe, err := os.OpenFile("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer exe.Close()
	return byLimit(initproc.Enter(entryCalls(os.Geteuid(), os.Getegid()), exe, os.Args, os.Environ(), entryFallback()))
}

// entryFallback is where the init program is written where memfds must not be executed.
func entryFallback() string {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Join(dir, "agentguard-init")
}

// Leave ends what [Enter] has left outside: to be called last in a program that calls Enter.
func Leave() { outer.Leave() }

// comeBack takes note of an Enter, once, before anything is started.
func comeBack() {
	n := initproc.TakeEntered()
	if n == nil {
		return
	}
	if HostRoot() { // never enters: somebody else has set the variable
		_ = n.Outside.Close()
		return
	}
	e := &entry{err: outer.Use(n.Outside, n.Pid)}
	if n.Errno != 0 {
		outer.Leave() // we are where it is, or of no use
		e.userns = userNSFailure(n.Step, n.Errno)
		e.userns.Untouched = n.Step == 0 || n.Step == initproc.NoOutside
		e.err = errors.Join(e.userns.Refusal(), ownProcess())
	} else {
		e.err = errors.Join(e.err, ownNamespaces(), ownProcess())
	}
	entered.Store(e)
}

// ownNamespaces is an error unless we have rights over our mount namespace and it belongs to our
// user namespace: else somebody else has set the variable that says so.
func ownNamespaces() error {
	if held, err := lockdown.Held(); err != nil || held&lockdown.Of(unix.CAP_SYS_ADMIN) == 0 {
		return &Refusal{What: "the mount namespace is not this process's own: there is no capability over it", Err: err}
	}
	user, err := os.Open("/proc/self/ns/user")
	if err != nil {
		return err
	}
	defer user.Close()
	mnt, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	defer mnt.Close()
	fd, err := unix.IoctlRetInt(int(mnt.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return &Refusal{What: "the mount namespace is not this process's own", Err: os.NewSyscallError("NS_GET_USERNS", err)}
	}
	var ours, owner unix.Stat_t
	err = errors.Join(unix.Fstat(int(user.Fd()), &ours), unix.Fstat(fd, &owner), unix.Close(fd))
	if err == nil && (ours.Dev != owner.Dev || ours.Ino != owner.Ino) {
		err = &Refusal{What: "the mount namespace is not this process's own"}
	}
	return err
}

// ownProcess keeps other processes of the user, the command's among them, out of this one:
// not dumpable, nobody without capabilities over our namespace may read its memory,
// its descriptors or its environment (PR_SET_DUMPABLE, prctl(2)).
func ownProcess() error {
	name := []byte("agentguard\x00") // execveat has left a number
	return errors.Join(
		os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)),
		os.NewSyscallError("prctl", setName(name)))
}

func setName(name []byte) error {
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
}
