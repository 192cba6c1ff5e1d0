// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Seeing what the kernel does with packets.

#pragma once

// await notes a packet that the kernel gets now. It gets a token, by which it is known when it leaves: a packet like it that
// came another way has none.
static __always_inline void await(struct __sk_buff *skb, const struct packet *p)
{
	__u32 zero = 0;
	struct pending *w = bpf_map_lookup_elem(&pending_map, &zero);
	if (!w || p->mac[0] & 1) // for several
		return;
	w->packet = *p;
	w->in = skb->ifindex;
	w->left = 0;
	w->token = bpf_get_prandom_u32() | 1;
	skb->tc_index = w->token;
	w->at = bpf_ktime_get_ns();
}

// awaited returns the packet that came last on this processor, if it is the one that leaves.
static __always_inline struct pending *awaited(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct pending *w = bpf_map_lookup_elem(&pending_map, &zero);
	if (!w || !w->at || skb->tc_index != w->token)
		return 0;
	if (bpf_ktime_get_ns() - w->at > PENDING_NS) {
		w->at = 0;
		return 0;
	}
	return w;
}

// is_like reports whether a packet leaves as it came, but for what translation changes.
static __always_inline bool is_like(const struct pending *w, const struct packet *p)
{
	return w->packet.mark == p->mark && w->packet.length == p->length && w->packet.payload == p->payload && w->packet.tos == p->tos &&
	       w->packet.key.protocol == p->key.protocol && w->packet.key.v6 == p->key.v6;
}

static __always_inline bool is_forwarded(const struct pending *w, const struct packet *p)
{
	return w->packet.ttl == p->ttl + 1 && is_like(w, p);
}

static __always_inline bool is_same_flow(const struct key *a, const struct key *b)
{
	__u32 different = (a->source_port ^ b->source_port) | (a->destination_port ^ b->destination_port);
	for (int i = 0; i < 4; i++)
		different |= (a->source[i] ^ b->source[i]) | (a->destination[i] ^ b->destination[i]);
	return !different;
}

// inverse returns what the answers to packets that leave come in as.
static __always_inline struct key inverse(const struct key *k)
{
	struct key i = {.source_port = k->destination_port, .destination_port = k->source_port, .protocol = k->protocol, .v6 = k->v6};
	__builtin_memcpy(i.source, k->destination, sizeof(i.source));
	__builtin_memcpy(i.destination, k->source, sizeof(i.destination));
	return i;
}

static __always_inline bool is_bridged(const struct pending *w, const struct packet *p)
{
	return w->packet.ttl == p->ttl && is_mac(w->packet.mac, p->mac) && is_same_flow(&w->packet.key, &p->key) && is_like(w, p);
}

// The answers of connection tracking.
enum answer { UNKNOWN, ALLOWED, DENIED };

// stage is what connection tracking has to have seen of a flow. At TAKEN an answered connection of TCP is established by a
// packet that goes the fast way: so it is established here, as connection tracking would have it.
enum stage { BEGUN, ANSWERED, TAKEN, ESTABLISHED };

// connection returns what connection tracking knows of a flow, to be released.
static __always_inline struct nf_conn *connection(struct __sk_buff *skb, const struct key *k, struct bpf_ct_opts *o)
{
	struct bpf_sock_tuple tuple = {};
	if (k->v6) {
		__builtin_memcpy(tuple.ipv6.saddr, k->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, k->destination, 16);
		tuple.ipv6.sport = k->source_port;
		tuple.ipv6.dport = k->destination_port;
		return bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv6), o, sizeof(*o));
	}
	tuple.ipv4.saddr = k->source[0];
	tuple.ipv4.daddr = k->destination[0];
	tuple.ipv4.sport = k->source_port;
	tuple.ipv4.dport = k->destination_port;
	return bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), o, sizeof(*o));
}

// The functions that call connection tracking are global, so that the verifier looks at them once and not at each call.

