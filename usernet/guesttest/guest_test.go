package guesttest

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"cleat/packet"
)

var (
	inside4, outside4 = netip.MustParseAddrPort("192.0.2.2:1000"), netip.MustParseAddrPort("198.51.100.7:80")
	inside6, outside6 = netip.MustParseAddrPort("[2001:db8::2]:1000"), netip.MustParseAddrPort("[2001:db8:1::7]:80")
)

func TestSegmentsAreSentAsTheyAreWritten(t *testing.T) {
	for _, ends := range [][2]netip.AddrPort{{inside4, outside4}, {inside6, outside6}} {
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
					t.Errorf("the checksum is right: %v", good)
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

// judge is a test that notes its failure and goes no further.
type judge struct{ testing.TB }

type verdict string

func (judge) Fatalf(format string, args ...any) { panic(verdict(fmt.Sprintf(format, args...))) }
func (judge) Fatal(args ...any)                 { panic(verdict(fmt.Sprint(args...))) }

// complaint is what a guest says of a frame; "": nothing.
func complaint(t *testing.T, g *Guest, device *os.File, frame []byte) (said string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case verdict:
			said = string(r)
		default:
			panic(r)
		}
	}()
	if _, err := device.Write(frame); err != nil {
		t.Fatal(err)
	}
	if g.Within(judge{t}).TryReceive() == nil {
		t.Fatal("nothing came")
	}
	return ""
}

func TestGuestComplainsOfBrokenPackets(t *testing.T) {
	const ip, tcp = packet.VNetHdrBytes, packet.VNetHdrBytes + packet.IPv4Bytes
	good := Segment{From: outside4, To: inside4, Seq: 5, Ack: 6, Flags: packet.ACK, Payload: make([]byte, 3000), Cut: 1400}
	small := Segment{From: outside4, To: inside4, Seq: 5, Flags: packet.RST, Checksum: Complete}
	six := Segment{From: outside6, To: inside6, Flags: packet.ACK, Payload: []byte("abc")}
	tests := []struct {
		name  string
		s     Segment
		spoil func(frame []byte) []byte
		ok    bool
	}{
		{"a good super-packet", good, func(f []byte) []byte { return f }, true},
		{"a good small one", small, func(f []byte) []byte { return f }, true},
		{"a good one of IPv6", six, func(f []byte) []byte { return f }, true},
		{"IPv4 header checksum", small, func(f []byte) []byte { f[ip+8]--; return f }, false},
		{"bytes behind the packet", small, func(f []byte) []byte { return append(f, 0) }, false},
		{"a complete checksum that is wrong", small, func(f []byte) []byte { f[tcp+16]++; return f }, false},
		{"a partial checksum that is wrong", six, func(f []byte) []byte { f[packet.VNetHdrBytes+packet.IPv6Bytes+16]++; return f }, false},
		{"checksum begins elsewhere", good, func(f []byte) []byte { f[6]++; return f }, false},
		{"cut by nothing", good, func(f []byte) []byte { f[1] = packet.GSONone; return f }, false},
		{"cut as IPv6", good, func(f []byte) []byte { f[1] = packet.GSOTCPv6; return f }, false},
		{"cut behind another header", good, func(f []byte) []byte { f[2]++; return f }, false},
		{"cut too large for the MTU", good, func(f []byte) []byte { f[4], f[5] = 0xdc, 0x05; return f }, false},
		{"cut, but one packet", Segment{From: outside4, To: inside4, Flags: packet.ACK, Payload: []byte("abc"), Cut: 3}, func(f []byte) []byte { return f }, false},
		{"acknowledges without ACK", Segment{From: outside4, To: inside4, Flags: packet.RST, Ack: 7}, func(f []byte) []byte { return f }, false},
		{"no packet", small, func([]byte) []byte { return make([]byte, 50) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, device := New(t, 1500)
			said := complaint(t, g, device, tt.spoil(tt.s.Frame()))
			if (said == "") != tt.ok {
				t.Errorf("the guest says %q", said)
			}
		})
	}
}

func TestMatchers(t *testing.T) {
	g, device := New(t, 1500)
	c := g.Conn(inside4, outside4, 100)
	c.Ack, c.PeerStart = 500, 499
	next := func(s Segment) *Packet {
		s.From, s.To = outside4, inside4
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
		{"an acknowledgement", ack, c.Acks(), true},
		{"of other bytes", ack, c.AcksAt(1), false},
		{"with data", data, c.Acks(), false},
		{"data", data, c.Carries(packet.ACK, []byte("abc")), true},
		{"other data", data, c.Carries(packet.ACK, []byte("abd")), false},
		{"other flags", data, c.Carries(packet.ACK|packet.FIN, []byte("abc")), false},
		{"a reset", reset, c.Resets(), true},
		{"a reset elsewhere", late, c.Resets(), false},
		{"no reset", ack, c.Resets(), false},
		{"another way", ack, FromTo(inside4, outside4, packet.ACK), false},
		{"no ICMP error", ack, Unreachable(packet.ErrorNet, inside4.Addr(), outside4.Addr()), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if wrong := tt.m(tt.p); (wrong == "") != tt.want {
				t.Errorf("%v: %q", tt.p, wrong)
			}
		})
	}
	if c.PeerWindow != 9 {
		t.Errorf("the window is noted as %d", c.PeerWindow)
	}
}
