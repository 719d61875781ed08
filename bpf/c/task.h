/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Processes: born, executing, gone. All from kernel objects. */
#ifndef AGENTGUARD_TASK_H
#define AGENTGUARD_TASK_H

#include "run.h"

#define SIGNAL_GROUP_EXIT 4
#define FILE_CAP 4096
#define ARGS_MAX (ARGS_CHUNK * ARGS_CHUNKS)

/*
 * From Linux 7.0 on, tracepoints leave preemption on: while one task is
 * preempted inside a program, the kernel skips that program for every other
 * task on the CPU. So that no birth, execve or end is lost to this, a second
 * copy of these programs is attached there, and what both see is told once.
 * Each copy has scratch space of its own, as either may be preempted.
 */
#define COPIES 2

const volatile u32 doubled; /* the second copies are attached */

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, COPIES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_exec);
} exec_scratch SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, COPIES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_args);
} args_scratch SEC(".maps");

/* What was told already. */
enum told_what {
	TOLD_FORK = 1,
	TOLD_EXEC,
	TOLD_THREAD_EXIT,
	TOLD_EXIT,
};

struct told {
	u64 start; /* of the task: with its number proof against pid reuse */
	u32 pid;
	u16 what;
	u16 round; /* execve: how many the task has made */
};

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct told);
	MAP_TYPE(value, u32);
} told_tasks SEC(".maps");

#define EEXIST 17

/* first is true for one of all callers that ask about the same thing. */
INLINE bool8 first(struct task_struct *task, u16 what, u16 round)
{
	struct told key = {};
	u32 one = 1;

	key.start = READ(task, start_boottime);
	key.pid = READ(task, pid);
	key.what = what;
	key.round = round;
	/* Up to 6.3 maps return an int here, whose upper half is zero. */
	return (int)map_update(&told_tasks, &key, &one, MAP_NOEXIST) != -EEXIST;
}

/* find_task finds the run of a task that is not the current one. */
INLINE bool8 find_task(struct member *m, struct task_struct *task)
{
	struct css_set *set = READ(task, cgroups);
	struct cgroup *leaf = NULL, *cgroup = READ(set, dfl_cgrp);
	struct cgroup **ancestors = __builtin_preserve_access_index(&cgroup->ancestors[0]);
	struct kernfs_node *node;

	if (READ(cgroup, level) < (int)level)
		return 0;
	read_kernel(&leaf, sizeof(leaf), ancestors + level);
	node = READ(leaf, kn);
	return find(m, READ(node, id));
}

/* ns_pid is the task's number in its own pid namespace. */
INLINE u32 ns_pid(struct task_struct *task)
{
	struct pid *pid = READ(task, thread_pid);
	struct upid *numbers = __builtin_preserve_access_index(&pid->numbers[0]);
	struct upid last = {};

	read_kernel(&last, sizeof(last), numbers + (READ(pid, level) & 31));
	return last.nr;
}

/* note_init remembers pid 1 of the sandbox, by its number on the host. */
INLINE void note_init(struct run *run, u32 ns_pid, u32 tgid)
{
	if (ns_pid == 1 && !run->init_tgid && !run->started)
		run->init_tgid = tgid;
}

INLINE void on_fork(const struct member *m, struct task_struct *child)
{
	struct ev_fork ev = {};
	struct task_struct *leader = READ(child, group_leader);

	if (doubled && !first(child, TOLD_FORK, 0))
		return;
	fill_current(&ev.h, m, EV_FORK, CLASS_CONTROL);
	ev.child_tgid = READ(child, tgid);
	ev.child_tid = READ(child, pid);
	ev.child_start = READ(leader, start_boottime);
	ev.child_ns_pid = ns_pid(child);
	if (ev.child_tgid != ev.child_tid)
		ev.h.flags |= F_THREAD;
	else
		note_init(m->run, ev.child_ns_pid, ev.child_tgid);
	emit(m, &ev.h, sizeof(ev));
}

struct args_context {
	u64 run;
	u32 copy;
};

/* send_args writes the next chunk of a long argument area; called by loop(). */
static long send_args(u32 round, struct args_context *ctx)
{
	struct task_struct *task = (void *)current_task();
	struct mm_struct *mm = READ(task, mm);
	u64 start = READ(mm, arg_start), total = READ(mm, arg_end) - start;
	u32 copy = ctx->copy, offset = (round + 1) * ARGS_CHUNK, len;
	struct ev_args *ev = map_lookup(&args_scratch, &copy);
	struct member m;

	if (!ev || offset >= total || !find(&m, ctx->run))
		return 1;
	len = total - offset < ARGS_CHUNK ? at_most(total - offset, ARGS_CHUNK) : ARGS_CHUNK;
	fill_current(&ev->h, &m, EV_EXEC_ARGS, CLASS_CONTROL);
	ev->offset = offset;
	if (read_user(ev->data, len, (void *)(start + offset))) {
		ev->h.flags |= F_UNREADABLE;
		len = 0;
	}
	ev->len = len;
	emit(&m, &ev->h, sizeof(*ev) - ARGS_CHUNK + len);
	return 0;
}