// forget has connection tracking forget a connection after a time: it does not see the ends that go the fast way.
__noinline int forget(struct __sk_buff *skb, const struct key *k, __u32 ms)
{
	if (!k)
		return 0;
	struct bpf_ct_opts o = {.netns_id = -1, .l4proto = k->protocol};
	struct nf_conn *ct = connection(skb, k, &o);
	if (!ct)
		return 0;
	bpf_ct_change_timeout(ct, ms);
	bpf_ct_release(ct);
	return 0;
}

// ask asks connection tracking about a flow that comes in as one key and leaves as another. It allows a flow that has come
// to a stage, that it translates in just this way, and whose packets nothing has to see.
__noinline int ask(struct __sk_buff *skb, const struct key *came, const struct key *leaves, int stage)
{
	struct settings *s = current_settings();
	if (!s || !came || !leaves)
		return DENIED;
	struct bpf_ct_opts o = {.netns_id = -1, .l4proto = came->protocol};
	struct nf_conn *ct = connection(skb, came, &o);
	if (!ct)
		return UNKNOWN;
	__u64 want = IPS_CONFIRMED;
	bool ok = true;
	if (stage != BEGUN)
		want |= IPS_SEEN_REPLY;
	if (came->protocol == IPPROTO_TCP) {
		__u8 state = ct->proto.tcp.state;
		if (stage == ESTABLISHED)
			want |= IPS_ASSURED;
		ok = (state == TCP_CONNTRACK_ESTABLISHED || (stage != ESTABLISHED && state <= TCP_CONNTRACK_SYN_RECV)) &&
		     ct->ct_net.net->ct.nf_ct_proto.tcp.tcp_be_liberal;
	}
	ok = ok && (ct->status & (want | IPS_SEQ_ADJUST | IPS_DYING)) == want;
	struct nf_ct_ext *ext = ct->ext;
	ok = ok && !(ext && ext->offset[0]); // no helper reads its packets
	// What leaves is the inverse of what the other direction comes in as.
	__u32 different;
	if (o.dir) {
		struct nf_conntrack_tuple *other = &ct->tuplehash[0].tuple;
		different = (other->src.u.all ^ leaves->destination_port) | (other->dst.u.all ^ leaves->source_port);
		for (int i = 0; i < 4; i++)
			different |= (other->src.u3.all[i] ^ leaves->destination[i]) | (other->dst.u3.all[i] ^ leaves->source[i]);
	} else {
		struct nf_conntrack_tuple *other = &ct->tuplehash[1].tuple;
		different = (other->src.u.all ^ leaves->destination_port) | (other->dst.u.all ^ leaves->source_port);
		for (int i = 0; i < 4; i++)
			different |= (other->src.u3.all[i] ^ leaves->destination[i]) | (other->dst.u3.all[i] ^ leaves->source[i]);
	}
	ok = ok && !different;
	if (ok && came->protocol == IPPROTO_TCP && stage >= TAKEN) {
		ok = !bpf_ct_change_status(ct, ct->status | IPS_ASSURED);
		// An acknowledgement may go the fast way: connection tracking would wait for it, and forget the connection soon.
		bpf_ct_change_timeout(ct, s->established);
	}
	bpf_ct_release(ct);
	return ok ? ALLOWED : DENIED;
}

static __always_inline bool is_same_address(const __be32 *a, const __be32 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]));
}

// is_like_before reports whether packets of a flow still leave as before.
static __always_inline bool is_like_before(const struct flow *a, const struct flow *b)
{
	const __u64 *x = (const void *)a->header, *y = (const void *)b->header;
	__u64 different = 0;
	for (int i = 0; i < sizeof(a->header) / 8; i++)
		different |= (x[i] ^ y[i]);
	return !different && a->in == b->in && a->out == b->out && a->act == b->act && !((a->tos ^ b->tos) & ~ECN) && is_mac(a->mac, b->mac) &&
	       is_same_address(a->source, b->source) && is_same_address(a->destination, b->destination) && a->source_port == b->source_port &&
	       a->destination_port == b->destination_port && a->outer_source == b->outer_source && a->outer_destination == b->outer_destination;
}

