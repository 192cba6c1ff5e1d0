// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What is remembered of flows.

#pragma once

// How long a judgement holds, in nanoseconds.
#define JUDGED_NS (50 * 1000 * 1000)
// A packet that has not left the host after so long was dropped, or counted wrongly.
#define DROPPED_NS (8 * 1000 * 1000)
// How long the kernel takes to forward a packet at most, in the softirq in which it came.
#define PENDING_NS (1000 * 1000)
// A flow is remembered after so many packets: to remember it costs more than one packet saves.
#define HOT 12
#define HOT_SLOTS 16384

#define VXLAN_FLAGS bpf_htonl(0x08000000) // a header with an identifier, and nothing else (RFC 7348 section 5)
#define ROOM (20 + 8 + 8 + ETH_HLEN)	  // what VXLAN adds over IPv4, in bytes

struct settings {
	__be32 vni;   // as in the header of VXLAN
	__u32 device; // index of the VXLAN device; 0: none
	__be16 port;
	__u16 zero;
	// How long connection tracking remembers connections of TCP, in milliseconds: established ones, those with an end, and
	// those that were aborted.
	__u32 established, ended, aborted;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings_map SEC(".maps");

// peers are the addresses of hosts, which may send packets in VXLAN.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __be32);
	__type(value, __u8);
} peers SEC(".maps");

static __always_inline struct settings *current_settings(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&settings_map, &zero);
}

// What to do with packets beside the Ethernet header, which is replaced.
#define SEAL 1		// put them into VXLAN
#define TO_CONTAINER 2	// they leave by the host's end of a container's link
#define TRANSLATE 4	// replace addresses and ports
#define BRIDGE 8	// the bridge forwards them: their time to live stays

// proof is that the kernel forwards packets up to a size.
struct proof {
	__u64 at; // when one of this size left that the kernel has forwarded; 0: never
	__u32 largest; // IP packet, in bytes
	__u32 zero;
};

static __always_inline bool is_fresh(const struct proof *p, __u64 now) { return p->at + JUDGED_NS > now; }

// prove notes that a packet has left. A larger one that left longer ago than a judgement holds is forgotten: the MTU may be
// another one since.
static __always_inline void prove(struct proof *p, __u32 length, __u64 now)
{
	if (p->largest <= length || !is_fresh(p, now)) {
		p->largest = length;
		p->at = now;
	}
}

// flow is what to do with the packets of a key.
struct flow {
	struct proof proof;
	__u64 entered, left; // payload in VXLAN that the kernel has to forward, and has forwarded, since slow_since, in bytes
	__u64 slow_since;
	__u64 packets, bytes;		 // that went the fast way
	__u32 in, out;			 // indexes of devices
	__be32 outer_source, outer_destination; // of the packets in VXLAN that come in
	__be32 source[4], destination[4]; // new ones, as in keys
	__be16 source_port, destination_port;
	__u16 zero;
	__u16 sum;     // of the outer IP header without length, identification and ECN
	__u8 mac[ETH_ALEN]; // destination of frames that come in as they are
	__u8 tos, act;
	__u16 fast;	 // the last packet went the fast way
	__u16 confirmed; // connection tracking knows the flow in both directions
	__u32 ended;	 // an end of the connection went the fast way
	__u8 header[ETH_HLEN + ROOM] __attribute__((aligned(8))); // in front of packets that leave, without lengths
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct key);
	__type(value, struct flow);
} flows SEC(".maps");

// counter is what went the fast way, where the counters of a device would have counted it.
struct counter {
	__u64 packets, bytes;
};

// Keys of counted_map beside the indexes of devices to containers.
#define SEALED 0
#define UNSEALED 0xffffffff

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct counter);
} counted_map SEC(".maps");

static __always_inline void count(struct __sk_buff *skb, __u32 device)
{
	struct counter *c = bpf_map_lookup_elem(&counted_map, &device);
	if (!c)
		return;
	c->packets += skb->gso_segs ?: 1;
	c->bytes += skb->len;
}

// pending is a packet that the kernel is about to forward.
struct pending {
	struct packet packet;
	__u64 at; // when it came; 0: there is none
	__u32 in;
	__u16 token; // in its tc_index
	__u16 left;  // it has left
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pending);
} pending_map SEC(".maps");

// hot_map counts packets of flows that are not remembered, in the low byte beside 24 bits of a hash.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOT_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} hot_map SEC(".maps");

static __always_inline __u32 mix(__u32 h, __u32 v)
{
	h = (h ^ v) * 0x9e3779b1;
	return h ^ h >> 15;
}

