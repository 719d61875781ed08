package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/lostthread"
	"github.com/agentguard/agentguard/internal/seccomp"
)

// neededCaps are the capabilities that a run of any kind fails without, found by
// dropping them one at a time.
var neededCaps = []int{
	unix.CAP_CHOWN, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
	unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_MKNOD,
}

// usefulCaps are those that some runs fail without: with workspaces of other
// users, cgroups left by killed supervisors, signals to forward, an allowlist (its
// resolver has port 53; its answers by UDP are raw packets), to continue another. Without
// CAP_LEASE digests of the run's own programs are "raced": nothing else tells who could write to them.
var usefulCaps = []int{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_LEASE, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SYS_CHROOT}

// lacking names those of the capabilities that a set is without.
func lacking(set uint64, caps []int) []string {
	var out []string
	for _, c := range caps {
		if set&(1<<c) == 0 {
			out = append(out, capName(c))
		}
	}
	return out
}

func (x *examination) caller() {
	if !x.root {
		x.plainCaller()
		return
	}
	const remedy = "start agentguard with all capabilities (docker: --cap-add; systemd: CapabilityBoundingSet=)"
	effective, ok := parseStatus(sample("/proc/self/status")).mask("CapEff")
	needed, useful := lacking(effective, neededCaps), lacking(effective, usefulCaps)
	switch {
	case !ok:
		x.say("caller", "privileges", cellUnknown, "/proc/self/status does not tell the capabilities", "mount /proc")
	case len(needed) > 0:
		x.say("caller", "privileges", cellMissing, "root without "+strings.Join(append(needed, useful...), ", "), remedy)
	case len(useful) > 0:
		x.say("caller", "privileges", cellThin, "root without "+strings.Join(useful, ", ")+", which some runs need", remedy)
	case x.Inside.userNS:
		x.say("caller", "privileges", cellThin, "root, but only of a user namespace: the host's kernel refuses it programs, and perhaps more",
			"start agentguard as root of the host")
	default:
		x.say("caller", "privileges", cellOK, "root, with every capability that a run is made with", "")
	}
}

func (x *examination) network() {
	err := x.asRoot(func() error { return tryUnshare(unix.CLONE_NEWNET) })
	x.try("network", "namespace", "a network namespace with nothing but lo can be made", err, cellMissing, birthRemedy(err))
	if err = x.record.err; x.record.opened {
		err = nil
	}
	x.try("network", "cgroup BPF", "programs on the cgroup of all runs refuse connects, sends, binds and raw sockets",
		err, cellThin, x.bpfRemedy())
	err = x.asRoot(func() error { return x.record.support.Err("sk_lookup") })
	x.try("network", "allowlist", "a look-up program can lead allowed connections through the wall", err, cellThin,
		"a kernel with sk_lookup programs; without, an allowlist is kept by a listener for each address and port")
}

// tryUnshare makes a namespace on a thread that ends with it.
func tryUnshare(flag int) error {
	return lostthread.Run(func() error { return os.NewSyscallError("unshare", unix.Unshare(flag)) })
}

func (x *examination) unixSockets() {
	x.landlockFrom(9, "unix sockets", "Landlock", "sockets in the file system are refused by Landlock, besides not being in the view",
		"the mount view is the only layer against sockets in granted trees", "a kernel from 7.1 on")
	x.landlockFrom(6, "unix sockets", "Landlock abstract", "abstract sockets of others are refused by Landlock, besides the network namespace",
		"the network namespace is the only layer against abstract sockets", "a kernel from 6.12 on")
	switch err := x.asRoot(func() error { return x.record.support.Err("connect_unix") }); {
	case x.root && x.record.err != nil:
		x.say("unix sockets", "record", cellUnknown, "there is no record on this host: see record programs", "")
	default:
		x.try("unix sockets", "record", "connects to unix sockets are in the record", err, cellThin,
			"a kernel from 6.7 on; until then such connects are not in the record")
	}
}

// landlockFrom adds a cell that an ABI of Landlock makes ok.
func (x *examination) landlockFrom(abi int, resource, layer, good, thin, remedy string) {
	if x.abi >= abi {
		x.say(resource, layer, cellOK, good, "")
		return
	}
	if x.abi == 0 {
		x.say(resource, layer, cellThin, thin+" (no Landlock)", "see files Landlock")
		return
	}
	x.say(resource, layer, cellThin, fmt.Sprintf("%s (Landlock ABI %d, here %d)", thin, abi, x.abi), remedy)
}

