package dhcp

import (
	"net/netip"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The first and the longest pause between two transmissions of a message. RFC 2131 section 4.1
// says 4 s for "10 Mb/s Ethernet internetworks", give or take 1 s, up to 64 s. Somebody who
// waits for a container to start on a faster network asks earlier. That does no harm to a server
// that probes before it offers (dnsmasq: 3 s), because its offer answers all messages.
const (
	firstRenewPause   = 4 * time.Second
	firstAcquirePause = time.Second
	maxPause          = 64 * time.Second
)

// backoff returns the pause after the n-th message, with n from 1 and random in [0, 1). It
// doubles every time, and varies by up to a quarter of first, so that many clients don't send in
// step.
func backoff(first time.Duration, n int, random float64) time.Duration {
	return min(first<<min(n-1, 6), maxPause) + time.Duration((random*2-1)*float64(first)/4)
}

// attempt is what the state machines have in common.
type attempt struct {
	requester
	random   func() float64
	xid      dhcpv4.TransactionID
	tries    int           // messages sent, in the current phase
	sendAt   time.Duration // when to send the next
	terms    terms         // offered or confirmed
	observed Observations
}

func (a *attempt) next() time.Duration         { return a.sendAt }
func (a *attempt) observations() *Observations { return &a.observed }

// read returns the terms of an offer or acknowledgement. If they are invalid, it records why. old
// is the lease that is being renewed, if any.
func (a *attempt) read(m *dhcpv4.DHCPv4, from link.MAC, old *Lease) (t terms, ok bool) {
	t, err := read(m, old)
	if err != nil {
		a.observed.refuse(m, err.Error())
		return t, false
	}
	t.NextHop = from
	return t, true
}

// phase is the phase of an exchange (RFC 2131 figure 5).
type phase int

const (
	selecting phase = iota // waiting for offers
	requesting
	confirmed // the caller checks that nobody uses the address
)

// maxRequests is how often an offer is requested before its server is given up.
const maxRequests = 3

// exchange is the state machine that gets an address.
type exchange struct {
	attempt
	requestedAddr netip.Addr // preferred address
	newXID        func() dhcpv4.TransactionID

	phase        phase
	requestedAt  time.Duration       // when the terms were first requested
	mayBeGranted bool                // they have been requested and not refused
	restarts     int                 // offers that failed
	inUse        map[netip.Addr]bool // addresses in use by others
}

func newExchange(r requester, requested netip.Addr, random func() float64, newXID func() dhcpv4.TransactionID) *exchange {
	return &exchange{attempt: attempt{requester: r, random: random, xid: newXID()}, requestedAddr: requested, newXID: newXID, inUse: map[netip.Addr]bool{}}
}

func (x *exchange) done() bool { return x.phase == confirmed }

func (x *exchange) tick(now time.Duration) *dhcpv4.DHCPv4 {
	if now < x.sendAt || x.done() {
		return nil
	}
	if x.phase == requesting && x.tries == maxRequests {
		appendRecent(&x.observed.Unconfirmed, x.terms.Server.String()+" offered "+x.terms.Address.Addr().String()+" but did not confirm it")
		x.restart(now)
		if now < x.sendAt {
			return nil
		}
	}
	x.tries++
	x.observed.Sent++
	x.sendAt = now + backoff(firstAcquirePause, x.tries, x.random())
	if x.phase == selecting {
		return x.discover(x.xid, now, x.requestedAddr)
	}
	if x.tries == 1 {
		x.requestedAt, x.mayBeGranted = now, true
	}
	return x.request(x.xid, now, &x.terms)
}

// restart begins again: at once the first time, then after growing delays.
func (x *exchange) restart(now time.Duration) {
	x.phase, x.tries, x.xid, x.sendAt = selecting, 0, x.newXID(), now
	if x.restarts > 0 {
		x.sendAt += backoff(firstAcquirePause, x.restarts, x.random())
	}
	x.restarts++
}

// receive ignores messages that don't answer the current one.
func (x *exchange) receive(now time.Duration, from link.MAC, m *dhcpv4.DHCPv4) {
	if !x.answers(m, x.xid) {
		return
	}
	switch kind := m.MessageType(); {
	case x.phase == selecting && kind == dhcpv4.MessageTypeOffer:
		if t, ok := x.readUnused(m, from); ok {
			x.phase, x.tries, x.terms, x.sendAt = requesting, 0, t, now
		}
	case x.phase != requesting || serverOf(m) != x.terms.Server:
	case kind == dhcpv4.MessageTypeNak:
		appendRecent(&x.observed.Nak, nakReason(m))
		x.mayBeGranted = false
		x.restart(now)
	case kind == dhcpv4.MessageTypeAck:
		t, ok := x.readUnused(m, from)
		if got, want := t.Address.Addr(), x.terms.Address.Addr(); ok && got != want {
			x.observed.refuse(m, "confirmed "+got.String()+" instead of "+want.String())
		} else if ok {
			x.phase, x.terms = confirmed, t
		}
	}
}

// readUnused is read for an address that nobody else is known to use.
func (x *exchange) readUnused(m *dhcpv4.DHCPv4, from link.MAC) (terms, bool) {
	t, ok := x.read(m, from, nil)
	if ok && x.inUse[t.Address.Addr()] {
		x.observed.refuse(m, t.Address.Addr().String()+" again, which is in use")
		ok = false
	}
	return t, ok
}

// unconfirmedLease returns what a server may count as granted: enough of a lease to release it;
// nil if there is nothing.
func (x *exchange) unconfirmedLease() *Lease {
	if !x.mayBeGranted {
		return nil
	}
	return &Lease{Client: x.client, Address: x.terms.Address, Server: x.terms.Server, NextHop: x.terms.NextHop}
}

// declineInUse returns the message that declines the confirmed address, because mac uses it, and
// restarts the exchange. RFC 2131 section 3.1.5 requires a pause of ten seconds, so that clients
// don't ask forever; here the whole exchange is bounded, and the address is not accepted again.
func (x *exchange) declineInUse(now time.Duration, mac link.MAC) *dhcpv4.DHCPv4 {
	m := x.decline(x.newXID(), &x.terms)
	addr := x.terms.Address.Addr()
	x.inUse[addr], x.mayBeGranted = true, false
	if x.requestedAddr == addr {
		x.requestedAddr = netip.Addr{}
	}
	appendRecent(&x.observed.InUse, addr.String()+" by "+mac.String())
	x.restart(now)
	return m
}

// lease returns the lease of an exchange that began at this time.
func (x *exchange) lease(began Stamp) *Lease {
	l := &Lease{Client: x.client}
	l.set(x.terms, began.add(x.requestedAt), x.random)
	return l
}

// set sets what was granted for a request of this time. T1 and T2 are a little earlier than the
// server says, so that not all of its clients renew at once (RFC 2131 section 4.4.5).
func (l *Lease) set(t terms, requested Stamp, random func() float64) {
	t.Client, t.Obtained = l.Client, requested
	*l = t.Lease
	if t.lifetime == 0 {
		return
	}
	t1 := t.t1 - jitter(t.t1, random())
	t2 := t.t2 - jitter(t.t2-t.t1, random())
	l.Renew, l.Rebind, l.Expires = requested.Wall.Add(t1), requested.Wall.Add(t2), requested.Wall.Add(t.lifetime)
}

// jitter returns up to a twentieth of d.
func jitter(d time.Duration, random float64) time.Duration {
	return time.Duration(random * float64(d) / 20)
}