/* read_args appends the first chunk of the new program's arguments at off. */
INLINE u32 read_args(struct ev_exec *ev, u32 off, u64 start, u64 total)
{
	u32 len = total < ARGS_CHUNK ? at_most(total, ARGS_CHUNK) : ARGS_CHUNK;

	if (read_user(ev->data + off, len, (void *)start)) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	return len;
}

/*
 * on_exec runs when the new program is in place and no other thread is left:
 * the arguments are read from its own fresh stack, which nothing has run on.
 */
INLINE void on_exec(const struct member *m, struct task_struct *task, struct linux_binprm *bprm, u32 copy)
{
	struct mm_struct *mm = READ(task, mm);
	struct file *exe = READ(mm, exe_file);
	struct inode *inode = READ(exe, f_inode);
	struct super_block *sb = READ(inode, i_sb);
	struct task_struct *parent = READ(task, real_parent);
	u32 tgid = READ(task, tgid), id = ns_pid(task);
	u64 start = READ(mm, arg_start), total = READ(mm, arg_end) - start;
	struct args_context rest = {m->id, copy};
	struct ev_exec *ev = map_lookup(&exec_scratch, &copy);
	u32 file, chunk;
	long n;

	note_init(m->run, id, tgid);
	if (tgid != m->run->init_tgid)
		m->run->started = 1;
	if (!ev || (doubled && !first(task, TOLD_EXEC, READ(task, self_exec_id))))
		return;
	fill_current(&ev->h, m, EV_EXEC, CLASS_CONTROL);
	ev->inode = READ(inode, i_ino);
	ev->dev = READ(sb, s_dev);
	ev->gid = current_uid_gid() >> 32;
	ev->ppid = READ(parent, tgid);
	ev->ns_pid = id;
	ev->argc = READ(bprm, argc);
	ev->args_len = total;
	ev->pad = 0;
	n = read_kernel_str(ev->data, FILE_CAP, READ(bprm, filename));
	file = n > 0 ? at_most(n, FILE_CAP) : 0;
	chunk = read_args(ev, file, start, total);
	ev->file_len = file;
	ev->chunk_len = chunk;
	if (total > ARGS_MAX)
		ev->h.flags |= F_TRUNCATED;
	emit(m, &ev->h, sizeof(*ev) - sizeof(ev->data) + file + chunk);
	if (total > ARGS_CHUNK)
		loop(ARGS_CHUNKS - 1, send_args, &rest, 0);
}

/* exit_status is what wait(2) will give for the group. */
INLINE u32 exit_status(struct signal_struct *signal, struct task_struct *leader)
{
	if (READ(signal, flags) & SIGNAL_GROUP_EXIT)
		return READ(signal, group_exit_code);
	return READ(leader, exit_code);
}

/*
 * on_exit is called for every thread; the group's last one writes the event.
 * Times: threads that are reaped are summed in signal, the rest is the leader
 * and this thread.
 */
INLINE void on_exit(const struct member *m, struct task_struct *task)
{
	struct signal_struct *signal = READ(task, signal);
	struct task_struct *leader = READ(task, group_leader);
	struct ev_exit ev = {};

	if (task != leader && (!doubled || first(task, TOLD_THREAD_EXIT, 0)))
		add(&m->counts->thread_exits, 1);
	/* Two last threads may both see that no thread is live any more. */
	if (READ(signal, live.counter) != 0 || !first(leader, TOLD_EXIT, 0))
		return;
	fill_current(&ev.h, m, EV_EXIT, CLASS_CONTROL);
	ev.utime = READ(signal, utime) + READ(leader, utime);
	ev.stime = READ(signal, stime) + READ(leader, stime);
	ev.runtime = READ(signal, sum_sched_runtime) + READ(leader, se.sum_exec_runtime);
	if (task != leader) {
		ev.utime += READ(task, utime);
		ev.stime += READ(task, stime);
		ev.runtime += READ(task, se.sum_exec_runtime);
	}
	ev.maxrss = READ(signal, maxrss);
	ev.status = exit_status(signal, leader);
	emit(m, &ev.h, sizeof(ev));
}

#endif
