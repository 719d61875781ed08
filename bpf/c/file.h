/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Files that are opened or mapped, from the kernel's objects. */
#ifndef AGENTGUARD_FILE_H
#define AGENTGUARD_FILE_H

#include "path.h"

#define FMODE_WRITE 0x2
#define FMODE_CREATED 0x100000
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, LANES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_file);
} file_scratch SEC(".maps");

/*
 * What a thread opened or mapped lately. Doing the same again adds to count,
 * which is told when the entry makes room for another, or the thread executes
 * or ends: no act is left out, and none is told twice. Only the thread itself
 * touches its own entries, so nothing needs to be atomic.
 */
#define SEEN_SLOTS 32

struct seen {
	struct path path;
	u64 name; /* hash of the last component, salted with the directory: a renamed file is another */
	struct file_info file;
	u64 count;
	u8 taken, source; /* what is known for certain is not counted with what is not */
};

struct seen_files {
	struct seen slot[SEEN_SLOTS];
};

struct {
	MAP_UINT(type, MAP_TASK_STORAGE);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct seen_files);
} seen_files SEC(".maps");

/* open_file is what a descriptor of the current task refers to now, or NULL. */
INLINE struct file *open_file(u32 fd)
{
	struct fdtable *table = current_task_btf()->files->fdt;
	struct file *file = NULL;

	if (fd < table->max_fds)
		read_kernel(&file, sizeof(file), table->fd + fd);
	return file;
}

/*
 * changed_at is the ctime of an inode. From 6.13 on the top bit of the
 * nanoseconds says that somebody has asked for it (I_CTIME_QUERIED).
 */
INLINE u64 changed_at(struct inode *inode)
{
	struct inode___6_11 *now = (void *)inode;
	struct inode___6_6 *before = (void *)inode;
	struct inode___6_1 *first = (void *)inode;
	s64 sec;
	u32 nsec;

	if (HAS(now, i_ctime_sec)) {
		sec = READ(now, i_ctime_sec);
		nsec = READ(now, i_ctime_nsec);
	} else if (HAS(before, __i_ctime)) {
		sec = READ(before, __i_ctime.tv_sec);
		nsec = READ(before, __i_ctime.tv_nsec);
	} else {
		sec = READ(first, i_ctime.tv_sec);
		nsec = READ(first, i_ctime.tv_nsec);
	}
	return sec * 1000000000 + (nsec & 0x7fffffff);
}

/*
 * path_of is the path by which a file was opened. What a mapping on an overlay
 * holds is a file of one of its layers, which from 6.7 on has the path of the
 * layer: on a mount that is the kernel's own (fs/file_table.c,
 * backing_file_user_path). The flag that says so, FMODE_BACKING, has had two
 * values. Memory without a name is on such a mount too, but in no directory.
 */
INLINE struct path path_of(struct file *file)
{
	struct backing_file *backing = (void *)file;
	struct path path = COPY(file, f_path);
	struct mount *none = NULL;
	struct mount *m = (void *)path.mnt - (u64)__builtin_preserve_access_index(&none->mnt);

	if (HAS(backing, user_path) && (u64)COPY(m, mnt_ns) >= (u64)-MAX_ERRNO && READ(path.dentry, d_parent) != path.dentry)
		return COPY(backing, user_path);
	return path;
}

/* path_as is path_of, which only mappings need: what a descriptor refers to is no file of a layer. */
INLINE struct path path_as(struct file *file, u8 how)
{
	return how == HOW_OPEN ? COPY(file, f_path) : path_of(file);
}

/* describe reads what a file is, without its path: of that by which it was opened. */
INLINE void describe(struct file_info *info, struct file *file, struct path path, u8 how)
{
	struct inode *inode = READ(path.dentry, d_inode);
	struct super_block *sb = READ(inode, i_sb);

	info->inode = READ(inode, i_ino);
	info->dev = READ(sb, s_dev);
	info->fmode = READ(file, f_mode);
	info->mode = READ(inode, i_mode);
	info->how = how;
	info->state = 0;
	info->path_full = 0;
	info->ctime = how == HOW_MAP_EXEC || how == HOW_MAP_COPY || how == HOW_OPEN ? changed_at(inode) : 0;
}

/* Off the stack, of which the deepest chain of sys_exit has 512 bytes in all. */
struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, REPEAT_LANES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_repeat);
} repeat_scratch SEC(".maps");

