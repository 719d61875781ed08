// SPDX-License-Identifier: Apache-2.0
//
// No run: a supervisor moves into namespaces. A part of init.c.
//
// A supervisor without root becomes this program before it does anything. The last
// call of its plan makes it the supervisor again, the same process all the while, and is made
// whatever became of the others: the sixth argument, which execveat does not have, is where in
// the plan's data it is written, in hexadecimal, which call failed and how.
//
// From inside, every owner but its own is the overflow uid, root's files too. A child that stays
// outside says who owns what it is handed.

struct statx { u32 mask, blksize; u64 attributes; u32 nlink, uid, gid; u8 rest[228]; };

static __attribute__((noreturn)) void owners(int sock) {
	call(NR_setsid, 0, 0, 0); // no signal of a terminal is for it
	call(NR_prctl, 15 /* PR_SET_NAME */, (u64)"agentguard-out", 0);
	if (sock > 0)
		call(NR_close_range, 0, sock - 1, 0);
	call(NR_close_range, sock + 1, ~0U, 0);
	for (;;) {
		struct { struct cmsghdr h; s32 fd, pad; } c;
		u8 byte;
		struct iovec iov = { &byte, 1 };
		struct msghdr m = { 0, 0, &iov, 1, &c, sizeof(c), 0 };
		struct statx st;
		if (call(NR_recvmsg, sock, (u64)&m, 0) != 1 || m.controllen < sizeof(struct cmsghdr) + 4)
			quit(0); // the supervisor is gone
		s64 err = call6(NR_statx, c.fd, (u64)"", 0x1000 /* AT_EMPTY_PATH */, 0x18 /* UID | GID */, (u64)&st, 0);
		call(NR_close, c.fd, 0, 0);
		u32 reply[3] = { -err, st.uid, st.gid };
		if (call(NR_write, sock, (u64)reply, sizeof(reply)) != sizeof(reply))
			quit(0);
	}
}

static void hex(u8 *at, u32 n, int digits) {
	for (int i = digits; i-- > 0; n >>= 4)
		at[i] = "0123456789abcdef"[n & 15];
}

static __attribute__((noreturn)) void enter(int sock, int outside) {
	u32 where = 0;
	struct plan *p = receive(sock);
	call(NR_close, sock, 0, 0);
	s64 child = outside < 0 ? 0 : call6(NR_clone, 17 /* SIGCHLD */, 0, 0, 0, 0, 0);
	if (child == 0 && outside >= 0)
		owners(outside);
	call(NR_close, outside, 0, 0);
	p->nsteps--;
	struct step *last = (struct step *)((u8 *)p + p->steps) + p->nsteps;
	s64 err = child < 0 ? child : run_steps(p, &where);
	u8 *text = (u8 *)p + p->data + last->arg[5];
	hex(text, child < 0 ? 0xffff : where, 4);
	hex(text + 4, -err, 4);
	hex(text + 8, child < 0 ? 0 : child, 8);
	p->steps += p->nsteps * sizeof(struct step);
	p->nsteps = 1;
	run_steps(p, &where);
	quit(125);
}

static int number(const char *s) {
	int n = 0;
	if (*s == '-')
		return -1;
	for (; *s >= '0' && *s <= '9'; s++)
		n = n * 10 + *s - '0';
	return n;
}
