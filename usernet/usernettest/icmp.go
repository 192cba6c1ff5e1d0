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

// icmpCases check that ping works where the host may ping, and that replies are never
// invented.
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
			// The helper may have privileges of its own. A true reply is fine, but one
			// for an address that does not answer is not.
			x.Must(x.noPing(s, remoteAddr(f, remoteSilent)))
			x.Notef("for a live address: %v", x.ping(s.Container, remoteAddr(f, remoteServer), 56, 1))
		}}
	})...)
}

// noPing checks that no reply comes from an address that does not answer.
func (x *T) noPing(s *Env, to netip.Addr) error {
	err := x.ping(s.Container, to, 56, 1)
	if err == nil {
		return fmt.Errorf("a ping to %s was answered, although nothing is there", to)
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
		return fmt.Errorf("open ping socket on %s: %w", n, err)
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
			return fmt.Errorf("reply to a ping: %w", err)
		}
		body, ok := m.Body.(*icmp.Echo)
		if !ok || m.Type != reply || !bytes.Equal(body.Data, data) || addrOf(from).Addr() != to {
			return fmt.Errorf("ping to %s with %d bytes: %s replied with %v", to, size, from, m.Type)
		}
		return nil
	}
	return fmt.Errorf("%w from %s for %d bytes", errNoEcho, to, size)
}