// prove_path notes that a packet has left by a path. It has a frame of its own: those of to_wire and ask share 512 bytes.
static __noinline void prove_path(const struct flow *f, const __be32 *destination, __u32 length, __u64 now)
{
	struct path w = {};
	path_of(f, destination, &w);
	struct proof *p = bpf_map_lookup_elem(&sizes, &w);
	if (p) {
		prove(p, length, now);
		return;
	}
	struct proof new = {.at = now, .largest = length};
	bpf_map_update_elem(&sizes, &w, &new, BPF_ANY);
}

// remember remembers what the kernel has done with a packet that leaves now. old is what was remembered before, or 0.
static __always_inline void remember(struct __sk_buff *skb, const struct key *came, struct flow *old, struct flow *new, const struct packet *p)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	new->out = skb->ifindex;
	new->tos = p->tos;
	prove_path(new, came->destination, p->length, now);
	if (old && is_like_before(old, new)) {
		old->confirmed |= new->confirmed;
		prove(&old->proof, p->length, now);
		return;
	}
	prove(&new->proof, p->length, now);
	if (old) {
		new->packets = old->packets;
		new->bytes = old->bytes;
		new->entered = old->entered;
		new->left = old->left;
		new->slow_since = old->slow_since;
	}
	bpf_map_update_elem(&flows, came, new, BPF_ANY);
}

// stage_of returns what connection tracking has to have seen when a packet leaves.
static __always_inline enum stage stage_of(const struct packet *p)
{
	if (!begins(p))
		return ESTABLISHED;
	return p->flags & TCP_ACK ? ANSWERED : BEGUN;
}

// still_ended is called when connection tracking has seen a packet of a connection whose end it has not seen.
static __always_inline void still_ended(struct __sk_buff *skb, const struct key *k)
{
	struct settings *s = current_settings();
	if (s)
		forget(skb, k, s->ended);
}

static __always_inline void judge_as(struct __sk_buff *skb, struct pending *w, struct flow *new, const struct packet *p, bool bridged)
{
	if (w->left) { // twice: what the kernel does with it is more than is known here
		w->at = 0;
		bpf_map_delete_elem(&flows, &w->packet.key);
		return;
	}
	w->left = 1;
	if (ends(p))
		return;
	struct flow *old = bpf_map_lookup_elem(&flows, &w->packet.key);
	if (!old && (bridged || !begins(p)) && !is_hot(&w->packet.key)) // a bridge is fast itself
		return;
	enum stage stage = stage_of(p);
	int a = ask(skb, &w->packet.key, &p->key, stage);
	if (old && old->ended)
		still_ended(skb, &w->packet.key);
	if (a != ALLOWED && !(bridged && a == UNKNOWN))
		return;
	if (!is_same_flow(&w->packet.key, &p->key)) {
		new->act |= TRANSLATE;
		__builtin_memcpy(new->source, p->key.source, sizeof(new->source));
		__builtin_memcpy(new->destination, p->key.destination, sizeof(new->destination));
		new->source_port = p->key.source_port;
		new->destination_port = p->key.destination_port;
	}
	if (stage == ANSWERED) // the first packet may have come another way
		heat_answers(&p->key);
	new->in = w->in;
	new->confirmed = stage != BEGUN || a == UNKNOWN;
	__builtin_memcpy(new->mac, w->packet.mac, ETH_ALEN);
	remember(skb, &w->packet.key, old, new, p);
}

// judge remembers a flow whose packet leaves that came last.
static __always_inline void judge(struct __sk_buff *skb, struct pending *w, struct flow *new, const struct packet *p)
{
	judge_as(skb, w, new, p, false);
}

// judge_bridged does the same for a packet that was bridged. Connection tracking need not know its flow: then no rule that
// it passes depends on connections.
static __always_inline void judge_bridged(struct __sk_buff *skb, struct pending *w, struct flow *new, const struct packet *p)
{
	new->act |= BRIDGE;
	judge_as(skb, w, new, p, true);
}

