/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Descriptors that come in by a UNIX socket (SCM_RIGHTS, SCM_PIDFD; unix(7)). */
#ifndef AGENTGUARD_RECEIVE_H
#define AGENTGUARD_RECEIVE_H

#include "call.h"

#define SOL_SOCKET 1
#define SCM_RIGHTS 1
#define SCM_PIDFD 4
#define RECEIVE_ROUNDS 8192 /* messages, parts of their control data, descriptors: 253 at most a message */

/* As 64-bit programs have them. */
struct user_msghdr {
	u64 name, name_len, iov, iov_len, control, control_len, flags;
};

struct user_mmsghdr {
	struct user_msghdr hdr;
	u64 len;
};

struct user_cmsghdr {
	u64 len;
	u32 level, type;
};

/* What is left to look at; all of it is in the caller's memory. */
struct messages {
	u64 run;
	u64 next;         /* the next message */
	u64 at, end;      /* control data of the current one */
	u64 fds, fds_end; /* descriptors of its current part */
	u32 left;         /* messages */
	s32 nr;
};

/* tell_received records what one new descriptor is. Another thread may have changed it, or the number. */
SEPARATE int tell_received(u64 run, s32 fd, s32 nr)
{
	struct file *file = open_file(fd);
	u32 lane = LANE_CALL;
	struct file_info info;
	struct ev_file *ev;
	struct member m;

	ev = map_lookup(&file_scratch, &lane);
	if (!file || !ev || !find(&m, run))
		return 0;
	describe(&info, file, COPY(file, f_path), HOW_OPEN);
	fill_current(&ev->h, &m, EV_RECEIVE, CLASS_BULK);
	ev->h.ret = fd;
	ev->h.nr = nr;
	fill_file(ev, COPY(file, f_path), &info, lane);
	__builtin_memset(ev->args, 0, sizeof(ev->args));
	emit(&m, &ev->h, file_size(ev));
	return 0;
}

/* next_message goes to the control data of the next message; false where there is none. */
INLINE bool8 next_message(struct messages *msgs)
{
	struct user_msghdr hdr = {};

	if (!msgs->left || read_user(&hdr, sizeof(hdr), (void *)msgs->next))
		return 0;
	msgs->left--;
	msgs->next += sizeof(struct user_mmsghdr);
	msgs->at = hdr.control;
	msgs->end = hdr.control + hdr.control_len;
	return 1;
}

/* next_part goes to the next part of the control data. */
INLINE void next_part(struct messages *msgs)
{
	struct user_cmsghdr part = {};

	if (read_user(&part, sizeof(part), (void *)msgs->at) || part.len < sizeof(part) || part.len > msgs->end - msgs->at) {
		msgs->at = msgs->end;
		return;
	}
	if (part.level == SOL_SOCKET && (part.type == SCM_RIGHTS || part.type == SCM_PIDFD)) {
		msgs->fds = msgs->at + sizeof(part);
		msgs->fds_end = msgs->at + part.len;
	}
	msgs->at += (part.len + 7) & ~7ULL;
}

/* receive_step looks at one descriptor, one part or one message; called by loop(). */
static long receive_step(u32 round, struct messages *msgs)
{
	s32 fd = -1;

	(void)round;
	if (msgs->fds + sizeof(fd) <= msgs->fds_end) {
		if (!read_user(&fd, sizeof(fd), (void *)msgs->fds))
			tell_received(msgs->run, fd, msgs->nr);
		msgs->fds += sizeof(fd);
		return 0;
	}
	if (msgs->at + sizeof(struct user_cmsghdr) <= msgs->end) {
		next_part(msgs);
		return 0;
	}
	return !next_message(msgs);
}

/* report_received records the descriptors that came with a message, or with several of a vector. */
SEPARATE int report_received(u64 run, u64 hdr, u32 messages, s32 nr)
{
	/*
	 * Nothing yet, by numbers that the verifier does not know: up to 6.6 it looks
	 * at a loop's first round only, and drops what that cannot do.
	 */
	struct messages msgs = {run, hdr, hdr, hdr, hdr, hdr, messages ? messages : 1, nr};

	loop(RECEIVE_ROUNDS, receive_step, &msgs, 0);
	return 0;
}

#endif
