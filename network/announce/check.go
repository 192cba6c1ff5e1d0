package announce

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"cleat/link"
	"cleat/network/segment"

	"golang.org/x/sys/unix"
)

// ErrDeaf says that answers would not be heard: on ipvlan they go to the parent device,
// which is in another namespace, and segment.Link.Parent does not say where.
var ErrDeaf = errors.New("answers go to the parent device of ipvlan, and nobody said where that is")

// ErrAddress says that an address can't belong to one host.
var ErrAddress = errors.New("not the address of one host")

// Verdict is what came of a Check. The zero Verdict is that nobody else has the address.
type Verdict struct {
	Conflict      *Conflict // who has it; nil: nobody answered
	NotApplicable string    // why nobody can be asked on this link; "": they can
}

// Check asks on a link's segment whether somebody else has an address, and returns when
// somebody has said so or the time is over. The address need not be on the link yet. The
// error wraps segment.ErrDown where the link is down, ErrDeaf, ErrAddress, or ctx's.
func Check(ctx context.Context, l segment.Link, addr netip.Addr, t Timing) (Verdict, error) {
	addr = addr.Unmap().WithZone("")
	v, err := check(ctx, l, addr, t)
	if err != nil {
		return Verdict{}, fmt.Errorf("check for duplicates of %s: %w", addr, err)
	}
	return v, nil
}

func check(ctx context.Context, l segment.Link, addr netip.Addr, t Timing) (Verdict, error) {
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
		return Verdict{}, ErrAddress
	}
	f, err := segment.Ready(ctx, l)
	switch {
	case err != nil:
		return Verdict{}, err
	case f.NoARP != "":
		return Verdict{NotApplicable: f.NoARP}, nil
	case !f.Up:
		return Verdict{}, fmt.Errorf("%s: %w", f.Name, segment.ErrDown)
	}
	if c, err := takenBelow(f.Below, addr); c != nil || err != nil {
		return Verdict{Conflict: c}, err
	}
	s, err := settled(ctx, l, addr)
	if err != nil {
		return Verdict{}, err
	}
	if t == (Timing{}) {
		t = standard(addr)
	}
	c, err := probe(ctx, l, f, question{addr: addr, mac: f.MAC, ours: s.there && !s.failed}, t)
	if err == nil && c == nil && s.failed {
		c = &Conflict{Addr: addr}
	}
	return Verdict{Conflict: c}, err
}

// takenBelow looks the address up on the device below.
func takenBelow(below segment.Link, addr netip.Addr) (*Conflict, error) {
	if below.NS == nil {
		return nil, nil
	}
	s, err := stateOf(below, addr)
	if err != nil || !s.there {
		return nil, err
	}
	f, err := segment.Look(below)
	if err != nil {
		return nil, err
	}
	return &Conflict{Addr: addr, MAC: f.MAC, Parent: f.Name}, nil
}

// question is who asks for what. It makes the probes and judges the answers.
type question struct {
	addr  netip.Addr
	mac   link.MAC // of the link that asks
	ours  bool     // the link has the address itself
	nonce nonce
}

// packet is the probe, and to whom it goes.
func (q question) packet() (link.MAC, []byte) {
	if q.addr.Is4() {
		return segment.Broadcast(), arpProbe(q.mac, q.addr)
	}
	return groupMAC(solicitedNode(q.addr)), ndProbe(q.addr, q.nonce)
}

// judge is the conflict that a packet tells of, if it does.
func (q question) judge(b []byte, from link.MAC) *Conflict {
	if q.addr.Is4() {
		return q.judgeARP(b)
	}
	return q.judgeND(b, from)
}

func (q question) judgeARP(b []byte) *Conflict {
	a, ok := parseARP(b)
	switch {
	case !ok:
		return nil
	case a.sender == q.addr:
		return q.unlessOurs(a.senderMAC)
	case a.op == arpRequest && a.sender.IsUnspecified() && a.targetedAddr == q.addr && a.senderMAC != q.mac:
		return q.taken(a.senderMAC) // probes for it, too
	}
	return nil
}

