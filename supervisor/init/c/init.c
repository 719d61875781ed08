// SPDX-License-Identifier: Apache-2.0
//
// The last mile: the process that becomes PID 1 of a run, and the process that
// becomes the command. Freestanding: no libc, no allocation, no policy.
//
// Descriptors at the start, put there by the launcher (launch.go):
//
//	0 1 2  what the command gets as stdin, stdout and stderr
//	3      control socket: the command's plan arrives here in one message
//	4      error pipe (close-on-exec): reports of 12 bytes, end of file = execve
//	5      lifeline: PID 1's own plan arrives here, status leaves by it; when
//	       the other end is closed the run is over
//
// A plan is a sealed memfd that holds a flat list of system calls. It comes
// with every descriptor that the calls need, in one SCM_RIGHTS message. This
// program fills in addresses and descriptor numbers, makes the calls in order,
// compares each result with what the plan expects, and stops at the first that
// differs. All knowledge of what is mounted, limited or filtered is in the
// plan, which the supervisor prints with `exec --dry-run -v`.
//
//	supervisor                PID 1 (guardian)              PID 2 (command)
//	  clone3 -----------------> close 6.., clone -----------> recvmsg(3) waits
//	                            plan from 5: lock down
//	  <-- CHILD + pidfd, LOCKED
//	  plan + descriptors on 3 ------------------------------> calls, canary
//	  <-- READY, then end of file on 4 ---------------------- execve
//	                            poll lifeline, reap
//	  <-- STOP signal, each time that the command is stopped
//	  <-- EXIT status, rusage   exit: the kernel kills the rest
//
// The first letter of an argument says what else the process is:
//
//	l  no run, no PID 1 and no report: it makes the calls of one plan from
//	   descriptor 3 and leaves (will.go)
//	e  a supervisor without root, which moves into namespaces of its own (enter.go)
//	s  a guardian that is no PID 1, since there is no PID namespace (keep.go). A plan
//	   of its own comes first, and is made before the command is born: the guardian
//	   adopts orphans, and has entered a Landlock domain that lets no signal out.
//	   The command is born into it, so that kill(-1) reaches all of the run and
//	   nobody else
//	c  the same without the domain, before Linux 6.12: CHILDREN_FD is the list of its
//	   children, which are killed until none is left. The command could kill it first.
//
// Built by the clang that builds the BPF objects, for amd64 and arm64
// (`make generate`); both binaries are committed and reproduced in CI.

typedef unsigned char u8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long u64;
typedef long s64;

#if defined(__x86_64__)
enum { NR_close = 3, NR_mmap = 9, NR_rt_sigprocmask = 14, NR_sendmsg = 46, NR_recvmsg = 47, NR_clone = 56,
       NR_wait4 = 61, NR_exit_group = 231, NR_ppoll = 271, NR_signalfd4 = 289, NR_close_range = 436,
       NR_read = 0, NR_write = 1, NR_setsid = 112, NR_prctl = 157, NR_statx = 332,
       NR_pread64 = 17, NR_kill = 62, NR_getppid = 110, NR_getpgid = 121 };
