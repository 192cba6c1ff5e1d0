package tunnel

import (
	"time"

	"cleat/packet"
	"cleat/tunnel/order"
)

// The compat form has no reports: nothing is measured, nothing is kept to be sent
// again, and a path is dead when the kernel says so, somebody else does, or the other end
// has stopped to say that it is there.

const (
	// compatAfter is how long Auto waits for an answer in the native form.
	compatAfter = 3 * time.Second
	// quietAfter is when a path that brings nothing is no longer waited for.
	quietAfter = 10 * time.Millisecond
)

// form is the form in use, "" as long as none is. The lock is held.
func (t *Tunnel) form() Form {
	switch {
	case t.sess.compat:
		return Compat
	case t.sess.up:
		return Native
	}
	return t.cfg.Form
}

// mayCompat reports whether the compat form may be used.
func (t *Tunnel) mayCompat() bool { return t.cfg.Key == nil && t.cfg.Form != Native }

// fallBack begins to speak the compat form if nobody has ever answered natively. A peer
// that has keeps the form: whoever can silence it for a while must not be able to have
// packets taken that are easier to forge. The lock is held.
func (t *Tunnel) fallBack(now time.Duration) {
	s := &t.sess
	if s.compat || t.native || !t.mayCompat() || t.cfg.Form != Compat && now < compatAfter {
		return
	}
	s.up, s.compat, t.send.Blind = true, true, true
	s.known, s.theirs = false, 0
	t.expects.Store(noTag)
	t.compatUp.Store(true)
	t.answered.Store(false)
	if t.cfg.Form != Compat {
		t.tell(Event{What: FellBack})
	}
}

// compatHeader is GRE's header in front of a packet.
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

// compat takes a packet of the compat form.
func (in *inbound) compat(now time.Duration, p *path, b []byte, tos uint8) {
	t := in.t
	var g packet.GRE
	n, err := packet.ParseGRE(b, &g)
	key := t.cfg.CompatKey
	if err != nil || !t.compatUp.Load() || g.Protocol != packet.EtherTypeIPv4 && g.Protocol != packet.EtherTypeIPv6 ||
		(key != nil) != g.HasKey || key != nil && g.Key != *key || len(b) == n {
		t.stats.strange.Add(1)
		return
	}
	body := b[n:]
	if v := body[0] >> 4; v != 4 && v != 6 && !g.HasSeq {
		in.mptSays(now, p, &g, body)
		return
	}
	if tos&3 == ecnCE && !markCE(body) {
		t.stats.strange.Add(1)
		return
	}
	if !t.answered.Load() {
		t.answered.Store(true)
		t.tell(Event{What: Established})
	}
	in.working++
	in.brought |= 1 << p.id
	t.stats.received.Add(1)
	t.stats.receivedBytes.Add(uint64(len(body)))
	if !g.HasSeq {
		in.merge.Deliver(order.Packet{Data: body})
		return
	}
	in.lastOf[p.id] = now
	in.a = order.Arrival{Path: p.id, Seq: g.Seq, Before: 1, Packet: order.Packet{Data: body}}
	if !in.counting {
		in.begin()
		in.counting = true
		in.buf.Start(g.Seq)
	}
	in.begun = true
	in.buf.Data(now, &in.a)
}

// quiet has the buffer not wait for paths that bring nothing.
func (in *inbound) quiet(now time.Duration) {
	if !in.counting || !in.buf.Waiting() {
		return
	}
	for id, last := range in.lastOf {
		if last > 0 && now-last > quietAfter {
			in.lastOf[id] = 0
			in.buf.Idle(id)
		}
	}
}
