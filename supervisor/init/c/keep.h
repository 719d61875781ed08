// SPDX-License-Identifier: Apache-2.0
//
// The end of a run without a PID namespace. A part of init.c.

// kill_children kills the processes in the first page of the list of our children.
// Their numbers are not given to others as long as we have not waited for them.
// Each one's process group goes with it, in one call between which no fork passes: of a
// bomb, children alone would be killed as fast as they have others. The command leads a
// session, so that no group but ours holds anybody who is none of the run.
static void kill_children(void) {
	u8 list[4096];
	s64 n = call6(NR_pread64, CHILDREN_FD, (u64)list, sizeof(list), 0, 0, 0);
	s64 ours = call(NR_getpgid, 0, 0, 0), group, last = 0;
	s32 pid = 0;
	for (s64 i = 0; i < n; i++) {
		if (list[i] >= '0' && list[i] <= '9') {
			pid = pid * 10 + list[i] - '0';
			continue;
		}
		if (pid > 1) { // a number that the page cut off has no blank behind it
			group = call(NR_getpgid, pid, 0, 0);
			if (group > 1 && group != ours && group != last)
				call(NR_kill, -group, 9, 0);
			last = group;
			call(NR_kill, pid, 9, 0);
		}
		pid = 0;
	}
}

// slay kills all of the run and returns when the kernel says that no process of it
// is left. A process whose parent dies becomes our child before that parent can be
// waited for, however often it has forked, and whatever session it leads. In a domain
// one kill takes them all at once: no fork passes between (kernel/fork.c looks for
// signals with the lock that kill(-1) holds).
static void slay(void) {
	s32 status;
	s64 pid;
	do {
		if (keep == 's')
			call(NR_kill, -1, 9, 0);
		else
			kill_children();
		pid = call6(NR_wait4, -1, (u64)&status, 0x40000000 /* __WALL */, 0, 0, 0);
		while (pid > 0 && call6(NR_wait4, -1, (u64)&status, 0x40000001 /* and WNOHANG */, 0, 0, 0) > 0)
			;
	} while (pid != -10 /* ECHILD */);
}
