/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a call that returns means for the record. */
#ifndef AGENTGUARD_ACT_H
#define AGENTGUARD_ACT_H

#include "call.h"

#define ERESTARTSYS 512 /* and up to 516: the call goes on */
#define PROT_WRITE 2
#define PROT_EXEC 4
#define MAP_SHARED 1 /* also a bit of MAP_SHARED_VALIDATE */
#define MAP_ANONYMOUS 0x20
#define VM_SHARED 8

/* only_read is true of what `trace.files: changes` leaves out. */
INLINE bool8 only_read(const struct file_info *info)
{
	return info->how == HOW_OPEN &&
	       ((info->mode & S_IFMT) != S_IFREG || !(info->fmode & (FMODE_WRITE | FMODE_CREATED)));
}

/* add_given appends the path as the caller's memory has it. */
INLINE u16 add_given(struct ev_file *ev, u64 p)
{
	long n = read_user_str(ev->data + at_most(FORGET(ev->path_len), WALK_MAX), PATH_CAP, (void *)p);

	if (n <= 0) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	if (n == PATH_CAP)
		ev->h.flags |= F_TRUNCATED;
	return at_most(n, PATH_CAP);
}

/* A file that a call opened or mapped, and how it was found. */
struct found {
	struct file *file;
	s64 ret;
	s32 nr;
	u8 how, source;
};

/* write_file writes the record of a file that was opened or mapped; false if it is lost. */
INLINE bool8 write_file(const struct member *m, const struct seen *now, const struct found *found, u8 number)
{
	const volatile struct call_info *info = &calls[found->nr & (CALLS - 1)];
	u32 lane = LANE_CALL;
	struct ev_file *ev = map_lookup(&file_scratch, &lane);

	if (!ev)
		return 0;
	fill_current(&ev->h, m, EV_FILE, CLASS_BULK);
	ev->h.nr = found->nr;
	ev->h.ret = found->ret;
	fill_file(ev, now->path, &now->file, lane);
	call_args((struct pt_regs *)task_registers(current_task_btf()), ev->args);
	if (info->path)
		ev->given_len = add_given(ev, ev->args[info->path == 2]);
	if (info->flags & CALL_OPEN2)
		ev->resolve = read_how(ev->args, &ev->h.flags);
	ev->slot = number;
	ev->source = found->source;
	return emit(m, &ev->h, file_size(ev));
}

/*
 * note_file records that a file was opened or mapped, unless the thread did the
 * same before: then it is counted.
 */
INLINE void note_file(const struct member *m, const struct found *found)
{
	struct seen now = {}, *slot = NULL;
	u8 number = NO_SLOT;

	describe(&now.file, found->file, found->how);
	if ((m->run->flags & RUN_CHANGES) && only_read(&now.file))
		return;
	now.path = path_of(found->file);
	now.name = READ(now.path.dentry, d_name.hash_len);
	now.file.state = gone(now.path.dentry) ? PATH_DELETED : 0;
	if (!(now.file.fmode & FMODE_CREATED) && seen_before(m, &now, &slot, &number))
		return;
	if (write_file(m, &now, found, number) && slot) {
		*slot = now;
		slot->taken = 1;
	}
}

struct mapping {
	struct file *file;
	u64 flags;
};

/* take_mapping is called by find_vma() with the mapping that holds the address. */
static long take_mapping(struct task_struct *task, struct vm_area_struct *vma, struct mapping *out)
{
	(void)task;
	out->file = READ(vma, vm_file);
	out->flags = READ(vma, vm_flags);
	return 0;
}

/*
 * mapped_file finds the file of a mapping that is to be executed, or to be
 * written without a call; false where it is none of these. The file is the
 * mapping's own; when its lock is held by another thread, the one of mmap's
 * descriptor.
 */
