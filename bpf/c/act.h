/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a call that returns means for the record. */
#ifndef AGENTGUARD_ACT_H
#define AGENTGUARD_ACT_H

#include "call.h"
#include "receive.h"

#define EINTR 4
#define EAGAIN 11
#define EBUSY 16
#define EALREADY 114
#define EINPROGRESS 115
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

/* Off the stack, of which the deepest chain of sys_exit has 512 bytes in all before Linux 6.13: stack_test.go counts them. */
struct acting {
	struct found found; /* for note_file, which is called next */
	struct seen now;
};

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct acting);
} act_scratch SEC(".maps");

/* found_file hands a file to note_file. */
INLINE void found_file(struct file *file, s64 ret, s32 nr, u8 how, u8 source)
{
	u32 zero = 0;
	struct acting *act = map_lookup(&act_scratch, &zero);

	if (!act)
		return;
	act->found.file = file;
	act->found.ret = ret;
	act->found.nr = nr;
	act->found.how = how;
	act->found.source = source;
}

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
SEPARATE int note_file(u64 id, struct run *run, struct counters *counts)
{
	struct member m = {id, run, counts};
	struct seen *slot = NULL, *now;
	struct found *found;
	u8 number = NO_SLOT;
	u32 zero = 0;
	struct acting *act = map_lookup(&act_scratch, &zero);

	if (!run || !counts || !act || (!act->found.file && act->found.how != HOW_MAP_ANON))
		return 0;
	found = &act->found;
	now = &act->now;
	now->path = path_as(found->file, found->how);
	describe(&now->file, found->file, now->path, found->how);
	if ((run->flags & RUN_CHANGES) && only_read(&now->file))
		return 0;
	now->name = READ(now->path.dentry, d_name.hash_len);
	now->file.state = gone(now->path.dentry) ? PATH_DELETED : 0;
	now->source = found->source;
	now->count = 0;
	if (!(now->file.fmode & FMODE_CREATED) && seen_before(&m, now, &slot, &number))
		return 0;
	if (write_file(&m, now, found, number) && slot) {
		*slot = *now;
		slot->taken = 1;
	}
	return 0;
}

struct mapping {
	struct file *file;
	u64 flags, end;
	void *copies; /* NULL: all pages are the file's */
};

/* take_mapping is called by find_vma() with the mapping that holds the address. */
static long take_mapping(struct task_struct *task, struct vm_area_struct *vma, struct mapping *out)
{
	(void)task;
	out->file = COPY(vma, vm_file); /* a number: note_file takes no pointer */
	out->flags = READ(vma, vm_flags);
	out->end = READ(vma, vm_end);
	out->copies = COPY(vma, anon_vma);
	return 0;
}

/* how_mapped: a private mapping that can be written too will have copies when it is executed. */
INLINE u8 how_mapped(u64 prot, u64 flags, bool8 copies)
{
	if (!(prot & PROT_EXEC))
		return HOW_MAP_WRITE;
	return (copies || (prot & PROT_WRITE)) && !(flags & VM_SHARED) ? HOW_MAP_COPY : HOW_MAP_EXEC;
}

/* written_too: what is executed is the file's own, and can be written to without a call. */
INLINE bool8 written_too(u64 prot, u64 flags)
{
	return (prot & PROT_EXEC) && (prot & PROT_WRITE) && (flags & VM_SHARED);
}

/*
 * on_mmap records a new mapping that is to be executed, or to be written without
 * a call. The file is the mapping's own; when its lock is held by another
 * thread, the one of mmap's descriptor.
 */
INLINE void on_mmap(const struct member *m, const u64 *args, s64 ret, s32 nr)
{
	struct mapping mapping = {};
	u8 source = SOURCE_OBJECT;

	if (!(args[2] & PROT_EXEC) && ((args[3] & MAP_ANONYMOUS) || !(args[2] & PROT_WRITE) || !(args[3] & MAP_SHARED)))
		return;
	if (args[3] & MAP_ANONYMOUS) {
		found_file(NULL, ret, nr, HOW_MAP_ANON, source);
		note_file(m->id, m->run, m->counts);
		return;
	}
	if (find_vma(current_task_btf(), ret, take_mapping, &mapping, 0)) {
		mapping.file = open_file(args[4]);
		mapping.flags = args[3] & MAP_SHARED ? VM_SHARED : 0;
		source = SOURCE_FD;
	}
	found_file(mapping.file, ret, nr, how_mapped(args[2], mapping.flags, 0), source);
	if ((args[2] & PROT_EXEC) || (mapping.flags & VM_SHARED))
		note_file(m->id, m->run, m->counts);
	if (written_too(args[2], mapping.flags)) {
		found_file(mapping.file, ret, nr, HOW_MAP_WRITE, source);
		note_file(m->id, m->run, m->counts);
	}
}

