package usernettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cleat/internal/dnsname"

	"golang.org/x/net/dns/dnsmessage"
)

// Names that the outside's nameserver knows. Both have the addresses of the remote server
// of the same name, of both families.
const (
	nameServer = "server.example."
	nameOther  = "other.example."
	nameLarge  = "large.example." // TXT, more than 512 bytes
)

func addrSuffix(name string) int {
	switch name {
	case nameServer:
		return remoteServer
	case nameOther:
		return remoteOther
	}
	return 0
}

// dnsCases check that the data path's nameserver address answers.
func dnsCases() []Case {
	ability := map[Family]Ability{V4: DNS, V6: DNS6}
	var cases []Case
	for _, proto := range []string{"udp", "tcp"} {
		cases = append(cases, families(func(f Family) Case {
			return Case{Name: "dns/" + proto, Needs: []Ability{ability[f]}, Check: func(x *T, s *Env) {
				x.nameserver(s)
				for _, of := range []Family{V4, V6} {
					got, err := x.lookup(s, proto, s.Nameserver[f], nameServer, of)
					x.Must(err)
					if want := []netip.Addr{remoteAddr(of, remoteServer)}; !slices.Equal(got, want) {
						x.Fatalf("%s has addresses %v, want %v", nameServer, got, want)
					}
				}
				_, err := x.lookup(s, proto, s.Nameserver[f], "nobody.example.", V4)
				if !errors.Is(err, errNoName) {
					x.Fatalf("look up a name that does not exist: %v", err)
				}
			}}
		})...)
	}
	return append(cases, families(func(f Family) Case {
		return Case{Name: "dns/truncated", Needs: []Ability{ability[f]}, Check: func(x *T, s *Env) {
			x.nameserver(s)
			m, err := x.query(s, "udp", s.Nameserver[f], nameLarge, dnsmessage.TypeTXT)
			x.Must(err)
			if !m.Truncated && len(m.Answers) == 0 {
				x.Fatalf("the UDP reply has no answer and is not truncated")
			}
			m, err = x.query(s, "tcp", s.Nameserver[f], nameLarge, dnsmessage.TypeTXT)
			x.Must(err)
			if m.Truncated || len(m.Answers) != 1 {
				x.Fatalf("the TCP reply has %d answers, truncated: %t", len(m.Answers), m.Truncated)
			}
		}}
	})...)
}

// nameserver runs the outside's nameserver for the case.
func (x *T) nameserver(s *Env) {
	for _, f := range []Family{V4, V6} {
		x.serveDNS(s, netip.AddrPortFrom(OutsideAddr(f), 53), addrSuffix)
	}
}

// serveLies runs a nameserver that returns another server's addresses for every name.
func (x *T) serveLies(s *Env, at netip.AddrPort) {
	x.serveDNS(s, at, func(string) int { return remoteOther })
}

// serveDNS answers queries by UDP and TCP. last returns the last part of a name's
// addresses.
func (x *T) serveDNS(s *Env, at netip.AddrPort, last func(name string) int) {
	c := x.udpSocket(s.Outside, at)
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort(dnsReply(buf[:n], 512, last), from)
		}
	}()
	l := x.listen(s.Outside, at)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveDNSStream(c, last)
		}
	}()
}

// serveDNSStream answers queries by TCP (RFC 1035, section 4.2.2).
func serveDNSStream(c net.Conn, last func(string) int) {
	defer c.Close()
	for {
		q, err := readMessage(c)
		if err != nil {
			return
		}
		if err := writeMessage(c, dnsReply(q, 1<<16, last)); err != nil {
			return
		}
	}
}

func readMessage(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeMessage(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

// dnsReply returns the reply to a query, truncated to most bytes.
func dnsReply(query []byte, most int, lastOf func(string) int) []byte {
	var q dnsmessage.Message
	if q.Unpack(query) != nil || len(q.Questions) != 1 {
		return nil
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionDesired: q.RecursionDesired, RecursionAvailable: true},
		Questions: q.Questions,
	}
	name := q.Questions[0].Name
	last := lastOf(dnsname.Lower(name.String()))
	head := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, Type: q.Questions[0].Type, TTL: 1}
	var body dnsmessage.ResourceBody
	switch t := q.Questions[0].Type; {
	case dnsname.Equal(name.String(), nameLarge):
		if t == dnsmessage.TypeTXT {
			body = &dnsmessage.TXTResource{TXT: []string{strings.Repeat("a", 250), strings.Repeat("b", 250), strings.Repeat("c", 250)}}
		}
	case last == 0:
		m.RCode = dnsmessage.RCodeNameError
	case t == dnsmessage.TypeA:
		body = &dnsmessage.AResource{A: remoteAddr(V4, last).As4()}
	case t == dnsmessage.TypeAAAA:
		body = &dnsmessage.AAAAResource{AAAA: remoteAddr(V6, last).As16()}
	}
	if body != nil {
		m.Answers = []dnsmessage.Resource{{Header: head, Body: body}}
	}
	b, err := m.Pack()
	if err == nil && len(b) > most {
		m.Truncated, m.Answers = true, nil
		b, err = m.Pack()
	}
	if err != nil {
		return nil
	}
	return b
}

var errNoName = errors.New("no such name")

// lookup looks up a name's addresses from inside.
func (x *T) lookup(s *Env, proto string, server netip.AddrPort, name string, f Family) ([]netip.Addr, error) {
	kind := map[Family]dnsmessage.Type{V4: dnsmessage.TypeA, V6: dnsmessage.TypeAAAA}[f]
	m, err := x.query(s, proto, server, name, kind)
	if err != nil {
		return nil, err
	}
	if m.RCode == dnsmessage.RCodeNameError {
		return nil, errNoName
	}
	if m.RCode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("look up %s: %v", name, m.RCode)
	}
	var got []netip.Addr
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			got = append(got, netip.AddrFrom4(b.A))
		case *dnsmessage.AAAAResource:
			got = append(got, netip.AddrFrom16(b.AAAA))
		}
	}
	return got, nil
}

// query sends a query from inside and returns the reply.
func (x *T) query(s *Env, proto string, server netip.AddrPort, name string, kind dnsmessage.Type) (*dnsmessage.Message, error) {
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := q.Pack()
	if err != nil {
		return nil, err
	}
	c, err := x.dial(s.Container, proto, server)
	if err != nil {
		return nil, fmt.Errorf("query %s by %s: %w", server, proto, err)
	}
	reply, err := roundTripDNS(c, proto, b)
	if err != nil {
		return nil, fmt.Errorf("query %s by %s for %s: %w", server, proto, name, err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil {
		return nil, fmt.Errorf("reply of %s: %w", server, err)
	}
	if m.ID != q.ID || !m.Response {
		return nil, fmt.Errorf("%s replied to message %d, response: %t", server, m.ID, m.Response)
	}
	return &m, nil
}

func roundTripDNS(c net.Conn, proto string, b []byte) ([]byte, error) {
	defer c.Close()
	if proto == "tcp" {
		if err := writeMessage(c, b); err != nil {
			return nil, err
		}
		return readMessage(c)
	}
	buf := make([]byte, 4096)
	var err error
	for range 4 {
		if _, err = c.Write(b); err != nil {
			return nil, err
		}
		c.SetReadDeadline(time.Now().Add(retryAfter))
		var n int
		if n, err = c.Read(buf); err == nil {
			return buf[:n], nil
		}
	}
	return nil, err
}
