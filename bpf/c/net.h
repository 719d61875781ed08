/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The verdicts on addresses. */
#ifndef AGENTGUARD_NET_H
#define AGENTGUARD_NET_H

#include "addr.h"
#include "rules.h"
#include "run.h"

/* Destinations that live runs may reach besides loopback; keyed by run. */
struct rule_map allow SEC(".maps");

/* TCP, UDP, and MPTCP, whose subflows pass the same hooks. */
INLINE bool8 ordinary(u16 type, u16 protocol)
{
	if (type == SOCK_STREAM)
		return protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
	return type == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
}

/*
 * reachable says whether a run may go to an address. To connect a UDP socket
 * sends nothing: every resolver does it to order the addresses of a name. What
 * is sent on it is judged as a packet.
 */
INLINE bool8 reachable(const struct member *m, u8 hook, u16 type, const u32 addr[4], u16 port)
{
	struct rule_key key = { .proto = type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP, .run = m->id };

	if (loopback6_words(addr[0], addr[1], addr[2], addr[3]))
		return 1;
	if (!(m->run->flags & RUN_EGRESS))
		return 0;
	if (hook == HOOK_CONNECT && type == SOCK_DGRAM && synthetic(addr))
		return 1;
	key.addr[0] = addr[0];
	key.addr[1] = addr[1];
	key.addr[2] = addr[2];
	key.addr[3] = addr[3];
	return rule_allows(&allow, &key, port);
}

/* judge_address records an address and returns the verdict: 1 goes on, 0 is EPERM. */
INLINE int judge_address(struct bpf_sock_addr *ctx, u8 hook, u16 family)
{
	struct ev_sock ev = {};
	struct member m;
	u32 *raw = (u32 *)ev.addr;
	u32 addr[4];

	if (!find_current(&m))
		return 0;
	ev.hook = hook;
	ev.family = family;
	ev.type = ctx->type;
	ev.protocol = ctx->protocol;
	ev.port = ntohs(ctx->user_port);
	if (family == AF_INET) {
		raw[0] = ctx->user_ip4;
		map_ip4(addr, ctx->user_ip4);
	} else {
		raw[0] = addr[0] = ctx->user_ip6[0];
		raw[1] = addr[1] = ctx->user_ip6[1];
		raw[2] = addr[2] = ctx->user_ip6[2];
		raw[3] = addr[3] = ctx->user_ip6[3];
	}
	if (hook == HOOK_BIND)
		ev.allowed = !(m.run->flags & RUN_DENY_LISTEN);
	else
		ev.allowed = reachable(&m, hook, ev.type, addr, ev.port);
	fill_current(&ev.h, &m, EV_SOCKET, ev.allowed && hook == HOOK_SENDMSG ? CLASS_BULK : CLASS_VERDICT);
	emit(&m, &ev.h, sizeof(ev));
	return ev.allowed ? 1 : 0;
}

/* port_of reads the destination port of a packet whose transport begins at off. */
INLINE u16 port_of(struct __sk_buff *skb, u32 off)
{
	u16 port = 0;

	skb_load_bytes(skb, off + 2, &port, sizeof(port));
	return ntohs(port);
}

/* read_ip4 and read_ip6 fill in ev and addr; false where the packet has no destination. */
INLINE bool8 read_ip4(struct __sk_buff *skb, struct ev_sock *ev, u32 addr[4])
{
	u8 head[20];
	u16 fragment;

	if (skb_load_bytes(skb, 0, head, sizeof(head)))
		return 0;
	__builtin_memcpy(ev->addr, head + 16, 4);
	map_ip4(addr, *(u32 *)ev->addr);
	ev->family = AF_INET;
	ev->protocol = head[9];
	fragment = (head[6] & 0x1f) << 8 | head[7];
	if (!fragment) /* later ones have no port, and so no permission */
		ev->port = port_of(skb, (head[0] & 0xf) * 4);
	return 1;
}

INLINE bool8 read_ip6(struct __sk_buff *skb, struct ev_sock *ev, u32 addr[4])
{
	u8 head[40];

	if (skb_load_bytes(skb, 0, head, sizeof(head)))
		return 0;
	__builtin_memcpy(ev->addr, head + 24, 16);
	__builtin_memcpy(addr, ev->addr, 16);
	ev->family = AF_INET6;
	ev->protocol = head[6];
	ev->port = port_of(skb, sizeof(head));
	return 1;
}

/*
 * begins_connection reports whether a packet that came is the first of a TCP
 * connection: ev and addr have where it came to.
 */
INLINE bool8 begins_connection(struct __sk_buff *skb, struct ev_sock *ev)
{
	u32 addr[4] = {}, at = 40;
	u8 flags = 0;

	if (skb->protocol == ntohs(ETH_P_IP)) {
		if (!read_ip4(skb, ev, addr) || skb_load_bytes(skb, 0, &flags, sizeof(flags)))
			return 0;
		at = (flags & 0xf) * 4;
	} else if (skb->protocol != ntohs(ETH_P_IPV6) || !read_ip6(skb, ev, addr)) {
		return 0;
	}
	if (ev->protocol != IPPROTO_TCP || skb_load_bytes(skb, at + 13, &flags, sizeof(flags)))
		return 0;
	return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* packet_allowed judges where a packet goes; what is not IP is refused. */
INLINE bool8 packet_allowed(struct __sk_buff *skb, const struct member *m, struct ev_sock *ev)
{
	u32 addr[4] = {};
	bool8 ip = 0;

	if (skb->protocol == ntohs(ETH_P_IP))
		ip = read_ip4(skb, ev, addr);
	else if (skb->protocol == ntohs(ETH_P_IPV6))
		ip = read_ip6(skb, ev, addr);
	if (!ip)
		return 0;
	if (ev->protocol != IPPROTO_TCP && ev->protocol != IPPROTO_UDP)
		return loopback6_words(addr[0], addr[1], addr[2], addr[3]);
	return reachable(m, HOOK_EGRESS, ev->protocol == IPPROTO_TCP ? SOCK_STREAM : SOCK_DGRAM, addr, ev->port);
}

#endif
