/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * System calls, at their exit: counted, and the refused ones recorded.
 *
 * At exit the arguments are still in the registers, but what they point to is
 * user memory that another thread may have changed since: such fields are the
 * caller's word, not the kernel's.
 */
#ifndef AGENTGUARD_CALL_H
#define AGENTGUARD_CALL_H

#include "file.h"
#include "net.h"
#include "note.h"

#define EPERM 1
#define EACCES 13
#define EROFS 30
#define ENOSYS 38
#define AT_FDCWD -100
#define FALLOC_SHRINKS (0x2 | 0x8) /* PUNCH_HOLE, COLLAPSE_RANGE */

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct ev_call);
} call_scratch SEC(".maps");

INLINE bool8 is_denial(s64 ret, u16 flags)
{
	if (flags & CALL_QUIET)
		return 0;
	if (ret == -ENOSYS)
		return !(flags & CALL_PROBED);
	return ret == -EPERM || ret == -EACCES || ret == -EROFS;
}

/* count_call needs no atomics: no other program counts calls, and this one is not entered twice on a CPU. */
INLINE void count_call(struct counters *counts, u32 index, s64 ret, u16 flags)
{
	struct call_count *c = &counts->call[index & (CALLS - 1)];

	c->calls++;
	if (ret < 0 && ret >= -MAX_ERRNO)
		c->errors++;
	else if ((flags & CALL_BYTES) && ret > 0)
		c->bytes += ret;
}

/* arg takes the argument of the 1-based number that the call table gives. */
INLINE u64 arg(const struct ev_call *ev, u8 number)
{
	u32 i = number - 1;

	__asm__ volatile("" : "+r"(i)); /* as in at_most */
	if (i > 5)
		return 0;
	__asm__ volatile("" : "+r"(i));
	return ev->args[i];
}

/* read_path appends the string at user address p at off and returns its length with the zero byte. */
INLINE u32 read_path(struct ev_call *ev, u32 off, u64 p)
{
	long n = read_user_str(ev->data + at_most(off, PATH_CAP), PATH_CAP, (void *)p);

	if (n <= 0) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	if (n == PATH_CAP)
		ev->h.flags |= F_TRUNCATED;
	return at_most(n, PATH_CAP);
}

/* read_address appends the sockaddr of connect, bind, sendto or of a msghdr. */
INLINE u32 read_address(struct ev_call *ev, u32 off, const volatile struct call_info *info)
{
	struct {
		u64 name;
		u32 len;
	} msg = {arg(ev, info->addr), (u32)arg(ev, info->addr + 1)};
	u32 len;

	if ((info->flags & CALL_MSGHDR) && read_user(&msg, 12, (void *)msg.name)) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	if (!msg.name)
		return 0;
	len = at_most(msg.len, ADDR_CAP);
	if (read_user(ev->data + at_most(off, 2 * PATH_CAP), len, (void *)msg.name)) {
		ev->h.flags |= F_UNREADABLE;
		return 0;
	}
	return len;
}

struct open_how {
	u64 flags, mode, resolve;
};

/* read_how puts the flags and mode of openat2 where openat has them. */
INLINE u64 read_how(u64 *args, u8 *flags)
{
	struct open_how how = {};

	if (read_user(&how, sizeof(how), (void *)args[2]))
		*flags |= F_UNREADABLE;
	args[2] = how.flags;
	args[3] = how.mode;
	return how.resolve;
}

/* start_of finds the directory that a path of the call begins from; false for an absolute path. */
INLINE bool8 start_of(struct path *at, const struct ev_call *ev, u32 path, u8 dir)
{
	s32 fd = dir ? (s32)arg(ev, dir) : AT_FDCWD;
	struct file *file;
	char first = 0;

	read_kernel(&first, 1, ev->data + at_most(path, 2 * PATH_CAP));
	if (first == '/')
		return 0;
	if (fd == AT_FDCWD) {
		struct fs_struct *fs = READ((struct task_struct *)current_task(), fs);

		*at = COPY(fs, pwd);
		return 1;
	}
	file = open_file(fd);
	*at = COPY(file, f_path);
	return file != NULL;
}

/* own_file finds the file that the call names by descriptor. */
INLINE bool8 own_file(struct path *at, struct ev_call *ev, u8 fd)
{
	struct file *file = open_file(arg(ev, fd));
	struct file_info info;

	if (!file)
		return 0;
	*at = COPY(file, f_path);
	describe(&info, file, *at, HOW_OPEN);
	ev->inode = info.inode;
	ev->dev = info.dev;
	return 1;
}

/* add_dirs appends the paths that those of the call begin from, or the path of its own file. */
INLINE u32 add_dirs(struct ev_call *ev, u32 off, const volatile struct call_info *info)
{
	struct path at = {};

	if (info->file ? own_file(&at, ev, info->file) :
			 ev->path_len && !(info->flags & CALL_TEXT) && start_of(&at, ev, 0, info->dir)) {
		ev->dir_len = append_walk(ev->data + at_most(off, 2 * PATH_CAP + ADDR_CAP), at, LANE_CALL, &ev->dir_full, &ev->dir_state);
	}
	off += FORGET(ev->dir_len);
	if (FORGET(ev->path2_len) && !(info->flags & CALL_TEXT2) && start_of(&at, ev, FORGET(ev->path_len), info->dir2)) {
		ev->dir2_len = append_walk(ev->data + at_most(off, 2 * PATH_CAP + ADDR_CAP + WALK_MAX), at, LANE_CALL, &ev->dir2_full, &ev->dir2_state);
	}
	return off + FORGET(ev->dir2_len);
}

