/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Addresses, and what they are. */
#ifndef AGENTGUARD_ADDR_H
#define AGENTGUARD_ADDR_H

#include "kernel.h"

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define TCP_SYN 0x02
#define TCP_ACK 0x10
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

INLINE void map_ip4(u32 to[4], u32 ip)
{
	to[0] = to[1] = 0;
	to[2] = htonl(0xffff);
	to[3] = ip;
}

/*
 * Addresses that stand for names inside: 198.18.0.0/15, fd53:6167:7264::/64
 * (internal/netguard/synthetic.go).
 */
INLINE bool8 synthetic(const u32 a[4])
{
	if (!a[0] && !a[1] && a[2] == htonl(0xffff))
		return (a[3] & htonl(0xfffe0000)) == htonl(0xc6120000);
	return a[0] == htonl(0xfd536167) && a[1] == htonl(0x72640000);
}

#endif
