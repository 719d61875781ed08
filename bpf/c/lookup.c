// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The edge of a network namespace that has an allowlist. All that the run can
 * address is local to it; this program decides which socket a new connection or
 * a datagram meets, before any socket of the run's own is looked for:
 *
 *   allowed          the relay's, one for each protocol and family
 *   loopback         whatever the run has bound there
 *   everything else  none: refused, also where the run has bound 0.0.0.0
 *
 * Attached to one namespace, for one run, with maps of its own.
 */
#include "rules.h"

char _license[] SEC("license") = "GPL"; /* what the kernel is told; the source is dual-licensed */

struct rule_map edge SEC(".maps");

/*
 * The relay's sockets, by protocol and family: see relay_index. Sizes and no
 * types: the kernel refuses a socket map with types, and to give up the refused
 * one waits for an RCU grace period.
 */
struct {
	MAP_UINT(type, MAP_SOCKMAP);
	MAP_UINT(max_entries, 4);
	MAP_UINT(key_size, sizeof(u32));
	MAP_UINT(value_size, sizeof(u64));
} relay SEC(".maps");

INLINE u32 relay_index(u32 protocol, u32 family)
{
	return (protocol == IPPROTO_UDP ? 2 : 0) + (family == AF_INET6 ? 1 : 0);
}

SEC("sk_lookup")
int lookup(struct bpf_sk_lookup *ctx)
{
	struct rule_key key = { .proto = ctx->protocol };
	struct bpf_sock *sk;
	long err;
	u32 index;

	if (ctx->family == AF_INET) {
		map_ip4(key.addr, ctx->local_ip4);
	} else {
		key.addr[0] = ctx->local_ip6[0];
		key.addr[1] = ctx->local_ip6[1];
		key.addr[2] = ctx->local_ip6[2];
		key.addr[3] = ctx->local_ip6[3];
	}
	if (!rule_allows(&edge, &key, ctx->local_port))
		return loopback6_words(key.addr[0], key.addr[1], key.addr[2], key.addr[3]) ? SK_PASS : SK_DROP;
	index = relay_index(ctx->protocol, ctx->family);
	sk = map_lookup(&relay, &index);
	if (!sk)
		return SK_DROP;
	err = sk_assign(ctx, sk, 0);
	sk_release(sk);
	return err ? SK_DROP : SK_PASS;
}
