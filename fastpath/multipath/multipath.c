//go:build ignore

// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The programs of package multipath. Its doc.go says how they work together.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT -1 // TCX_NEXT, TC_ACT_UNSPEC: the next program, or the kernel
#define DROP 2	// TCX_DROP, TC_ACT_SHOT
#define PACKET_HOST 0

#define MAX_PATHS 64 // tunnel.MaxPaths
#define ECN 3	     // bits of the type of service (RFC 3168); both set: congestion was experienced

// Flags of bpf_skb_adjust_room of Linux 6.3.
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)

// gre is a GRE header with key and sequence number (RFC 2890). The sequence number is the path, in the 6 highest bits, and
// how many bytes it has carried before.
struct gre {
	__be16 flags, protocol;
	__be32 key, position;
} __attribute__((packed));

#define GRE_FLAGS bpf_htons(0x3000) // key and sequence number
#define POSITION_BITS 26
#define POSITION ((1 << POSITION_BITS) - 1)

struct outer {
	struct iphdr ip;
	struct udphdr udp;
	struct gre gre;
} __attribute__((packed));

// settings are those of a tunnel.
struct settings {
	__be32 key; // of packets that are sent
	__u32 device; // index of the tunnel's device
	__u32 paths; // in use: number of elements of turns; 0: packets go to the device
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings_map SEC(".maps");

// path is a path by which packets are sent.
struct path {
	__be32 source, destination;
	__be16 source_port, destination_port;
	__u32 device; // index
	__u32 share;  // bytes that are sent in a row
	__u32 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, struct path);
} paths_map SEC(".maps");

// sent is what has been sent, by id of a path.
struct sent {
	struct {
		__u64 packets, bytes; // without outer headers
	} paths[MAX_PATHS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sent);
} sent_map SEC(".maps");

// turn is whose turn it is.
struct turn {
	__u32 path; // index in paths_map
	__s32 left; // bytes
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turn);
} turn_map SEC(".maps");

// received is what has come with a key.
struct received {
	__u32 device; // index of the tunnel's device
	__u32 zero;
	__u64 refused; // packets from addresses that none may come from
	struct {
		__u64 packets, bytes, lost, late; // bytes but for the first, without outer headers
		__u32 position, since;		  // of the last one in order, and what has come since
	} paths[MAX_PATHS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __be32);
	__type(value, struct received);
} received_map SEC(".maps");

// remote is where packets come from, and to which port.
struct remote {
	__be32 address;
	__be16 port, local_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_PATHS);
	__type(key, struct remote);
	__type(value, __u8);
} remotes_map SEC(".maps");

// network is an IPv6 network, or an IPv4 one in ::ffff:0:0/96.
struct network {
	__u32 bits;
	__u8 address[16];
};

// sources_map has the networks that packets may come from.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct network);
	__type(value, __u8);
} sources_map SEC(".maps");

