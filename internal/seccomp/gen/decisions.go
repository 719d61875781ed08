package main

import (
	"fmt"
	"strings"
)

// A decision is what this project says about calls, in Moby's place.
type decision struct {
	// names are the calls, separated by spaces.
	names string
	// action is the name of an action of package seccomp: allow, refuse (a
	// policy's seccomp_allow may grant it), never, absent (ENOSYS), or a rule
	// on the arguments.
	action string
	// why completes "NAME is refused: " in an error message.
	why string
}

// byName spreads list over the names in it.
func byName(list []decision) (map[string]decision, error) {
	m := map[string]decision{}
	for _, d := range list {
		for name := range strings.FieldsSeq(d.names) {
			if _, twice := m[name]; twice {
				return nil, fmt.Errorf("decisions.go decides twice about %q", name)
			}
			m[name] = d
		}
	}
	return m, nil
}

var decisions = []decision{
	// ---- judged by their arguments: the rules are in rules.go

	{"clone", "cloneRule", "it may not make namespaces (CLONE_NEW*)"},
	{"unshare", "unshareRule", "it may not make namespaces (CLONE_NEW*)"},
	{"socket socketpair", "socketRule", "it may make UNIX, TCP, UDP and NETLINK_ROUTE sockets only"},
	{"ioctl", "ioctlRule", "it may not type into a terminal or change its line discipline (TIOCSTI, TIOCLINUX, TIOCSETD), nor take room but by fallocate (FS_IOC_RESVSP, FS_IOC_ZERO_RANGE)"},
	{"fcntl", "fcntlRule", "it may not take leases on files (F_SETLEASE, F_SETDELEG): whoever opens one waits for the holder, outside too"},
	{"shmat", "shmatRule", "it may not attach shared memory to execute what is in it (SHM_EXEC), which is no mapping that the record tells"},
	{"personality", "personalityRule", "it may set Linux personalities and ADDR_NO_RANDOMIZE only"},
	{"chmod fchmod mkdir mknod creat", "modeRule1", "it may not set set-user-id or set-group-id bits"},
	{"fchmodat fchmodat2 mkdirat mknodat", "modeRule2", "it may not set set-user-id or set-group-id bits"},
	{"open", "openRule", "it may not set set-user-id or set-group-id bits"},
	{"openat", "openatRule", "it may not set set-user-id or set-group-id bits"},
	{"execveat", "execveatRule", "it may not ask whether a file could be executed (AT_EXECVE_CHECK), which looks like an execve of it"},
	// Its mode is in memory. Allowed, it would set the bits that the rules above
	// refuse, by O_CREAT with mode 04755; so no policy can grant it. Programs that
	// must run on kernels before 5.6 fall back to openat on ENOSYS. Some do not,
	// where the C library has openat2 (glibc 2.43): GNU tar extracts nothing below
	// a directory, https://github.com/systemd/systemd/pull/41740.
	{"openat2", "absent", "its mode is in memory, where a filter cannot read it"},
	// Its flags are in memory, where no filter can read them. C libraries and
	// language runtimes fall back to clone on ENOSYS, and only on that.
	{"clone3", "absent", "its arguments are in memory, where a filter cannot read them"},

	// ---- never: each opens a way around another layer, or around the record

	// Requests are executed without the system calls that layers and sensor look at.
	{"io_uring_setup io_uring_enter io_uring_register", "never", "operations of a ring pass neither filter nor record"},
	// AIO contexts do the same for reads and writes (Moby allows them). Programs
	// that try them, databases with O_DIRECT, fall back to ordinary calls.
	{"io_setup io_submit", "refuse", "operations of an AIO context pass the record"},
	// A mount changes what a granted path means. The query calls are refused
	// with the rest (Moby allows them): they describe the view's sources on the host.
	{
		"mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount",
		"never", "the mount view is fixed before the command starts",
	},
	{"setns listns", "never", "the namespaces are fixed before the command starts"},
	// Keyrings are not namespaced by anything but the user namespace.
	{"add_key request_key keyctl", "never", "keyrings are shared with the host"},
	{"bpf", "never", "programs in the kernel are the sensor's and the sandbox's own means"},
	{"perf_event_open", "never", "it observes the kernel and is a frequent source of kernel bugs"},
	// Reopens files of a whole file system by number, past every path check.
	{"open_by_handle_at", "never", "it opens files that the mount view does not show"},
	// Marks would watch the host's mounts; fanotify_mark (Moby allows it) is of no use alone.
	{"fanotify_init fanotify_mark", "never", "it watches whole mounts"},
	{"kexec_load kexec_file_load reboot", "never", "it replaces or stops the host's kernel"},
	{"init_module finit_module delete_module", "never", "it changes the host's kernel"},
	{"syslog", "never", "the kernel log is the host's"},
	{"swapon swapoff acct quotactl quotactl_fd", "never", "it administers the host"},
	{"settimeofday clock_settime", "never", "the clock is the host's"},
	{"sethostname setdomainname", "never", "it needs CAP_SYS_ADMIN, which the command never has"},
	{"vhangup", "never", "it needs CAP_SYS_TTY_CONFIG, which the command never has"},
	{"iopl ioperm", "never", "it gives access to hardware"},
	{"lsm_set_self_attr", "never", "it changes how security modules see the process"},

	// ---- never, because no kernel that we run on implements them (or hardly)

	{
		"_sysctl afs_syscall create_module get_kernel_syms getpmsg lookup_dcookie nfsservctl putpmsg query_module security tuxcall uselib vserver",
		"never", "the kernel no longer has it",
	},
	{"sysfs ustat", "never", "it is obsolete and describes the host's file systems"},

	// ---- refused, but a policy may say otherwise

	// Debuggers and tracers. PID namespace, Landlock's ptrace rule and uids still
	// keep them inside the run. Moby allows the first three.
	{"ptrace process_vm_readv process_vm_writev", "refuse", "it reads and controls other processes"},
	{"kcmp pidfd_getfd process_madvise", "refuse", "it inspects other processes"},
	// CRIU and live migration. Widens races in the kernel, so it is the aid of
	// many exploits; without privilege it handles faults from user mode only.
	{"userfaultfd", "refuse", "it helps exploits to win races in the kernel"},
	// Moby allows it. Harmless while open_by_handle_at is refused, useless too.
	{"name_to_handle_at", "refuse", "file handles serve to get around the mount view"},
	// Moby allows both. Reading the clock's state needs no privilege and setting
	// it needs CAP_SYS_TIME, but which of them it is stands in memory.
	{"adjtimex clock_adjtime", "refuse", "the clock is the host's"},
	// Moby allows it. 16-bit segments, for Wine and DOS emulators.
	{"modify_ldt", "refuse", "it adds segments of 16-bit programs, a source of kernel bugs"},
	// NUMA placement, as in Moby without CAP_SYS_NICE. numactl and databases
	// that are refused go on without.
	{
		"get_mempolicy set_mempolicy set_mempolicy_home_node mbind migrate_pages move_pages",
		"refuse", "it places memory on NUMA nodes of the host",
	},
	// 6.8. They tell which security modules the host has.
	{"lsm_get_self_attr lsm_list_modules", "refuse", "it tells about the host's security modules"},

	// ---- allowed, though Moby does not know them or asks for a capability

	{"file_getattr file_setattr", "allow", "6.17: FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR by path, with the same checks"},
	{"rseq_slice_yield", "allow", "7.0: gives back a time slice that rseq extended"},
	{"uprobe", "allow", "6.18: entered from the kernel's own trampoline, when the host profiles the program; as uretprobe"},
}