// A packet in VXLAN does not leave in the softirq in which it came: the kernel queues it in between. So a flow is fast only
// while none of its packets are in the kernel, which could be overtaken. Their payload is counted as they come and leave.

// expect begins to count the packets of a flow.
static __always_inline void expect(struct __sk_buff *skb, const struct envelope *e, const struct packet *p)
{
	if (!begins(p) && !is_hot(&p->key))
		return;
	struct flow new = {.in = skb->ifindex, .outer_source = e->source, .outer_destination = e->destination, .entered = p->payload};
	new.slow_since = bpf_ktime_get_coarse_ns();
	bpf_map_update_elem(&flows, &p->key, &new, BPF_NOEXIST);
}

// expect_again counts another packet, which may come from another host than those before.
static __always_inline void expect_again(struct __sk_buff *skb, struct flow *f, const struct envelope *e, const struct packet *p, __u64 now)
{
	if (!is_from(f, skb, e)) {
		f->proof.at = 0;
		f->in = skb->ifindex;
		f->outer_source = e->source;
		f->outer_destination = e->destination;
	}
	if (f->fast) {
		f->fast = 0;
		f->entered = f->left = 0;
		f->slow_since = now;
	}
	__sync_fetch_and_add(&f->entered, p->payload);
}

// is_empty reports whether no packet of a flow is in the kernel.
static __always_inline bool is_empty(const struct flow *f, __u64 now)
{
	return f->entered == f->left || now - f->slow_since > DROPPED_NS;
}

// judge_expected remembers a flow that came in VXLAN, if the packet that leaves is one of it.
static __always_inline void judge_expected(struct __sk_buff *skb, struct flow *new, struct packet *p)
{
	struct settings *s = current_settings();
	if (!s || !s->device || skb->ingress_ifindex != s->device)
		return;
	p->key.sealed = 1;
	struct flow *f = bpf_map_lookup_elem(&flows, &p->key);
	if (!f)
		return;
	__sync_fetch_and_add(&f->left, p->payload);
	enum stage stage = stage_of(p);
	int a = ends(p) ? DENIED : ask(skb, &p->key, &p->key, stage);
	if (f->ended)
		still_ended(skb, &p->key);
	if (a != ALLOWED)
		return;
	new->confirmed = stage != BEGUN;
	new->in = f->in;
	new->outer_source = f->outer_source;
	new->outer_destination = f->outer_destination;
	remember(skb, &p->key, f, new, p);
}

// leaves_as returns what a packet leaves as.
static __always_inline struct key leaves_as(const struct flow *f, const struct packet *p)
{
	struct key k = p->key;
	if (f->act & TRANSLATE) {
		__builtin_memcpy(k.source, f->source, sizeof(k.source));
		__builtin_memcpy(k.destination, f->destination, sizeof(k.destination));
		k.source_port = f->source_port;
		k.destination_port = f->destination_port;
	}
	return k;
}

// is_confirmed reports whether connection tracking knows a flow in both directions.
static __always_inline bool is_confirmed(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	if (f->confirmed)
		return true;
	struct key leaves = leaves_as(f, p);
	if (ask(skb, &p->key, &leaves, TAKEN) != ALLOWED)
		return false;
	f->confirmed = 1;
	return true;
}

// end notes that a connection ends.
static __always_inline void end(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	struct settings *s = current_settings();
	if (!s)
		return;
	struct key leaves = leaves_as(f, p), other = inverse(&leaves);
	other.sealed = !!(f->act & SEAL);
	struct flow *back = bpf_map_lookup_elem(&flows, &other);
	if (back)
		back->ended = 1;
	f->ended = 1;
	forget(skb, &p->key, p->flags & TCP_RST ? s->aborted : s->ended);
}

// begin notes that a connection begins. One that has ended before is forgotten now, so that this one is judged as new.
static __always_inline void begin(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	if (f->ended && !(p->flags & TCP_ACK))
		forget(skb, &p->key, 0);
	f->ended = 0;
	f->proof.at = 0;
	f->confirmed = 0;
}
