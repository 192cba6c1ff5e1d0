package usernettest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"

	"cleat/lab"
	"cleat/link"
	"cleat/packet"
	"cleat/usernet/usernettest"

	"golang.org/x/sys/unix"
)

// The reference is a process that carries packets between the container's TUN device and
// one on the host, which routes. The kernel does everything that matters, so the suite
// must pass on it, and must find each fault that is built into it.

const relayArg = "usernettest-relay"

// fault changes, drops (nil) or multiplies a packet.
type fault func(b []byte, inbound bool) [][]byte

// answerRelay runs a relay if this process was started as one.
func answerRelay() {
	if len(os.Args) != 3 || os.Args[1] != relayArg {
		return
	}
	if err := relay(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func relay(name string) error {
	newFault, ok := faults[name]
	if !ok {
		return fmt.Errorf("unknown fault %q", name)
	}
	if name == "deaf-to-SIGTERM" {
		signal.Ignore(unix.SIGTERM)
	}
	inside, outside := os.NewFile(3, "inside"), os.NewFile(4, "outside")
	broken := newFault()
	var mu sync.Mutex // faults have state
	carry := func(from, to *os.File, inbound bool) error {
		buf := make([]byte, maxPacket)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return err
			}
			mu.Lock()
			for _, b := range broken(buf[:n], inbound) {
				to.Write(b)
			}
			mu.Unlock()
		}
	}
	failed := make(chan error, 2)
	go func() { failed <- carry(inside, outside, false) }()
	go func() { failed <- carry(outside, inside, true) }()
	err := <-failed
	if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

const (
	maxPacket  = 65536 + 14
	insideTun  = "tun0"
	outsideTun = "tun1"
)

// relayPath returns the reference with a fault, or without one for "none".
func relayPath(name string) usernettest.Path {
	return usernettest.Path{
		Name: "relay with fault " + name, Version: "this",
		Lacks: map[usernettest.Ability]string{
			usernettest.Sockets: "it only carries packets", usernettest.ForwardForms: "it routes", usernettest.ForwardAuto: "it routes",
			usernettest.HostLoopback: "it routes", usernettest.AsHost: "it routes",
		},
		Start: func(_ context.Context, s *usernettest.Topology, o usernettest.Options) (*usernettest.Instance, error) {
			return startRelay(s, o, name)
		},
	}
}

func startRelay(s *usernettest.Topology, o usernettest.Options, name string) (*usernettest.Instance, error) {
	mtu := o.MTU
	if mtu == 0 {
		mtu = 65520
	}
	var files []*os.File
	for _, end := range []struct {
		node *lab.Node
		name string
	}{{s.Container, insideTun}, {s.Host, outsideTun}} {
		t, err := link.OpenTun(end.node.NS, link.TunSpec{Attrs: link.Attrs{Name: end.name, MTU: mtu}})
		if err != nil {
			return nil, err
		}
		for _, f := range t.Files() {
			defer f.Close()
		}
		files = append(files, t.Files()...)
	}
	if err := routeRelay(s, mtu); err != nil {
		return nil, err
	}
	i, err := s.Launch([]string{lab.Self, relayArg, name}, files...)
	if err != nil {
		return nil, err
	}
	i.Device = insideTun
	i.Nameserver, i.Reached = map[usernettest.Family]netip.AddrPort{}, map[usernettest.Family]netip.Addr{}
	for f, p := range guest {
		i.Nameserver[f] = netip.AddrPortFrom(usernettest.OutsideAddr(f), 53)
		i.Reached[f] = p.Addr()
	}
	return i, nil
}

// routeRelay makes the host a router between the container and the outside.
func routeRelay(s *usernettest.Topology, mtu int) error {
	if err := errors.Join(
		s.Host.Sysctl("net/ipv4/ip_forward", "1"), s.Host.Sysctl("net/ipv6/conf/all/forwarding", "1"),
	); err != nil {
		return err
	}
	for f, p := range guest {
		if f == usernettest.V6 && mtu < minIPv6MTU {
			continue
		}
		onHost := netip.PrefixFrom(gateway[f], p.Bits())
		if err := errors.Join(
			s.Container.Address(insideTun, p), s.Host.Address(outsideTun, onHost),
			usernettest.AddRoute(s.Container, netip.Prefix{}, gateway[f]),
			usernettest.AddRoute(s.Outside, p.Masked(), usernettest.HostAddr(f)),
		); err != nil {
			return err
		}
	}
	return nil
}

// faults returns faults by name. Each run of a relay has its own state.
var faults = map[string]func() fault{
	"none":            func() fault { return func(b []byte, _ bool) [][]byte { return [][]byte{b} } },
	"deaf-to-SIGTERM": func() fault { return func(b []byte, _ bool) [][]byte { return [][]byte{b} } },
	"corrupts": func() fault {
		return onTCP(func(n int, h *packet.TCPHeader, _ bool) bool {
			if n%50 == 49 && len(h.Payload) > 0 {
				h.Payload[0] ^= 1
			}
			return true
		})
	},
	"loses-bytes": func() fault {
		return onTCP(func(n int, h *packet.TCPHeader, _ bool) bool { return n < 100 || len(h.Payload) == 0 })
	},
	"drops-FIN": func() fault {
		return onTCP(func(_ int, h *packet.TCPHeader, _ bool) bool { return h.Flags&packet.FIN == 0 })
	},
	"drops-RST": func() fault {
		return onTCP(func(_ int, h *packet.TCPHeader, _ bool) bool { return h.Flags&packet.RST == 0 })
	},
	"drops-probes": func() fault {
		var next uint32 // a probe repeats the last sequence number sent
		return onTCP(func(_ int, h *packet.TCPHeader, inbound bool) bool {
			if inbound {
				return true
			}
			if h.Flags == packet.ACK && len(h.Payload) == 0 && h.Seq == next-1 {
				return false
			}
			next = h.Seq + uint32(len(h.Payload))
			if h.Flags&packet.SYN != 0 {
				next++
			}
			return true
		})
	},
	"forgets-urgent": func() fault {
		return onTCP(func(_ int, h *packet.TCPHeader, _ bool) bool { return h.Flags&packet.URG == 0 })
	},
	"leaks": func() fault {
		return onTCP(func(_ int, h *packet.TCPHeader, inbound bool) bool {
			if h.Flags == packet.SYN && !inbound {
				unix.Open(os.DevNull, unix.O_RDONLY, 0)
			}
			return true
		})
	},
	"drops-ICMP":      func() fault { return only(func(p *packet.IP) bool { return p.Protocol != packet.ICMP }) },
	"drops-fragments": func() fault { return only(func(p *packet.IP) bool { return !p.IsFragment() }) },
	"few-peers": func() fault {
		seen := map[uint16]bool{}
		return only(func(p *packet.IP) bool {
			var u packet.UDPHeader
			if p.Protocol != packet.UDP || packet.ParseUDP(p.Payload, &u) != nil {
				return true
			}
			if len(seen) < 500 {
				seen[u.SrcPort] = true
			}
			return seen[u.SrcPort]
		})
	},
	"swaps-datagrams": func() fault {
		var held []byte
		return func(b []byte, _ bool) [][]byte {
			var p packet.IP
			if packet.ParseIP(b, &p) != nil || p.Protocol != packet.UDP {
				return [][]byte{b}
			}
			if held == nil {
				held = append([]byte(nil), b...)
				return nil
			}
			first := held
			held = nil
			return [][]byte{append([]byte(nil), b...), first}
		}
	},
	"answers-pings": func() fault {
		return func(b []byte, inbound bool) [][]byte {
			var p packet.IP
			if packet.ParseIP(b, &p) == nil && p.Protocol == packet.ICMP && !inbound && p.Payload[0] == 8 {
				answerPing(b, p)
				os.NewFile(3, "inside").Write(b)
				return nil
			}
			return [][]byte{b}
		}
	},
	"dies": func() fault {
		return onTCP(func(_ int, h *packet.TCPHeader, _ bool) bool {
			if h.Flags&packet.FIN != 0 {
				os.Exit(1)
			}
			return true
		})
	},
}

// only drops the packets for which keep returns false.
func only(keep func(*packet.IP) bool) fault {
	return func(b []byte, _ bool) [][]byte {
		var p packet.IP
		if packet.ParseIP(b, &p) == nil && !keep(&p) {
			return nil
		}
		return [][]byte{b}
	}
}

// onTCP calls f with the n-th TCP segment. f may change the payload, and returns whether
// to keep the segment.
func onTCP(f func(n int, h *packet.TCPHeader, inbound bool) bool) fault {
	n := 0
	return func(b []byte, inbound bool) [][]byte {
		var p packet.IP
		var h packet.TCPHeader
		if packet.ParseIP(b, &p) != nil || p.Protocol != packet.TCP || packet.ParseTCP(p.Payload, &h) != nil {
			return [][]byte{b}
		}
		n++
		if !f(n, &h, inbound) {
			return nil
		}
		clear(p.Payload[packet.TCPChecksumOffset : packet.TCPChecksumOffset+2])
		sum := packet.TransportChecksum(p.Src, p.Dst, packet.TCP, p.Payload)
		p.Payload[packet.TCPChecksumOffset], p.Payload[packet.TCPChecksumOffset+1] = byte(sum>>8), byte(sum)
		return [][]byte{b}
	}
}

// answerPing turns an echo request into its reply.
func answerPing(b []byte, p packet.IP) {
	src, dst := p.Src.As4(), p.Dst.As4()
	copy(b[12:], dst[:])
	copy(b[16:], src[:])
	p.Payload[0] = 0
	clear(p.Payload[2:4])
	sum := packet.Checksum(p.Payload)
	p.Payload[2], p.Payload[3] = byte(sum>>8), byte(sum)
}