/*
 * A range whose protection was changed, and how far it has been gone through.
 * tries goes up to most, and begins with a number that the verifier does not
 * know: one that it knew would make each round another state to it, twelve
 * times as many instructions in all.
 */
struct range {
	u64 run, at, end;
	s32 nr;
	u32 prot, tries, most;
};

#define MAPPINGS 1024	/* that one call is followed through */
#define LOCK_TRIES 64	/* in one call, while another thread has the lock of the mappings, or waits for it */
#define LOCKED (~0ULL)	/* what note_mapping returns then */

/*
 * note_mapping records the mapping at an address and returns how long it is; 0
 * where none can be seen. Other threads can keep the lock from us for as long as
 * they like. In the last try what becomes executable is told as what is known of
 * it: memory for which no file vouches.
 */
SEPARATE u64 note_mapping(u64 run, u64 at, u32 prot, s32 nr, u32 last)
{
	struct mapping mapping = {};
	long failed = find_vma(current_task_btf(), at, take_mapping, &mapping, 0);
	struct member m;

	if (failed && failed != -EBUSY)
		return 0;
	if (failed && (!last || !(prot & PROT_EXEC)))
		return LOCKED;
	if (!find(&m, run))
		return 0;
	if (failed) {
		found_file(NULL, 0, nr, HOW_MAP_ANON, SOURCE_FD);
		note_file(m.id, m.run, m.counts);
		return 0;
	}
	found_file(mapping.file, 0, nr, !mapping.file && (prot & PROT_EXEC) ? HOW_MAP_ANON : how_mapped(prot, mapping.flags, !!mapping.copies), SOURCE_OBJECT);
	if ((prot & PROT_EXEC) || (mapping.flags & VM_SHARED))
		note_file(m.id, m.run, m.counts);
	if (mapping.file && written_too(prot, mapping.flags)) {
		found_file(mapping.file, 0, nr, HOW_MAP_WRITE, SOURCE_OBJECT);
		note_file(m.id, m.run, m.counts);
	}
	return mapping.end - at;
}

/* next_mapping is called by loop(). */
static long next_mapping(u32 round, struct range *range)
{
	u64 len = note_mapping(range->run, range->at, range->prot, range->nr, range->tries + 1 == range->most);

	(void)round;
	if (len == LOCKED)
		return ++range->tries == range->most;
	range->at += len;
	return !len || range->at >= range->end;
}

/* on_mprotect records all files that lie in the range: one call can span many mappings. */
INLINE void on_mprotect(u64 run, const u64 *args, s32 nr)
{
	struct range range = {run, args[0], args[0] + args[1], nr, args[2], (u32)run, (u32)run + LOCK_TRIES};

	if (args[1] && (args[2] & (PROT_EXEC | PROT_WRITE)))
		loop(MAPPINGS, next_mapping, &range, 0);
}

/* on_act records a call on files that succeeded. */
INLINE void on_act(const struct member *m, struct pt_regs *regs, s64 ret, s32 nr, u8 act)
{
	u64 args[6];

	if (act == ACT_CHANGE) {
		report_call(m->id, m->run, m->counts, ret, EV_CALL);
		return;
	}
	if (act == ACT_OPEN) {
		found_file(open_file(ret), ret, nr, HOW_OPEN, alone() ? SOURCE_OBJECT : SOURCE_FD);
		note_file(m->id, m->run, m->counts);
		return;
	}
	call_args(regs, args);
	if (act == ACT_MMAP)
		on_mmap(m, args, ret, nr);
	else if (act == ACT_MPROTECT)
		on_mprotect(m->id, args, nr);
	else
		report_received(m->id, args[1], calls[nr & (CALLS - 1)].flags & CALL_VECTOR ? ret : 0, nr);
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
	if (info->act && info->act != ACT_ADDRESS && in_command(m->run, current_pid_tgid() >> 32))
		on_act(m, regs, ret, nr, info->act);
}

/* is_failure is true where the record says why a call failed: one that has not ended yet, or is to be tried again, did not. */
INLINE bool8 is_failure(s64 ret, u8 act)
{
	if (act == ACT_ADDRESS && (ret == -EAGAIN || ret == -EALREADY || ret == -EINPROGRESS || ret == -EINTR))
		return 0;
	return (act == ACT_OPEN || act == ACT_CHANGE || act == ACT_ADDRESS) && ret > -ERESTARTSYS;
}

INLINE void on_failure(const struct member *m, s64 ret, const volatile struct call_info *info)
{
	u16 flags = info->flags;

	if (flags & CALL_EXEC)
		report_call(m->id, m->run, m->counts, ret, EV_EXEC_FAIL);
	else if (is_denial(ret, flags))
		report_call(m->id, m->run, m->counts, ret, EV_DENY);
	else if (is_failure(ret, info->act) && in_command(m->run, current_pid_tgid() >> 32))
		report_call(m->id, m->run, m->counts, ret, EV_CALL);
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
		on_failure(m, ret, info);
	if (m->run->noted)
		forget_note();
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
