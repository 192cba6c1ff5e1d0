package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"cleat/link"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// session is a Prober with open sockets.
type session struct {
	*Prober
	Setup
	hellos *net.UDPConn
	trials map[families]*packet.Conn // empty without an uplink
	kernel *netlink.Handle
	uplink int // index of the device

	listing    sync.Mutex // guards what follows
	neighbours map[netip.Addr]net.HardwareAddr
	listed     time.Time // when the kernel was asked for them
}

// session probes until ctx ends or a socket fails.
func (p *Prober) session(ctx context.Context, setup Setup) error {
	s := &session{Prober: p, Setup: setup, trials: map[families]*packet.Conn{}}
	var err error
	if s.kernel, err = link.Handle(p.cfg.NS); err != nil {
		return err
	}
	defer s.kernel.Close()
	defer s.close()
	if err := p.cfg.NS.Do(s.open); err != nil {
		return err
	}
	p.setProblem(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer s.close()
	running.Go(func() { cancel(s.receiveHellos()) })
	running.Go(func() { s.searchPaths(ctx) })
	running.Go(func() { s.checkFrames(ctx) })
	for _, c := range s.trials {
		running.Go(func() { cancel(s.receiveTrials(c)) })
	}
	t := time.NewTicker(p.cfg.Interval)
	defer t.Stop()
	for {
		s.round()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
}

// open opens the sockets, in the namespace.
func (s *session) open() error {
	var err error
	if s.hellos, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.Local)); err != nil {
		return fmt.Errorf("open the socket of hellos: %w", err)
	}
	if err := dontFragment(s.hellos, s.Local.Addr()); err != nil {
		return err
	}
	if s.trialsOn() == "" {
		return nil
	}
	device, err := net.InterfaceByName(s.Uplink)
	if err != nil {
		return fmt.Errorf("find device %s: %w", s.Uplink, err)
	}
	s.uplink = device.Index
	for f, protocol := range map[families]int{has4: unix.ETH_P_IP, has6: unix.ETH_P_IPV6} {
		program, err := filter(f, s.Local.Port())
		if err != nil {
			return err
		}
		if s.trials[f], err = packet.Listen(device, packet.Datagram, protocol, &packet.Config{Filter: program}); err != nil {
			delete(s.trials, f)
			return fmt.Errorf("open a packet socket on %s: %w", s.Uplink, err)
		}
	}
	return nil
}

// close closes the sockets of messages. It may be called again.
func (s *session) close() {
	if s.hellos != nil {
		s.hellos.Close()
	}
	for _, c := range s.trials {
		c.Close()
	}
}

// sending is a message to a peer.
type sending struct {
	to       netip.AddrPort
	hello    message
	trials   []Way
	echoable bool // the peer's number is known
}

// next returns what a peer is sent. It is called with mu held.
func (s *session) next(one *peer, now time.Time) sending {
	return sending{to: one.Address, trials: one.Ways, echoable: one.its != number{},
		hello: message{Kind: hello, Received: s.received(one, now), Own: one.own, Echo: one.its}}
}

// round sends all that is sent every interval, and judges what has come.
func (s *session) round() {
	var all []sending
	now := time.Now()
	s.mu.Lock()
	for _, one := range s.peers {
		s.judge(one, now)
		if s.wantsHello(one, now) {
			all = append(all, s.next(one, now))
		}
	}
	s.mu.Unlock()
	s.send(all...)
}

// send sends hellos and trials. A message that gets lost, or can't be sent, is one of many.
func (s *session) send(all ...sending) {
	for _, one := range all {
		_, _ = s.hellos.WriteToUDPAddrPort(one.hello.encode(), one.to)
		if !one.echoable || len(one.trials) == 0 || len(s.trials) == 0 {
			continue
		}
		at := s.neighbour(one.to.Addr())
		if at == nil {
			continue
		}
		m := one.hello
		m.Kind = trial
		for _, w := range one.trials {
			if c := s.trials[familyOf(w.From)]; c != nil {
				_, _ = c.WriteTo(trialPacket(w, s.Local.Port(), m), &packet.Addr{HardwareAddr: at})
			}
		}
	}
}

