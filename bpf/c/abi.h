/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The contract with user space: map values and ring records. bpf/event.go
 * reads these layouts by offset, so every change here is a change there (the
 * sizes are asserted in both). All integers are in host order.
 */
#ifndef AGENTGUARD_ABI_H
#define AGENTGUARD_ABI_H

#include "kernel.h"

#define CALLS 512      /* syscall numbers counted one by one; the last also takes what is above */
#define PATH_CAP 4097  /* PATH_MAX and one byte more, to tell a full path from a cut one */
#define ADDR_CAP 128   /* sizeof(struct sockaddr_storage) */
#define WALK_MAX 4096  /* a path from the kernel's objects; one that is longer lacks its beginning */
#define ARGS_CHUNK 8192
#define FILE_CAP 4096
#define ENV_CHUNKS 8   /* and the environment up to 64 KiB */
#define ENV_MAX (ARGS_CHUNK * ENV_CHUNKS)
#define ARGS_CHUNKS 16 /* argv is recorded up to 128 KiB */

enum event_type {
	EV_EXEC = 1,
	EV_EXEC_ARGS,
	EV_EXEC_FAIL,
	EV_FORK,
	EV_EXIT,
	EV_DENY,
	EV_LISTEN,
	EV_SOCKET,
	EV_UNIX,
	EV_FILE,   /* a file was opened or mapped */
	EV_REPEAT, /* the same thread did so again: a count */
	EV_CALL,   /* a call that changes files succeeded, or one on files failed for another reason than a refusal */
	EV_FD,     /* a descriptor that the command was started with */
	EV_EXEC_ENV,
	EV_RECEIVE, /* a descriptor came in by a UNIX socket */
	EV_OBJECT,  /* what the thread's call is about, before its end is told: see note.h */
	EVENT_TYPES = 32, /* room for more */
};

/*
 * How events compete for one ring (struct run.room): each class leaves its top
 * to those above it, so that a flood of opens cannot push out a refusal, nor a
 * flood of refusals the exec that it hides.
 */
enum event_class {
	CLASS_BULK = 0,    /* opens, changes of files, mappings, datagrams */
	CLASS_CONTROL = 1, /* processes: exec and its arguments, fork, exit */
	CLASS_VERDICT = 2, /* refused calls, failed execs, sockets */
	CLASSES = 3,
};

enum phase {
	PHASE_ENVELOPE = 0,
	PHASE_COMMAND = 1,
};

enum event_flags {
	F_UNREADABLE = 1, /* an argument could not be read from user memory */
	F_TRUNCATED = 2,  /* a string was longer than what is recorded */
	F_COMPAT = 4,     /* 32-bit system call */
	F_THREAD = 8,     /* fork: a thread of the same process */
	F_SOON = 16,      /* the reader is woken at once */
	F_FILTERED = 32,  /* the thread has a seccomp filter more than the command began with */
};

enum hook {
	HOOK_CONNECT = 1,
	HOOK_SENDMSG,
	HOOK_BIND,
	HOOK_SOCKET,
	HOOK_EGRESS,
	HOOK_INGRESS,
};

enum run_flags {
	RUN_DENY_LISTEN = 1,
	RUN_EGRESS = 2, /* the map of rules has something for the run */
	RUN_CHANGES = 4, /* files that are only read are not recorded */
};

/* One live run, keyed by the id of its leaf cgroup. */
struct run {
	u32 slot;      /* index into rings and counters */
	u32 flags;     /* enum run_flags */
	u32 watermark; /* unread bytes above which the reader is woken */
	u32 brake;     /* unread bytes above which a task waits for the reader; 0: none waits */
	u32 room[CLASSES]; /* unread bytes above which a class is dropped */
	u32 init_tgid; /* set by the programs: pid 1 of the sandbox; 0 before it is seen */
	u32 started;   /* set by the programs: the command has been executed */
	u32 noted;     /* set by the programs: Landlock has refused something */
	u32 filters;   /* set by the programs: seccomp filters that the command began with */
	u64 domain;    /* set by the programs: agentguard's own Landlock domain; 0: not known */
};

/* What of Landlock refused a call: LANDLOCK_REQUEST_* of security/landlock/audit.h. */
enum refusal {
	REFUSED_PTRACE = 1,
	REFUSED_TOPOLOGY,
	REFUSED_FS,
	REFUSED_NET,
	REFUSED_ABSTRACT,
	REFUSED_SIGNAL,
	REFUSED_OWN = 128, /* a domain that the command has put itself into */
};

struct call_count {
	u64 calls, errors, bytes;
};

