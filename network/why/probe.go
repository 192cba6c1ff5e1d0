package why

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"cleat/netns"
	"cleat/packet"

	"golang.org/x/net/dns/dnsmessage"

	"golang.org/x/sys/unix"
)

// probeWithin is how long an answer may take. On one host it takes well below a millisecond,
// between continents a third of a second.
const probeWithin = time.Second

// probe tries to reach each target from inside the source, all at once.
func (v *investigation) probe(ctx context.Context) {
	v.tryAll(ctx, untried)
	v.tryAll(ctx, silent) // a packet may be lost by chance
	for _, t := range v.targets {
		if !t.at.probed() {
			continue // it has been said
		}
		state := map[outcome]State{reached: OK, unclear: Unknown}[t.outcome]
		if state == "" {
			state = Bad
		}
		v.add(checkProbe, state, "%s: %s", Destination{Name: t.addr.String(), Port: v.q.To.Port, Protocol: v.q.To.Protocol}, t.said)
	}
}

// tryAll probes each target whose machine runs, and of which the last probe had one of these
// outcomes.
func (v *investigation) tryAll(ctx context.Context, last outcome) {
	var all sync.WaitGroup
	for _, t := range v.targets {
		if t.outcome&last != 0 && t.at.probed() {
			all.Go(func() { t.outcome, t.said = v.try(ctx, t.addr) })
		}
	}
	all.Wait()
}

// try probes an address. Without a port it sends an ICMP echo and, if that has no answer, a
// datagram to a port where nobody listens, to which the address answers as well.
func (v *investigation) try(ctx context.Context, a netip.Addr) (outcome, string) {
	to := netip.AddrPortFrom(a, v.q.To.Port)
	switch v.q.To.Protocol {
	case packet.TCP:
		return tryTCP(ctx, v.from.ns, to)
	case packet.UDP:
		return tryUDP(v.from.ns, to)
	}
	o, said := tryEcho(v.from.ns, a, 0)
	if o != silent {
		return o, said
	}
	const unusedPort = 33434 // as traceroute(8) has it
	if o, _ := tryUDP(v.from.ns, netip.AddrPortFrom(a, unusedPort)); o == refused || o == reached {
		return reached, "does not answer ping, but is there"
	}
	return silent, said
}

func tryTCP(ctx context.Context, ns *netns.NS, to netip.AddrPort) (outcome, string) {
	start := time.Now()
	err := ns.Do(func() error {
		d := net.Dialer{Timeout: probeWithin}
		c, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err == nil {
		return reached, "accepts the connection after " + shortTime(time.Since(start))
	}
	return classify(err, "refuses the connection")
}

// tryUDP sends an empty datagram, or a DNS query to a port of DNS.
func tryUDP(ns *netns.NS, to netip.AddrPort) (outcome, string) {
	start := time.Now()
	err := ns.Do(func() error {
		c, err := net.DialTimeout("udp", to.String(), probeWithin)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(probeWithin)); err != nil {
			return err
		}
		if to.Port() == dnsPort {
			r := reply{}
			return r.query(c, ".", dnsmessage.TypeNS)
		}
		if _, err = c.Write(nil); err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		return err
	})
	if err == nil {
		return reached, "answers a datagram after " + shortTime(time.Since(start))
	}
	o, said := classify(err, "nobody takes datagrams there")
	if o == silent {
		return unclear, "no answer to a datagram; not every program answers"
	}
	return o, said
}

// tryEcho sends an ICMP echo request that is a packet of size bytes, which nobody may fragment,
// and waits for the answer. 0 is a small packet. It needs CAP_NET_RAW.
func tryEcho(ns *netns.NS, a netip.Addr, size int) (outcome, string) {
	network, header, level, option, request, answer := "ip4:icmp", 20, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, byte(8), byte(0) // RFC 792
	if a.Is6() {
		network, header, level, option, request, answer = "ip6:ipv6-icmp", 40, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, 128, 129 // RFC 4443 section 4
	}
	const icmpHeader, smallSize = 8, 84
	if size == 0 {
		size = smallSize
	}
	message := make([]byte, max(size-header, icmpHeader+8))
	message[0] = request
	binary.BigEndian.PutUint64(message[4:], rand.Uint64()) // id, sequence number, data
	if a.Is4() {
		binary.BigEndian.PutUint16(message[2:], packet.Checksum(message))
	}
	start := time.Now()
	err := ns.Do(func() error {
		d := net.Dialer{Timeout: probeWithin, Control: func(_, _ string, c syscall.RawConn) (err error) {
			// The path's MTU as the kernel has learned it does not count, only what passes.
			if cErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_PROBE) }); cErr != nil {
				return cErr
			}
			return err
		}}
		c, err := d.Dial(network, a.String())
		if err != nil {
			return err
		}
		defer c.Close()
		return echo(c.(*net.IPConn), message, answer)
	})
	if err == nil {
		return reached, "answers ping after " + shortTime(time.Since(start))
	}
	return classify(err, "refuses ping")
}

// echo sends a request, and waits for its answer.
func echo(c *net.IPConn, message []byte, answer byte) error {
	if err := c.SetDeadline(time.Now().Add(probeWithin)); err != nil {
		return err
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	const ipHeader = 60 // at most; the kernel puts it before an IPv4 message
	buf := make([]byte, ipHeader+len(message)+1)
	for {
		n, _, err := c.ReadFromIP(buf)
		if err != nil {
			return err
		}
		if n == len(message) && buf[0] == answer && string(buf[4:12]) == string(message[4:12]) {
			return nil
		}
	}
}

// classify returns the outcome that an error of a socket stands for.
func classify(err error, refusal string) (outcome, string) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused, refusal
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return silent, "no answer within " + shortTime(probeWithin)
	}
	return unreachable, errText(err)
}

// errText returns the last part of an error of package net: what the kernel says.
func errText(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "no answer in time"
	}
	return strings.TrimSpace(err.Error())
}

// shortTime returns a duration in two digits.
func shortTime(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
}
