/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Allowed destinations. One map of prefixes for both families, IPv4 as mapped
 * addresses: the longest prefix that matches says everything, so whoever fills
 * the map gives narrow prefixes the ports of the wide ones around them.
 */
#ifndef AGENTGUARD_RULES_H
#define AGENTGUARD_RULES_H

#include "addr.h"

#define RULE_RANGES 16 /* maxRanges of bpf/rules.go */
#define RULE_ADDR_BITS 128
#define RULE_FIXED_BITS 96 /* proto and run stand before the address */

struct rule_key {
	u32 bits; /* that count: RULE_FIXED_BITS and those of the prefix */
	u32 proto;
	u64 run; /* cgroup id; 0 in a map of one run's own */
	u32 addr[4];
};

/* What is not used is 1 to 0, which holds no port. */
struct rule {
	struct {
		u16 low, high;
	} port[RULE_RANGES];
};

struct rule_map {
	MAP_UINT(type, MAP_LPM_TRIE);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_UINT(max_entries, 1 << 18);
	MAP_TYPE(key, struct rule_key);
	MAP_TYPE(value, struct rule);
};

/*
 * rule_allows looks for the port in the rule of the key's address. A difference
 * is negative where the port is beyond that end of a range, and so is the or of
 * both; the and is where each range has one. Without a branch the verifier has a
 * single path to walk, at each start of a run with an allowlist.
 */
INLINE bool8 rule_allows(void *map, struct rule_key *key, u16 port)
{
	int outside = -1;
	struct rule *r;
	u32 i;

	key->bits = RULE_FIXED_BITS + RULE_ADDR_BITS;
	r = map_lookup(map, key);
	if (!r)
		return 0;
	for (i = 0; i < RULE_RANGES; i++)
		outside &= (r->port[i].high - port) | (port - r->port[i].low);
	return outside >= 0;
}

#endif
