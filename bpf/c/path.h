/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The path of a kernel object, as the current task would name it: from the
 * file up to the task's root, across mounts, by the kernel's own dentries.
 *
 * The walk takes no lock, as tier 1 programs cannot: a directory above that is
 * renamed meanwhile may show its old and its new place mixed. What is read stays
 * valid memory, because files, dentries and mounts are freed after a grace period
 * of RCU, and the program is inside one.
 */
#ifndef AGENTGUARD_PATH_H
#define AGENTGUARD_PATH_H

#include "run.h"

#define NAME_CAP 256     /* NAME_MAX and the zero byte */
#define WALK_ROUNDS 4096 /* names and mounts that a walk passes */

/* Programs that walk: each has a buffer, since on newer kernels one may be preempted by another. */
enum lane {
	LANE_CALL = 0,
	LANE_EXEC = 1, /* and the next one for the second copy (task.h) */
	LANES = 3,
	LANE_EXIT = 3, /* likewise; it walks nowhere */
	REPEAT_LANES = 5,
};

/* The names from the file upwards, each ended by a zero byte: user space turns them round. */
struct walked {
	u32 len;
	u32 full; /* bytes of all names: more than len where the beginning of the path is cut */
	u32 state;
	u32 pad;
	char data[WALK_MAX + NAME_CAP];
};

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, LANES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct walked);
} walk_scratch SEC(".maps");

struct walk {
	struct path at, root;
	struct dentry *mnt_root; /* of at.mnt */
	u32 lane;
};

/* add_name appends the name of a dentry, or counts it where there is no room; false if it cannot be read. */
INLINE bool8 add_name(struct walked *out, struct dentry *dentry)
{
	u32 off = out->full > out->len ? WALK_MAX : out->len;
	long n = read_kernel_str(out->data + at_most(off, WALK_MAX), NAME_CAP, READ(dentry, d_name.name));

	if (n <= 0)
		return 0;
	if (out->full == out->len && out->len + n <= WALK_MAX)
		out->len += n;
	out->full += n;
	return 1;
}

/* cross goes from the root of a mount to where it is mounted; false at the top. */
INLINE bool8 cross(struct walk *w)
{
	struct mount *none = NULL;
	struct mount *m = (void *)w->at.mnt - (u64)__builtin_preserve_access_index(&none->mnt);
	struct mount *up = READ(m, mnt_parent);

	if (!up || up == m)
		return 0;
	w->at.dentry = READ(m, mnt_mountpoint);
	w->at.mnt = __builtin_preserve_access_index(&up->mnt);
	w->mnt_root = READ(w->at.mnt, mnt_root);
	return 1;
}

/* climb goes one name or one mount up; called by loop(). */
static long climb(u32 round, struct walk *w)
{
	struct walked *out = map_lookup(&walk_scratch, &w->lane);
	struct dentry *parent;

	(void)round;
	if (!out)
		return 1;
	if (w->at.dentry == w->root.dentry && w->at.mnt == w->root.mnt) {
		out->state |= PATH_ROOTED;
		return 1;
	}
	if (w->at.dentry == w->mnt_root)
		return !cross(w);
	parent = READ(w->at.dentry, d_parent);
	if (!add_name(out, w->at.dentry) || !parent || parent == w->at.dentry)
		return 1; /* the last are in no directory: a pipe, a memfd */
	w->at.dentry = parent;
	return 0;
}

/* walk_path leaves the names of a struct path in the lane's buffer; -1 if there is none. */
SEPARATE int walk_path(u64 mnt, u64 dentry, u32 lane)
{
	struct fs_struct *fs = current_task_btf()->fs;
	struct walk w = {{(void *)mnt, (void *)dentry}, fs->root, NULL, lane};
	struct walked *out = map_lookup(&walk_scratch, &lane);

	if (!out)
		return -1;
	out->len = out->full = out->state = 0;
	if (!dentry)
		return 0;
	w.mnt_root = READ(w.at.mnt, mnt_root);
	loop(WALK_ROUNDS, climb, &w, 0);
	return 0;
}

/* gone is true where the name that a file was opened by is no more: pseudo files never had one. */
INLINE bool8 gone(struct dentry *dentry)
{
	return !READ(dentry, d_hash.pprev) && READ(dentry, d_parent) != dentry;
}

/* append_walk walks from at and copies the names to dst, which has room for WALK_MAX bytes. */
INLINE u32 append_walk(char *dst, struct path at, u32 lane, u32 *full, u8 *state)
{
	struct walked *names = map_lookup(&walk_scratch, &lane);
	u32 len;

	if (walk_path((u64)at.mnt, (u64)at.dentry, lane) || !names)
		return 0;
	len = at_most(names->len, WALK_MAX);
	*full = names->full;
	*state = names->state | (gone(at.dentry) ? PATH_DELETED : 0);
	return read_kernel(dst, len, names->data) ? 0 : len;
}

#endif