func (x *examination) processes() {
	good := "PID 1 was born into its cgroup with all namespaces and gave up its privileges"
	if x.birth.joined {
		good = "PID 1 is born outside and moved into its cgroup, since this kernel kills what is born into one when doctor's own was once killed"
	}
	x.try("processes", "birth", good, x.birth.err, cellMissing, birthRemedy(x.birth.err))
	x.try("processes", "proc", "a /proc with hidepid=2 can be mounted", x.asRoot(tryProc), cellMissing,
		"run agentguard where /proc can be mounted: not in a container that masks parts of /proc (docker: --security-opt systempaths=unconfined)")
	x.landlockFrom(6, "processes", "Landlock signals", "signals out of the run are refused by Landlock, besides the PID namespace",
		"the PID namespace is the only layer against signals", "a kernel from 6.12 on")
	switch {
	case x.birth.treeErr != nil && !x.birth.tried:
		x.say("processes", "kill", cellUnknown, "cgroup.kill could not be tried: "+oneLine(x.birth.treeErr.Error()), rootRemedy)
	case !x.birth.kill:
		x.say("processes", "kill", cellMissing, "this kernel has no cgroup.kill: a run could not be ended for sure", "a kernel from 6.1 on")
	default:
		x.say("processes", "kill", cellOK, "cgroup.kill ends all of a run at once", "")
	}
}

func birthRemedy(err error) string {
	switch {
	case errors.Is(err, errNoTree):
		return seeTree
	case errors.Is(err, unix.ENOSPC):
		return "raise the sysctl user.max_{pid,mnt,net,ipc,uts}_namespaces that is too low, or the pids.max of doctor's own cgroup"
	case errors.Is(err, unix.EINVAL):
		return "a kernel from 6.1 on with CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS, CONFIG_UTS_NS and CONFIG_SECCOMP_FILTER; " +
			"in a user namespace, one whose uid_map holds uid 1879048192"
	}
	return "run agentguard as root on the host itself, where nothing refuses namespaces and seccomp filters"
}

// tryProc mounts a detached proc as a run does. It is an instance of its own
// (5.8): the host's /proc keeps its options.
func tryProc() error {
	fs, err := newFS("proc", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, "hidepid=2")
	if err != nil {
		return err
	}
	return fs.Close()
}

func (x *examination) syscalls() {
	if err := trySeccomp(); err != nil {
		x.say("syscalls", "seccomp", cellMissing, oneLine(err.Error()), "a kernel with CONFIG_SECCOMP_FILTER=y, and no sandbox around agentguard that refuses seccomp(2)")
		return
	}
	x.say("syscalls", "seccomp", cellOK, "the filter of a run loads, and refuses what it should", "")
}

// seccompActions are what the filters answer (include/uapi/linux/seccomp.h).
var seccompActions = []struct {
	action uint32
	name   string
}{
	{unix.SECCOMP_RET_ALLOW, "allow"},
	{unix.SECCOMP_RET_ERRNO, "errno"},
	{unix.SECCOMP_RET_KILL_PROCESS, "kill_process"},
}

// trySeccomp puts the filter of a run on a thread that is lost for it.
func trySeccomp() error {
	for _, a := range seccompActions {
		if err := seccompCall(unix.SECCOMP_GET_ACTION_AVAIL, &a.action); err != nil {
			return fmt.Errorf("seccomp action %s: %w", a.name, err)
		}
	}
	filter, err := (seccomp.Config{}).Filter()
	if err != nil {
		return err
	}
	return lostthread.Run(func() error {
		if err := noNewPrivs(); err != nil {
			return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
		}
		if err := setFilter(filter); err != nil {
			return fmt.Errorf("seccomp(SECCOMP_SET_MODE_FILTER): %w", err)
		}
		// Nothing but the filter answers so: without it, it is EINVAL.
		if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.ENOSYS {
			return fmt.Errorf("the filter loads but does not bite: clone3() said %v", errno)
		}
		return nil
	})
}
