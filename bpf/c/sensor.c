// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The sensor: BTF tracepoints, attached while any run lives. sys_exit is
 * the only one that other processes of the host pay for on every call.
 */
#define TYPED_READS
#include "act.h"
#include "task.h"

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

SEC("tp_btf/sys_exit")
int sys_exit(u64 *ctx)
{
	struct member m;

	if (!find_current(&m))
		return 0;
	on_call(&m, (struct pt_regs *)ctx[0], (s64)ctx[1]);
	return 0;
}

/* raw_syscalls:sys_exit as perf writes it (its format file in tracefs). */
struct sys_exit_record {
	u64 common;
	s64 id, ret;
};

/*
 * The same by way of perf, which turns preemption off for its tracepoints. It
 * is used where others leave it on: a task that is preempted inside sys_exit
 * would keep it from all other tasks of the CPU (task.h), and there are too many
 * calls for copies.
 */
SEC("tracepoint/raw_syscalls/sys_exit")
int sys_exit_perf(struct sys_exit_record *ctx)
{
	struct member m;

	if (!find_current(&m))
		return 0;
	on_call(&m, task_pt_regs(current_task_btf()), ctx->ret);
	return 0;
}

INLINE int process_exec_copy(u64 *ctx, u32 copy)
{
	struct member m;

	if (find_current(&m))
		on_exec(&m, (struct task_struct *)ctx[0], (struct linux_binprm *)ctx[2], copy);
	return 0;
}

INLINE int process_fork_copy(u64 *ctx)
{
	struct task_struct *child = (struct task_struct *)ctx[1];
	struct member m;

	if (find_task(&m, child))
		on_fork(&m, child);
	return 0;
}

INLINE int process_exit_copy(u64 *ctx, u32 copy)
{
	struct member m;

	if (find_current(&m))
		on_exit(&m, (struct task_struct *)ctx[0], copy);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int process_exec(u64 *ctx)
{
	return process_exec_copy(ctx, 0);
}

SEC("tp_btf/sched_process_fork")
int process_fork(u64 *ctx)
{
	return process_fork_copy(ctx);
}

SEC("tp_btf/sched_process_exit")
int process_exit(u64 *ctx)
{
	return process_exit_copy(ctx, 0);
}

/* The second copies: see task.h. */
SEC("tp_btf/sched_process_exec")
int process_exec2(u64 *ctx)
{
	return process_exec_copy(ctx, 1);
}

SEC("tp_btf/sched_process_fork")
int process_fork2(u64 *ctx)
{
	return process_fork_copy(ctx);
}

SEC("tp_btf/sched_process_exit")
int process_exit2(u64 *ctx)
{
	return process_exit_copy(ctx, 1);
}
