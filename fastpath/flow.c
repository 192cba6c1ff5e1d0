//go:build ignore

// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// The programs of package fastpath. Its doc.go says how they work together.

#include "kernel.h"
#include "packet.h"
#include "flow.h"
#include "judge.h"
#include "send.h"

// enter sends a packet that comes in as it is the fast way, or notes it for the program that sees it leave.
static __always_inline int enter(struct __sk_buff *skb)
{
	struct packet p = {};
	if (!read(skb, ETH_HLEN, &p))
		return NEXT;
	struct flow *f = bpf_map_lookup_elem(&flows, &p.key);
	if (f && f->in == skb->ifindex && is_mac(f->mac, p.mac)) {
		if (begins(&p))
			begin(skb, f, &p);
		else if (fits(skb, f, &p, bpf_ktime_get_coarse_ns()) && is_confirmed(skb, f, &p))
			return send(skb, f, &p);
	}
	await(skb, &p);
	return NEXT;
}

// from_container sees what comes in by the host's end of a container's link.
SEC("tc") int from_container(struct __sk_buff *skb) { return enter(skb); }

// from_wire sees what comes in by a device to other hosts.
SEC("tc") int from_wire(struct __sk_buff *skb)
{
	struct settings *s = current_settings();
	if (!s)
		return NEXT;
	struct envelope e = {};
	if (!is_sealed(skb, s, &e))
		return enter(skb);
	struct packet p = {};
	if (!bpf_map_lookup_elem(&peers, &e.source) || !is_for_host(skb) || !read(skb, ETH_HLEN + ROOM, &p))
		return NEXT;
	p.key.sealed = 1;
	struct flow *f = bpf_map_lookup_elem(&flows, &p.key);
	if (!f) {
		expect(skb, &e, &p);
		return NEXT;
	}
	__u64 now = bpf_ktime_get_coarse_ns();
	if (is_from(f, skb, &e)) {
		if (begins(&p))
			begin(skb, f, &p);
		else if (is_empty(f, now) && fits(skb, f, &p, now) && (e.tos & ECN) != ECN && is_confirmed(skb, f, &p) && unseal(skb))
			return send(skb, f, &p);
	}
	expect_again(skb, f, &e, &p, now);
	return NEXT;
}

// to_wire sees what leaves by a device to other hosts.
SEC("tc") int to_wire(struct __sk_buff *skb)
{
	struct pending *w = awaited(skb);
	struct settings *s = current_settings();
	if (!w || !s)
		return NEXT;
	struct flow new = {};
	struct envelope e;
	struct packet p = {};
	if (is_sealed(skb, s, &e)) {
		if (!read(skb, ETH_HLEN + ROOM, &p) || !copy_envelope(skb, &new))
			return NEXT;
		new.act = SEAL;
	} else if (!read(skb, ETH_HLEN, &p) || !copy_ethernet(skb, &new)) {
		return NEXT;
	}
	if (is_forwarded(w, &p))
		judge(skb, w, &new, &p);
	return NEXT;
}

// to_container sees what leaves by the host's end of a container's link.
SEC("tc") int to_container(struct __sk_buff *skb)
{
	struct packet p = {};
	struct flow new = {.act = TO_CONTAINER};
	if (!read(skb, ETH_HLEN, &p) || !copy_ethernet(skb, &new))
		return NEXT;
	struct pending *w = awaited(skb);
	if (w && is_forwarded(w, &p))
		judge(skb, w, &new, &p);
	else if (w && is_bridged(w, &p))
		judge_bridged(skb, w, &new, &p);
	else
		judge_expected(skb, &new, &p);
	return NEXT;
}

char __license[] SEC("license") = "Dual MIT/GPL";
