// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Tier 2: what calls that change names are about, where the kernel has looked
 * the names up and before it acts (security_path_*, include/linux/security.h).
 * The directory is locked then, so that a name cannot change. At the end of
 * the call, where sensor.c looks, there is only what the caller's memory says.
 *
 * The programs are attached as long as the set is pinned: to attach them takes
 * milliseconds, more than a run may wait. A process outside pays for one helper
 * call in calls that change names, and nothing in others.
 */
#define TYPED_READS
#include "object.h"

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

/* resolved notes what the current call is about, if its end will be recorded. */
SEPARATE int resolved(u64 mnt, u64 dentry, u64 mnt2, u64 dentry2, u64 text)
{
	struct object what = {{(void *)mnt, (void *)dentry}, {(void *)mnt2, (void *)dentry2}, (void *)text, 0};
	struct note *note;
	struct member m;
	s32 nr;

	if (!find_current(&m) || !in_command(m.run, current_pid_tgid() >> 32))
		return 0;
	nr = call_number(task_pt_regs(current_task_btf()));
	if ((u32)nr >= CALLS || is_compat() || calls[nr & (CALLS - 1)].act != ACT_CHANGE)
		return 0;
	note = note_of(nr);
	if (note)
		note->object = tell_object(&m, nr, &what);
	return 0;
}

/*
 * attribute is for extended attributes: the hook is told the inode's entry and the
 * kernel's copy of the name, but not by which mount, so there is no path. Some
 * file systems set attributes of files below their own (overlayfs); the first is
 * the call's.
 */
INLINE int attribute(u64 dentry, u64 name)
{
	struct note *note;

	if (outside())
		return 0;
	note = task_storage(&notes, current_task_btf(), NULL, 0);
	if (note && note->object)
		return 0;
	return resolved(0, number(dentry), 0, 0, number(name));
}

/* mount_of reads the mount of a struct path: where only a directory has one, its names' too. */
INLINE u64 mount_of(u64 path)
{
	struct path at = {};

	read_kernel(&at, sizeof(at), (void *)path);
	return (u64)at.mnt;
}

/* in_dir is for a name in a directory. */
INLINE int in_dir(u64 dir, u64 dentry)
{
	if (outside())
		return 0;
	return resolved(mount_of(dir), number(dentry), 0, 0, 0);
}

INLINE int at_path(u64 path)
{
	struct path at = {};

	if (outside())
		return 0;
	read_kernel(&at, sizeof(at), (void *)path);
	return resolved((u64)at.mnt, (u64)at.dentry, 0, 0, 0);
}

SEC("fentry/security_path_unlink")
int path_unlink(u64 *ctx)
{
	return in_dir(ctx[0], ctx[1]);
}

SEC("fentry/security_path_rmdir")
int path_rmdir(u64 *ctx)
{
	return in_dir(ctx[0], ctx[1]);
}

SEC("fentry/security_path_mkdir")
int path_mkdir(u64 *ctx)
{
	return in_dir(ctx[0], ctx[1]);
}

SEC("fentry/security_path_mknod")
int path_mknod(u64 *ctx)
{
	return in_dir(ctx[0], ctx[1]);
}

SEC("fentry/security_path_truncate")
int path_truncate(u64 *ctx)
{
	return at_path(ctx[0]);
}

SEC("fentry/security_path_chmod")
int path_chmod(u64 *ctx)
{
	return at_path(ctx[0]);
}

SEC("fentry/security_path_chown")
int path_chown(u64 *ctx)
{
	return at_path(ctx[0]);
}

SEC("fentry/security_path_symlink")
int path_symlink(u64 *ctx)
{
	if (outside())
		return 0;
	return resolved(0, 0, mount_of(ctx[0]), number(ctx[1]), number(ctx[2]));
}

/* A hard link is on one mount: the old name's is that of the new directory (fs/namei.c, do_linkat). */
SEC("fentry/security_path_link")
int path_link(u64 *ctx)
{
	if (outside())
		return 0;
	return resolved(mount_of(ctx[1]), number(ctx[0]), mount_of(ctx[1]), number(ctx[2]), 0);
}

SEC("fentry/security_path_rename")
int path_rename(u64 *ctx)
{
	if (outside())
		return 0;
	return resolved(mount_of(ctx[0]), number(ctx[1]), mount_of(ctx[2]), number(ctx[3]), 0);
}

SEC("fentry/security_inode_setxattr")
int inode_setxattr(u64 *ctx)
{
	return attribute(ctx[1], ctx[2]);
}

SEC("fentry/security_inode_removexattr")
int inode_removexattr(u64 *ctx)
{
	return attribute(ctx[1], ctx[2]);
}