/* tell_repeats tells the count of one slot of the current thread, and empties it. */
SEPARATE int tell_repeats(u64 run, u32 i, u32 lane)
{
	struct seen_files *files = task_storage(&seen_files, current_task_btf(), NULL, 0);
	struct ev_repeat *ev = map_lookup(&repeat_scratch, &lane);
	struct seen *seen;
	struct member m;

	i &= SEEN_SLOTS - 1;
	if (!files || !ev)
		return 0;
	seen = &files->slot[i];
	seen->taken = 0;
	if (!seen->count || !find(&m, run))
		return 0;
	ev->count = seen->count;
	seen->count = 0;
	ev->file = seen->file;
	ev->slot = i;
	fill_current(&ev->h, &m, EV_REPEAT, CLASS_BULK);
	if (!emit(&m, &ev->h, sizeof(*ev)))
		add(&m.counts->lost_repeats, ev->count - 1);
	return 0;
}

struct leaving {
	u64 run;
	u32 lane;
};

static long tell_slot(u32 i, struct leaving *ctx)
{
	tell_repeats(ctx->run, i, ctx->lane);
	return 0;
}

/* forget_files tells what the current thread repeated, before it ends or becomes another program. */
INLINE void forget_files(const struct member *m, u32 lane)
{
	struct leaving ctx = {m->id, lane};

	if (task_storage(&seen_files, current_task_btf(), NULL, 0))
		loop(SEEN_SLOTS, tell_slot, &ctx, 0);
}

INLINE bool8 same(const struct seen *seen, const struct seen *now)
{
	return seen->taken && seen->path.dentry == now->path.dentry && seen->path.mnt == now->path.mnt &&
	       seen->name == now->name && seen->file.inode == now->file.inode &&
	       seen->file.fmode == now->file.fmode && seen->file.how == now->file.how &&
	       seen->file.state == now->file.state && seen->source == now->source &&
	       (now->file.how != HOW_MAP_EXEC || seen->file.ctime == now->file.ctime);
}

/* seen_before counts an act that the thread's memory has, or makes room for it: then *at is its slot. */
INLINE bool8 seen_before(const struct member *m, const struct seen *now, struct seen **at, u8 *number)
{
	struct seen_files *files = task_storage(&seen_files, current_task_btf(), NULL, STORAGE_CREATE);
	u32 i = ((u64)now->path.dentry >> 6 ^ now->file.inode ^ now->file.fmode ^ now->file.how) & (SEEN_SLOTS - 1);

	if (!files)
		return 0;
	*at = &files->slot[i];
	*number = i;
	if (same(*at, now)) {
		(*at)->count++;
		return 1;
	}
	if ((*at)->count)
		tell_repeats(m->id, i, LANE_CALL);
	(*at)->taken = 0;
	return 0;
}

/* fill_file writes what a file is and its path. */
INLINE void fill_file(struct ev_file *ev, struct path at, const struct file_info *info, u32 lane)
{
	ev->file = *info;
	ev->path_len = append_walk(ev->data, at, lane, &ev->file.path_full, &ev->file.state);
	ev->resolve = 0;
	ev->given_len = 0;
	ev->slot = NO_SLOT;
	ev->source = SOURCE_FD;
}

INLINE u32 file_size(const struct ev_file *ev)
{
	return sizeof(*ev) - sizeof(ev->data) + at_most(FORGET(ev->path_len) + FORGET(ev->given_len), sizeof(ev->data));
}

struct snapshot {
	u64 run;
	u32 lane;
};

/* tell_descriptor records one open descriptor; called by loop(). */
static long tell_descriptor(u32 fd, struct snapshot *ctx)
{
	struct file *file = open_file(fd);
	struct file_info info;
	struct ev_file *ev;
	struct member m;
	u32 lane = ctx->lane;

	if (!file)
		return 0;
	ev = map_lookup(&file_scratch, &lane);
	if (!ev || !find(&m, ctx->run))
		return 1;
	describe(&info, file, COPY(file, f_path), HOW_OPEN);
	fill_current(&ev->h, &m, EV_FD, CLASS_CONTROL);
	ev->h.ret = fd;
	fill_file(ev, COPY(file, f_path), &info, lane);
	__builtin_memset(ev->args, 0, sizeof(ev->args));
	emit(&m, &ev->h, file_size(ev));
	return 0;
}

/* tell_descriptors records what the command was started with: called once, at its execve. */
INLINE void tell_descriptors(const struct member *m, u32 lane)
{
	struct snapshot ctx = {m->id, lane};
	struct task_struct *task = (void *)current_task();
	struct files_struct *files = READ(task, files);
	struct fdtable *table = READ(files, fdt);
	u32 n = READ(table, max_fds);

	loop(n < 65536 ? n : 65536, tell_descriptor, &ctx, 0);
}

#endif