// choose returns the path of a packet.
static __always_inline struct path *choose(const struct settings *s, __u32 size)
{
	__u32 zero = 0;
	struct turn *t = bpf_map_lookup_elem(&turn_map, &zero);
	if (!t)
		return 0;
	if (t->left <= 0 || t->path >= s->paths) {
		__u32 next = t->path + 1;
		t->path = next < s->paths ? next : 0;
		t->left = 0;
	}
	__u32 index = t->path;
	struct path *p = bpf_map_lookup_elem(&paths_map, &index);
	if (!p)
		return 0;
	if (!t->left)
		t->left = p->share;
	t->left -= size;
	return p;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// to_paths sees what leaves by the tunnel's device: IP packets without a header in front.
SEC("tc") int to_paths(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *s = bpf_map_lookup_elem(&settings_map, &zero);
	if (!s || !s->paths)
		return NEXT;
	__u32 length = skb->len;
	if (length > 0xffff - sizeof(struct outer))
		return NEXT;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u8 *first = data;
	if (data + sizeof(struct iphdr) > end)
		return NEXT;
	__u8 tos;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		tos = first[1];
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		tos = first[0] << 4 | first[1] >> 4;
	else
		return NEXT;
	struct path *p = choose(s, length);
	struct sent *sent = bpf_map_lookup_elem(&sent_map, &zero);
	if (!p || !sent)
		return NEXT;
	__u32 id = p->id % MAX_PATHS;
	__u64 position = __sync_fetch_and_add(&sent->paths[id].bytes, length);
	__sync_fetch_and_add(&sent->paths[id].packets, 1);
	struct outer o = {};
	o.ip.version = 4;
	o.ip.ihl = 5;
	o.ip.tos = (tos & ~ECN) | ((tos & ECN) == ECN ? 2 : tos & ECN); // RFC 6040 section 4.1
	o.ip.tot_len = bpf_htons(length + sizeof(o));
	o.ip.frag_off = bpf_htons(0x4000);
	o.ip.ttl = 64;
	o.ip.protocol = IPPROTO_UDP;
	o.ip.saddr = p->source;
	o.ip.daddr = p->destination;
	const __u16 *words = (const void *)&o.ip;
	__u32 sum = 0;
	for (int i = 0; i < sizeof(o.ip) / 2; i++)
		sum += words[i];
	o.ip.check = ~fold(sum);
	o.udp.source = p->source_port;
	o.udp.dest = p->destination_port;
	o.udp.len = bpf_htons(length + sizeof(o) - sizeof(o.ip));
	o.gre.flags = GRE_FLAGS;
	o.gre.protocol = skb->protocol;
	o.gre.key = s->key;
	o.gre.position = bpf_htonl(id << POSITION_BITS | (position & POSITION));
	__u32 device = p->device;
	if (bpf_skb_adjust_room(skb, sizeof(o), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
		return DROP;
	if (bpf_skb_store_bytes(skb, 0, &o, sizeof(o), 0))
		return DROP;
	if (bpf_skb_change_head(skb, ETH_HLEN, 0)) // bpf_redirect_neigh takes Ethernet frames
		return DROP;
	return bpf_redirect_neigh(device, 0, 0, 0);
}

// note counts a packet, and what is missing before it.
static __always_inline void note(struct received *r, __u32 id, __u32 position, __u32 length)
{
	asm volatile("" : "+r"(id)); // the compiler knows that it is small, older verifiers do not
	id &= MAX_PATHS - 1;
	bool first = !r->paths[id].packets;
	r->paths[id].packets++;
	r->paths[id].bytes += length;
	if (first) {
		r->paths[id].position = position;
		r->paths[id].since = length;
		return;
	}
	if (r->paths[id].position == position) { // another part of the same one
		r->paths[id].since += length;
		return;
	}
	__u32 ahead = (position - r->paths[id].position - r->paths[id].since) & POSITION;
	if (ahead >= 1 << (POSITION_BITS - 1)) {
		r->paths[id].late += length;
		return;
	}
	r->paths[id].lost += ahead;
	r->paths[id].position = position;
	r->paths[id].since = length;
}

// from_paths sees what comes in by a device of paths.
SEC("tc") int from_paths(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct outer *o = data + ETH_HLEN;
	if ((void *)(o + 1) > end)
		return NEXT;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)&o->ip != 0x45 || o->ip.protocol != IPPROTO_UDP || o->ip.frag_off & bpf_htons(0x3fff) ||
	    o->gre.flags != GRE_FLAGS || skb->pkt_type != PACKET_HOST ||
	    (o->gre.protocol != bpf_htons(ETH_P_IP) && o->gre.protocol != bpf_htons(ETH_P_IPV6)))
		return NEXT;
	__be32 gre_key = o->gre.key;
	struct received *r = bpf_map_lookup_elem(&received_map, &gre_key);
	struct remote from = {.address = o->ip.saddr, .port = o->udp.source, .local_port = o->udp.dest};
	if (!r || !bpf_map_lookup_elem(&remotes_map, &from))
		return NEXT;
	__u32 position = bpf_ntohl(o->gre.position), length = skb->len - ETH_HLEN - sizeof(*o);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	struct network source = {.bits = 128};
	if (o->gre.protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *inner = (void *)(o + 1);
		if ((void *)(inner + 1) > end || inner->version != 6)
			return DROP;
		__builtin_memcpy(source.address, &inner->saddr, 16);
		flags |= ADJ_ROOM_DECAP_L3_IPV6;
	} else {
		struct iphdr *inner = (void *)(o + 1);
		if ((void *)(inner + 1) > end || inner->version != 4)
			return DROP;
		source.address[10] = source.address[11] = 0xff;
		__builtin_memcpy(source.address + 12, &inner->saddr, 4);
	}
	if (!bpf_map_lookup_elem(&sources_map, &source)) {
		r->refused++;
		return DROP;
	}
	bool marked = (o->ip.tos & ECN) == ECN;
	__u32 device = r->device;
	if (bpf_skb_adjust_room(skb, -(int)sizeof(*o), BPF_ADJ_ROOM_MAC, flags))
		return DROP;
	note(r, position >> POSITION_BITS, position & POSITION, length);
	if (marked && !bpf_skb_ecn_set_ce(skb)) // RFC 6040 section 4.2
		return DROP;
	return bpf_redirect(device, BPF_F_INGRESS);
}

char __license[] SEC("license") = "Dual MIT/GPL";
