/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The system call that the current task is in. */
#ifndef AGENTGUARD_REGS_H
#define AGENTGUARD_REGS_H

#include "abi.h"

const volatile struct call_info calls[CALLS];

#if defined(__TARGET_ARCH_x86)
#define TS_COMPAT 2
#define NR_SIGRETURN 15

INLINE s32 call_number(struct pt_regs *regs)
{
	return regs->orig_ax;
}

INLINE void call_args(struct pt_regs *regs, u64 *args)
{
	args[0] = regs->di;
	args[1] = regs->si;
	args[2] = regs->dx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
}

INLINE bool8 is_compat(void)
{
	return (current_task_btf()->thread_info.status & TS_COMPAT) != 0;
}
#else
#define TIF_32BIT 22
#define NR_SIGRETURN 139

INLINE s32 call_number(struct pt_regs *regs)
{
	return regs->syscallno;
}

INLINE void call_args(struct pt_regs *regs, u64 *args)
{
	args[0] = regs->orig_x0;
	args[1] = regs->regs[1];
	args[2] = regs->regs[2];
	args[3] = regs->regs[3];
	args[4] = regs->regs[4];
	args[5] = regs->regs[5];
}

INLINE bool8 is_compat(void)
{
	return (current_task_btf()->thread_info.flags >> TIF_32BIT) & 1;
}
#endif

#endif
