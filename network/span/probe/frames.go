package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	encapsulated "cleat/packet"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Broken returns what the network card, or what is behind it, does wrong with encapsulated packets, and the peer to
// whom that showed; "" if it was assumed.
func (p *Prober) Broken() (Offloads, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken, p.brokenTo
}

// Assume takes what an earlier Prober of this host has found.
func (p *Prober) Assume(o Offloads) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.brokenAt, p.busy = o, time.Now(), time.Now()
}

// Blocked reports whether encapsulated packets don't reach a peer that answers other messages.
func (p *Prober) Blocked(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.peers[name]
	return one != nil && one.checking.blocked
}

// frameSocket is a packet socket on the device of encapsulated packets.
type frameSocket struct {
	*packet.Conn
	index int
}

// openFrames opens the socket, in the namespace.
func (s *session) openFrames() (*frameSocket, error) {
	device, err := net.InterfaceByName(s.Device)
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", s.Device, err)
	}
	program, err := frameFilter()
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of frames: %w", err)
	}
	c, err := packet.Listen(device, packet.Raw, unix.ETH_P_IP, &packet.Config{Filter: program})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s: %w", s.Device, err)
	}
	raw, err := c.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) })
		err = errors.Join(err, set)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("set a packet socket on %s: %w", s.Device, err)
	}
	return &frameSocket{c, device.Index}, nil
}

// checkFrames checks whether encapsulated packets arrive, until ctx ends. The device may be made anew meanwhile.
func (s *session) checkFrames(ctx context.Context) {
	if s.Device == "" {
		return
	}
	t := time.NewTicker(searchTick)
	defer t.Stop()
	for ctx.Err() == nil {
		var c *frameSocket
		err := s.cfg.NS.Do(func() (err error) { c, err = s.openFrames(); return err })
		if err != nil { // the device is not there yet
			wait(ctx, s.cfg.Interval)
			continue
		}
		within, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { defer cancel(); s.receiveFrames(c) })
		var looked time.Time
		for within.Err() == nil {
			now := time.Now()
			if now.Sub(looked) >= s.cfg.Interval {
				if !s.exists(c) {
					break
				}
				looked = now
			}
			s.sendFrames(c, now)
			select {
			case <-within.Done():
			case <-t.C:
			}
		}
		cancel()
		c.Close()
		running.Wait()
	}
}

// exists reports whether the device of a socket is still there. Its socket would wait for ever.
func (s *session) exists(c *frameSocket) bool {
	l, err := s.kernel.LinkByIndex(c.index)
	return err == nil && l.Attrs().Name == s.Device
}

// sendFrames sends the frames that checks want now.
func (s *session) sendFrames(c *frameSocket, now time.Time) {
	type sending struct {
		to    encapsulated.MAC
		m     message
		round uint16
	}
	var all []sending
	s.mu.Lock()
	s.recheck(now)
	for _, one := range s.peers {
		if len(all) >= atOnce {
			break
		}
		if one.MAC == (Peer{}).MAC || one.its == (number{}) || one.search == nil || one.search.result == 0 {
			continue
		}
		blocked := one.checking.blocked
		send, found := one.checking.next(now)
		s.noteBroken(one, found, now)
		if one.checking.blocked != blocked {
			s.cfg.Changed()
		}
		if send {
			all = append(all, sending{encapsulated.MAC(one.MAC), message{Kind: check, Own: one.own, Echo: one.its}, one.checking.round})
		}
	}
	s.mu.Unlock()
	for _, one := range all {
		for v := range variants {
			b := frame(encapsulated.MAC(s.MAC), one.to, one.m, v, one.round)
			_, _ = c.WriteTo(b, &packet.Addr{HardwareAddr: one.to[:]}) // one that can't be sent has not arrived
		}
	}
}

// noteBroken takes what a check has found. It is called with mu held.
func (s *session) noteBroken(one *peer, found Offloads, now time.Time) {
	all := Offloads{s.broken.Checksums || found.Checksums, s.broken.Segments || found.Segments}
	if all == s.broken {
		return
	}
	s.broken, s.brokenAt, s.brokenTo = all, now, one.Name
	s.cfg.Changed()
}

// recheck forgets what is broken when nothing is sent, so that it is found again if it still is. It is called with
// mu held.
func (s *session) recheck(now time.Time) {
	if s.broken == (Offloads{}) || now.Sub(s.brokenAt) < recheckEvery || now.Sub(s.busy) < idleFor {
		return
	}
	s.broken, s.brokenTo = Offloads{}, ""
	for _, one := range s.peers {
		one.checking = checking{round: one.checking.round}
	}
	s.cfg.Changed()
}

// receiveFrames answers frames until the socket is closed.
func (s *session) receiveFrames(c *frameSocket) {
	b := make([]byte, vnetBytes+maxSize+frameHead)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		for _, p := range parseFrame(b[:n]) {
			s.answerFrame(p)
		}
	}
}

// answerFrame answers a part of a frame that has arrived.
func (s *session) answerFrame(p part) {
	s.mu.Lock()
	var to netip.AddrPort
	var m message
	for _, one := range s.peers {
		if one.own == p.Echo && one.its == p.Own {
			to, m = one.Address, message{Kind: intact, Own: one.own, Echo: p.Own}
		}
	}
	s.mu.Unlock()
	if to.IsValid() {
		_, _ = s.hellos.WriteToUDPAddrPort(p.detail.append(m.encode()), to)
	}
}

// takeIntact takes the answer to a part of a frame.
func (s *session) takeIntact(from netip.AddrPort, m message, rest []byte) {
	d, ok := parseDetail(rest)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.peerAt(from); one != nil && m.Echo == one.own {
		one.checking.answered(d)
	}
}