struct class_count {
	u64 sent, dropped, dropped_bytes;
};

/* One per run and CPU. Updated atomically: programs nest, and newer kernels preempt them. */
struct counters {
	u64 seq;
	struct class_count class[CLASSES];
	u64 dropped[EVENT_TYPES];
	u64 waits, wait_ns; /* of tasks for the reader */
	u64 lost_repeats;   /* acts that lost EV_REPEATs stood for, besides one each */
	u64 tx_packets, tx_bytes, rx_packets, rx_bytes, tx_refused;
	u64 thread_exits;
	u64 file_bytes; /* written to regular files, and room taken by truncate and fallocate */
	struct call_count call[CALLS];
};

/* How a syscall number is treated; filled by the loader, which knows the names. */
struct call_info {
	u8 path;  /* 1 + index of the argument that is a path; 0 none */
	u8 path2; /* the second path of rename, link and the like */
	u8 dir;   /* 1 + index of the directory that path is relative to; 0: the current one */
	u8 dir2;  /* of path2 */
	u8 addr;  /* 1 + index of the sockaddr (or msghdr) argument */
	u8 file;  /* 1 + index of the descriptor of the file itself */
	u8 extent; /* 1 + index of the argument that says how far a file may reach */
	u8 act;   /* enum act */
	u16 flags; /* enum call_flags */
	u16 pad;
};

/* What success of a call means for the record. */
enum act {
	ACT_OPEN = 1, /* the result is a descriptor of the file */
	ACT_CHANGE,
	ACT_MMAP,
	ACT_MPROTECT,
	ACT_RECEIVE,  /* descriptors may have come with the message */
	ACT_ADDRESS,  /* nothing: it is told before; a failure says whom it did not reach */
};

enum call_flags {
	CALL_BYTES = 1,   /* the result counts bytes */
	CALL_EXEC = 2,    /* every failure is an exec_fail event */
	CALL_PROBED = 4,  /* ENOSYS is ordinary feature probing: counted only */
	CALL_MSGHDR = 8,  /* addr is a struct msghdr */
	CALL_LISTEN = 16, /* success is a listen event */
	CALL_WRITES = 64, /* file or extent is set */
	CALL_QUIET = 32,  /* EPERM means something else than a refusal: counted only */
	CALL_TEXT = 128,  /* path names no file: the target of a symbolic link */
	CALL_TEXT2 = 256, /* nor does path2: an attribute */
	CALL_OPEN2 = 512, /* the flags are in a struct open_how */
	CALL_VECTOR = 1024, /* the result counts messages */
};

struct header {
	u8 type, class, phase, flags;
	u16 cpu, pad;
	u64 run;   /* leaf cgroup id */
	u64 seq;   /* per run and CPU, without gaps: a missing number is a lost event */
	u64 time;  /* CLOCK_BOOTTIME ns */
	u64 start; /* CLOCK_BOOTTIME ns at which the thread group leader began */
	u32 tgid, tid;
	s64 ret;
	s32 nr;    /* -1 where no system call is meant */
	u32 uid;
};

struct ev_exec {
	struct header h;
	u64 inode;
	u32 dev;     /* kernel encoding: major << 20 | minor */
	u32 gid;
	u32 mode;
	u32 ns_pid;
	u32 argc;
	u32 args_len; /* whole length of the argument area */
	u32 env_len;  /* whole length of the environment */
	u32 parent_tgid;
	u64 parent_start;
	u32 path_full;
	u16 file_len; /* as it was given to execve */
	u16 interp_len;
	u16 path_len; /* names of the executable's path, upwards */
	u16 chunk_len;
	u8 state;     /* enum path_state */
	u8 pad[11];
	u64 ctime;    /* of the executable, ns since the epoch */
	char data[2 * FILE_CAP + WALK_MAX + ARGS_CHUNK]; /* in this order; chunk is of the arguments */
};

struct ev_args {
	struct header h;
	u32 offset;
	u32 len;
	char data[ARGS_CHUNK];
};

struct ev_fork {
	struct header h;
	u64 child_start;
	u32 child_tgid, child_tid;
	u32 child_ns_pid;
	u32 pad;
};

struct ev_exit {
	struct header h;
	u64 utime, stime; /* ns, by tick */
	u64 runtime;      /* ns on a CPU, by the scheduler */
	u64 maxrss;       /* pages */
	u32 status;       /* as wait(2) gives it */
	u32 parent_tgid;
	u64 parent_start;
};

