/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* EV_OBJECT: what a call is about, told from inside it by the kernel's own objects. */
#ifndef AGENTGUARD_OBJECT_H
#define AGENTGUARD_OBJECT_H

#include "note.h"
#include "path.h"

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, LANES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_object);
} object_scratch SEC(".maps");

/*
 * Programs inside a call can be preempted, also by others of this object, so
 * each takes a lane of its CPU that is free. Where none is, the record of the
 * call has what it would have without them.
 */
struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, LANES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} lanes SEC(".maps");

INLINE u32 *take_lane(u32 *lane)
{
	u32 *taken, i;

#pragma unroll
	for (i = 0; i < LANES; i++) {
		*lane = i;
		taken = map_lookup(&lanes, lane);
		if (taken && !__sync_lock_test_and_set(taken, 1))
			return taken;
	}
	return NULL;
}

/* One or two names, and a text of the kernel's (the target of a symbolic link). */
struct object {
	struct path at, to;
	const char *text;
	u8 refused; /* of ev_object */
};

INLINE void fill_object(struct ev_object *ev, const struct object *what, u32 lane)
{
	struct inode *inode = READ(what->at.dentry, d_inode);
	struct super_block *sb = READ(inode, i_sb);
	u32 off;
	long n;

	ev->inode = READ(inode, i_ino);
	ev->dev = READ(sb, s_dev);
	ev->full = ev->full2 = 0;
	ev->len = ev->len2 = ev->text_len = 0;
	ev->state = ev->state2 = 0;
	ev->refused = what->refused;
	if (what->at.mnt)
		ev->len = append_walk(ev->data, what->at, lane, &ev->full, &ev->state);
	off = FORGET(ev->len);
	if (what->to.dentry)
		ev->len2 = append_walk(ev->data + at_most(off, WALK_MAX), what->to, lane, &ev->full2, &ev->state2);
	off += FORGET(ev->len2);
	if (what->text) {
		n = read_kernel_str(ev->data + at_most(off, 2 * WALK_MAX), PATH_CAP, what->text);
		ev->text_len = n > 0 ? at_most(n, PATH_CAP) : 0;
	}
}

/* tell_object writes the event and returns its time; 0 where it is not told. */
INLINE u64 tell_object(const struct member *m, s32 nr, const struct object *what)
{
	struct ev_object *ev;
	u64 time = 0;
	u32 lane, len;
	u32 *taken = take_lane(&lane);

	if (!taken)
		return 0;
	ev = map_lookup(&object_scratch, &lane);
	if (ev) {
		fill_current(&ev->h, m, EV_OBJECT, CLASS_BULK);
		ev->h.nr = nr;
		fill_object(ev, what, lane);
		len = FORGET(ev->len) + FORGET(ev->len2) + FORGET(ev->text_len);
		if (emit(m, &ev->h, sizeof(*ev) - sizeof(ev->data) + at_most(len, sizeof(ev->data))))
			time = ev->h.time;
	}
	__sync_lock_test_and_set(taken, 0);
	return time;
}

#endif
