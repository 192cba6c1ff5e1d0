package guesttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"cleat/packet"
)

// Packet is a packet from the network under test. It owns its memory.
type Packet struct {
	VNet  packet.VNetHdr
	IP    packet.IP
	TCP   packet.TCPHeader // valid for a TCP segment
	ICMP  packet.ICMPError // valid for an ICMP error
	Bytes []byte           // the packet without its virtio header
}

// String describes the packet in a line.
func (p *Packet) String() string {
	if p.IP.Protocol != packet.TCP {
		return fmt.Sprintf("%s %s > %s, %d bytes", p.IP.Protocol, p.IP.Src, p.IP.Dst, len(p.IP.Payload))
	}
	h := &p.TCP
	return fmt.Sprintf("%s:%d > %s:%d %s seq %d ack %d win %d urg %d len %d",
		p.IP.Src, h.SrcPort, p.IP.Dst, h.DstPort, FlagNames(h.Flags), h.Seq, h.Ack, h.Window, h.Urgent, len(h.Payload))
}

// From and To return the ends of a TCP segment.
func (p *Packet) From() netip.AddrPort { return netip.AddrPortFrom(p.IP.Src, p.TCP.SrcPort) }
func (p *Packet) To() netip.AddrPort   { return netip.AddrPortFrom(p.IP.Dst, p.TCP.DstPort) }

// FlagNames returns the names of TCP flags.
func FlagNames(flags uint8) string {
	var names []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if flags>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}

// parse parses a frame, and fails the test if the guest's kernel would drop or misread
// it.
func (g *Guest) parse(raw []byte) *Packet {
	g.t.Helper()
	raw = bytes.Clone(raw)
	p := &Packet{}
	if err := p.VNet.Parse(raw); err != nil {
		g.t.Fatalf("frame of %d bytes: %v", len(raw), err)
	}
	p.Bytes = raw[packet.VNetHdrBytes:]
	if err := packet.ParseIP(p.Bytes, &p.IP); err != nil {
		g.t.Fatalf("packet % x: %v", p.Bytes[:min(len(p.Bytes), 60)], err)
	}
	if n := p.IP.HeaderBytes + len(p.IP.Payload); n != len(p.Bytes) {
		g.t.Fatalf("frame has a packet of %d bytes and %d bytes after it", n, len(p.Bytes)-n)
	}
	if p.IP.Src.Is4() && packet.Checksum(p.Bytes[:p.IP.HeaderBytes]) != 0 {
		g.t.Fatal("packet has a wrong IPv4 header checksum")
	}
	g.checkChecksum(p)
	switch p.IP.Protocol {
	case packet.TCP:
		if err := packet.ParseTCP(p.IP.Payload, &p.TCP); err != nil {
			g.t.Fatalf("segment: %v", err)
		}
		g.checkTCP(p)
	case packet.ICMP, packet.ICMPv6:
		_ = packet.ParseICMPError(p.IP.Protocol, p.IP.Payload, &p.ICMP) // an echo reply is not an error
	}
	if p.VNet.GSOType == packet.GSONone && len(p.Bytes) > g.mtu {
		g.t.Fatalf("%v is longer than the MTU of %d", p, g.mtu)
	}
	return p
}

// checkChecksum completes the checksum if the virtio header requests that, and verifies
// it.
func (g *Guest) checkChecksum(p *Packet) {
	g.t.Helper()
	if p.IP.IsFragment() {
		return
	}
	if p.VNet.Flags&packet.NeedsChecksum != 0 {
		if int(p.VNet.ChecksumStart) != p.IP.HeaderBytes {
			g.t.Fatalf("checksum starts at %d, the transport header at %d", p.VNet.ChecksumStart, p.IP.HeaderBytes)
		}
		at := p.IP.Payload[p.VNet.ChecksumOffset:]
		want := packet.Fold(packet.PseudoSum(p.IP.Src, p.IP.Dst, p.IP.Protocol, len(p.IP.Payload)))
		if got := binary.BigEndian.Uint16(at); got != want {
			g.t.Fatalf("checksum field holds %#04x, the pseudo header's sum is %#04x", got, want)
		}
		if err := p.VNet.CompleteChecksum(p.Bytes); err != nil {
			g.t.Fatalf("complete checksum: %v", err)
		}
	}
	sum := uint16(0)
	switch p.IP.Protocol {
	case packet.TCP, packet.UDP, packet.ICMPv6:
		sum = packet.TransportChecksum(p.IP.Src, p.IP.Dst, p.IP.Protocol, p.IP.Payload)
	case packet.ICMP:
		sum = packet.Checksum(p.IP.Payload)
	}
	if sum != 0 {
		g.t.Fatalf("%s packet has a wrong checksum", p.IP.Protocol)
	}
}

