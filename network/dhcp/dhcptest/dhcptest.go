// Package dhcptest is a DHCP server whose behaviour a test controls: leases of seconds,
// silence, refusals, lost confirmations.
//
// # Limits
//
// It serves one link and has no relays. A client, known by its identifier, gets the next
// address from First on, and always the same one.
package dhcptest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
)

// Addr returns the server's address, which its link must have. It is also the router that
// the server names.
func Addr() netip.Prefix { return netip.MustParsePrefix("192.0.2.1/24") }

// First returns the first address that is granted.
func First() netip.Addr { return netip.MustParseAddr("192.0.2.10") }

// Server is a DHCP server. Its fields may be set before Listen and within Do. The zero
// Server grants leases of an hour.
type Server struct {
	Lifetime time.Duration     // of leases; 0: an hour
	Options  []dhcpv4.Modifier // added to every answer except a NAK
	Log      io.Writer         // one line for each message received; may be nil
	Silent   bool              // grants nothing and sends nothing
	NoAck    bool              // grants leases but does not confirm them
	SendNAK  bool              // answers every request with a NAK

	Last    *dhcpv4.DHCPv4        // last message received
	Count   map[string]int        // messages received by type
	Granted map[string]netip.Addr // granted addresses by client identifier

	mu      sync.Mutex
	offered map[string]netip.Addr
	next    netip.Addr
}

// Listen serves a link in the caller's namespace until the returned function is called.
func (s *Server) Listen(link string) (closeServer func(), err error) {
	s.Count, s.Granted, s.offered = map[string]int{}, map[string]netip.Addr{}, map[string]netip.Addr{}
	s.next = First()
	s4, err := server4.NewServer(link, nil, s.handle)
	if err != nil {
		return nil, fmt.Errorf("serve DHCP on %s: %w", link, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s4.Serve() // returns an error when it is closed
	}()
	return func() { s4.Close(); <-done }, nil
}

func (s *Server) handle(conn net.PacketConn, peer net.Addr, m *dhcpv4.DHCPv4) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Last = m
	s.Count[m.MessageType().String()]++
	answer := s.answer(m)
	if s.Log != nil {
		fmt.Fprintf(s.Log, "%s %s, granted: %d\n", m.MessageType(), m.ClientIPAddr, len(s.Granted))
	}
	if answer == nil {
		return
	}
	if answer.MessageType() == dhcpv4.MessageTypeNak { // RFC 2131 section 4.1
		peer = &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}
	}
	conn.WriteTo(answer.ToBytes(), peer) // it may be closed
}

// answer returns the answer to m; nil if there is none.
func (s *Server) answer(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	id := string(m.Options.Get(dhcpv4.OptionClientIdentifier))
	switch m.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return s.offer(id, m)
	case dhcpv4.MessageTypeRequest:
		return s.grant(id, m)
	case dhcpv4.MessageTypeDecline:
		delete(s.Granted, id)
		delete(s.offered, id)
	case dhcpv4.MessageTypeRelease:
		if a, ok := netip.AddrFromSlice(m.ClientIPAddr.To4()); ok && s.Granted[id] == a {
			delete(s.Granted, id)
		}
	}
	return nil
}

func (s *Server) offer(id string, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	if s.Silent {
		return nil
	}
	if _, has := s.offered[id]; !has {
		s.offered[id], s.next = s.next, s.next.Next()
	}
	return s.reply(m, dhcpv4.MessageTypeOffer, s.offered[id])
}

func (s *Server) grant(id string, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	switch {
	case s.Silent:
		return nil
	case s.SendNAK:
		return s.reply(m, dhcpv4.MessageTypeNak, netip.Addr{})
	}
	s.Granted[id] = s.offered[id]
	if s.NoAck {
		return nil
	}
	return s.reply(m, dhcpv4.MessageTypeAck, s.offered[id])
}

func (s *Server) reply(m *dhcpv4.DHCPv4, kind dhcpv4.MessageType, addr netip.Addr) *dhcpv4.DHCPv4 {
	self := Addr().Addr().AsSlice()
	modifiers := []dhcpv4.Modifier{dhcpv4.WithMessageType(kind), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(self))}
	if kind == dhcpv4.MessageTypeNak {
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptMessage("not here")))
	} else {
		lifetime := s.Lifetime
		if lifetime == 0 {
			lifetime = time.Hour
		}
		modifiers = append(append(modifiers, dhcpv4.WithYourIP(addr.AsSlice()), dhcpv4.WithNetmask(net.CIDRMask(Addr().Bits(), 32)),
			dhcpv4.WithLeaseTime(uint32(lifetime/time.Second)), dhcpv4.WithRouter(self)), s.Options...)
	}
	r, err := dhcpv4.NewReplyFromRequest(m, modifiers...)
	if err != nil {
		return nil
	}
	return r
}

// Do runs f with exclusive access to the fields.
func (s *Server) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Received returns the number of messages of a type that were received.
func (s *Server) Received(kind dhcpv4.MessageType) (n int) {
	s.Do(func() { n = s.Count[kind.String()] })
	return n
}

// Leases returns the number of granted leases.
func (s *Server) Leases() (n int) {
	s.Do(func() { n = len(s.Granted) })
	return n
}
