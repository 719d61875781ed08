// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * What Landlock refuses, told by Landlock itself: its tracepoints (Linux 7.3)
 * fire in the task that is refused, whatever the settings of audit. They stay
 * attached: who is not refused by Landlock pays nothing for them.
 */
#define TYPED_READS
#include "object.h"

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

/* security/landlock, of 7.3 and later. */
struct landlock_hierarchy {
	u64 id; /* of the domain that refused: the youngest, where several would */
} KERNEL_TYPE;

enum landlock_request_type {
	LANDLOCK_REQUEST_FS_CHANGE_TOPOLOGY = 2,
};

struct landlock_blockers {
	u32 access;
	enum landlock_request_type type;
} KERNEL_TYPE;

/*
 * refused notes a refusal for the record of the call. Those before the command
 * are the canary's, and tell the domain that is agentguard's: the command may
 * put itself into others.
 */
SEPARATE int refused(u64 domain, u32 by, u32 access, u64 mnt, u64 dentry)
{
	struct object what = {{(void *)mnt, (void *)dentry}, {}, NULL, 1};
	u32 tgid = current_pid_tgid() >> 32;
	struct note *note;
	struct member m;
	s32 nr;

	if (!find_current(&m))
		return 0;
	if (!m.run->started && tgid != m.run->init_tgid)
		m.run->domain = domain;
	if (!in_command(m.run, tgid))
		return 0;
	nr = call_number(task_pt_regs(current_task_btf()));
	note = note_of(nr);
	if (!note)
		return 0;
	note->access = access;
	note->refused = by;
	if (m.run->domain && domain != m.run->domain)
		note->refused |= REFUSED_OWN;
	if (dentry && !note->object)
		note->object = tell_object(&m, nr, &what);
	m.run->noted = 1;
	return 0;
}

INLINE int refused_by(u64 hierarchy, u32 by, u32 access, const struct path *at)
{
	return refused(READ((struct landlock_hierarchy *)hierarchy, id), by, access, (u64)at->mnt, (u64)at->dentry);
}

SEC("tp_btf/landlock_deny_access_fs")
int deny_access_fs(u64 *ctx)
{
	struct landlock_blockers *blockers = (void *)ctx[3];
	struct path at = {};
	bool8 topology = READ(blockers, type) == LANDLOCK_REQUEST_FS_CHANGE_TOPOLOGY;

	read_kernel(&at, sizeof(at), (void *)ctx[4]);
	return refused_by(ctx[0], topology ? REFUSED_TOPOLOGY : REFUSED_FS, READ(blockers, access), &at);
}

SEC("tp_btf/landlock_deny_access_net")
int deny_access_net(u64 *ctx)
{
	struct landlock_blockers *blockers = (void *)ctx[3];
	struct path none = {};

	return refused_by(ctx[0], REFUSED_NET, READ(blockers, access), &none);
}

SEC("tp_btf/landlock_deny_ptrace")
int deny_ptrace(u64 *ctx)
{
	struct path none = {};

	return refused_by(ctx[0], REFUSED_PTRACE, 0, &none);
}

SEC("tp_btf/landlock_deny_scope_signal")
int deny_scope_signal(u64 *ctx)
{
	struct path none = {};

	return refused_by(ctx[0], REFUSED_SIGNAL, 0, &none);
}

SEC("tp_btf/landlock_deny_scope_abstract_unix_socket")
int deny_scope_abstract(u64 *ctx)
{
	struct path none = {};

	return refused_by(ctx[0], REFUSED_ABSTRACT, 0, &none);
}
