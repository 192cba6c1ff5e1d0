package usernettest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"cleat/lab"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// icmpCases: ping works where the host may, and never lies.
func icmpCases() []Case {
	cases := append(forFamilies("ping/answered", func(x *T, s *Env, f Family) {
		for _, size := range []int{0, 56, 1400, 8000} {
			x.Must(x.ping(s.Container, remoteAddr(f, remoteServer), size, 3))
		}
	}, Ping), forFamilies("ping/nobody-there", func(x *T, s *Env, f Family) {
		x.Must(x.noPing(s, remoteAddr(f, remoteSilent)))
	})...)
	return append(cases, families(func(f Family) Case {
		return Case{Name: "ping/not-allowed-on-the-host", Alone: true, Conditions: Conditions{NoPing: true}, Check: func(x *T, s *Env) {
			// The helper may have rights of its own. A true answer is no lie either;
			// one for a dead address is.
			x.Must(x.noPing(s, remoteAddr(f, remoteSilent)))
			x.Notef("one that lives: %v", x.ping(s.Container, remoteAddr(f, remoteServer), 56, 1))
		}}
	})...)
}

// noPing looks that nobody answers for an address where nobody is.
func (x *T) noPing(s *Env, to netip.Addr) error {
	err := x.ping(s.Container, to, 56, 1)
	if err == nil {
		return fmt.Errorf("somebody answered a ping to %s, where nobody is", to)
	}
	if !errors.Is(err, errNoEcho) {
		return err
	}
	return nil
}

var errNoEcho = errors.New("no echo reply")

// ping sends echo requests from the node until one is answered.
func (x *T) ping(n *lab.Node, to netip.Addr, size, tries int) error {
	var c *icmp.PacketConn
	network, at, protocol := "udp4", "0.0.0.0", 1
	request, reply := icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if to.Is6() {
		network, at, protocol = "udp6", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	if err := n.NS.Do(func() (err error) {
		c, err = icmp.ListenPacket(network, at)
		return err
	}); err != nil {
		return fmt.Errorf("open a ping socket on %s: %w", n, err)
	}
	defer c.Close()
	data := bytes.Repeat([]byte("ping"), size/4+1)[:size]
	buf := make([]byte, 1<<16)
	for seq := 1; seq <= tries; seq++ {
		if seq > 1 {
			x.Notef("ping %d with %d bytes", seq, size)
		}
		b, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: 1, Seq: seq, Data: data}}).Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b, &net.UDPAddr{IP: to.AsSlice()}); err != nil {
			return fmt.Errorf("ping %s: %w", to, err)
		}
		c.SetReadDeadline(time.Now().Add(retryAfter))
		got, from, err := c.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errNoEcho, err)
		}
		m, err := icmp.ParseMessage(protocol, buf[:got])
		if err != nil {
			return fmt.Errorf("answer to a ping: %w", err)
		}
		body, ok := m.Body.(*icmp.Echo)
		if !ok || m.Type != reply || !bytes.Equal(body.Data, data) || addrOf(from).Addr() != to {
			return fmt.Errorf("the ping to %s with %d bytes is answered by %s with %v", to, size, from, m.Type)
		}
		return nil
	}
	return fmt.Errorf("%w from %s for %d bytes", errNoEcho, to, size)
}