struct ev_call {
	struct header h;
	u64 args[6];
	u64 inode;        /* of the descriptor in call_info.file */
	u64 resolve;      /* openat2 */
	u32 dev;
	u32 dir_full;     /* as file_info.path_full, for dir and dir2 */
	u32 dir2_full;
	u16 path_len, path2_len, addr_len;
	u16 dir_len, dir2_len; /* names, upwards: what a relative path begins from, or the file itself */
	u8 dir_state, dir2_state; /* enum path_state */
	u64 object;       /* time of the thread's EV_OBJECT that belongs to the call; 0: none */
	u32 access;       /* what Landlock did not grant: LANDLOCK_ACCESS_* */
	u8 refused;       /* enum refusal; 0: Landlock did not say so */
	u8 pad[3];
	char data[2 * PATH_CAP + ADDR_CAP + 2 * WALK_MAX + 6];
};

struct ev_object {
	struct header h; /* nr: the call */
	u64 inode;       /* of what the first name leads to, if there is something */
	u32 dev;
	u32 full, full2; /* as file_info.path_full */
	u16 len, len2;   /* names, upwards */
	u16 text_len;
	u8 state, state2; /* enum path_state */
	u8 refused;       /* it is what Landlock refused: a file, or the directory of a name */
	u8 pad[3];
	char data[2 * WALK_MAX + PATH_CAP + 7]; /* in this order; text: the target of a symbolic link, the name of an attribute */
};

enum path_state {
	PATH_ROOTED = 1,  /* the walk reached the task's root */
	PATH_DELETED = 2, /* the name is gone */
};

enum file_how {
	HOW_OPEN = 1,
	HOW_MAP_EXEC,
	HOW_MAP_WRITE,
	HOW_MAP_ANON, /* to be executed, and of no file */
	HOW_MAP_COPY, /* to be executed; pages of it may be the process's own copies of the file's */
};

/* What a struct file refers to. */
struct file_info {
	u64 inode;
	u32 dev;
	u32 fmode;     /* f_mode of the kernel: see FMODE_* in file.h */
	u16 mode;      /* i_mode: type and permissions */
	u8 state;      /* enum path_state */
	u8 how;        /* enum file_how */
	u32 path_full; /* bytes of all names, also of those that were cut */
	u64 ctime;     /* ns since the epoch; of what is opened or mapped to be executed, else 0 */
};

struct ev_file {
	struct header h; /* ret: the descriptor, or the address of a mapping */
	struct file_info file;
	u64 args[6];   /* of the call; openat2: flags and mode of its struct in the third and fourth */
	u64 resolve;   /* openat2 */
	u16 path_len;  /* names, upwards */
	u16 given_len; /* then the path as the caller's memory has it */
	u8 slot;       /* where the thread remembers it, for EV_REPEAT; NO_SLOT: not at all */
	u8 source;     /* enum file_source */
	u8 pad[2];
	char data[WALK_MAX + PATH_CAP + 7];
};

#define NO_SLOT 255

enum file_source {
	SOURCE_FD = 0,     /* looked up by descriptor when the call had ended */
	SOURCE_OBJECT = 1, /* the mapping's own file, or a descriptor that nobody else can have changed */
};

struct ev_repeat {
	struct header h;
	struct file_info file;
	u64 count;
	u8 slot;
	u8 pad[7];
};

struct ev_sock {
	struct header h;
	u8 hook, allowed;
	u16 family, type, protocol;
	u16 port;
	u16 pad[3];
	u8 addr[16]; /* network order; the first four for IPv4 */
};

struct ev_unix {
	struct header h;
	u8 hook, allowed;
	u16 len;        /* of the address text that follows */
	u32 pad;
	char data[112];
};

_Static_assert(sizeof(struct header) == 64, "header");
_Static_assert(sizeof(struct ev_fork) == 88, "fork");
_Static_assert(sizeof(struct ev_exit) == 112, "exit");
_Static_assert(sizeof(struct ev_sock) == 96, "sock");
_Static_assert(sizeof(struct ev_exec) - sizeof(((struct ev_exec *)0)->data) == 144, "exec");
_Static_assert(sizeof(struct ev_call) - sizeof(((struct ev_call *)0)->data) == 168, "call");
_Static_assert(sizeof(struct ev_object) - sizeof(((struct ev_object *)0)->data) == 96, "object");
_Static_assert(sizeof(struct ev_file) - sizeof(((struct ev_file *)0)->data) == 160, "file");
_Static_assert(sizeof(struct file_info) == 32, "file_info");
_Static_assert(sizeof(struct ev_repeat) == 112, "repeat");

#endif
