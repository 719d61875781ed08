// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * UNIX sockets, where the kernel has the hooks (6.7). The address is the text
 * that the caller gave: relative, through symbolic links, whatever. It is
 * recorded; the mount view decides what can be reached.
 */
#include "run.h"

#define AF_UNIX 1

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

struct sockaddr {
	u16 sa_family;
} KERNEL_TYPE;

struct bpf_sock_addr_kern {
	struct sockaddr *uaddr;
	u32 uaddrlen; /* 6.7 and on */
} KERNEL_TYPE;

extern void *bpf_cast_to_kern_ctx(void *ctx) __attribute__((section(".ksyms")));

INLINE int record(struct bpf_sock_addr *ctx, u8 hook)
{
	struct bpf_sock_addr_kern *kern = bpf_cast_to_kern_ctx(ctx);
	struct ev_unix ev = {};
	struct member m;
	u32 len = READ(kern, uaddrlen);

	if (!find_current(&m))
		return 0;
	ev.hook = hook;
	ev.allowed = 1;
	/* sun_path follows the family; abstract names begin with a zero byte. */
	len = len > 2 ? len - 2 : 0;
	if (len > 108)
		len = 108;
	ev.len = len;
	read_kernel(ev.data, len, (char *)READ(kern, uaddr) + 2);
	fill_current(&ev.h, &m, EV_UNIX, hook == HOOK_SENDMSG ? CLASS_BULK : CLASS_VERDICT);
	emit(&m, &ev.h, sizeof(ev));
	return 1;
}

SEC("cgroup/connect_unix")
int connect_unix(struct bpf_sock_addr *ctx)
{
	return record(ctx, HOOK_CONNECT);
}

SEC("cgroup/sendmsg_unix")
int sendmsg_unix(struct bpf_sock_addr *ctx)
{
	return record(ctx, HOOK_SENDMSG);
}
