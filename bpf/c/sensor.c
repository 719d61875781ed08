// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The sensor: four BTF tracepoints, attached while any run lives. sys_exit is
 * the only one that other processes of the host pay for on every call.
 */
#include "call.h"
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

SEC("tp_btf/sched_process_exec")
int process_exec(u64 *ctx)
{
	struct member m;

	if (!find_current(&m))
		return 0;
	on_exec(&m, (struct task_struct *)ctx[0], (struct linux_binprm *)ctx[2]);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int process_fork(u64 *ctx)
{
	struct task_struct *child = (struct task_struct *)ctx[1];
	struct member m;

	if (!find_task(&m, child))
		return 0;
	on_fork(&m, child);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int process_exit(u64 *ctx)
{
	struct member m;

	if (!find_current(&m))
		return 0;
	on_exit(&m, (struct task_struct *)ctx[0]);
	return 0;
}
