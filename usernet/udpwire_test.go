package usernet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

func TestUDPHopLimitAndTrafficClass(t *testing.T) {
	tests := []struct {
		name     string
		ttl, tos uint8
		wantTTL  uint8
	}{
		{"default", 64, 0, 64},
		{"a second hop", 2, 0, 1},
		{"with traffic class and ECN", 2, 0xb9, 1},
		{"another system's default", 128, 0, 127},
		{"the default again", 64, 0x02, 64},
	}
	family(t, func(t *testing.T, r *rig) {
		own := loopback4
		if r.guest.Is6() {
			own = loopback6
		}
		host := r.udpSocketOn(own)
		option := func(v4, v6, value int) {
			raw, err := host.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) {
				if own.Is4() {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, v4, value)
				} else {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, v6, value)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		option(unix.IP_RECVTTL, unix.IPV6_RECVHOPLIMIT, 1)
		option(unix.IP_RECVTOS, unix.IPV6_RECVTCLASS, 1)
		to := netip.AddrPortFrom(own, localPort(host))
		var from netip.AddrPort
		for _, tt := range tests {
			r.g.SendFrame(withHops(datagramFrame(netip.AddrPortFrom(r.guest, 5000), to, []byte("hello"), 0), tt.ttl, tt.tos))
			oob := make([]byte, 128)
			_, n, _, at, err := host.ReadMsgUDPAddrPort(make([]byte, 100), oob)
			if err != nil {
				t.Fatal(err)
			}
			from = at
			ttl, tos := -1, -1
			cmsgs, err := unix.ParseSocketControlMessage(oob[:n])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cmsgs {
				switch v4 := c.Header.Level == unix.IPPROTO_IP; {
				case v4 && c.Header.Type == unix.IP_TTL, !v4 && c.Header.Type == unix.IPV6_HOPLIMIT:
					ttl = int(binary.NativeEndian.Uint32(c.Data))
				case v4 && c.Header.Type == unix.IP_TOS, !v4 && c.Header.Type == unix.IPV6_TCLASS:
					tos = int(c.Data[0])
				}
			}
			if ttl != int(tt.wantTTL) || tos != int(tt.tos) {
				t.Errorf("%s: hop limit %d, class %#x; want %d, %#x", tt.name, ttl, tos, tt.wantTTL, tt.tos)
			}
		}
		option(unix.IP_TOS, unix.IPV6_TCLASS, 0xba)
		r.answer(host, from, "back")
		if p := r.g.Await(isUDP(to, netip.AddrPortFrom(r.guest, 5000))); p.IP.TOS != 0xba {
			t.Errorf("class %#x on the way back, want 0xba", p.IP.TOS)
		}
	}, func(c *Config) { c.Policy = allowAll })
}

// withHops changes the hop limit and the traffic class of a frame's packet.
func withHops(b []byte, hops, class uint8) []byte {
	var ip packet.IP
	pkt := b[packet.VNetHdrBytes:]
	if packet.ParseIP(pkt, &ip) != nil {
		panic("not a packet")
	}
	ip.TTL, ip.TOS = hops, class
	ip.Put(pkt, len(ip.Payload))
	return b
}

func TestUDPHopLimitExceeded(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		own := loopback4
		if r.guest.Is6() {
			own = loopback6
		}
		b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), netip.AddrPortFrom(own, 33434), []byte("hello"), 0)
		r.g.SendFrame(withHops(b, 1, 0))
		if p := r.g.Only(guesttest.Unreachable(packet.ErrorTTL, r.guest, own)); p.IP.Src != r.s.gatewayFor(r.guest) {
			t.Errorf("time exceeded from %s, want the gateway", p.IP.Src)
		}
	}, func(c *Config) { c.Policy = allowAll })
}

// fragmentsOf splits a frame's packet into fragments. It completes the packet's checksum.
func fragmentsOf(t *testing.T, b []byte, id uint32, mtu int) [][]byte {
	t.Helper()
	var v packet.VNetHdr
	var ip packet.IP
	pkt := b[packet.VNetHdrBytes:]
	if v.Parse(b) != nil || v.CompleteChecksum(pkt) != nil || packet.ParseIP(pkt, &ip) != nil {
		t.Fatal("not a packet")
	}
	ip.ID = id
	var cut packet.Fragmenter
	if err := cut.Start(&ip, ip.Payload, mtu); err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	room := make([]byte, packet.VNetHdrBytes+mtu)
	for n := cut.Next(room[packet.VNetHdrBytes:]); n > 0; n = cut.Next(room[packet.VNetHdrBytes:]) {
		all = append(all, bytes.Clone(room[:packet.VNetHdrBytes+n]))
	}
	return all
}

