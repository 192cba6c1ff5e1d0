package usernet

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// offering has the connections that a listener accepts offered.
type offering struct {
	attempts
	family int // of its sockets
}

func (o *offering) open() bool { return o != nil && o.attempts.open() }

// offerFor is how long a connection is offered. A server that takes longer to
// accept, or that accepts unseen, has its bytes spliced.
const offerFor = time.Second

// offers are the connections of all engines that are offered: the guest's kernel
// has one, nobody has moved a byte of it yet, and its server may be given the
// host's socket in the place of its own.
type offers struct {
	mu      sync.Mutex
	waiting map[tcpKey]*tcpFlow
	taken   map[*engine][]*tcpFlow // are nobody's any more
}

// Offer is a connection from outside whose host's socket was taken over for the
// server inside. Exactly one of Keep, Splice and Again is to be called.
type Offer struct{ f *tcpFlow }

// Socket is the host's socket, connected and non-blocking, its family (unix.AF_INET
// or AF_INET6), and what the host calls the client.
func (o *Offer) Socket() (fd, family int, client netip.AddrPort) {
	return o.f.outer, o.f.offering.family, o.f.host
}

// OfferFor has connections to a listener inside offered from now on, for Take: the
// Stack listens with sockets of the listener's family where forwards lead to it. It
// tells whether there are any. Clients that have another address inside than their own
// are not offered. The error says that a port could not be listened at again; it is
// tried when this is called next. as.ReusePort means nothing.
func (s *Stack) OfferFor(guest netip.AddrPort, as LoanConfig) (found bool, err error) {
	e := s.group.engines[0]
	callErr := e.call(func() { found, err = e.offerFor(guest, as) })
	return found, errors.Join(callErr, err)
}

// Take takes over the connection whose ends are called so inside, when the server
// has accepted it. ok is false where it is not offered (any more): its bytes are
// moved to the server's own socket. It does not wait.
func (s *Stack) Take(guest, peer netip.AddrPort) (o *Offer, ok bool) {
	f := s.group.offers.take(keyOf(guest, peer))
	if f == nil {
		return nil, false
	}
	f.offering.passed()
	// A listener of the server's would not have it, unless that says so.
	_ = sys.SetInt(f.outer, unix.IPPROTO_TCP, unix.TCP_NODELAY, 0)
	return &Offer{f}, true
}

// Keep says that the server has the host's socket. The Offer's own descriptor is the
// caller's to close.
func (o *Offer) Keep() { o.f.s.group.offers.settled(o.f) }

// Splice has the Stack move the bytes to the server's own socket after all.
func (o *Offer) Splice() {
	f := o.f
	o.back(func() {
		_ = unix.SetsockoptInt(o.f.outer, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		f.spliceOffered()
	})
}

// Again has the Stack connect to the server once more, with the same client.
func (o *Offer) Again() {
	f := o.f
	o.back(func() {
		f.drop()
		f.s.tcp.call(client{o.f.outer, f.host, f.guest, f.peer, f.offering})
	})
}

// back gives the host's socket back to the engine, unless the connection is over.
func (o *Offer) back(then func()) {
	f := o.f
	ok := f.s.loop.post(func() {
		if f.state != offered {
			abandon(o.f.outer)
			return
		}
		then()
	})
	if !ok {
		abandon(o.f.outer)
	}
}

// offerable tells whether f may be offered. A server that gets the host's socket sees
// the client's own address: where that means something else inside, such as itself,
// it must not.
func (f *tcpFlow) offerable() bool { return f.offering.open() && f.peer.Addr() == f.host.Addr() }

// tryOffer offers f, whose connection inside has the other socket or is about to, and
// tells whether.
func (f *tcpFlow) tryOffer(inner int) bool {
	if !f.offerable() {
		return false
	}
	f.state, f.inner, f.outer, f.fd = offered, inner, f.fd, -1
	f.s.group.offers.make(f)
	f.s.loop.timers.set(&f.timer, f.s.loop.after(offerFor))
	return true
}

// unoffered ends an offer, unless somebody has taken it.
func (f *tcpFlow) unoffered() bool {
	if !f.s.group.offers.withdraw(f) {
		return false
	}
	f.s.loop.timers.set(&f.timer, 0)
	f.state, f.fd = calling, f.outer
	return true
}

// unanswered is when nobody has taken f for a while.
func (f *tcpFlow) unanswered() {
	f.s.group.offers.settle(f.s)
	if f.state != offered {
		return
	}
	if !f.s.group.offers.withdraw(f) { // it was taken this moment
		f.s.loop.timers.set(&f.timer, f.s.loop.after(offerFor))
		return
	}
	f.offering.failed()
	f.spliceOffered()
}

func (f *tcpFlow) spliceOffered() {
	f.fd = f.outer
	f.splice(f.inner)
}

// unoffer lets go what an offered flow has, but for a host's socket that was taken.
func (f *tcpFlow) unoffer() {
	if f.s.group.offers.withdraw(f) {
		abandon(f.outer)
	}
	unix.Close(f.inner) // with a RST, as all that the gate has made
}

func (o *offers) make(f *tcpFlow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[f.key] = f
}

func (o *offers) take(key tcpKey) *tcpFlow {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.waiting[key]
	delete(o.waiting, key)
	return f
}

// withdraw ends an offer, and tells whether nobody has taken it.
func (o *offers) withdraw(f *tcpFlow) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting[f.key] != f {
		return false
	}
	delete(o.waiting, f.key)
	return true
}

// settled leaves a flow that is nobody's any more to its engine. That is not woken
// for it: it looks when the next client comes.
func (o *offers) settled(f *tcpFlow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken[f.s] = append(o.taken[f.s], f)
}

// settle forgets an engine's flows that are nobody's any more.
func (o *offers) settle(e *engine) {
	o.mu.Lock()
	all := o.taken[e]
	delete(o.taken, e)
	o.mu.Unlock()
	for _, f := range all {
		if f.state == offered {
			f.drop()
		}
	}
}

// offerFor is Stack.OfferFor.
func (s *engine) offerFor(guest netip.AddrPort, as LoanConfig) (found bool, err error) {
	if s.group.gate == nil {
		return false, nil
	}
	for _, l := range s.forwards {
		// A link may be of a VRF, which counts ports by itself.
		if l.Interface != "" || l.lent > 0 || l.Protocol != packet.TCP || !l.leadsTo(guest) {
			continue
		}
		want, rest, ok := divide(l.Listen, as.Family, as.Only6)
		if !ok {
			continue
		}
		if part := l.at(want); part != nil {
			part.offer(as.Family)
			found = true
			continue
		}
		if l.Listen.Port() < as.Lowest {
			continue // we could not listen again
		}
		// What was offered to a listener that was like another place has no server any
		// more: two such can't share a port.
		l.close()
		s.listenOn(l, want)
		if rest != nil {
			s.listenOn(l, *rest)
		}
		part := l.at(want)
		if part == nil {
			err = errors.Join(err, s.listenAgain(l))
			continue
		}
		part.offer(as.Family)
		found = true
	}
	return found, err
}

// at is the part of a forward that listens at a place; nil: none does.
func (l *listener) at(p place) *tcpListener {
	for _, part := range l.tcp {
		if part.place == p {
			return part
		}
	}
	return nil
}

// offer has the connections offered that come from now on.
func (l *tcpListener) offer(family int) {
	l.offering = &offering{attempts: attempts{began: time.Now()}, family: family}
}
