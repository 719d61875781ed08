// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The second network layer: programs on the parent cgroup of all runs. They
 * outlive the supervisor, and a cgroup below the parent that no run owns is
 * denied everything (fail closed).
 *
 * Loopback, and what the map of rules has for the run; TCP and UDP only.
 */
#include "net.h"

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_CONNECT, AF_INET);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_CONNECT, AF_INET6);
}

/* Also taken by an IPv6 socket that sends to a mapped address. */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_SENDMSG, AF_INET);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_SENDMSG, AF_INET6);
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_BIND, AF_INET);
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	return judge_address(ctx, HOOK_BIND, AF_INET6);
}

/*
 * Called for INET and INET6 sockets only. UDP-Lite passes connect and sendmsg
 * unseen, raw and ping sockets too: what is not TCP or UDP is refused here.
 */
SEC("cgroup/sock_create")
int sock_create(struct bpf_sock *ctx)
{
	struct ev_sock ev = {};
	struct member m;

	if (!find_current(&m))
		return 0;
	ev.hook = HOOK_SOCKET;
	ev.family = ctx->family;
	ev.type = ctx->type;
	ev.protocol = ctx->protocol;
	ev.allowed = ordinary(ev.type, ev.protocol);
	fill_current(&ev.h, &m, EV_SOCKET, CLASS_VERDICT);
	emit(&m, &ev.h, sizeof(ev));
	return ev.allowed ? 1 : 0;
}

/* packet_refused tells of a packet. */
INLINE void packet_refused(const struct member *m, struct ev_sock *ev, u8 hook)
{
	/* Also runs in softirq, on any task's back: no process is named. */
	ev->hook = hook;
	ev->h.type = EV_SOCKET;
	ev->h.class = CLASS_VERDICT;
	ev->h.nr = -1;
	ev->h.phase = m->run->started ? PHASE_COMMAND : PHASE_ENVELOPE;
	emit_now(m, &ev->h, sizeof(*ev));
}

/* Byte counts, and the backstop for sockets that no other hook saw. */
SEC("cgroup_skb/egress")
int skb_egress(struct __sk_buff *skb)
{
	struct ev_sock ev = {};
	struct member m;

	if (!find(&m, skb_ancestor_cgroup_id(skb, level)))
		return 0;
	if (packet_allowed(skb, &m, &ev)) {
		add(&m.counts->tx_packets, 1);
		add(&m.counts->tx_bytes, skb->len);
		return 1;
	}
	add(&m.counts->tx_refused, 1);
	packet_refused(&m, &ev, HOOK_EGRESS);
	return 0;
}

/* listen(2) binds a socket that is not bound, past the hooks of bind: where nothing may listen, no connection comes in. */
SEC("cgroup_skb/ingress")
int skb_ingress(struct __sk_buff *skb)
{
	struct ev_sock ev = {};
	struct member m;

	if (!find(&m, skb_ancestor_cgroup_id(skb, level)))
		return 0;
	if ((m.run->flags & RUN_DENY_LISTEN) && begins_connection(skb, &ev)) {
		packet_refused(&m, &ev, HOOK_INGRESS);
		return 0;
	}
	add(&m.counts->rx_packets, 1);
	add(&m.counts->rx_bytes, skb->len);
	return 1;
}
