package guesttest

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"cleat/packet"
)

var (
	guest4, peer4 = netip.MustParseAddrPort("192.0.2.2:1000"), netip.MustParseAddrPort("198.51.100.7:80")
	guest6, peer6 = netip.MustParseAddrPort("[2001:db8::2]:1000"), netip.MustParseAddrPort("[2001:db8:1::7]:80")
)

func TestSegmentFields(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{guest4, peer4}, {guest6, peer6}} {
		for _, sum := range []Checksum{Partial, Complete, Wrong} {
			t.Run(fmt.Sprintf("%s, checksum %d", ends[0], sum), func(t *testing.T) {
				g, device := New(t, 1500)
				g.Send(Segment{
					From: ends[0], To: ends[1], Seq: 1, Ack: 2, Flags: packet.SYN | packet.URG, Window: 3, Urgent: 4,
					Options: append(MSS(1000), Scale(7)...), Payload: []byte("abc"), Checksum: sum,
				})
				b := make([]byte, 2000)
				n, err := device.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				var v packet.VNetHdr
				var ip packet.IP
				var h packet.TCPHeader
				pkt := b[packet.VNetHdrBytes:n]
				if v.Parse(b) != nil || v.CompleteChecksum(pkt) != nil || packet.ParseIP(pkt, &ip) != nil || packet.ParseTCP(ip.Payload, &h) != nil {
					t.Fatalf("% x", b[:n])
				}
				if good := packet.TransportChecksum(ip.Src, ip.Dst, packet.TCP, ip.Payload) == 0; good != (sum != Wrong) {
					t.Errorf("correct checksum: %v", good)
				}
				o := packet.ParseTCPOptions(h.Options)
				if ip.Src != ends[0].Addr() || ip.Dst != ends[1].Addr() || h.SrcPort != 1000 || h.DstPort != 80 || h.Seq != 1 || h.Ack != 2 ||
					h.Flags != packet.SYN|packet.URG || h.Window != 3 || h.Urgent != 4 || o.MSS != 1000 || o.Scale != 7 || string(h.Payload) != "abc" {
					t.Errorf("%+v %+v", h, o)
				}
			})
		}
	}
}

// recorder is a testing.TB that stops with a panic when the test fails.
type recorder struct{ testing.TB }

type failure string

func (recorder) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
func (recorder) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }

// failureFor returns the message with which a guest rejects a frame, or "".
func failureFor(t *testing.T, g *Guest, device *os.File, frame []byte) (got string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			got = string(r)
		default:
			panic(r)
		}
	}()
	if _, err := device.Write(frame); err != nil {
		t.Fatal(err)
	}
	if g.Within(recorder{t}).TryReceive() == nil {
		t.Fatal("no packet received")
	}
	return ""
}

func TestGuestRejectsBrokenPackets(t *testing.T) {
	const ip, tcp = packet.VNetHdrBytes, packet.VNetHdrBytes + packet.IPv4Bytes
	good := Segment{From: peer4, To: guest4, Seq: 5, Ack: 6, Flags: packet.ACK, Payload: make([]byte, 3000), GSOSize: 1400}
	small := Segment{From: peer4, To: guest4, Seq: 5, Flags: packet.RST, Checksum: Complete}
	six := Segment{From: peer6, To: guest6, Flags: packet.ACK, Payload: []byte("abc")}
	tests := []struct {
		name  string
		s     Segment
		spoil func(frame []byte) []byte
		ok    bool
	}{
		{"super-packet", good, func(f []byte) []byte { return f }, true},
		{"small packet", small, func(f []byte) []byte { return f }, true},
		{"IPv6 packet", six, func(f []byte) []byte { return f }, true},
		{"wrong IPv4 header checksum", small, func(f []byte) []byte { f[ip+8]--; return f }, false},
		{"bytes after the packet", small, func(f []byte) []byte { return append(f, 0) }, false},
		{"wrong complete checksum", small, func(f []byte) []byte { f[tcp+16]++; return f }, false},
		{"wrong partial checksum", six, func(f []byte) []byte { f[packet.VNetHdrBytes+packet.IPv6Bytes+16]++; return f }, false},
		{"wrong checksum start", good, func(f []byte) []byte { f[6]++; return f }, false},
		{"no GSO type", good, func(f []byte) []byte { f[1] = packet.GSONone; return f }, false},
		{"GSO type of IPv6", good, func(f []byte) []byte { f[1] = packet.GSOTCPv6; return f }, false},
		{"wrong GSO header length", good, func(f []byte) []byte { f[2]++; return f }, false},
		{"GSO size beyond the MTU", good, func(f []byte) []byte { f[4], f[5] = 0xdc, 0x05; return f }, false},
		{"GSO for a single segment", Segment{From: peer4, To: guest4, Flags: packet.ACK, Payload: []byte("abc"), GSOSize: 3}, func(f []byte) []byte { return f }, false},
		{"acknowledgement number without ACK", Segment{From: peer4, To: guest4, Flags: packet.RST, Ack: 7}, func(f []byte) []byte { return f }, false},
		{"not a packet", small, func([]byte) []byte { return make([]byte, 50) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, device := New(t, 1500)
			got := failureFor(t, g, device, tt.spoil(tt.s.Frame()))
			if (got == "") != tt.ok {
				t.Errorf("got failure %q", got)
			}
		})
	}
}

func TestMatchers(t *testing.T) {
	g, device := New(t, 1500)
	c := g.Conn(guest4, peer4, 100)
	c.Ack, c.PeerStart = 500, 499
	next := func(s Segment) *Packet {
		s.From, s.To = peer4, guest4
		if _, err := device.Write(s.Frame()); err != nil {
			t.Fatal(err)
		}
		return g.Receive()
	}
	ack := next(Segment{Seq: 500, Ack: 100, Flags: packet.ACK, Window: 9})
	data := next(Segment{Seq: 500, Ack: 100, Flags: packet.ACK | packet.PSH, Payload: []byte("abc")})
	reset := next(Segment{Seq: 500, Flags: packet.RST})
	late := next(Segment{Seq: 501, Flags: packet.RST})
	tests := []struct {
		name string
		p    *Packet
		m    Matcher
		want bool
	}{
		{"acknowledgement", ack, c.Acks(), true},
		{"acknowledgement of other bytes", ack, c.AcksAt(1), false},
		{"acknowledgement with data", data, c.Acks(), false},
		{"data", data, c.Carries(packet.ACK, []byte("abc")), true},
		{"other data", data, c.Carries(packet.ACK, []byte("abd")), false},
		{"data with other flags", data, c.Carries(packet.ACK|packet.FIN, []byte("abc")), false},
		{"a reset", reset, c.Resets(), true},
		{"reset with another sequence number", late, c.Resets(), false},
		{"reset expected", ack, c.Resets(), false},
		{"other direction", ack, FromTo(guest4, peer4, packet.ACK), false},
		{"ICMP error expected", ack, Unreachable(packet.ErrorNet, guest4.Addr(), peer4.Addr()), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if wrong := tt.m(tt.p); (wrong == "") != tt.want {
				t.Errorf("%v: %q", tt.p, wrong)
			}
		})
	}
	if c.PeerWindow != 9 {
		t.Errorf("PeerWindow is %d, want 9", c.PeerWindow)
	}
}