INLINE bool8 mapped_file(struct found *found, struct pt_regs *regs, u8 act)
{
	struct mapping mapping = {};
	u64 args[6];

	call_args(regs, args);
	if (!(args[2] & (PROT_EXEC | PROT_WRITE)))
		return 0;
	if (act == ACT_MMAP && ((args[3] & MAP_ANONYMOUS) || !((args[2] & PROT_EXEC) || (args[3] & MAP_SHARED))))
		return 0;
	found->source = SOURCE_OBJECT;
	if (find_vma(current_task_btf(), act == ACT_MMAP ? (u64)found->ret : args[0], take_mapping, &mapping, 0) && act == ACT_MMAP) {
		mapping.file = open_file(args[4]);
		mapping.flags = args[3] & MAP_SHARED ? VM_SHARED : 0;
		found->source = SOURCE_FD;
	}
	found->file = mapping.file;
	found->how = args[2] & PROT_EXEC ? HOW_MAP_EXEC : HOW_MAP_WRITE;
	return mapping.file && (found->how == HOW_MAP_EXEC || (mapping.flags & VM_SHARED));
}

/* on_act records a call on files that succeeded. */
INLINE void on_act(const struct member *m, struct pt_regs *regs, s64 ret, s32 nr, u8 act)
{
	struct found found = {NULL, ret, nr, HOW_OPEN, SOURCE_FD};

	if (act == ACT_CHANGE) {
		report_call(m->id, ret, nr, EV_CALL);
		return;
	}
	if (act == ACT_OPEN)
		found.file = open_file(ret);
	else if (!mapped_file(&found, regs, act))
		return;
	note_file(m, &found);
}

INLINE void on_success(const struct member *m, struct pt_regs *regs, s64 ret, s32 nr, const volatile struct call_info *info)
{
	u16 flags = info->flags;
	u64 args[6] = {};

	if (flags & (CALL_WRITES | CALL_LISTEN))
		call_args(regs, args);
	if (flags & CALL_WRITES)
		count_file(m, args, ret, info);
	if (ret == 0 && (flags & CALL_LISTEN))
		report_listen(m->id, args[0], nr);
	if (info->act && in_command(m->run, current_pid_tgid() >> 32))
		on_act(m, regs, ret, nr, info->act);
}

INLINE void on_failure(const struct member *m, s64 ret, s32 nr, const volatile struct call_info *info)
{
	u16 flags = info->flags;

	if (flags & CALL_EXEC)
		report_call(m->id, ret, nr, EV_EXEC_FAIL);
	else if (is_denial(ret, flags))
		report_call(m->id, ret, nr, EV_DENY);
	else if ((info->act == ACT_OPEN || info->act == ACT_CHANGE) && ret > -ERESTARTSYS &&
		 in_command(m->run, current_pid_tgid() >> 32))
		report_call(m->id, ret, nr, EV_CALL);
}

/* The last entry of the table is for numbers that it does not have: no act, no argument is known. */
INLINE void on_known_call(const struct member *m, struct pt_regs *regs, s64 ret, s32 nr)
{
	u32 index = (u32)nr < CALLS - 1 && !is_compat() ? nr : CALLS - 1;
	const volatile struct call_info *info = &calls[index & (CALLS - 1)];

	if (in_command(m->run, current_pid_tgid() >> 32))
		count_call(m->counts, index, ret, info->flags);
	if (ret >= 0)
		on_success(m, regs, ret, nr, info);
	else
		on_failure(m, ret, nr, info);
}

/*
 * on_call takes one call that returns. After a signal handler's sigreturn the
 * kernel has forgotten the number and ret is what the interrupted code had in
 * the register: counted, never judged.
 */
INLINE void on_call(const struct member *m, struct pt_regs *regs, s64 ret)
{
	s32 nr = call_number(regs);

	if (nr == -1)
		on_known_call(m, regs, 0, NR_SIGRETURN);
	else
		on_known_call(m, regs, ret, nr);
}

#endif