func TestUDPFragmentsBothWays(t *testing.T) {
	for _, size := range []int{2000, 9000, 65000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			family(t, func(t *testing.T, r *rig) {
				host, peer := r.udpServer()
				b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(text(size)), 0)
				pieces := fragmentsOf(t, b, 7, 1500)
				slices.Reverse(pieces)
				for _, p := range pieces {
					r.g.SendFrame(p)
				}
				from := r.readsDatagram(host, text(size))
				answer := text(size)[1:]
				r.answer(host, from, answer)
				whole := packet.NewReassembler(1<<20, 0)
				for {
					p := r.g.Receive()
					if !p.IP.IsFragment() {
						t.Fatalf("got %v, want fragments", p)
					}
					got, err := whole.Add(0, &p.IP)
					if err != nil {
						t.Fatal(err)
					}
					if got == nil {
						continue
					}
					var ip packet.IP
					var h packet.UDPHeader
					if packet.ParseIP(got, &ip) != nil || packet.ParseUDP(ip.Payload, &h) != nil || string(h.Payload) != answer ||
						packet.TransportChecksum(ip.Src, ip.Dst, packet.UDP, ip.Payload) != 0 {
						t.Error("another datagram reassembled from the fragments")
					}
					return
				}
			})
		})
	}
}

func TestIncompleteFragmentsExpire(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		_, peer := r.udpServer()
		b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(text(3000)), 0)
		r.g.SendFrame(fragmentsOf(t, b, 7, 1500)[0])
		r.g.Silent()
		r.advance(31 * time.Second)
		r.g.Await(guesttest.Unreachable(packet.ErrorReassembly, r.guest, r.peer))
		r.do(func() {
			if r.s.udp.reassembler.Pending() != 0 || r.s.udp.expireTimer.deadline != 0 {
				t.Errorf("%d incomplete, timer at %d", r.s.udp.reassembler.Pending(), r.s.udp.expireTimer.deadline)
			}
		})
	})
}

func TestUDPPortUnreachable(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		host.Close()
		for range 3 { // an error does not affect later datagrams
			r.sendDatagram(5000, peer, "hello")
			p := r.g.Await(guesttest.Unreachable(packet.ErrorPort, r.guest, r.peer))
			var h packet.UDPHeader
			if err := packet.ParseUDP(p.ICMP.Original.Payload, &h); err != nil {
				t.Fatal(err)
			}
			if p.IP.Src != r.peer || h.SrcPort != 5000 || h.DstPort != peer.Port() || string(h.Payload) != "hello" {
				t.Errorf("error from %s about port %d > %d, %q", p.IP.Src, h.SrcPort, h.DstPort, h.Payload)
			}
		}
	})
}

func TestUDPErrorDoesNotStopOtherFlows(t *testing.T) {
	r := newRig(t)
	gone, gonePeer := r.udpServer()
	gone.Close()
	host, peer := r.udpServer()
	for i := range 50 {
		r.sendDatagram(5000, gonePeer, "hello")
		r.sendDatagram(5000, peer, fmt.Sprint(i))
		r.readsDatagram(host, fmt.Sprint(i))
	}
}

func TestUDPToNonUnicast(t *testing.T) {
	r := newRig(t)
	for _, to := range []string{"224.0.0.251:5353", "255.255.255.255:9", "0.0.0.0:9"} {
		r.sendDatagram(5000, netip.MustParseAddrPort(to), "anyone?")
	}
	r.g.Silent()
	if s := r.stack.Stats(); s.Unsupported != 3 || s.UDPFlows != 0 {
		t.Errorf("%+v", s)
	}
}

func TestUDPManyErrorReports(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = allowAll })
	gone := r.udpSocketOn(loopback4)
	to := netip.AddrPortFrom(loopback4, localPort(gone))
	gone.Close()
	const count = 3 * maxErrorReports
	var k *udpSocket
	r.sendDatagram(5000, to, "hello")
	r.g.Await(guesttest.Unreachable(packet.ErrorPort, r.guest, to.Addr()))
	r.do(func() {
		for _, k = range r.s.udp.sockets {
		}
		for range count { // without the loop, so that all reports wait at once
			for unix.Sendto(k.fd, []byte("hello"), 0, sockaddr(to)) != nil {
			}
		}
	})
	for range count {
		r.g.Await(guesttest.Unreachable(packet.ErrorPort, r.guest, to.Addr()))
	}
}
