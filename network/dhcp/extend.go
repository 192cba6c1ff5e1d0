package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"cleat/link"
	"cleat/network/segment"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// ErrNoAddress means that the link does not have the lease's address, from which a server is
// asked.
var ErrNoAddress = errors.New("the lease's address must be on the link")

// ErrExpired means that a lease has expired. Its address must be removed from the link.
var ErrExpired = errors.New("the lease has expired")

// attemptTime bounds one attempt to renew a lease. It is enough for two messages.
const attemptTime = 10 * time.Second

// Renew asks the server of a lease for more time, from the lease's address, which must be on the
// link. It waits up to 10 s, but not beyond T2. It always changes the lease, which should be
// saved again: to what the server grants, which can differ in all but the address, or to record
// the attempt. The error is an *Error that wraps ErrNoAnswer, and then Next says when to try
// again, or ErrNak, and then the address must be removed and another one acquired. Other errors
// wrap ErrExpired, ErrNoAddress, segment.ErrDown or the error of ctx.
func Renew(ctx context.Context, at segment.Link, l *Lease) error {
	return l.extend(ctx, at, l.Server, "renew lease")
}

// Rebind is Renew with any server, for when that of the lease does not answer.
func Rebind(ctx context.Context, at segment.Link, l *Lease) error {
	return l.extend(ctx, at, broadcast(), "rebind lease")
}

func (l *Lease) extend(ctx context.Context, at segment.Link, server netip.Addr, operation string) error {
	began, err := Now()
	if err != nil {
		return err
	}
	timeout := l.attemptTimeout(began)
	if timeout <= 0 {
		return fmt.Errorf("%s of %s: %w", operation, l.Address.Addr(), ErrExpired)
	}
	l.LastAttempt = began
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := driver{operation: operation, start: time.Now()}
	info, err := r.waitReady(ctx, at)
	if err != nil {
		return err
	}
	raw, err := openRaw(at) // first, so that it receives every answer
	if err != nil {
		return r.wrap(err)
	}
	defer raw.close()
	udp, err := l.openUDP(ctx, at, info.Name, server)
	if err != nil {
		return r.wrap(err)
	}
	defer udp.close()
	e := &renewal{attempt: attempt{requester: requester{client: l.Client, mac: info.MAC}, random: rand.Float64, xid: newXID()}, lease: l}
	r.wire, r.sm = leasedWire{raw, udp}, e
	if err := r.drive(ctx); err != nil {
		return err
	}
	if len(e.observed.Nak) > 0 {
		return r.failure()
	}
	l.set(e.terms, began.add(e.askedAt), rand.Float64)
	return nil
}

// renewal is the state machine of Renew and Rebind.
type renewal struct {
	attempt
	lease    *Lease
	askedAt  time.Duration // when the first message was sent
	finished bool
}

func (e *renewal) done() bool { return e.finished }

func (e *renewal) tick(now time.Duration) *dhcpv4.DHCPv4 {
	if now < e.sendAt || e.finished {
		return nil
	}
	if e.tries == 0 {
		e.askedAt = now
	}
	e.tries++
	e.observed.Sent++
	e.sendAt = now + backoff(firstRenewPause, e.tries, e.random())
	return e.extend(e.xid, now, e.lease.Address.Addr())
}

func (e *renewal) receive(_ time.Duration, from link.MAC, m *dhcpv4.DHCPv4) {
	if e.finished || !e.answers(m, e.xid) {
		return
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeNak:
		appendRecent(&e.observed.Nak, nakReason(m))
		e.finished = true
	case dhcpv4.MessageTypeAck:
		if t, ok := e.read(m, from, e.lease); ok {
			e.terms, e.finished = t, true
		}
	}
}

// flushTimeout bounds the time in which the kernel resolves a server's Ethernet address.
const flushTimeout = time.Second

// Release releases a lease, or what Config.Save was called with. The caller should then remove
// the address from the link. Neither the address nor a route to a server on another network need
// exist any more: then the message goes to Lease.NextHop. Servers don't answer. The error, which
// wraps segment.ErrDown or that of ctx, means that the server can't have received the message.
func Release(ctx context.Context, at segment.Link, l *Lease) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	r := driver{operation: "release lease"}
	info, err := r.waitReady(ctx, at)
	if err != nil {
		return err
	}
	message := requester{client: l.Client, mac: info.MAC}.release(newXID(), l).ToBytes()
	// On a socket that is bound to a device, the kernel treats a server without a route as a
	// neighbour (ip_route_output_key_hash_rcu, net/ipv4/route.c).
	routed := l.NextHop == (link.MAC{}) || l.Address.Contains(l.Server)
	if routed {
		err = l.releaseRouted(ctx, at, info.Name, message)
	}
	if !routed || errors.Is(err, ErrNoAddress) {
		err = l.releaseRaw(at, message)
	}
	if err != nil {
		return fmt.Errorf("%s of %s to %s: %w", r.operation, l.Address.Addr(), l.Server, err)
	}
	return nil
}

// releaseRouted lets the kernel find the way to the server.
func (l *Lease) releaseRouted(ctx context.Context, at segment.Link, device string, message []byte) error {
	w, err := l.openUDP(ctx, at, device, l.Server)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.send(message); err != nil {
		return err
	}
	return w.flush(ctx)
}

// releaseRaw sends to where the server's last message came from, or to all neighbours if that is
// unknown. The link need not have the lease's address.
func (l *Lease) releaseRaw(at segment.Link, message []byte) error {
	w, err := openRaw(at)
	if err != nil {
		return err
	}
	defer w.close()
	return w.socket.Send(cmp.Or(l.NextHop, segment.Broadcast()), datagram(l.Address.Addr(), l.Server, message))
}
