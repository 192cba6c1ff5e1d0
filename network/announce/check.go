package announce

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"cleat/link"
	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

// ErrParentUnknown means that answers could not be received: on ipvlan they go to the parent
// device, which is in a namespace that segment.Link.Parent does not name.
var ErrParentUnknown = errors.New("the parent of an ipvlan device receives the answers, but its namespace is unknown")

// Result is the result of a Check. In the zero Result nobody else has the address.
type Result struct {
	Conflict      *Conflict // who has the address; nil: nobody answered
	NotApplicable string    // why the link has no neighbours to ask; "": it has
}

// Check asks the neighbours on a link's segment whether one of them has an address, which must
// be unicast. It returns when one does, or after the time that t gives them. The link itself need
// not have the address yet. The error wraps segment.ErrDown, ErrParentUnknown or the error of ctx.
func Check(ctx context.Context, l segment.Link, addr netip.Addr, t Timing) (Result, error) {
	addr = addr.Unmap().WithZone("")
	r, err := check(ctx, l, addr, t)
	if err != nil {
		return Result{}, fmt.Errorf("check for duplicates of %s: %w", addr, err)
	}
	return r, nil
}

func check(ctx context.Context, l segment.Link, addr netip.Addr, t Timing) (Result, error) {
	info, err := segment.WaitReady(ctx, l)
	switch {
	case err != nil:
		return Result{}, err
	case info.NoARPReason != "":
		return Result{NotApplicable: info.NoARPReason}, nil
	case !info.Up:
		return Result{}, fmt.Errorf("%s: %w", info.Name, segment.ErrDown)
	}
	if c, err := conflictWithParent(info.Lower, addr); c != nil || err != nil {
		return Result{Conflict: c}, err
	}
	s, err := waitForDAD(ctx, l, addr)
	if err != nil {
		return Result{}, err
	}
	if t == (Timing{}) {
		t = rfcTiming(addr)
	}
	c, err := probe(ctx, l, info, query{addr: addr, mac: info.MAC, own: s.exists && !s.failed}, t)
	if err == nil && c == nil && s.failed {
		c = &Conflict{Addr: addr}
	}
	return Result{Conflict: c}, err
}

// conflictWithParent returns the conflict if the link's parent device has the address. It can't
// be asked.
func conflictWithParent(parent segment.Link, addr netip.Addr) (*Conflict, error) {
	if parent.NS == nil {
		return nil, nil
	}
	s, err := dadStateOf(parent, addr)
	if err != nil || !s.exists {
		return nil, err
	}
	info, err := segment.Inspect(parent)
	if err != nil {
		return nil, err
	}
	return &Conflict{Addr: addr, MAC: info.MAC, Parent: info.Name}, nil
}

// query makes the probes for one address and recognizes the answers.
type query struct {
	addr  netip.Addr
	mac   link.MAC // of the link
	own   bool     // the link itself has the address
	nonce nonce
}

// conflictIn returns the conflict that a received packet shows; nil if it shows none.
func (q query) conflictIn(b []byte, from link.MAC) *Conflict {
	if q.addr.Is4() {
		return q.conflictInARP(b)
	}
	return q.conflictInND(b, from)
}

func (q query) conflictInARP(b []byte) *Conflict {
	a, ok := parseARP(b)
	switch {
	case !ok:
		return nil
	case a.sender == q.addr:
		return q.unlessOurs(a.senderMAC)
	case a.op == arpRequest && a.sender.IsUnspecified() && a.target == q.addr && a.senderMAC != q.mac:
		return q.conflict(a.senderMAC) // it probes for the address as well
	}
	return nil
}

func (q query) conflictInND(b []byte, from link.MAC) *Conflict {
	m, ok := parseND(b)
	if !ok || m.target != q.addr {
		return nil
	}
	if m.typ == ndSolicitation {
		if !m.src.IsUnspecified() || m.nonce == q.nonce {
			return nil // address resolution, or our own probe
		}
		return q.unlessOurs(from)
	}
	if m.mac == (link.MAC{}) {
		m.mac = from
	}
	return q.unlessOurs(m.mac)
}

// unlessOurs returns a conflict with mac, unless this link has the address.
func (q query) unlessOurs(mac link.MAC) *Conflict {
	if q.own && mac == q.mac {
		return nil
	}
	return q.conflict(mac)
}

func (q query) conflict(mac link.MAC) *Conflict { return &Conflict{Addr: q.addr, MAC: mac} }

// probe sends probes until somebody answers or the time is over.
func probe(ctx context.Context, l segment.Link, info segment.Info, q query, t Timing) (*Conflict, error) {
	_, _ = crand.Read(q.nonce[:]) // never fails (crypto/rand)
	sockets, err := listen(l, info, q.addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan answer, len(sockets))
	var receivers sync.WaitGroup
	for _, s := range sockets {
		receivers.Go(func() { answers <- q.receive(ctx, s) })
	}
	defer func() {
		cancel()
		receivers.Wait()
		closeAll(sockets)
	}()
	to, p := segment.Broadcast(), arpProbe(q.mac, q.addr)
	if q.addr.Is6() {
		to, p = groupMAC(solicitedNode(q.addr)), ndProbe(q.addr, q.nonce)
	}
	pauses := t.pauses(rand.Float64)
	for i, d := range pauses {
		select {
		case a := <-answers:
			return a.conflict, a.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(d):
		}
		if i == len(pauses)-1 {
			break // that was the wait for answers to the last probe
		}
		if err := sockets[0].Send(to, p); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// answer is what a receiver ended with.
type answer struct {
	conflict *Conflict
	err      error
}

func (q query) receive(ctx context.Context, s *segment.Socket) answer {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.Receive(ctx, buf, time.Time{})
		if err != nil {
			return answer{err: err}
		}
		if c := q.conflictIn(buf[:n], from); c != nil {
			return answer{conflict: c}
		}
	}
}

// listen opens the sockets that receive answers. The first is that of the link itself.
func listen(l segment.Link, info segment.Info, addr netip.Addr) (sockets []*segment.Socket, err error) {
	links, etherType, filter := []segment.Link{l}, uint16(unix.ETH_P_IPV6), neighbourDiscovery()
	if addr.Is4() {
		etherType, filter = unix.ETH_P_ARP, nil
		if info.IPvlan() {
			if info.Lower.NS == nil {
				return nil, ErrParentUnknown
			}
			links = append(links, info.Lower)
		}
	}
	defer func() {
		if err != nil {
			closeAll(sockets)
		}
	}()
	for _, at := range links {
		s, err := segment.Open(at, etherType, filter)
		if err != nil {
			return sockets, err
		}
		sockets = append(sockets, s)
		if addr.Is4() {
			continue
		}
		for _, group := range []netip.Addr{netip.IPv6LinkLocalAllNodes(), solicitedNode(addr)} {
			if err := s.Join(groupMAC(group)); err != nil {
				return sockets, err
			}
		}
	}
	return sockets, nil
}

func closeAll(sockets []*segment.Socket) {
	for _, s := range sockets {
		s.Close()
	}
}
