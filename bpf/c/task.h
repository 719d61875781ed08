/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Processes: born, executing, gone. All from kernel objects. */
#ifndef AGENTGUARD_TASK_H
#define AGENTGUARD_TASK_H

#include "file.h"
#include "note.h"

#define SIGNAL_GROUP_EXIT 4
#define ARGS_MAX (ARGS_CHUNK * ARGS_CHUNKS)

/*
 * From Linux 7.0 on, tracepoints leave preemption on: while one task is
 * preempted inside a program, the kernel skips that program for every other
 * task on the CPU. So that no birth, execve or end is lost to this, a second
 * copy of these programs is attached there, and what both see is told once.
 * (sys_exit, of which there are too many, has sys_exit_perf in sensor.c.)
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

/* note_shared marks both where a new task shares its maker's descriptors. */
INLINE void note_shared(struct task_struct *child)
{
	struct task_struct *task = (void *)current_task();
	struct note *note;

	if (READ(child, files) != READ(task, files))
		return;
	note = task_storage(&notes, current_task_btf(), NULL, STORAGE_CREATE);
	if (note)
		note->shared = 1;
	note = task_storage(&notes, child, NULL, STORAGE_CREATE);
	if (note)
		note->shared = 1;
}

INLINE void on_fork(const struct member *m, struct task_struct *child)
{
	struct ev_fork ev = {};
	struct task_struct *leader = READ(child, group_leader);

	note_shared(child);
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

struct area {
	u64 run, start, total;
	u32 from; /* offset of the first chunk */
	u8 type, copy;
};

/* send_area writes the next chunk of the arguments or the environment; called by loop(). */
static long send_area(u32 round, struct area *area)
{
	u32 copy = area->copy, len;
	u64 offset = area->from + (u64)round * ARGS_CHUNK;
	struct ev_args *ev = map_lookup(&args_scratch, &copy);
	struct member m;

	if (!ev || offset >= area->total || !find(&m, area->run))
		return 1;
	len = area->total - offset < ARGS_CHUNK ? at_most(area->total - offset, ARGS_CHUNK) : ARGS_CHUNK;
	fill_current(&ev->h, &m, area->type, CLASS_CONTROL);
	ev->offset = offset;
	if (read_user(ev->data, len, (void *)(area->start + offset))) {
		ev->h.flags |= F_UNREADABLE;
		len = 0;
	}
	ev->len = len;
	emit(&m, &ev->h, sizeof(*ev) - ARGS_CHUNK + len);
	return 0;
}

/* add_text appends a string of the kernel's and returns its length with the zero byte. */
INLINE u32 add_text(struct ev_exec *ev, u32 off, const char *text)
{
	long n = read_kernel_str(ev->data + at_most(off, FILE_CAP), FILE_CAP, text);

	return n > 0 ? at_most(n, FILE_CAP) : 0;
}

/* add_args appends the first chunk of the new program's arguments. */
INLINE u32 add_args(struct ev_exec *ev, u32 off, u64 start, u64 total)
{
	u32 len = total < ARGS_CHUNK ? at_most(total, ARGS_CHUNK) : ARGS_CHUNK;

	if (read_user(ev->data + at_most(off, 2 * FILE_CAP + WALK_MAX), len, (void *)start)) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	return len;
}

/* add_image says which file is the program now: of a script, its interpreter. */
INLINE void add_image(struct ev_exec *ev, u32 off, struct file *exe, u32 lane)
{
	struct file_info info;
	struct path at = COPY(exe, f_path);

	describe(&info, exe, path_of(exe), HOW_MAP_EXEC);
	ev->inode = info.inode;
	ev->dev = info.dev;
	ev->mode = info.mode;
	ev->ctime = info.ctime;
	ev->path_full = ev->state = 0;
	ev->path_len = append_walk(ev->data + at_most(off, 2 * FILE_CAP), at, lane, &ev->path_full, &ev->state);
}

/*
 * add_names appends what execve was given, what the script names as its
 * interpreter, and the path of the image. The first two are the kernel's copies.
 */
INLINE u32 add_names(struct ev_exec *ev, struct linux_binprm *bprm, struct file *exe, u32 copy)
{
	const char *file = READ(bprm, filename), *interp = READ(bprm, interp);
	u32 len;

	ev->file_len = add_text(ev, 0, file);
	len = FORGET(ev->file_len);
	ev->interp_len = interp != file ? add_text(ev, len, interp) : 0;
	len += FORGET(ev->interp_len);
	add_image(ev, len, exe, LANE_EXEC + copy);
	return len + FORGET(ev->path_len);
}

INLINE void fill_exec(const struct member *m, struct ev_exec *ev, struct task_struct *task, struct mm_struct *mm, struct linux_binprm *bprm)
{
	struct task_struct *parent = READ(task, real_parent);
	struct task_struct *leader = READ(parent, group_leader);

	fill_current(&ev->h, m, EV_EXEC, CLASS_CONTROL);
	ev->gid = current_uid_gid() >> 32;
	ev->parent_tgid = READ(parent, tgid);
	ev->parent_start = READ(leader, start_boottime);
	ev->ns_pid = ns_pid(task);
	ev->argc = READ(bprm, argc);
	ev->args_len = READ(mm, arg_end) - READ(mm, arg_start);
	ev->env_len = READ(mm, env_end) - READ(mm, env_start);
	if (ev->args_len > ARGS_MAX || ev->env_len > ENV_MAX)
		ev->h.flags |= F_TRUNCATED;
}

/* send_rest writes the arguments after the first chunk, and the environment. */
INLINE void send_rest(const struct member *m, struct mm_struct *mm, u32 copy)
{
	u64 start = READ(mm, arg_start), env = READ(mm, env_start);
	struct area area = {m->id, start, READ(mm, arg_end) - start, ARGS_CHUNK, EV_EXEC_ARGS, copy};

	if (area.total > ARGS_CHUNK)
		loop(ARGS_CHUNKS - 1, send_area, &area, 0);
	area.start = env;
	area.total = READ(mm, env_end) - env;
	area.from = 0;
	area.type = EV_EXEC_ENV;
	loop(ENV_CHUNKS, send_area, &area, 0);
}

/* own_descriptors: an execve gives the task a table of its own (fs/exec.c, begin_new_exec). */
INLINE void own_descriptors(void)
{
	struct note *note = task_storage(&notes, current_task_btf(), NULL, 0);

	if (note)
		note->shared = 0;
}

/*
 * on_exec runs when the new program is in place and no other thread is left:
 * the arguments are read from its own fresh stack, which nothing has run on.
 */
INLINE void on_exec(const struct member *m, struct task_struct *task, struct linux_binprm *bprm, u32 copy)
{
	struct mm_struct *mm = READ(task, mm);
	u32 tgid = READ(task, tgid), len;
	u64 start = READ(mm, arg_start);
	struct ev_exec *ev = map_lookup(&exec_scratch, &copy);
	bool8 command = 0;

	note_init(m->run, ns_pid(task), tgid);
	if (!ev || (doubled && !first(task, TOLD_EXEC, READ(task, self_exec_id))))
		return;
	forget_files(m, LANE_EXEC + copy);
	own_descriptors();
	if (tgid != m->run->init_tgid) {
		command = !m->run->started;
		if (command)
			m->run->filters = READ(task, seccomp.filter_count.counter);
		m->run->started = 1;
	}
	fill_exec(m, ev, task, mm, bprm);
	len = add_names(ev, bprm, READ(mm, exe_file), copy);
	/* What has no name can only be hashed while the process lives. */
	if (m->run->started && ev->state != PATH_ROOTED)
		ev->h.flags |= F_SOON;
	ev->chunk_len = add_args(ev, len, start, READ(mm, arg_end) - start);
	emit(m, &ev->h, sizeof(*ev) - sizeof(ev->data) + at_most(len + FORGET(ev->chunk_len), sizeof(ev->data)));
	send_rest(m, mm, copy);
	if (command)
		tell_descriptors(m, LANE_EXEC + copy);
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
INLINE void on_exit(const struct member *m, struct task_struct *task, u32 copy)
{
	struct signal_struct *signal = READ(task, signal);
	struct task_struct *leader = READ(task, group_leader), *parent;
	struct ev_exit ev = {};

	forget_files(m, LANE_EXIT + copy);
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
	parent = READ(leader, real_parent);
	ev.parent_tgid = READ(parent, tgid);
	parent = READ(parent, group_leader);
	ev.parent_start = READ(parent, start_boottime);
	emit(m, &ev.h, sizeof(ev));
}

#endif