// checkTCP verifies what the virtio header claims about segments.
func (g *Guest) checkTCP(p *Packet) {
	g.t.Helper()
	header := len(p.IP.Payload) - len(p.TCP.Payload)
	want := uint8(packet.GSOTCPv4)
	if p.IP.Src.Is6() {
		want = packet.GSOTCPv6
	}
	switch {
	case p.VNet.GSOType == packet.GSONone:
	case p.VNet.GSOType != want:
		g.t.Fatalf("%v has GSO type %d, want %d", p, p.VNet.GSOType, want)
	case int(p.VNet.HeaderBytes) != p.IP.HeaderBytes+header:
		g.t.Fatalf("%v claims %d bytes of headers, has %d", p, p.VNet.HeaderBytes, p.IP.HeaderBytes+header)
	case int(p.VNet.GSOSize)+int(p.VNet.HeaderBytes) > g.mtu:
		g.t.Fatalf("%v has segments of %d bytes, longer than the MTU of %d", p, int(p.VNet.GSOSize)+int(p.VNet.HeaderBytes), g.mtu)
	case len(p.TCP.Payload) <= int(p.VNet.GSOSize):
		g.t.Fatalf("%v is a single segment, but has GSO size %d", p, p.VNet.GSOSize)
	}
	if p.TCP.Flags&packet.ACK == 0 && p.TCP.Ack != 0 {
		g.t.Fatalf("%v has an acknowledgement number without ACK", p)
	}
}

// FromTo matches a TCP segment between two ends with exactly the given flags, PSH aside.
func FromTo(from, to netip.AddrPort, flags uint8) Matcher {
	return func(p *Packet) string {
		switch {
		case p.IP.Protocol != packet.TCP:
			return "want TCP"
		case p.From() != from || p.To() != to:
			return fmt.Sprintf("want %s to %s", from, to)
		case p.TCP.Flags&^packet.PSH != flags&^packet.PSH:
			return "want " + FlagNames(flags)
		}
		return ""
	}
}

// And matches what all matchers match.
func And(all ...Matcher) Matcher {
	return func(p *Packet) string {
		for _, m := range all {
			if wrong := m(p); wrong != "" {
				return wrong
			}
		}
		return ""
	}
}

// Unreachable matches an ICMP error of the given kind about a packet between the two
// addresses.
func Unreachable(kind packet.ErrorKind, src, dst netip.Addr) Matcher {
	want := packet.NewICMPError(kind, src.Is4(), 0)
	return func(p *Packet) string {
		switch {
		case p.IP.Protocol != packet.ICMP && p.IP.Protocol != packet.ICMPv6:
			return "want an ICMP error"
		case p.IP.Dst != src:
			return fmt.Sprintf("want destination %s", src)
		case p.ICMP.Type != want.Type || p.ICMP.Code != want.Code:
			return fmt.Sprintf("has type %d code %d, want %d, %d", p.ICMP.Type, p.ICMP.Code, want.Type, want.Code)
		case p.ICMP.Original.Src != src || p.ICMP.Original.Dst != dst:
			return fmt.Sprintf("is about %s > %s, want %s > %s", p.ICMP.Original.Src, p.ICMP.Original.Dst, src, dst)
		}
		return ""
	}
}