static __always_inline __u32 hash_of(const __be32 *source, const __be32 *destination, __u32 ports, __u32 rest)
{
	__u32 h = ports;
	for (int i = 0; i < 4; i++)
		h = mix(h, source[i] ^ destination[i] * 31);
	return mix(h, rest);
}

static __always_inline __u32 hash(const struct key *k)
{
	return hash_of(k->source, k->destination, (__u32)k->source_port << 16 | k->destination_port, k->protocol << 8 | k->sealed);
}

// heat_answers has the answers to packets that leave remembered with the next one that comes in as it is.
static __always_inline void heat_answers(const struct key *k)
{
	__u32 h = hash_of(k->destination, k->source, (__u32)k->destination_port << 16 | k->source_port, k->protocol << 8);
	__u32 slot = h % HOT_SLOTS;
	__u32 *n = bpf_map_lookup_elem(&hot_map, &slot);
	if (n)
		*n = (h & 0xffffff00) | (HOT - 1);
}

// is_hot counts a packet of a flow that is not remembered, and reports whether it should be.
static __always_inline bool is_hot(const struct key *k)
{
	__u32 h = hash(k);
	__u32 slot = h % HOT_SLOTS;
	__u32 *n = bpf_map_lookup_elem(&hot_map, &slot);
	if (!n)
		return false;
	__u32 now = *n;
	if ((now ^ h) & 0xffffff00)
		now = h & 0xffffff00;
	if ((now & 0xff) < HOT - 1) {
		*n = now + 1;
		return false;
	}
	*n = 0;
	return true;
}

// path is a way to a destination, whose packets have the same MTU.
struct path {
	__be32 destination[4];
	__u32 out;
	__u8 mac[ETH_ALEN]; // of the next hop
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct path);
	__type(value, struct proof);
} sizes SEC(".maps");

static __always_inline void path_of(const struct flow *f, const __be32 *destination, struct path *w)
{
	__builtin_memcpy(w->destination, destination, sizeof(w->destination));
	__builtin_memcpy(w->mac, f->header, ETH_ALEN);
	w->out = f->out;
}

// fits reports whether the kernel has just forwarded packets like one: of its flow, and of its size.
static __always_inline bool fits(struct __sk_buff *skb, const struct flow *f, const struct packet *p, __u64 now)
{
	if (!is_fresh(&f->proof, now) || (f->tos ^ p->tos) & ~ECN)
		return false;
	if (f->act & SEAL && skb->len > 0xffff - ROOM) // the length of the outer packet has 16 bits
		return false;
	if (p->length <= f->proof.largest)
		return true;
	struct path w = {};
	path_of(f, p->key.destination, &w);
	struct proof *other = bpf_map_lookup_elem(&sizes, &w);
	return other && p->length <= other->largest && is_fresh(other, now);
}

// envelope is the outside of a packet in VXLAN.
struct envelope {
	__be32 source, destination;
	__u8 tos;
};

// is_sealed reports whether a frame is a packet of the cluster in VXLAN.
static __always_inline bool is_sealed(struct __sk_buff *skb, const struct settings *s, struct envelope *e)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__be32 *vxlan = (void *)(udp + 1);
	if ((void *)(vxlan + 2) + ETH_HLEN > end)
		return false;
	if (!s->device || eth->h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_UDP || udp->dest != s->port ||
	    ip->frag_off & NOT_DF || !is_valid(ip))
		return false;
	e->source = ip->saddr;
	e->destination = ip->daddr;
	e->tos = ip->tos;
	return vxlan[0] == VXLAN_FLAGS && vxlan[1] == s->vni;
}

static __always_inline bool is_from(const struct flow *f, struct __sk_buff *skb, const struct envelope *e)
{
	return f->in == skb->ifindex && f->outer_source == e->source && f->outer_destination == e->destination;
}

// copy_ethernet copies the Ethernet header of a frame.
static __always_inline bool copy_ethernet(struct __sk_buff *skb, struct flow *f)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN > end)
		return false;
	__builtin_memcpy(f->header, data, ETH_HLEN);
	return true;
}

// copy_envelope copies the headers of a packet in VXLAN, without what differs from packet to packet.
static __always_inline bool copy_envelope(struct __sk_buff *skb, struct flow *f)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + sizeof(f->header) > end)
		return false;
	__builtin_memcpy(f->header, data, sizeof(f->header));
	struct iphdr *ip = (void *)f->header + ETH_HLEN;
	struct udphdr *udp = (void *)(ip + 1);
	ip->tot_len = 0;
	ip->id = 0;
	ip->tos &= ~ECN;
	ip->check = 0;
	udp->len = 0;
	udp->check = 0; // none (RFC 7348 section 5): the kernel's own would need more than is known here
	f->sum = fold(sum_header(ip));
	return true;
}