// fresh is how old a list of neighbours that lacks one may be.
const fresh = 5 * time.Millisecond

// neighbour returns the Ethernet address of a neighbour on the uplink; nil if it is not known. Hellos keep the kernel's
// list up to date. It is not read for each of the answers to many hosts that send at once, but after an interval, or if
// it lacks the neighbour.
func (s *session) neighbour(a netip.Addr) net.HardwareAddr {
	s.listing.Lock()
	defer s.listing.Unlock()
	if age := time.Since(s.listed); age > s.cfg.Interval || s.neighbours[a] == nil && age > fresh {
		s.neighbours, s.listed = s.listNeighbours(), time.Now()
	}
	return s.neighbours[a]
}

// listNeighbours returns the Ethernet addresses of the uplink's neighbours.
func (s *session) listNeighbours() map[netip.Addr]net.HardwareAddr {
	found := map[netip.Addr]net.HardwareAddr{}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.kernel.NeighList(s.uplink, unix.AF_UNSPEC) })
	if err != nil {
		return found
	}
	for _, n := range all {
		if a, ok := netip.AddrFromSlice(n.IP); ok && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 && len(n.HardwareAddr) == len(link.MAC{}) {
			found[a.Unmap()] = n.HardwareAddr
		}
	}
	return found
}

// receiveHellos receives until the socket is closed.
func (s *session) receiveHellos() error {
	b := make([]byte, maxSize)
	for {
		n, from, err := s.hellos.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive a hello: %w", err)
		}
		m, ok := parse(b[:n])
		if !ok {
			continue
		}
		switch from := netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); m.Kind {
		case hello:
			s.takeHello(from, m)
		case sized, fits:
			s.takeSize(from, m, b[messageBytes:n], n)
		case intact:
			s.takeIntact(from, m, b[messageBytes:n])
		}
	}
}

func (s *session) takeHello(from netip.AddrPort, m message) {
	now := time.Now()
	s.mu.Lock()
	one := s.peerAt(from)
	if one == nil {
		s.mu.Unlock()
		return
	}
	reply := s.next(one, now)
	if m.Echo != one.own { // it does not know this host's number yet, or somebody else has sent it
		reply.hello.Echo, reply.echoable = m.Own, false
		s.mu.Unlock()
		s.send(reply)
		return
	}
	comes := now.Sub(one.heard) >= s.lost()
	changed := one.its != m.Own || one.receives != m.Received || comes
	if comes {
		one.since = now
	}
	one.its, one.receives, one.heard, one.hellos = m.Own, m.Received, now, 0
	s.judge(one, now)
	reply = s.next(one, now)
	s.mu.Unlock()
	if changed {
		s.send(reply)
	}
}

// peerAt returns the peer with an address. It is called with mu held.
func (s *session) peerAt(a netip.AddrPort) *peer {
	for _, one := range s.peers {
		if one.Address == a {
			return one
		}
	}
	return nil
}

// receiveTrials receives until the socket is closed.
func (s *session) receiveTrials(c *packet.Conn) error {
	b := make([]byte, maxPacket)
	for {
		n, _, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive a trial on %s: %w", s.Uplink, err)
		}
		if m, from, ok := parseTrial(b[:n], s.Local.Port()); ok {
			s.takeTrial(from, m)
		}
	}
}

func (s *session) takeTrial(from netip.Addr, m message) {
	now := time.Now()
	s.mu.Lock()
	one := s.peerWith(from)
	if one == nil || m.Echo != one.own {
		s.mu.Unlock()
		return
	}
	before := s.received(one, now)
	one.arrived[familyOf(from)] = now
	news := before != s.received(one, now)
	s.judge(one, now)
	reply := s.next(one, now)
	s.mu.Unlock()
	if news {
		s.send(reply)
	}
}

// peerWith returns the peer that has an address of a way. It is called with mu held.
func (s *session) peerWith(a netip.Addr) *peer {
	for _, one := range s.peers {
		for _, w := range one.Ways {
			if w.To == a {
				return one
			}
		}
	}
	return nil
}
