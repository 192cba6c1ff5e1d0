package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/link"
	"cleat/packet"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxSize bounds the sizes that are searched, in bytes: the largest IP packet.
const maxSize = 65535

// searchTick is how often searches are looked at.
const searchTick = answerWithin / 2

// atOnce bounds the datagrams of searches in one tick, with which 1,000 hosts that come at once are asked within
// seconds, at 3 Mbit/s.
const atOnce = 64

// usedWithin is how lately an encapsulated packet was sent to a host whose path is used.
const usedWithin = 5 * time.Second

// quietHellos and quietEvery are of hosts that have no ways: how many hellos they get every interval, and in how many
// intervals one after that, until they answer. Then they are asked for sizes only.
const quietHellos, quietEvery = 5, 15

// setMTU sets the limit of the search for the path's MTU. own is the MTU of this host's uplink.
func (one *peer) setMTU(own int) {
	limit := min(own, maxSize)
	if one.MTU > 0 {
		limit = min(limit, one.MTU)
	}
	switch {
	case limit <= smallest:
		one.search = nil
	case one.search == nil:
		one.search = newSearch(limit)
	default:
		one.search.setLimit(limit, time.Now())
	}
}

// PathMTU returns the size of the largest IP packets that pass from this host to a peer, in bytes. ok is false if that
// is unknown: the peer does not answer, or does not know these messages.
func (p *Prober) PathMTU(name string) (bytes int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.peers[name]; one != nil && one.search != nil {
		bytes = one.search.result
	}
	return bytes, bytes > 0
}

// wantsHello reports whether a peer is sent a hello this time. It is called with mu held.
func (p *Prober) wantsHello(one *peer, now time.Time) bool {
	if len(one.Ways) > 0 {
		return p.isDue(one, now)
	}
	if one.its != (number{}) {
		return false
	}
	one.hellos++
	return one.hellos <= quietHellos || one.hellos%quietEvery == 0
}

// dontFragment makes a socket send what its device passes, with "don't fragment", whatever the kernel has heard of
// the path.
func dontFragment(c *net.UDPConn, local netip.Addr) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("set the socket of hellos: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if local.Is4() {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		} else {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		}
	})
	if err == nil {
		err = set
	}
	if err != nil {
		return fmt.Errorf("set the socket of hellos to send without fragments: %w", err)
	}
	return nil
}

// searchPaths sends what the searches need, until ctx ends.
func (s *session) searchPaths(ctx context.Context) {
	if s.MTU == 0 {
		return
	}
	t := time.NewTicker(searchTick)
	defer t.Stop()
	var looked time.Time
	buffer := make([]byte, maxSize)
	for {
		now := time.Now()
		if now.Sub(looked) >= s.cfg.Interval {
			s.noteUsed()
			s.noteDevice()
			looked = now
		}
		s.sendSizes(now, buffer)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// noteUsed marks the peers to which encapsulated packets are sent.
func (s *session) noteUsed() {
	used := s.usedAddresses()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.peers {
		one.used = used[one.Address.Addr()]
		if one.used {
			s.busy = time.Now()
		}
	}
}

// noteDevice tells the owner of the prober if the uplink has another MTU than that of the Setup.
func (s *session) noteDevice() {
	l, err := s.kernel.LinkByName(s.Uplink)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.Attrs().MTU != s.setup.MTU {
		s.cfg.Changed()
	}
}

// usedAddresses returns the addresses of hosts to which encapsulated packets were sent lately.
func (s *session) usedAddresses() map[netip.Addr]bool {
	used := map[netip.Addr]bool{}
	if s.Device == "" {
		return used
	}
	l, err := s.kernel.LinkByName(s.Device)
	if err != nil {
		return used
	}
	all, err := link.Dump(func() ([]netlink.Neigh, error) { return s.kernel.NeighList(l.Attrs().Index, unix.AF_BRIDGE) })
	if err != nil {
		return used
	}
	for _, n := range all {
		const perSec = 100 // USER_HZ, include/asm-generic/param.h
		if a, ok := netip.AddrFromSlice(n.IP); ok && time.Duration(n.Used)*time.Second/perSec < usedWithin {
			used[a.Unmap()] = true
		}
	}
	return used
}

// sizeSending is a datagram of a size.
type sizeSending struct {
	to   netip.AddrPort
	m    message
	size int
}

// sendSizes sends the datagrams that searches want now. The buffer is large enough for each.
func (s *session) sendSizes(now time.Time, b []byte) {
	var all []sizeSending
	s.mu.Lock()
	for _, one := range s.peers {
		if len(all) >= atOnce {
			break
		}
		if one.search == nil || one.its == (number{}) {
			continue
		}
		before := one.search.result
		for _, size := range one.search.next(now, s.confirmEvery(one)) {
			all = append(all, sizeSending{one.Address, message{Kind: sized, Own: one.own, Echo: one.its}, size})
		}
		s.noteSize(one, before)
	}
	s.mu.Unlock()
	for _, one := range all {
		n := copy(b, one.m.encode())
		binary.BigEndian.PutUint16(b[n:], uint16(one.size))
		_, _ = s.hellos.WriteToUDPAddrPort(b[:one.size-headBytes(one.to.Addr())], one.to) // one that can't be sent does not pass
	}
}

// confirmEvery returns how often the size of a peer's path is confirmed: seldom with many peers, but for those whose
// paths are used, which is seen of encapsulated packets only. It is called with mu held.
func (s *session) confirmEvery(one *peer) time.Duration {
	every := min(confirmOften*time.Duration(s.rounds()), confirmIdle)
	if one.used {
		every = min(every, confirmUsed)
	}
	return every
}

// headBytes returns the size of the headers of datagrams to an address.
func headBytes(to netip.Addr) int { return packet.IPBytes(to) + packet.UDPBytes }

// noteSize tells the owner of the prober if a result has changed. It is called with mu held.
func (s *session) noteSize(one *peer, before int) {
	if one.search.result != before {
		s.cfg.Changed()
	}
}

// takeSize takes a datagram of a size, which has n bytes, or the answer to one. detail is what follows the message.
func (s *session) takeSize(from netip.AddrPort, m message, detail []byte, n int) {
	if len(detail) < 2 {
		return
	}
	size := int(binary.BigEndian.Uint16(detail))
	now := time.Now()
	s.mu.Lock()
	one := s.peerAt(from)
	if one == nil {
		s.mu.Unlock()
		return
	}
	if m.Echo != one.own { // it has the number of an earlier node of this host
		s.mu.Unlock()
		s.takeHello(from, m)
		return
	}
	if m.Kind == fits {
		if one.search != nil {
			before := one.search.result
			one.search.passed(size, now)
			s.noteSize(one, before)
		}
		s.mu.Unlock()
		return
	}
	answer := message{Kind: fits, Own: one.own, Echo: m.Own}
	s.mu.Unlock()
	if n+headBytes(from.Addr()) == size {
		_, _ = s.hellos.WriteToUDPAddrPort(binary.BigEndian.AppendUint16(answer.encode(), uint16(size)), from)
	}
}
