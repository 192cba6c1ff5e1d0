// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What the programs use of the kernel, and its headers of Debian 12 lack.

#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT -1 // TCX_NEXT, TC_ACT_UNSPEC: the next program, or the kernel
#define DROP 2	// TCX_DROP, TC_ACT_SHOT

#define PACKET_HOST 0

// Flags of bpf_skb_adjust_room: of Linux 5.14, and of 6.3.
#define ADJ_ROOM_ENCAP_L2_ETH (1ULL << 6)
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)

// Connection tracking, as far as it is read here (include/net/netfilter/nf_conntrack.h). The loader adapts the offsets to
// the kernel that runs.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct nf_tcp_net {
	__u8 tcp_be_liberal;
};
struct nf_ip_net {
	struct nf_tcp_net tcp;
};
struct netns_ct {
	struct nf_ip_net nf_ct_proto;
};
struct net {
	struct netns_ct ct;
};
typedef struct {
	struct net *net;
} possible_net_t;
union nf_inet_addr {
	__u32 all[4];
};
union nf_conntrack_man_proto {
	__be16 all;
};
struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
};
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
	} dst;
};
struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};
struct ip_ct_tcp {
	__u8 state;
};
union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
};
struct nf_ct_ext {
	__u8 offset[4];
};
struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	possible_net_t ct_net;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
};
#pragma clang attribute pop

#define IPS_SEEN_REPLY (1 << 1)
#define IPS_ASSURED (1 << 2)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define TCP_CONNTRACK_SYN_RECV 2
#define TCP_CONNTRACK_ESTABLISHED 3

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *, struct bpf_sock_tuple *, __u32, struct bpf_ct_opts *,
					 __u32) __ksym;
extern int bpf_ct_change_status(struct nf_conn *, __u32) __ksym;
extern int bpf_ct_change_timeout(struct nf_conn *, __u32) __ksym;
extern void bpf_ct_release(struct nf_conn *) __ksym;
