// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Reading packets.

#pragma once

#define ECN 3 // bits of the type of service (RFC 3168); both set: congestion was experienced

// Flags of TCP, in the byte 13 of its header.
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define NOT_DF bpf_htons(0xbfff) // of the field with the flags and offset of fragments

// key is a flow in one direction. IPv4 addresses are in the first words, the others are 0.
struct key {
	__be32 source[4], destination[4];
	__be16 source_port, destination_port;
	__u8 protocol;
	__u8 sealed; // the packets come in VXLAN
	__u8 v6;
	__u8 zero;
};

// packet is what is read of a packet.
struct packet {
	struct key key;
	__u32 mark;    // distinguishes packets of a flow
	__u32 payload; // bytes; 1 if there is none
	__u16 length;  // of the packet, or of those that it will be divided into
	__u8 tos, ttl;
	__u8 mac[ETH_ALEN]; // destination
	__u8 flags;	    // of TCP
	__u8 zero;
};

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u32 sum_header(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;
	for (int i = 0; i < sizeof(*ip) / 2; i++)
		sum += words[i];
	return sum;
}

// is_valid reports whether the checksum of a header without options is right.
static __always_inline bool is_valid(const struct iphdr *ip) { return fold(sum_header(ip)) == 0xffff; }

static __always_inline bool read_ports(struct __sk_buff *skb, void *header, void *end, __u32 size, __u32 before, struct packet *p)
{
	__u32 gso = skb->gso_size, headers = before;
	if (p->key.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = header;
		if ((void *)(tcp + 1) > end)
			return false;
		p->flags = ((__u8 *)tcp)[13];
		if (p->flags & TCP_URG || !(p->flags & (TCP_ACK | TCP_SYN)))
			return false;
		p->key.source_port = tcp->source;
		p->key.destination_port = tcp->dest;
		p->mark ^= tcp->seq ^ tcp->ack_seq << 7;
		headers += tcp->doff * 4;
	} else if (p->key.protocol == IPPROTO_UDP) {
		struct udphdr *udp = header;
		if ((void *)(udp + 1) > end)
			return false;
		if (!gso && bpf_ntohs(udp->len) != size - before)
			return false;
		p->key.source_port = udp->source;
		p->key.destination_port = udp->dest;
		headers += sizeof(*udp);
	} else {
		return false;
	}
	if (size < headers)
		return false;
	p->payload = size - headers ?: 1;
	p->length = gso ? headers + gso : size;
	return true;
}

// read reads the IP packet at an offset of a frame. It reports false if the kernel has to see the packet: it is none of a
// flow, has options, or is a fragment.
static __always_inline bool read(struct __sk_buff *skb, __u32 at, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data + at - ETH_HLEN;
	struct iphdr *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end || skb->vlan_present || skb->mark)
		return false;
	__builtin_memcpy(p->mac, eth->h_dest, ETH_ALEN);
	__u32 size = skb->len - at;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (*(__u8 *)ip != 0x45 || ip->frag_off & NOT_DF || ip->ttl <= 1 || bpf_ntohs(ip->tot_len) != size || !is_valid(ip))
			return false;
		p->key.source[0] = ip->saddr;
		p->key.destination[0] = ip->daddr;
		p->key.protocol = ip->protocol;
		p->mark = ip->id << 16;
		p->tos = ip->tos;
		p->ttl = ip->ttl;
		return read_ports(skb, ip + 1, end, size, sizeof(*ip), p);
	}
	struct ipv6hdr *ip6 = (void *)ip;
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return false;
	if (ip6->version != 6 || ip6->hop_limit <= 1 || bpf_ntohs(ip6->payload_len) + sizeof(*ip6) != size)
		return false;
	__builtin_memcpy(p->key.source, &ip6->saddr, 16);
	__builtin_memcpy(p->key.destination, &ip6->daddr, 16);
	p->key.protocol = ip6->nexthdr;
	p->key.v6 = 1;
	p->tos = bpf_ntohs(*(__be16 *)ip6) >> 4;
	p->ttl = ip6->hop_limit;
	return read_ports(skb, ip6 + 1, end, size, sizeof(*ip6), p);
}

static __always_inline bool begins(const struct packet *p) { return p->flags & TCP_SYN; }
static __always_inline bool ends(const struct packet *p) { return p->flags & (TCP_FIN | TCP_RST); }

static __always_inline bool is_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

static __always_inline bool is_for_host(struct __sk_buff *skb) { return skb->pkt_type == PACKET_HOST; }