INLINE u32 add_arguments(struct ev_call *ev, const volatile struct call_info *info)
{
	u32 len;

	if (info->flags & CALL_OPEN2)
		ev->resolve = read_how(ev->args, &ev->h.flags);
	if (info->path)
		ev->path_len = read_path(ev, 0, arg(ev, info->path));
	len = FORGET(ev->path_len);
	if (info->path2)
		ev->path2_len = read_path(ev, len, arg(ev, info->path2));
	len += FORGET(ev->path2_len);
	if (info->addr)
		ev->addr_len = read_address(ev, len, info);
	return add_dirs(ev, len + FORGET(ev->addr_len), info);
}

/*
 * report_call writes the record of a call with its arguments. Functions that are
 * verified by themselves take the parts of a member: a struct that holds
 * pointers would come in as numbers.
 */
SEPARATE int report_call(u64 id, struct run *run, struct counters *counts, s64 ret, u32 type)
{
	struct member m = {id, run, counts};
	u32 zero = 0, len = 0;
	struct ev_call *ev = map_lookup(&call_scratch, &zero);
	s32 nr = call_number(task_pt_regs(current_task_btf()));

	if (!ev || !run || !counts)
		return 0;
	fill_current(&ev->h, &m, type, type == EV_CALL ? CLASS_BULK : CLASS_VERDICT);
	ev->h.nr = nr;
	ev->h.ret = ret;
	call_args((struct pt_regs *)task_registers(current_task_btf()), ev->args);
	ev->inode = ev->resolve = 0;
	ev->dev = ev->dir_full = ev->dir2_full = 0;
	ev->path_len = ev->path2_len = ev->addr_len = ev->dir_len = ev->dir2_len = 0;
	ev->dir_state = ev->dir2_state = 0;
	take_note(ev, nr);
	if (is_compat() || (u32)nr >= CALLS)
		ev->h.flags |= F_COMPAT; /* the table is not for these numbers */
	else
		len = add_arguments(ev, &calls[nr & (CALLS - 1)]);
	emit(&m, &ev->h, sizeof(*ev) - sizeof(ev->data) + at_most(len, sizeof(ev->data)));
	return 0;
}

/*
 * count_file adds what a call wrote to a regular file. A descriptor that
 * another thread has closed meanwhile counts as one; so does all that
 * truncate and fallocate reach for, since memory mappings can fill it unseen.
 * To punch a hole takes no room, and may name 2^63 bytes: two would turn the
 * counter round.
 */
INLINE void count_file(const struct member *m, const u64 *args, s64 ret, const volatile struct call_info *info)
{
	struct inode *inode;
	struct file *file;

	if (info->file) {
		file = open_file(info->file == 3 ? args[2] : args[0]);
		inode = READ(file, f_inode);
		if (file && (READ(inode, i_mode) & S_IFMT) != S_IFREG)
			return;
	}
	if (info->extent == 4) {
		if (args[1] & FALLOC_SHRINKS)
			return;
		ret = args[3];
	} else if (info->extent) {
		ret = args[1];
	}
	if (ret > 0)
		add(&m->counts->file_bytes, ret);
}

/*
 * report_listen records where a socket listens: no cgroup hook sees listen,
 * nor the port that it binds by itself. The descriptor is looked up again, so
 * another thread may have replaced it (fd-exit).
 */
SEPARATE int report_listen(u64 run, u32 fd, s32 nr)
{
	struct ev_sock ev = {};
	struct file *file;
	struct inode *inode;
	struct socket *socket;
	struct sock *sk;
	struct member m;

	file = open_file(fd);
	inode = READ(file, f_inode);
	if ((READ(inode, i_mode) & S_IFMT) != S_IFSOCK || !find(&m, run))
		return 0;
	socket = READ(file, private_data);
	sk = READ(socket, sk);
	fill_current(&ev.h, &m, EV_LISTEN, CLASS_VERDICT);
	ev.h.nr = nr;
	ev.allowed = 1;
	ev.family = READ(sk, __sk_common.skc_family);
	ev.type = READ(sk, sk_type);
	ev.protocol = READ(sk, sk_protocol);
	if (ev.family == AF_INET || ev.family == AF_INET6)
		ev.port = READ(sk, __sk_common.skc_num);
	if (ev.family == AF_INET)
		*(u32 *)ev.addr = READ(sk, __sk_common.skc_rcv_saddr);
	else if (ev.family == AF_INET6)
		*(struct in6_addr *)ev.addr = READ(sk, __sk_common.skc_v6_rcv_saddr);
	emit(&m, &ev.h, sizeof(ev));
	return 0;
}

#endif
