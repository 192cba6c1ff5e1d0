package dhcp

import (
	"net/netip"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// backoff is how long to wait for an answer before the question is asked again: twice as
// long each time (RFC 2131 section 4.1).
type backoff struct {
	first time.Duration
	most  time.Duration // where doubling ends
}

// Back-off for who has no address and waits for it, and for who has one. The RFC says 4 s for
// "10 Mb/s Ethernet internetworks", give or take 1 s, up to 64 s; who waits for a container
// to start on today's networks asks earlier. A server that asks around before it offers
// (dnsmasq: 3 s) is not hurt: its offer counts for all that was asked.
func patient() backoff   { return backoff{4 * time.Second, 64 * time.Second} }
func impatient() backoff { return backoff{time.Second, 64 * time.Second} }

// after is the time after the n-th question, n from 1; chance is from [0, 1). It is off by up
// to a quarter of first, so that many clients don't ask in step.
func (b backoff) after(n int, chance float64) time.Duration {
	d := b.first
	for range n - 1 {
		if d >= b.most {
			break
		}
		d *= 2
	}
	return min(d, b.most) + time.Duration((chance*2-1)*float64(b.first)/4)
}

const (
	// maxRequests is how often an offer is asked for that its server does not confirm.
	maxRequests = 3

	// maxRemembered bounds what is remembered of one kind of answers, for messages.
	maxRemembered = 4
)

// phase is where an exchange is (RFC 2131 figure 5).
type phase int

const (
	selecting phase = iota // asked for offers
	requesting
	checking // confirmed: is somebody using the address?
)

// exchange gets an address: a state machine without clock, chance or network of its own.
// Times count from its beginning.
type exchange struct {
	asker
	wish   netip.Addr
	chance func() float64
	newXID func() dhcpv4.TransactionID

	phase     phase
	xid       dhcpv4.TransactionID
	tries     int                 // in this phase
	due       time.Duration       // when to send again
	terms     terms               // offered, or confirmed
	requested time.Duration       // when they were first asked for
	claimed   bool                // they may be ours: asked for, and not refused
	restarts  int                 // offers that came to nothing
	refused   map[netip.Addr]bool // in use by others
	seen      Seen
}

func newExchange(a asker, wish netip.Addr, chance func() float64, newXID func() dhcpv4.TransactionID) *exchange {
	return &exchange{asker: a, wish: wish, chance: chance, newXID: newXID, xid: newXID(), refused: map[netip.Addr]bool{}}
}

// next is when tick is to be called again.
func (x *exchange) next() time.Duration { return x.due }

// over tells whether an address is confirmed.
func (x *exchange) over() bool { return x.phase == checking }

func (x *exchange) saw() *Seen { return &x.seen }

// tick is the message to send at a time, if it is time to.
func (x *exchange) tick(now time.Duration) *dhcpv4.DHCPv4 {
	if now < x.due || x.phase == checking {
		return nil
	}
	if x.phase == requesting && x.tries == maxRequests {
		remember(&x.seen.Silent, x.terms.server.String()+" offered "+x.terms.address.Addr().String()+" and confirmed nothing")
		x.restart(now)
		if now < x.due {
			return nil
		}
	}
	x.tries++
	x.seen.Sent++
	x.due = now + impatient().after(x.tries, x.chance())
	if x.phase == selecting {
		return x.discover(x.xid, now, x.wish)
	}
	if x.tries == 1 {
		x.requested, x.claimed = now, true
	}
	return x.request(x.xid, now, &x.terms)
}

// restart begins anew, at once the first time, later the more often it had to.
func (x *exchange) restart(now time.Duration) {
	x.phase, x.tries, x.xid, x.due = selecting, 0, x.newXID(), now
	if x.restarts > 0 {
		x.due += impatient().after(x.restarts, x.chance())
	}
	x.restarts++
}

// receive takes a message in at a time. What is not for us is nothing.
func (x *exchange) receive(now time.Duration, from link.MAC, m *dhcpv4.DHCPv4) {
	if !x.isFor(m, x.xid) {
		return
	}
	switch kind := m.MessageType(); {
	case x.phase == selecting && kind == dhcpv4.MessageTypeOffer:
		x.seen.Offers++
		if t, ok := x.read(m, from); ok {
			x.phase, x.tries, x.terms, x.due = requesting, 0, t, now
		}
	case x.phase != requesting || serverOf(m) != x.terms.server:
	case kind == dhcpv4.MessageTypeNak:
		remember(&x.seen.Nak, nakText(m))
		x.claimed = false
		x.restart(now)
	case kind == dhcpv4.MessageTypeAck:
		if t, ok := x.read(m, from); ok {
			x.confirmed(t)
		}
	}
}

// confirmed takes what a server confirms, if that is what was asked for.
func (x *exchange) confirmed(t terms) {
	if got, want := t.address.Addr(), x.terms.address.Addr(); got != want {
		remember(&x.seen.Refused, t.server.String()+": confirmed "+got.String()+" instead of "+want.String())
		return
	}
	x.phase, x.terms = checking, t
}

// read checks an offer or acknowledgement, and remembers what is wrong with it.
func (x *exchange) read(m *dhcpv4.DHCPv4, from link.MAC) (terms, bool) {
	t, err := read(m, nil)
	if err != nil {
		remember(&x.seen.Refused, nameOf(m)+": "+err.Error())
		return terms{}, false
	}
	if x.refused[t.address.Addr()] {
		remember(&x.seen.Refused, nameOf(m)+": "+t.address.Addr().String()+" again, which is in use")
		return terms{}, false
	}
	t.hop = from
	return t, true
}

// claim is what a server may count as ours: nil where nothing is, and as much of a lease as
// it takes to give it back where that is not confirmed.
func (x *exchange) claim() *Lease {
	if !x.claimed {
		return nil
	}
	return &Lease{Client: x.client, Address: x.terms.address, Server: x.terms.server, Hop: x.terms.hop}
}

// taken is the message that declines what was confirmed, because mac uses it. The exchange
// begins anew. The ten seconds that RFC 2131 section 3.1.5 has one wait are to keep clients
// from asking without end; here the whole is bounded, and the address is not taken twice.
func (x *exchange) taken(now time.Duration, mac link.MAC) *dhcpv4.DHCPv4 {
	m := x.decline(x.newXID(), &x.terms)
	addr := x.terms.address.Addr()
	x.refused[addr], x.claimed = true, false
	if x.wish == addr {
		x.wish = netip.Addr{}
	}
	remember(&x.seen.Taken, addr.String()+" by "+mac.String())
	x.restart(now)
	return m
}

// lease is what came of it, begun at a moment.
func (x *exchange) lease(began Stamp) *Lease {
	l := &Lease{Client: x.client}
	l.set(x.terms, began.add(x.requested), x.chance)
	return l
}

// set puts what was granted at a moment into the lease. T1 and T2 are a little earlier than
// the server says, so that not all its clients come at once (RFC 2131 section 4.4.5).
func (l *Lease) set(t terms, got Stamp, chance func() float64) {
	*l = Lease{
		Client: l.Client, Address: t.address, Server: t.server, Routes: t.routes,
		DNS: t.dns, Domain: t.domain, MTU: t.mtu, Hop: t.hop, Got: got, Notes: t.notes,
	}
	if t.lifetime == 0 {
		return
	}
	t1 := t.t1 - fuzz(t.t1, chance())
	t2 := t.t2 - fuzz(t.t2-t.t1, chance())
	l.Renew, l.Rebind, l.Expires = got.Wall.Add(t1), got.Wall.Add(t2), got.Wall.Add(t.lifetime)
}

// fuzz is up to a twentieth of d.
func fuzz(d time.Duration, chance float64) time.Duration {
	return time.Duration(chance * float64(d) / 20)
}

// extension gets more time for a lease: the state machine of Renew and Rebind.
type extension struct {
	asker
	lease  *Lease
	chance func() float64

	xid   dhcpv4.TransactionID
	tries int
	due   time.Duration
	asked time.Duration // when first
	done  bool
	terms terms
	seen  Seen
}

func (e *extension) next() time.Duration { return e.due }
func (e *extension) over() bool          { return e.done }
func (e *extension) saw() *Seen          { return &e.seen }

// tick is the message to send at a time, if it is time to.
func (e *extension) tick(now time.Duration) *dhcpv4.DHCPv4 {
	if now < e.due || e.done {
		return nil
	}
	if e.tries == 0 {
		e.asked = now
	}
	e.tries++
	e.seen.Sent++
	e.due = now + patient().after(e.tries, e.chance())
	return e.extend(e.xid, now, e.lease.Address.Addr())
}

// receive takes a message in.
func (e *extension) receive(_ time.Duration, from link.MAC, m *dhcpv4.DHCPv4) {
	if e.done || !e.isFor(m, e.xid) {
		return
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeNak:
		remember(&e.seen.Nak, nakText(m))
		e.done = true
	case dhcpv4.MessageTypeAck:
		t, err := read(m, e.lease)
		if err != nil {
			remember(&e.seen.Refused, nameOf(m)+": "+err.Error())
			return
		}
		t.hop = from
		e.terms, e.done = t, true
	}
}