static inline s64 call6(s64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	s64 ret;
	__asm__ volatile("syscall" : "=a"(ret) : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}
__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tmov %rsp,%rdi\n\tand $-16,%rsp\n\tcall run\n\tud2\n");
#elif defined(__aarch64__)
enum { NR_close = 57, NR_mmap = 222, NR_rt_sigprocmask = 135, NR_sendmsg = 211, NR_recvmsg = 212, NR_clone = 220,
       NR_wait4 = 260, NR_exit_group = 94, NR_ppoll = 73, NR_signalfd4 = 74, NR_close_range = 436,
       NR_read = 63, NR_write = 64, NR_setsid = 157, NR_prctl = 167, NR_statx = 291,
       NR_pread64 = 67, NR_kill = 129, NR_getppid = 173, NR_getpgid = 155 };
static inline s64 call6(s64 nr, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
	register u64 x8 __asm__("x8") = nr;
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
__asm__(".globl _start\n_start:\n\tmov x0,sp\n\tmov x29,#0\n\tmov x30,#0\n\tbl run\n\tbrk #1\n");
#else
#error "agentguard-init is built for amd64 and arm64"
#endif

// The wire format. program.go writes it; TestWireSizes holds both to one shape.
#define PLAN_MAGIC 0x4147504cU // "AGPL" read as a little-endian word: agentguard plan
#define MAX_FDS 250            // below SCM_MAX_FD (253)
#define NO_SAVE 0xffffffffU
#define CHILDREN_FD 199        // of a guardian that was started with "c"

enum { ARG_VALUE, ARG_DATA, ARG_FD, ARG_SAVED };         // how an argument is filled in
enum { STEP_EXEC = 1, STEP_IGNORE = 2, STEP_READY = 4 }; // step flags
enum { REPORT_FAIL = 1, REPORT_READY = 2 };              // on the error pipe
enum { MSG_CHILD = 1, MSG_LOCKED = 2, MSG_EXIT = 3, MSG_FAIL = 4, MSG_STOP = 5 }; // on the lifeline

struct step {
	u32 nr;      // system call number
	u16 stage;   // names the group of steps in an error
	u8 flags;    // STEP_*
	u8 pad;
	u8 kind[6];  // ARG_* of each argument
	s16 want;    // 0: must succeed; otherwise the negative errno it must fail with
	s16 want2;   // a second errno that is as good, or 0
	u16 pad2;
	u32 save;    // offset in data where the result is stored, or NO_SAVE
	u64 arg[6];
};

struct plan {
	u32 magic, nsteps, nrelocs, nfds;
	u32 steps, relocs, data, size; // offsets from the start of the plan; size of all
};

struct report {
	u16 kind, stage;
	u32 step;
	s32 err;
};

struct message {
	u32 kind;
	s32 value;     // MSG_CHILD: pid; MSG_EXIT: wait status; MSG_FAIL: errno; MSG_STOP: signal
	u64 detail[2]; // MSG_EXIT: user and system time in microseconds; MSG_FAIL: step
};

struct iovec { void *base; u64 len; };
struct msghdr { void *name; u32 namelen; struct iovec *iov; u64 iovlen; void *control; u64 controllen; u32 flags; };
struct cmsghdr { u64 len; s32 level, type; };
struct pollfd { s32 fd; s16 events, revents; };
struct rusage { s64 utime[2], stime[2], rest[14]; };

static s32 fds[MAX_FDS]; // descriptors that came with the plan, in its order
static u8 keep;          // 's' or 'c': a guardian without a PID namespace

void *memset(void *p, int c, u64 n) {
	for (u64 i = 0; i < n; i++)
		((u8 *)p)[i] = c;
	return p;
}

static s64 call(s64 nr, u64 a, u64 b, u64 c) { return call6(nr, a, b, c, 0, 0, 0); }

#include "keep.h" // slay

static __attribute__((noreturn)) void quit(int status) {
	if (keep)
		slay();
	for (;;)
		call(NR_exit_group, status, 0, 0);
}

// ---- receiving and running a plan -------------------------------------------

// receive waits for one message on sock and maps the plan that it carries.
// Its first descriptor is the plan's memfd; the rest fill fds[]. A message
// that is not exactly that ends the process: nothing half-understood is run.
static struct plan *receive(int sock) {
	union { struct cmsghdr h; u8 room[sizeof(struct cmsghdr) + 4 * (MAX_FDS + 1)]; } c;
	u32 hello[2];
	struct iovec iov = { hello, sizeof(hello) };
	struct msghdr m = { 0, 0, &iov, 1, &c, sizeof(c), 0 };
	s64 n = call(NR_recvmsg, sock, (u64)&m, 0x40000000 /* MSG_CMSG_CLOEXEC */);
	if (n != sizeof(hello) || hello[0] != PLAN_MAGIC || m.flags & 0x28 /* MSG_CTRUNC | MSG_TRUNC */)
		quit(1);
	if (m.controllen < sizeof(struct cmsghdr) || c.h.level != 1 /* SOL_SOCKET */ || c.h.type != 1 /* SCM_RIGHTS */)
		quit(1);
	s32 *got = (s32 *)(&c.h + 1);
	u32 count = (c.h.len - sizeof(struct cmsghdr)) / 4;
	s64 at = call6(NR_mmap, 0, hello[1], 3 /* READ | WRITE */, 2 /* MAP_PRIVATE */, got[0], 0);
	if ((at < 0 && at > -4096) || count - 1 > MAX_FDS)
		quit(1);
	struct plan *p = (struct plan *)at;
	if (p->magic != PLAN_MAGIC || p->size > hello[1] || p->nfds != count - 1)
		quit(1);
	for (u32 i = 1; i < count; i++)
		fds[i - 1] = got[i];
	call(NR_close, got[0], 0, 0);
	u8 *data = (u8 *)p + p->data;
	u32 *reloc = (u32 *)((u8 *)p + p->relocs);
	for (u32 i = 0; i < p->nrelocs; i++) // pointers inside the data: argv, envp, the filter program
		*(u64 *)(data + reloc[i]) += (u64)data;
	return p;
}

static u64 argument(const struct step *s, int i, u8 *data) {
	switch (s->kind[i]) {
	case ARG_DATA:
		return (u64)data + s->arg[i];
	case ARG_FD:
		return fds[s->arg[i]];
	case ARG_SAVED:
		return *(s32 *)(data + s->arg[i]);
	}
	return s->arg[i];
}

static int expected(const struct step *s, s64 ret) {
	if (s->flags & STEP_IGNORE)
		return 1;
	if (s->want == 0)
		return !(ret < 0 && ret > -4096);
	return ret == s->want || (s->want2 != 0 && ret == s->want2);
}

static void report(u16 kind, u16 stage, u32 step, s64 err) {
	struct report r = { kind, stage, step, err };
	call(NR_write, 4, (u64)&r, sizeof(r));
}

// An execve that fails with ENOENT or ENOTDIR lets the next candidate of PATH be
// tried, and so does EACCES, which is kept: "found but not executable" says
// more than "not found" (execvp(3)). Anything else is final.
static int exec_goes_on(s64 ret) { return ret == -2 || ret == -20 || ret == -13; }

// run_steps makes the calls of a plan and returns 0, or the negative errno of
// the first whose result is not the expected one, with its index in *where.
static s64 run_steps(struct plan *p, u32 *where) {
	struct step *s = (struct step *)((u8 *)p + p->steps);
	u8 *data = (u8 *)p + p->data;
	s64 kept = 0;
	u32 first = 0;
	for (u32 i = 0; i < p->nsteps; i++) {
		u64 a[6];
		*where = i;
		if (s[i].flags & STEP_READY)
			report(REPORT_READY, s[i].stage, i, 0);
		for (int k = 0; k < 6; k++)
			a[k] = argument(&s[i], k, data);
		s64 ret = call6(s[i].nr, a[0], a[1], a[2], a[3], a[4], a[5]);
		if (s[i].flags & STEP_EXEC) {
			if (!exec_goes_on(ret))
				return ret;
			if (kept == 0 || (ret == -13 && kept != -13)) {
				kept = ret;
				first = i;
			}
		} else if (!expected(&s[i], ret)) {
			return ret < 0 ? ret : -34; // ERANGE: it succeeded and must not have
		}
		if (s[i].save != NO_SAVE)
			*(s32 *)(data + s[i].save) = ret;
	}
	if (kept != 0)
		*where = first;
	return kept;
}

// ---- PID 2: becomes the command ---------------------------------------------

static __attribute__((noreturn)) void command(void) {
	u32 where = 0;
	keep = 0;
	call(NR_close, 5, 0, 0);
	struct plan *p = receive(3);
	call(NR_close, 3, 0, 0);
	s64 err = run_steps(p, &where); // returns only when it failed
	struct step *s = (struct step *)((u8 *)p + p->steps);
	report(REPORT_FAIL, s[where].stage, where, err);
	quit(1);
}

// ---- PID 1: the guardian ----------------------------------------------------

static void tell(u32 kind, s32 value, u64 a, u64 b, int passfd) {
	struct message msg = { kind, value, { a, b } };
	struct iovec iov = { &msg, sizeof(msg) };
	struct { struct cmsghdr h; s32 fd; s32 pad; } c = { { sizeof(struct cmsghdr) + 4, 1, 1 }, passfd, 0 };
	struct msghdr m = { 0, 0, &iov, 1, passfd >= 0 ? &c : 0, passfd >= 0 ? sizeof(c) : 0, 0 };
	// A command that stops again and again must not make PID 1 wait for a reader.
	int lossy = kind == MSG_STOP;
	if (call(NR_sendmsg, 5, (u64)&m, 0x4000 /* MSG_NOSIGNAL */ | (lossy ? 0x40 /* MSG_DONTWAIT */ : 0)) < 0 && !lossy)
		quit(1);
}

// reap collects every dead child, and tells when the command was stopped. When the
// command is dead its status is reported and PID 1 leaves: the kernel then kills
// whatever it left behind.
// It returns whether there may be more: a flood of orphans must not keep PID 1
// from looking at its lifeline.
static int reap(s32 command_pid) {
	for (int i = 0; i < 64; i++) {
		s32 status = 0;
		struct rusage ru;
		s64 pid = call6(NR_wait4, -1, (u64)&status, 3 /* WNOHANG | WUNTRACED */, (u64)&ru, 0, 0);
		if (pid <= 0)
			return 0;
		if ((status & 0xff) == 0x7f) { // WIFSTOPPED
			if (pid == command_pid)
				tell(MSG_STOP, status >> 8 & 0xff, 0, 0, -1);
			continue;
		}
		if (pid == command_pid) {
			tell(MSG_EXIT, status, ru.utime[0] * 1000000 + ru.utime[1],
			     ru.stime[0] * 1000000 + ru.stime[1], -1);
			quit(0);
		}
	}
	return 1;
}

static __attribute__((noreturn)) void guardian(s32 pid, s32 pidfd) {
	u64 chld = 1UL << 16, block = keep ? ~0UL : chld; // SIGCHLD; PID 1 need not block what would end it
	u32 where = 0;
	call6(NR_rt_sigprocmask, 0 /* SIG_BLOCK */, (u64)&block, 0, 8, 0, 0);
	s64 sfd = call6(NR_signalfd4, -1, (u64)&chld, 8, 04000 /* SFD_NONBLOCK */, 0, 0);
	if (sfd < 0)
		quit(1);
	tell(MSG_CHILD, pid, 0, 0, pidfd);
	call(NR_close, pidfd, 0, 0);
	for (int fd = 0; fd <= 4; fd++) // the command's ends of the pipes: end of file must mean the command's
		call(NR_close, fd, 0, 0);
	s64 err = run_steps(receive(5), &where);
	if (err != 0) {
		tell(MSG_FAIL, err, where, 0, -1);
		quit(1);
	}
	tell(MSG_LOCKED, 0, 0, 0, -1);
	for (;;) {
		u8 drain[128];
		struct pollfd p[2] = { { 5, 0x2001 /* POLLIN | POLLRDHUP */, 0 }, { sfd, 1, 0 } };
		s64 now[2] = { 0, 0 };
		call6(NR_ppoll, (u64)p, 2, reap(pid) ? (u64)now : 0, 0, 8, 0);
		if (p[0].revents)
			quit(1); // the supervisor is gone, or says something that no protocol has
		while (call(NR_read, sfd, (u64)drain, sizeof(drain)) > 0)
			;
	}
}

// ---- no run: one list of calls ----------------------------------------------

static __attribute__((noreturn)) void list(void) {
	u32 where = 0;
	call(NR_close_range, 4, ~0U, 0);
	run_steps(receive(3), &where);
	quit(0);
}

#include "enter.h" // a supervisor moves into namespaces

// ---- a run without a PID namespace -----------------------------------------------

// before makes the plan of a guardian without a PID namespace. It must never say
// kill(-1) outside of a domain that keeps it in: our parent is somebody whom we could
// signal, but for that domain.
static void before(u8 how) {
	u32 where = 0;
	s64 err = run_steps(receive(5), &where);
	s64 parent = call(NR_getppid, 0, 0, 0);
	if (err == 0 && how == 's' && (parent <= 0 || call(NR_kill, parent, 0, 0) != -1 /* EPERM */)) {
		where = ~0U; // no call of the plan
		err = -34;   // ERANGE, as of a probe
	}
	if (err != 0) {
		receive(5); // the other plan, or the supervisor would hear of it and not of us (ECONNRESET)
		tell(MSG_FAIL, err, where, 1, -1);
		quit(1);
	}
	keep = how;
}

__attribute__((noreturn)) void run(u64 *sp) { // argc, argv (the System V and AArch64 ABIs)
	s32 pidfd = -1;
	char **argv = (char **)(sp + 1);
	u8 how = sp[0] > 1 ? argv[1][0] : 0;
	if (how == 'e')
		enter(number(argv[2]), number(argv[3]));
	if (how == 'l')
		list();
	call(NR_close_range, 6, ~0U, 0); // whatever the caller leaked past close-on-exec
	if (how)
		before(how);
	// CLONE_PIDFD: the descriptor is stored where the third argument points, on both architectures.
	s64 pid = call6(NR_clone, 0x1000 /* CLONE_PIDFD */ | 17 /* SIGCHLD */, 0, (u64)&pidfd, 0, 0, 0);
	if (pid < 0)
		quit(1);
	if (pid == 0)
		command();
	guardian(pid, pidfd);
}
