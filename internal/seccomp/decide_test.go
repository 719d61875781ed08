package seccomp

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A probe is a call that does no harm if the filter lets it through.
type probe struct {
	label string
	nr    int
	args  [6]uint64
	want  unix.Errno // what the filter must say, 0 when it allows the call
}

const (
	high = 0xdeadbeef << 32
	none = ^uint64(0) // no descriptor, no address, no known flags
)

var argProbes = []probe{
	{"TIOCSTI", unix.SYS_IOCTL, [6]uint64{none, unix.TIOCSTI}, unix.EPERM},
	{"TIOCSTI, upper half set", unix.SYS_IOCTL, [6]uint64{none, unix.TIOCSTI | high}, unix.EPERM},
	{"TIOCLINUX, upper half set", unix.SYS_IOCTL, [6]uint64{none, tiocLinux | high}, unix.EPERM},
	{"TIOCSETD", unix.SYS_IOCTL, [6]uint64{none, unix.TIOCSETD}, unix.EPERM},
	{"FS_IOC_RESVSP", unix.SYS_IOCTL, [6]uint64{none, fsResvSp}, unix.EPERM},
	{"FS_IOC_RESVSP64, upper half set", unix.SYS_IOCTL, [6]uint64{none, fsResvSp64 | high}, unix.EPERM},
	{"FS_IOC_ZERO_RANGE", unix.SYS_IOCTL, [6]uint64{none, fsZeroRange}, unix.EPERM},
	{"AT_EXECVE_CHECK", unix.SYS_EXECVEAT, [6]uint64{none, 0, 0, 0, execveCheck | unix.AT_EMPTY_PATH}, unix.EPERM},
	{"AT_EXECVE_CHECK, upper half set", unix.SYS_EXECVEAT, [6]uint64{none, 0, 0, 0, execveCheck | high}, unix.EPERM},
	{"F_SETLEASE", unix.SYS_FCNTL, [6]uint64{none, unix.F_SETLEASE}, unix.EPERM},
	{"F_SETDELEG, upper half set", unix.SYS_FCNTL, [6]uint64{none, unix.F_SETDELEG | high}, unix.EPERM},
	{"F_GETLEASE", unix.SYS_FCNTL, [6]uint64{none, unix.F_GETLEASE}, 0},
	{"SHM_EXEC", unix.SYS_SHMAT, [6]uint64{none, 0, shmExec}, unix.EPERM},
	{"SHM_EXEC, read-only and upper half set", unix.SYS_SHMAT, [6]uint64{none, 0, shmExec | 0o10000 | high}, unix.EPERM},
	{"shmat", unix.SYS_SHMAT, [6]uint64{none, 0, 0o10000}, 0},
	{"TCGETS", unix.SYS_IOCTL, [6]uint64{none, unix.TCGETS}, 0},
	{"AF_PACKET", unix.SYS_SOCKET, [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, unix.EPERM},
	{"AF_PACKET, upper half set", unix.SYS_SOCKET, [6]uint64{unix.AF_PACKET | high, unix.SOCK_DGRAM}, unix.EPERM},
	{"AF_VSOCK", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, unix.EPERM},
	{"AF_ALG", unix.SYS_SOCKET, [6]uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, unix.EPERM},
	{"raw", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, unix.EPERM},
	{"raw6, flags and upper half set", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_RAW | unix.SOCK_CLOEXEC | high, unix.IPPROTO_TCP}, unix.EPERM},
	{"SOCK_PACKET", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_PACKET, 0x300}, unix.EPERM},
	{"SOCK_PACKET by default", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_PACKET, 0}, unix.EPERM},
	{"mptcp", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, 0},
	{"SCTP", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, unix.EPERM},
	{"SCTP by default", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_SEQPACKET, 0}, unix.EPERM},
	{"netlink audit", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, unix.EPERM},
	{"netlink route", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE}, 0},
	{"tcp", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, 0},
	{"udp, upper half set", unix.SYS_SOCKET, [6]uint64{unix.AF_INET | high, unix.SOCK_DGRAM, 0}, 0},
	{"unix", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, 0},
	{"socketpair of packets", unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_PACKET, unix.SOCK_RAW, 0, none}, unix.EPERM},
	// CLONE_SIGHAND without CLONE_VM: EINVAL, were it not for the filter.
	{"clone, user namespace", unix.SYS_CLONE, [6]uint64{unix.CLONE_SIGHAND | unix.CLONE_NEWUSER}, unix.EPERM},
	{"clone, upper half set", unix.SYS_CLONE, [6]uint64{unix.CLONE_SIGHAND | unix.CLONE_NEWNET | high}, unix.EPERM},
	{"clone, time namespace", unix.SYS_CLONE, [6]uint64{unix.CLONE_SIGHAND | unix.CLONE_NEWTIME}, unix.EPERM},
	{"clone", unix.SYS_CLONE, [6]uint64{unix.CLONE_SIGHAND}, 0},
	{"unshare user namespace", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWUSER}, unix.EPERM},
	{"unshare time namespace", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_NEWTIME}, unix.EPERM},
	{"unshare empty mount namespace", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_PARENT_SETTID}, unix.EPERM},
	{"unshare, upper half set", unix.SYS_UNSHARE, [6]uint64{high}, unix.EPERM},
	{"unshare semaphores", unix.SYS_UNSHARE, [6]uint64{unix.CLONE_SYSVSEM}, 0},
	{"personality?", unix.SYS_PERSONALITY, [6]uint64{0xffffffff}, 0},
	{"personality, ADDR_NO_RANDOMIZE", unix.SYS_PERSONALITY, [6]uint64{0x40000}, 0},
	{"personality, READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, [6]uint64{0x0400000}, unix.EPERM},
	{"clone3", unix.SYS_CLONE3, [6]uint64{}, unix.ENOSYS},
	{"openat2", unix.SYS_OPENAT2, [6]uint64{none, none, none}, unix.ENOSYS},
	{"openat2 of nothing", unix.SYS_OPENAT2, [6]uint64{}, unix.ENOSYS},
	{"a call of tomorrow", 700, [6]uint64{}, unix.ENOSYS},
	{"no call", -1, [6]uint64{}, unix.ENOSYS},
	{"seccomp", unix.SYS_SECCOMP, [6]uint64{none}, 0},
	{"landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, [6]uint64{0, 0, 1}, 0},
	{"memfd_create", unix.SYS_MEMFD_CREATE, [6]uint64{none}, 0},
	{"cachestat", unix.SYS_CACHESTAT, [6]uint64{none}, 0},
	{"getxattrat", unix.SYS_GETXATTRAT, [6]uint64{none, none}, 0},
	{"setresuid", unix.SYS_SETRESUID, [6]uint64{none, none, none}, 0},
}

// The rules on arguments say what they are meant to say, on both architectures.
func TestArgumentRules(t *testing.T) {
	for _, a := range arches {
		for _, p := range argProbes {
			nr := p.nr
			if c := a.byName(Name(p.nr)); c != nil {
				nr = int(c.nr)
			}
			if got := a.decide(uint32(nr), p.args, Config{}); got.Errno() != p.want || got == verdictKill {
				t.Errorf("%s: %s: %#x, want %v", archName(a), p.label, got, p.want)
			}
		}
	}
}

// mustRefuse are calls that a sandbox cannot afford, written down apart from
// the tables: true for those that a policy may grant.
var mustRefuse = map[string]bool{
	"io_uring_setup io_uring_enter io_uring_register":                                                    false,
	"mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick": false,
	"mount_setattr statmount listmount setns listns add_key request_key keyctl bpf perf_event_open":      false,
	"kexec_load kexec_file_load init_module finit_module delete_module swapon swapoff reboot acct":       false,
	"quotactl quotactl_fd syslog settimeofday clock_settime nfsservctl open_by_handle_at":                false,
	"fanotify_init fanotify_mark lookup_dcookie sethostname setdomainname vhangup":                       false,
	"iopl ioperm uselib _sysctl create_module query_module":                                              false,
	"ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise userfaultfd":             true,
	"name_to_handle_at adjtimex clock_adjtime modify_ldt mbind set_mempolicy move_pages":                 true,
}

// x86Only are those of mustRefuse that arm64 never had.
const x86Only = " iopl ioperm uselib _sysctl create_module query_module modify_ldt "

func TestRefusedCalls(t *testing.T) {
	for _, a := range arches {
		for names, grantable := range mustRefuse {
			for name := range strings.FieldsSeq(names) {
				if !a.x32 && strings.Contains(x86Only, " "+name+" ") {
					continue
				}
				c := a.byName(name)
				if c == nil {
					t.Errorf("%s does not know %s", archName(a), name)
					continue
				}
				got := a.decide(uint32(c.nr), [6]uint64{}, Config{})
				granted := a.decide(uint32(c.nr), [6]uint64{}, Config{Extra: []string{name}})
				if got.Errno() != unix.EPERM || (granted == verdictAllow) != grantable || c.grantable() != grantable {
					t.Errorf("%s: %s: %#x, granted %#x, grantable %v", archName(a), name, got, granted, c.grantable())
				}
			}
		}
	}
}

// mustAllow are calls without which ordinary programs break, or break the
// promise that a program may confine itself further.
const mustAllow = `read write openat close mmap mprotect munmap execve execveat exit_group clone wait4 waitid
	futex futex_waitv futex_wait futex_wake futex_requeue rseq set_robust_list getrandom prctl prlimit64 kill tgkill
	pidfd_open pidfd_send_signal connect bind listen accept4 sendmsg recvmsg sendmmsg epoll_pwait2 eventfd2 timerfd_create
	seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_create memfd_secret close_range statx
	setuid setgid setresuid setresgid setgroups capset mknodat fchmodat2 faccessat2 copy_file_range
	setxattrat getxattrat listxattrat removexattrat file_getattr file_setattr cachestat mseal map_shadow_stack
	rseq_slice_yield inotify_add_watch membarrier sched_setaffinity pkey_alloc`

func TestAllowedCalls(t *testing.T) {
	for _, a := range arches {
		for name := range strings.FieldsSeq(mustAllow) {
			if c := a.byName(name); c == nil || a.decide(uint32(c.nr), [6]uint64{}, Config{}) != verdictAllow {
				t.Errorf("%s: %s is not allowed", archName(a), name)
			}
		}
	}
	for _, name := range []string{"fork", "vfork", "arch_prctl", "stat", "epoll_wait", "uretprobe", "uprobe"} {
		if c := x86_64.byName(name); c == nil || c.action != allow {
			t.Errorf("amd64: %s is not allowed", name)
		}
	}
}

// The filter and Decide agree on any call at all.
func FuzzFilterAgreesWithDecide(f *testing.F) {
	for _, p := range argProbes {
		f.Add(uint32(p.nr), p.args[0], p.args[1], p.args[2])
	}
	for _, p := range modeProbes {
		args := p.args(none)
		if c := native.byName(p.call); c != nil {
			f.Add(uint32(c.nr), args[1], args[2], args[3])
		}
	}
	granted := Config{Extra: debugger}
	filter := native.assemble(granted)
	f.Fuzz(func(t *testing.T, nr uint32, a, b, c uint64) {
		args := [6]uint64{a, b, c, ^a, ^b, ^c}
		if nr&1 != 0 {
			args = [6]uint64{^a, a, b, c, ^b, ^c}
		}
		got, want := interpret(t, filter, seccompData{nr, native.audit, args}), native.decide(nr, args, granted)
		if got != want {
			t.Errorf("call %d %#x: filter %#x, Decide %#x", nr, args, got, want)
		}
	})
}
