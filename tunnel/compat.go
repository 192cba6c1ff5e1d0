package tunnel

import (
	"time"

	"cleat/packet"
	"cleat/tunnel/order"
)

// The compat form has no reports: nothing is measured or kept for resending, and a path
// is dead when the kernel says so, the user does, or the other end stops sending
// keepalives.

const (
	// compatAfter is how long Auto waits for a native answer.
	compatAfter = 3 * time.Second
	// quietAfter is how long a path may deliver nothing before the reordering buffer
	// stops waiting for it.
	quietAfter = 10 * time.Millisecond
)

// formInUse returns the form in use, or the configured one while there is no session. It
// is called with mu held.
func (t *Tunnel) formInUse() Form {
	switch {
	case t.session.compat:
		return Compat
	case t.session.up:
		return Native
	}
	return t.cfg.Form
}

// fallBack switches to the compat form if no peer has ever answered natively. After a
// native answer the form never changes: an attacker who can silence the peer for a while
// must not be able to have packets accepted that are easier to forge. It is called with
// mu held.
func (t *Tunnel) fallBack(now time.Duration) {
	s := &t.session
	if s.up || t.peerIsNative || t.cfg.Key != nil || t.cfg.Form == Native || t.cfg.Form != Compat && now < compatAfter {
		return
	}
	s.up, s.compat, t.sender.Blind = true, true, true
	s.peerName = 0
	t.peerTag.Store(noTag)
	t.acceptCompat.Store(true)
	t.compatHeard.Store(false)
	if t.cfg.Form != Compat {
		t.emit(Event{Kind: FellBack})
	}
}

func (t *Tunnel) compatHeader(pkt []byte) packet.GRE {
	g := packet.GRE{Protocol: packet.EtherTypeIPv4, HasSeq: !t.cfg.NoSequence}
	if pkt[0]>>4 == 6 {
		g.Protocol = packet.EtherTypeIPv6
	}
	if t.cfg.CompatKey != nil {
		g.HasKey, g.Key = true, *t.cfg.CompatKey
	}
	return g
}

func (in *inbound) handleCompat(now time.Duration, p *path, b []byte, tos uint8) {
	t := in.t
	var g packet.GRE
	n, err := packet.ParseGRE(b, &g)
	key := t.cfg.CompatKey
	if err != nil || !t.acceptCompat.Load() || g.Protocol != packet.EtherTypeIPv4 && g.Protocol != packet.EtherTypeIPv6 ||
		(key != nil) != g.HasKey || key != nil && g.Key != *key || len(b) == n {
		t.stats.invalid.Add(1)
		return
	}
	body := b[n:]
	if v := body[0] >> 4; v != 4 && v != 6 && !g.HasSeq {
		in.handleMPT(now, p, &g, body)
		return
	}
	if tos&3 == ecnCE && !markCE(body) {
		t.stats.invalid.Add(1)
		return
	}
	if !t.compatHeard.Load() {
		t.compatHeard.Store(true)
		t.emit(Event{Kind: Established})
	}
	in.authenticPackets++
	in.heardPaths |= 1 << p.id
	t.stats.received.Add(1)
	t.stats.receivedBytes.Add(uint64(len(body)))
	if !g.HasSeq {
		in.merge.Deliver(order.Packet{Data: body})
		return
	}
	in.lastCompatAt[p.id] = now
	in.arrival = order.Arrival{Path: p.id, Seq: g.Seq, FlowDistance: 1, Packet: order.Packet{Data: body}}
	if !in.sequenceKnown {
		in.startSession()
		in.sequenceKnown = true
		in.buf.Start(g.Seq)
	}
	in.received = true
	in.buf.Data(now, &in.arrival)
}

// markQuietPaths makes the reordering buffer stop waiting for paths that deliver nothing.
func (in *inbound) markQuietPaths(now time.Duration) {
	if !in.sequenceKnown || !in.buf.Waiting() {
		return
	}
	for id, last := range in.lastCompatAt {
		if last > 0 && now-last > quietAfter {
			in.lastCompatAt[id] = 0
			in.buf.Idle(id)
		}
	}
}
