package seccomp

import "slices"

// DialFilter returns the filter of the process that dials for a run with an
// allowlist (internal/netguard), in the form of [Filter]: what Go's runtime and
// its network package call, sockets of the families that a command may have too,
// and reading files, which the resolver does. Everything else is refused with
// EPERM: no program is executed, no process signalled, nothing written to a file
// system beyond what the process's user may do with open(2) alone.
func DialFilter() []byte { return encode(native.onlyElse(dialCalls(), verdictRefuse)) }

// BrokerFilter returns the filter of the process that holds the credentials of
// brokers (internal/gateway): of [DialFilter], what needs neither a file nor a
// socket of its own making. All that it reads and writes are descriptors that it was
// given.
func BrokerFilter() []byte {
	return encode(native.onlyElse(brokerCalls(), verdictRefuse))
}

func dialCalls() []string { return slices.Concat(runtimeCalls, givenCalls, openCalls) }

func brokerCalls() []string { return slices.Concat(runtimeCalls, givenCalls) }

var runtimeCalls = []string{
	// memory, threads, signals, clocks
	"brk", "mmap", "munmap", "mprotect", "madvise", "mincore", "prctl", "clone", "clone3", "exit", "exit_group", "futex", "gettid", "getpid", "tgkill",
	"sigaltstack", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "restart_syscall", "sched_yield", "sched_getaffinity",
	"nanosleep", "clock_nanosleep", "clock_gettime", "getrandom", "rseq", "set_robust_list", "membarrier",
	// the poller
	"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd2", "pipe2", "ppoll", "poll",
}

// givenCalls are for descriptors that a process has.
var givenCalls = []string{
	"read", "write", "readv", "writev", "close", "fcntl", "fstat",
	"getsockname", "getpeername", "getsockopt", "setsockopt", "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown",
}

// openCalls are for files and sockets of its own making.
var openCalls = []string{
	"pread64", "lseek", "newfstatat", "statx", "openat", "splice",
	"socket", "socketpair", "connect", "bind", "listen", "accept4", "sendmmsg", "recvmmsg",
}