func (q question) judgeND(b []byte, from link.MAC) *Conflict {
	m, ok := parseND(b)
	if !ok || m.target != q.addr {
		return nil
	}
	if m.typ == ndSolicitation {
		if !m.src.IsUnspecified() || m.nonce == q.nonce {
			return nil // looks for its neighbour; or is our own
		}
		return q.unlessOurs(from)
	}
	if m.mac == (link.MAC{}) {
		m.mac = from
	}
	return q.unlessOurs(m.mac)
}

// unlessOurs is a conflict with mac, unless it is this very link that has the address.
func (q question) unlessOurs(mac link.MAC) *Conflict {
	if q.ours && mac == q.mac {
		return nil
	}
	return q.taken(mac)
}

func (q question) taken(mac link.MAC) *Conflict { return &Conflict{Addr: q.addr, MAC: mac} }

// probe asks until somebody has the address or the time is over.
func probe(ctx context.Context, l segment.Link, f segment.Facts, q question, t Timing) (*Conflict, error) {
	if _, err := crand.Read(q.nonce[:]); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	ears, err := listen(l, f, q.addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	heard := make(chan hearing, len(ears))
	var all sync.WaitGroup
	for _, ear := range ears {
		all.Go(func() { heard <- q.hear(ctx, ear) })
	}
	defer func() {
		cancel()
		all.Wait()
		closeAll(ears)
	}()
	return ask(ctx, ears[0], q, t.pauses(chance), heard)
}

// hearing is what a listener ended with.
type hearing struct {
	conflict *Conflict
	err      error
}

// ask sends the probes and waits for answers.
func ask(ctx context.Context, mouth *segment.Socket, q question, pauses []time.Duration, heard <-chan hearing) (*Conflict, error) {
	to, p := q.packet()
	for i, d := range pauses {
		wait := time.NewTimer(d)
		select {
		case h := <-heard:
			wait.Stop()
			return h.conflict, h.err
		case <-ctx.Done():
			wait.Stop()
			return nil, ctx.Err()
		case <-wait.C:
		}
		if i == len(pauses)-1 {
			return nil, nil // that was for answers to the last
		}
		if err := mouth.Send(to, p); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// hear listens until it hears of a conflict or ctx has ended.
func (q question) hear(ctx context.Context, ear *segment.Socket) hearing {
	buf := make([]byte, 1500)
	for {
		n, from, err := ear.Receive(ctx, buf, time.Time{})
		if err != nil {
			return hearing{err: err}
		}
		if c := q.judge(buf[:n], from); c != nil {
			return hearing{conflict: c}
		}
	}
}

// listen opens the sockets at which answers arrive; the first is the link's own.
func listen(l segment.Link, f segment.Facts, addr netip.Addr) (ears []*segment.Socket, err error) {
	places, etherType, filter := []segment.Link{l}, uint16(unix.ETH_P_IPV6), neighbourDiscovery()
	if addr.Is4() {
		etherType, filter = unix.ETH_P_ARP, nil
		if f.IPvlan() {
			if f.Below.NS == nil {
				return nil, ErrDeaf
			}
			places = append(places, f.Below)
		}
	}
	defer func() {
		if err != nil {
			closeAll(ears)
		}
	}()
	for _, at := range places {
		s, err := segment.Open(at, etherType, filter)
		if err != nil {
			return ears, err
		}
		ears = append(ears, s)
		if addr.Is4() {
			continue
		}
		for _, group := range []netip.Addr{allNodes(), solicitedNode(addr)} {
			if err := s.Join(groupMAC(group)); err != nil {
				return ears, err
			}
		}
	}
	return ears, nil
}

func closeAll(sockets []*segment.Socket) {
	for _, s := range sockets {
		s.Close()
	}
}
