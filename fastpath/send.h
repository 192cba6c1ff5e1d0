// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Sending packets the fast way.

#pragma once

// seal puts a packet into VXLAN.
static __always_inline bool seal(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	__u32 length = skb->len - ETH_HLEN + ROOM;
	count(skb, SEALED);
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) | ADJ_ROOM_ENCAP_L2_ETH;
	if (bpf_skb_adjust_room(skb, ROOM, BPF_ADJ_ROOM_MAC, flags))
		return false;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + sizeof(f->header) > end)
		return false;
	__builtin_memcpy(data, f->header, sizeof(f->header));
	struct iphdr *ip = data + ETH_HLEN;
	struct udphdr *udp = (void *)(ip + 1);
	__u8 ecn = (p->tos & ECN) == ECN ? 2 : p->tos & ECN; // RFC 6040 section 4.1, as the kernel does it
	ip->tot_len = bpf_htons(length);
	ip->tos |= ecn;
	if (!(ip->frag_off & bpf_htons(0x4000)))
		ip->id = bpf_htons(f->packets << 6); // packets that are divided get the next ones
	udp->len = bpf_htons(length - sizeof(*ip));
	ip->check = ~fold(f->sum + ip->tot_len + ip->id + bpf_htons(ecn));
	return true;
}

// unseal takes a packet out of VXLAN. Its Ethernet header is the outer one, which send replaces.
static __always_inline bool unseal(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *inner = data + ROOM;
	if ((void *)(inner + 1) > end)
		return false;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	if (inner->h_proto == bpf_htons(ETH_P_IPV6))
		flags |= ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -ROOM, BPF_ADJ_ROOM_MAC, flags))
		return false;
	count(skb, UNSEALED);
	return true;
}

// age takes one from the time to live of a packet.
static __always_inline bool age(struct __sk_buff *skb, bool v6)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (v6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		if ((void *)(ip + 1) > end)
			return false;
		ip->hop_limit--;
		return true;
	}
	struct iphdr *ip = data + ETH_HLEN;
	if ((void *)(ip + 1) > end)
		return false;
	__u32 check = ip->check + bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	return true;
}

// translate replaces addresses and ports.
static __always_inline bool translate(struct __sk_buff *skb, const struct flow *f, const struct packet *p)
{
	// Beside IPv4 addresses there are zeros, which change no checksum. Both pairs of addresses lie side by side.
	__be32 ports[2] = {(__u32)p->key.source_port << 16 | p->key.destination_port, (__u32)f->source_port << 16 | f->destination_port};
	__s64 addresses = bpf_csum_diff((__be32 *)p->key.source, 32, (__be32 *)f->source, 32, 0);
	__s64 rest = bpf_csum_diff(&ports[0], 4, &ports[1], 4, 0);
	bool v6 = p->key.v6;
	__u32 l4 = ETH_HLEN + (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)), check = l4 + 16;
	__u64 zero = 0;
	if (p->key.protocol == IPPROTO_UDP) {
		check = l4 + 6;
		zero = BPF_F_MARK_MANGLED_0;
	}
	if ((!v6 && bpf_l3_csum_replace(skb, ETH_HLEN + 10, 0, addresses, 0)) ||
	    bpf_l4_csum_replace(skb, check, 0, addresses, BPF_F_PSEUDO_HDR | zero) || bpf_l4_csum_replace(skb, check, 0, rest, zero))
		return false;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct udphdr *udp; // the ports of TCP are in the same place
	if (v6) {
		struct ipv6hdr *ip = data + ETH_HLEN;
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return false;
		__builtin_memcpy(&ip->saddr, f->source, 16);
		__builtin_memcpy(&ip->daddr, f->destination, 16);
	} else {
		struct iphdr *ip = data + ETH_HLEN;
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return false;
		ip->saddr = f->source[0];
		ip->daddr = f->destination[0];
	}
	udp->source = f->source_port;
	udp->dest = f->destination_port;
	return true;
}

// send sends a packet the fast way. It has been read with the Ethernet header in front.
static __always_inline int send(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	if (ends(p))
		end(skb, f, p);
	f->fast = 1;
	f->packets++;
	f->bytes += skb->len;
	if (!(f->act & BRIDGE) && !age(skb, p->key.v6))
		return DROP;
	if (f->act & TRANSLATE && !translate(skb, f, p))
		return DROP;
	if (f->act & SEAL) {
		if (!seal(skb, f, p))
			return DROP;
		return bpf_redirect(f->out, 0);
	}
	if (bpf_skb_store_bytes(skb, 0, f->header, ETH_HLEN, 0))
		return DROP;
	if (!(f->act & TO_CONTAINER))
		return bpf_redirect(f->out, 0);
	count(skb, f->out);
	if (skb->pkt_type != PACKET_HOST)
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(f->out, 0);
}
