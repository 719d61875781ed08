/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Addresses, and the verdicts on them. */
#ifndef AGENTGUARD_NET_H
#define AGENTGUARD_NET_H

#include "run.h"

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

/* 127/8, and 0.0.0.0, which Linux connects to loopback. */
INLINE bool8 loopback4(u32 ip)
{
	return (ip & htonl(0xff000000)) == htonl(0x7f000000) || ip == 0;
}

/* ::1, ::, and the IPv4 ones mapped. */
INLINE bool8 loopback6_words(u32 a, u32 b, u32 c, u32 d)
{
	if (a || b)
		return 0;
	if (c == htonl(0xffff))
		return loopback4(d);
	return !c && (d == 0 || d == htonl(1));
}

INLINE bool8 loopback6(struct bpf_sock_addr *ctx)
{
	return loopback6_words(ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2],
			       ctx->user_ip6[3]);
}

/* TCP, UDP, and MPTCP, whose subflows pass the same hooks. */
INLINE bool8 ordinary(u16 type, u16 protocol)
{
	if (type == SOCK_STREAM)
		return protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
	return type == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
}

/* judge_address records an address and returns the verdict: 1 goes on, 0 is EPERM. */
INLINE int judge_address(struct bpf_sock_addr *ctx, u8 hook, u16 family, bool8 allowed)
{
	struct ev_sock ev = {};
	struct member m;
	u32 *addr = (u32 *)ev.addr;

	if (!find_current(&m))
		return 0;
	if (hook == HOOK_BIND && (m.run->flags & RUN_DENY_LISTEN))
		allowed = 0;
	ev.hook = hook;
	ev.allowed = allowed;
	ev.family = family;
	ev.type = ctx->type;
	ev.protocol = ctx->protocol;
	ev.port = ntohs(ctx->user_port);
	if (family == AF_INET) {
		addr[0] = ctx->user_ip4;
	} else {
		addr[0] = ctx->user_ip6[0];
		addr[1] = ctx->user_ip6[1];
		addr[2] = ctx->user_ip6[2];
		addr[3] = ctx->user_ip6[3];
	}
	fill_current(&ev.h, &m, EV_SOCKET, allowed && hook == HOOK_SENDMSG ? CLASS_BULK : CLASS_VERDICT);
	emit(&m, &ev.h, sizeof(ev));
	return allowed ? 1 : 0;
}

/* skb_to_loopback reads the destination from the packet; what is not IP is refused. */
INLINE bool8 skb_to_loopback(struct __sk_buff *skb, struct ev_sock *ev)
{
	u32 *addr = (u32 *)ev->addr;
	u8 protocol = 0;

	if (skb->protocol == ntohs(ETH_P_IP)) {
		ev->family = AF_INET;
		skb_load_bytes(skb, 9, &protocol, 1);
		ev->protocol = protocol;
		return !skb_load_bytes(skb, 16, addr, 4) && loopback4(addr[0]);
	}
	if (skb->protocol == ntohs(ETH_P_IPV6)) {
		ev->family = AF_INET6;
		skb_load_bytes(skb, 6, &protocol, 1);
		ev->protocol = protocol;
		return !skb_load_bytes(skb, 24, addr, 16) &&
		       loopback6_words(addr[0], addr[1], addr[2], addr[3]);
	}
	return 0;
}

#endif
