/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What is known of a thread between two events: what programs that run inside a
 * system call have found out about it, for the record that is made when it
 * returns. Only the thread itself touches its note.
 */
#ifndef AGENTGUARD_NOTE_H
#define AGENTGUARD_NOTE_H

#include "regs.h"
#include "run.h"

struct note {
	u64 object; /* time of the EV_OBJECT that says what the call is about; 0: none */
	u32 access; /* what Landlock did not grant: LANDLOCK_ACCESS_* */
	s32 nr;     /* of the call */
	u8 refused; /* enum refusal */
	u8 shared;  /* the thread has shared its descriptors since its last execve */
	u8 pad[6];
};

struct {
	MAP_UINT(type, MAP_TASK_STORAGE);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct note);
} notes SEC(".maps");

/* number is a pointer without the type that the verifier gave it: other functions take numbers. */
INLINE u64 number(u64 pointer)
{
	u64 n = 0;

	read_kernel(&n, sizeof(n), &pointer);
	return n;
}

INLINE void clear_call(struct note *note)
{
	note->object = 0;
	note->access = 0;
	note->refused = 0;
}

/* note_of is the current thread's note for the call that it is in; NULL where there is no memory. */
INLINE struct note *note_of(s32 nr)
{
	struct note *note = task_storage(&notes, current_task_btf(), NULL, STORAGE_CREATE);

	if (note && note->nr != nr) {
		clear_call(note);
		note->nr = nr;
	}
	return note;
}

/* take_note hands what was noted of the call to its record. */
INLINE void take_note(struct ev_call *ev, s32 nr)
{
	struct note *note = task_storage(&notes, current_task_btf(), NULL, 0);

	ev->object = 0;
	ev->access = ev->refused = 0;
	if (!note)
		return;
	if (note->nr == nr) {
		ev->object = note->object;
		ev->access = note->access;
		ev->refused = note->refused;
	}
	clear_call(note);
}

/* forget_note drops what was noted of a call whose record does not need it, or that has none. */
INLINE void forget_note(void)
{
	struct note *note = task_storage(&notes, current_task_btf(), NULL, 0);

	if (note)
		clear_call(note);
}

/*
 * alone is true where no other thread can have changed the current one's
 * descriptors. A note may be missing: on a CPU where a task was interrupted while
 * it made one, none can be made. Who shares them now shows all the same.
 */
INLINE bool8 alone(void)
{
	struct note *note = task_storage(&notes, current_task_btf(), NULL, 0);
	struct files_struct *files = READ((struct task_struct *)current_task(), files);

	return !(note && note->shared) && READ(files, count.counter) == 1;
}

#endif
