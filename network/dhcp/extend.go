package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"cleat/link"
	"cleat/network/segment"
)

// ErrNoAddress says that the lease's address is not on the link, from which a server is
// to be asked.
var ErrNoAddress = errors.New("the lease's address must be on the link")

// ErrExpired says that a lease is over: its address must be taken off the link.
var ErrExpired = errors.New("the lease has expired")

// Renew asks the lease's server for more time, from the lease's address, which must be on the
// link. It waits up to 10 s, and not beyond T2. The lease is changed either way and wants to
// be kept again: all that the server grants, or the time of the attempt. What the server
// grants may differ from before in all but the address. The error is an *Error: ErrNoAnswer,
// then Next says when to try again; or ErrNak, then take the address off the link and call
// Acquire. Others wrap ErrExpired, ErrNoAddress, segment.ErrDown or ctx's when that was
// cancelled.
func Renew(ctx context.Context, at segment.Link, l *Lease) error {
	return l.extend(ctx, at, l.Server, "renew lease")
}

// Rebind is Renew with any server: the lease's own is silent.
func Rebind(ctx context.Context, at segment.Link, l *Lease) error {
	return l.extend(ctx, at, broadcast(), "rebind lease")
}

func (l *Lease) extend(ctx context.Context, at segment.Link, server netip.Addr, doing string) error {
	began, err := Now()
	if err != nil {
		return err
	}
	within := l.left(began)
	if within <= 0 {
		return fmt.Errorf("%s of %s: %w", doing, l.Address.Addr(), ErrExpired)
	}
	l.Tried = began
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	f, err := look(ctx, at, doing)
	if err != nil {
		return err
	}
	w, err := l.open(ctx, at, f.Name, server)
	if err != nil {
		return fmt.Errorf("%s on %s: %w", doing, f.Name, err)
	}
	defer w.close()
	e := &extension{asker: asker{client: l.Client, mac: f.MAC}, lease: l, chance: rand.Float64, xid: newXID()}
	r := run{doing: doing, link: f.Name, wire: w, machine: e, start: time.Now()}
	if err := r.drive(ctx); err != nil {
		return err
	}
	if len(e.seen.Nak) > 0 {
		return &Error{Doing: doing, Link: f.Name, Within: r.now(), Seen: e.seen}
	}
	l.set(e.terms, began.add(e.asked), rand.Float64)
	return nil
}

// open opens sockets on a link that has the lease's address.
func (l *Lease) open(ctx context.Context, at segment.Link, device string, server netip.Addr) (wire, error) {
	raw, err := openRaw(at) // first: it must hear whatever answers
	if err != nil {
		return nil, err
	}
	udp, err := l.openUDP(ctx, at, device, server)
	if err != nil {
		raw.close()
		return nil, err
	}
	return leasedWire{raw, udp}, nil
}

// openUDP opens a socket at the lease's address, which must be on the link: the kernel lets
// sockets have any address in a namespace that has none (__inet_dev_addr_type,
// net/ipv4/fib_frontend.c).
func (l *Lease) openUDP(ctx context.Context, at segment.Link, device string, server netip.Addr) (*udpWire, error) {
	_, there, err := segment.Address(at, l.Address.Addr())
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("%w: %s", ErrNoAddress, l.Address.Addr())
	}
	return openUDP(ctx, at, device, l.Address.Addr(), server)
}

// flushWithin is how long a server may take to say its Ethernet address.
const flushWithin = time.Second

// Release gives the lease back, or what Config.Keep was told of it. Its address should be
// taken off the link next. It need not be there any more, nor a route to a server on another
// network: then the message goes to Lease.Hop. Nothing answers; the error, which wraps
// segment.ErrDown or ctx's, says that the server can't have heard.
func Release(ctx context.Context, at segment.Link, l *Lease) error {
	const doing = "release lease"
	ctx, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	f, err := look(ctx, at, doing)
	if err != nil {
		return err
	}
	a := asker{client: l.Client, mac: f.MAC}
	message := a.release(newXID(), l).ToBytes()
	// From a socket of a device the kernel takes a server that it has no route to for a
	// neighbour (ip_route_output_key_hash_rcu, net/ipv4/route.c).
	routed := l.Hop == (link.MAC{}) || l.Address.Contains(l.Server)
	if routed {
		err = l.releaseRouted(ctx, at, f.Name, message)
	}
	if !routed || errors.Is(err, ErrNoAddress) {
		err = l.releaseRaw(at, message)
	}
	if err != nil {
		return fmt.Errorf("%s of %s to %s: %w", doing, l.Address.Addr(), l.Server, err)
	}
	return nil
}

// releaseRouted leaves it to the kernel to find the server.
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

// releaseRaw sends to where the server's last word came from.
func (l *Lease) releaseRaw(at segment.Link, message []byte) error {
	w, err := openRaw(at)
	if err != nil {
		return err
	}
	defer w.close()
	return w.sendTo(l.Hop, l.Address.Addr(), l.Server, message)
}
