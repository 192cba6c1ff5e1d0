package usernet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// datagramFrame is a datagram as the guest's kernel writes it; a super-packet of
// datagrams of segment bytes unless that is 0.
func datagramFrame(from, to netip.AddrPort, payload []byte, segment int) []byte {
	ip := packet.IPBytes(from.Addr())
	b := make([]byte, packet.VNetHdrBytes+ip+packet.UDPBytes+len(payload))
	pkt := b[packet.VNetHdrBytes:]
	packet.PutIP(pkt, from.Addr(), to.Addr(), packet.UDP, 0, packet.UDPBytes+len(payload))
	packet.PutUDP(pkt[ip:], from.Port(), to.Port(), len(payload))
	copy(pkt[ip+packet.UDPBytes:], payload)
	seal(b, from.Addr(), to.Addr(), packet.UDP, packet.UDPBytes, segment)
	return b
}

// say sends a datagram from the guest's port.
func (r *rig) say(port uint16, to netip.AddrPort, payload string) {
	r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, port), to, []byte(payload), 0))
}

// udpSocketOn is a host socket on an address; its reads have a deadline.
func (r *rig) udpSocketOn(a netip.Addr) *net.UDPConn {
	r.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	_ = c.SetReadBuffer(2 << 20) // much is sent before it is read
	return c
}

// udpServer is a host socket on the loopback, and what the guest calls it.
func (r *rig) udpServer() (*net.UDPConn, netip.AddrPort) {
	r.Helper()
	at := loopback4
	if r.peer.Is6() {
		at = loopback6
	}
	c := r.udpSocketOn(at)
	return c, netip.AddrPortFrom(r.peer, localPort(c))
}

func localPort(c *net.UDPConn) uint16 { return c.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// hears fails the test unless the host's socket gets exactly this datagram next,
// and returns its sender.
func (r *rig) hears(c *net.UDPConn, want string) netip.AddrPort {
	r.Helper()
	buf := make([]byte, 1<<16)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != want {
		r.Fatalf("the host hears %q (%v), want %q", shortened(string(buf[:n])), err, shortened(want))
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

func shortened(s string) string { return s[:min(len(s), 40)] }

func (r *rig) answer(c *net.UDPConn, to netip.AddrPort, payload string) {
	r.Helper()
	if _, err := c.WriteToUDPAddrPort([]byte(payload), to); err != nil {
		r.Fatal(err)
	}
}

// datagrams are those that a packet stands for.
func (r *rig) datagrams(p *guesttest.Packet) []string {
	r.Helper()
	var h packet.UDPHeader
	if err := packet.ParseUDP(p.IP.Payload, &h); err != nil {
		r.Fatal(err)
	}
	if p.VNet.GSOType == packet.GSONone {
		return []string{string(h.Payload)}
	}
	if p.VNet.GSOType != packet.GSOUDP || int(p.VNet.HeaderBytes) != p.IP.HeaderBytes+packet.UDPBytes || int(p.VNet.GSOSize) >= len(h.Payload) {
		r.Fatalf("super-packet of %d bytes with virtio header %+v", len(h.Payload), p.VNet)
	}
	var all []string
	for piece := range slices.Chunk(h.Payload, int(p.VNet.GSOSize)) {
		all = append(all, string(piece))
	}
	return all
}

// isUDP matches datagrams between two ends.
func isUDP(from, to netip.AddrPort) guesttest.Matcher {
	return func(p *guesttest.Packet) string {
		var h packet.UDPHeader
		if p.IP.Protocol != packet.UDP || packet.ParseUDP(p.IP.Payload, &h) != nil {
			return "want UDP"
		}
		if a, b := netip.AddrPortFrom(p.IP.Src, h.SrcPort), netip.AddrPortFrom(p.IP.Dst, h.DstPort); a != from || b != to {
			return fmt.Sprintf("is from %s to %s, want %s to %s", a, b, from, to)
		}
		return ""
	}
}

// gets waits for datagrams from a peer, which may come as super-packets.
func (r *rig) gets(from netip.AddrPort, port uint16, want ...string) {
	r.Helper()
	var got []string
	for len(got) < len(want) {
		got = append(got, r.datagrams(r.g.Await(isUDP(from, netip.AddrPortFrom(r.guest, port))))...)
	}
	if !slices.Equal(got, want) {
		r.Fatalf("the guest gets %d datagrams, the first %q; want %d, the first %q", len(got), shortened(got[0]), len(want), shortened(want[0]))
	}
}

// udpFlows are the flows of datagrams.
func (r *rig) udpFlows() (n int) {
	r.Helper()
	r.do(func() { n = r.s.udp.open() })
	return n
}

func TestUDPThroughAndBack(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		for i, question := range []string{"a question", "", text(1400), "another"} {
			r.say(5000, peer, question)
			from := r.hears(host, question)
			answer := fmt.Sprint("answer ", i)
			r.answer(host, from, answer)
			r.gets(peer, 5000, answer)
		}
		r.do(func() {
			all := r.s.udp.describe(nil)
			if len(all) != 1 || all[0].State != "established" || all[0].OutBytes != 1417 || all[0].InBytes != 32 || all[0].Host.Port() != peer.Port() {
				r.Errorf("described as %+v", all)
			}
		})
	})
}

func TestUDPRunsKeepTheirOrder(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		other, otherPeer := r.udpServer()
		var want, wantOther []string
		for i := range 200 {
			size := 500
			switch i % 17 {
			case 5:
				size = 20 // ends a run
			case 9:
				size = 900
			case 11:
				size = 0
			}
			d := fmt.Sprintf("%03d", i) + text(size)
			if size == 0 {
				d = ""
			}
			r.say(5000, peer, d)
			want = append(want, d)
			if i%5 == 0 {
				r.say(5001, otherPeer, d)
				wantOther = append(wantOther, d)
			}
		}
		var from netip.AddrPort
		for _, d := range want {
			from = r.hears(host, d)
		}
		for _, d := range wantOther {
			if at := r.hears(other, d); at == from {
				t.Fatal("two ports of the guest's share one of the host's")
			}
		}
	})
}

func TestUDPSuperPacketIsCutByTheHost(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		payload := text(1000*7 + 300)
		r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(payload), 1000))
		for piece := range slices.Chunk([]byte(payload), 1000) {
			r.hears(host, string(piece))
		}
	})
}

func TestUDPSuperPacketThatTheHostRefusesIsCutHere(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	// More datagrams than any kernel cuts at a time (UDP_MAX_SEGMENTS is 64 or 128).
	payload := text(10 * 150)
	r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(payload), 10))
	for piece := range slices.Chunk([]byte(payload), 10) {
		r.hears(host, string(piece))
	}
}

func TestUDPDatagramsBecomeSuperPackets(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		r.say(5000, peer, "hello")
		to := sys.MakeAddress(r.hears(host, "hello"), false)
		raw, err := host.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		out := sys.NewOutbox(1, 1)
		out.Begin(&to)
		payload := text(1200*20 + 17)
		out.Append([]byte(payload))
		out.SetSegment(1200)
		if err := raw.Control(func(fd uintptr) {
			if _, errno := out.SendNow(int(fd), 0); errno != 0 {
				t.Skip("UDP_SEGMENT: ", errno)
			}
		}); err != nil {
			t.Fatal(err)
		}
		p := r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000)))
		if p.VNet.GSOSize != 1200 {
			t.Errorf("came in datagrams of %d, want a super-packet of such of 1200", p.VNet.GSOSize)
		}
		var got, want []string
		for got = r.datagrams(p); len(got) < 21; {
			got = append(got, r.datagrams(r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000))))...)
		}
		for piece := range slices.Chunk([]byte(payload), 1200) {
			want = append(want, string(piece))
		}
		if !slices.Equal(got, want) {
			t.Error("the datagrams changed")
		}
	})
}

func TestUDPNeighboursAreJoined(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	r.say(5000, peer, "hello")
	from := r.hears(host, "hello")
	var want []string
	r.do(func() { // while the loop waits for us, all of them arrive
		for i := range 40 {
			d := fmt.Sprintf("%02d", i) + text(700)
			if i == 20 {
				d = d[:300]
			}
			want = append(want, d)
			r.answer(host, from, d)
		}
	})
	var got []string
	frames := 0
	for ; len(got) < len(want); frames++ {
		got = append(got, r.datagrams(r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000))))...)
	}
	if !slices.Equal(got, want) {
		t.Fatal("the datagrams changed")
	}
	if frames > 3 { // a batch of 32, of which one ends a run, and the rest
		t.Errorf("40 datagrams came in %d frames, want 3", frames)
	}
}

func TestUDPKernelWithoutSuperPackets(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	r.say(5000, peer, "hello")
	from := r.hears(host, "hello")
	r.do(func() {
		r.s.udp.noUSO = true
		for range 5 {
			r.answer(host, from, text(100))
		}
	})
	for range 5 {
		p := r.g.Await(isUDP(peer, netip.AddrPortFrom(r.guest, 5000)))
		if p.VNet.GSOType != packet.GSONone || r.datagrams(p)[0] != text(100) {
			t.Fatalf("got %v with %+v", p, p.VNet)
		}
	}
}

func TestUDPOnlyContactedPeersGetIn(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	stranger, _ := r.udpServer()
	r.say(5000, peer, "hello")
	from := r.hears(host, "hello")
	r.answer(stranger, from, "let me in")
	r.answer(host, from, "first")
	r.answer(stranger, from, "please")
	r.answer(host, from, "second")
	r.gets(peer, 5000, "first", "second")
	r.g.Silent()
}

func TestUDPManyPeersOneDescriptor(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = AllowAll{} })
	host := r.udpSocketOn(netip.IPv4Unspecified())
	before := guesttest.Descriptors(t)
	const peers = 1000
	var from netip.AddrPort
	for i := range peers {
		peer := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		r.say(5000, netip.AddrPortFrom(peer, localPort(host)), "hello")
		at := r.hears(host, "hello")
		if from.IsValid() && at.Port() != from.Port() {
			t.Fatalf("peer %d sees port %d, the first saw %d: the mapping depends on the peer", i, at.Port(), from.Port())
		}
		from = at
	}
	if n := guesttest.Descriptors(t) - before; n != 1 {
		t.Errorf("%d descriptors for %d peers, want 1", n, peers)
	}
	if n := r.udpFlows(); n != peers {
		t.Errorf("%d flows, want %d", n, peers)
	}
}

func TestUDPTimeouts(t *testing.T) {
	tests := []struct {
		name    string
		verdict time.Duration
		answer  bool
		lives   time.Duration
	}{
		{"unanswered", 0, false, 30 * time.Second},
		{"answered", 0, true, 120 * time.Second},
		{"by verdict", 7 * time.Second, true, 7 * time.Second},
		{"by verdict, unanswered", 70 * time.Second, false, 70 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				c.Policy = judgeFunc(func(f Flow) Verdict {
					v := toLoopback(f)
					v.Idle = tt.verdict
					return v
				})
			})
			before := guesttest.Descriptors(t)
			host, peer := r.udpServer()
			r.say(5000, peer, "hello")
			from := r.hears(host, "hello")
			if tt.answer {
				r.answer(host, from, "yes")
				r.gets(peer, 5000, "yes")
			}
			r.advance(tt.lives - time.Second)
			if n := r.udpFlows(); n != 1 {
				t.Fatalf("%d flows a second before the end", n)
			}
			r.advance(2 * time.Second)
			r.until("the flow has ended", func() bool { return r.s.udp.open() == 0 })
			if n := guesttest.Descriptors(t) - before; n != 1 { // the server's
				t.Errorf("%d descriptors, want the server's only", n)
			}
			r.say(5000, peer, "again")
			r.hears(host, "again")
		})
	}
}

func TestUDPTrafficPutsTheEndOff(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	for range 5 {
		r.say(5000, peer, "hello")
		r.hears(host, "hello")
		r.advance(20 * time.Second)
	}
	if n := r.udpFlows(); n != 1 {
		t.Errorf("%d flows, want 1", n)
	}
}

func TestUDPRefused(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		judged := 0
		verdict := Verdict{Action: Refuse}
		r.do(func() {
			r.s.cfg.Policy = judgeFunc(func(Flow) Verdict { judged++; return verdict })
		})
		to := netip.AddrPortFrom(r.peer, 9)
		for range 3 {
			r.say(5000, to, "hello")
			r.g.Only(guesttest.Unreachable(packet.ErrorProhibited, r.guest, r.peer))
		}
		r.do(func() {
			if judged != 1 || r.s.stats.Refused != 1 {
				t.Errorf("judged %d times, %d counted; want once", judged, r.s.stats.Refused)
			}
		})
		r.advance(refusedFor + time.Second)
		r.until("the refusal is forgotten", func() bool { return r.s.udp.open() == 0 })
		r.do(func() { verdict = Verdict{Action: Drop} })
		r.say(5000, to, "hello")
		r.g.Silent()
	})
}

func TestUDPRedirectedFlowsOfOnePortStayApart(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = nil })
	host, _ := r.udpServer()
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict {
			return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback4, localPort(host))}
		})
	})
	for i := range 3 {
		peer := netip.AddrPortFrom(r.peer, uint16(100+i))
		r.say(5000, peer, fmt.Sprint(i))
		from := r.hears(host, fmt.Sprint(i))
		r.answer(host, from, fmt.Sprint("to ", i))
		r.gets(peer, 5000, fmt.Sprint("to ", i))
	}
}

func TestUDPRedirectToTheOtherFamily(t *testing.T) {
	needIPv6(t)
	r := newRig(t, func(c *Config) { c.Policy = nil })
	host := r.udpSocketOn(loopback6)
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict {
			return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback6, localPort(host))}
		})
	})
	peer := netip.AddrPortFrom(r.peer, 53)
	r.say(5000, peer, "hello")
	r.answer(host, r.hears(host, "hello"), "yes")
	r.gets(peer, 5000, "yes")
}

func TestUDPPortUnreachable(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		host.Close()
		for range 3 { // an error does not hinder what follows
			r.say(5000, peer, "hello")
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

func TestUDPErrorsOfOthersDoNotHinder(t *testing.T) {
	r := newRig(t)
	gone, gonePeer := r.udpServer()
	gone.Close()
	host, peer := r.udpServer()
	for i := range 50 {
		r.say(5000, gonePeer, "hello")
		r.say(5000, peer, fmt.Sprint(i))
		r.hears(host, fmt.Sprint(i))
	}
}

func TestUDPToWhatIsNoHost(t *testing.T) {
	r := newRig(t)
	for _, to := range []string{"224.0.0.251:5353", "255.255.255.255:67", "0.0.0.0:9"} {
		r.say(5000, netip.MustParseAddrPort(to), "anyone?")
	}
	r.g.Silent()
	if s := r.s.Stats(); s.Unsupported != 3 || s.UDPFlows != 0 {
		t.Errorf("%+v", s)
	}
}

func TestUDPFlowsAreLimited(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Flows = 4 })
	host, peer := r.udpServer()
	for i := range 4 {
		r.say(uint16(5000+i), peer, "hello")
		r.hears(host, "hello")
	}
	r.say(6000, peer, "one too many")
	r.g.Only(guesttest.Unreachable(packet.ErrorHost, r.guest, r.peer))
	r.say(5000, peer, "an old one")
	r.hears(host, "an old one")
	if s := r.s.Stats(); s.OverLimit != 1 || s.Open != 4 {
		t.Errorf("%+v", s)
	}
}

func TestUDPHopLimitAndTrafficClass(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = AllowAll{} })
	host := r.udpSocketOn(loopback4)
	raw, err := host.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	})
	to := netip.AddrPortFrom(loopback4, localPort(host))
	tests := []struct {
		name     string
		ttl, tos uint8
		wantTTL  uint8
	}{
		{"default", 64, 0, 64},
		{"a second hop", 2, 0, 1},
		{"with class and ECN", 2, 0xb9, 1},
		{"another system's default", 128, 0, 127},
		{"default again", 64, 0x02, 64},
	}
	var from netip.AddrPort
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), to, []byte("hello"), 0)
			ip := packet.IP{Src: r.guest, Dst: to.Addr(), Protocol: packet.UDP, TTL: tt.ttl, TOS: tt.tos, DontFragment: true}
			ip.Put(b[packet.VNetHdrBytes:], packet.UDPBytes+5)
			r.g.SendFrame(b)
			oob := make([]byte, 128)
			_, n, _, at, err := host.ReadMsgUDPAddrPort(make([]byte, 100), oob)
			if err != nil {
				t.Fatal(err)
			}
			from = at
			cmsgs, err := unix.ParseSocketControlMessage(oob[:n])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cmsgs {
				switch c.Header.Type {
				case unix.IP_TTL:
					if ttl := binary.NativeEndian.Uint32(c.Data); ttl != uint32(tt.wantTTL) {
						t.Errorf("TTL %d, want %d", ttl, tt.wantTTL)
					}
				case unix.IP_TOS:
					if c.Data[0] != tt.tos {
						t.Errorf("TOS %#x, want %#x", c.Data[0], tt.tos)
					}
				}
			}
		})
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, 0xba) })
	r.answer(host, from, "back")
	if p := r.g.Await(isUDP(to, netip.AddrPortFrom(r.guest, 5000))); p.IP.TOS != 0xba {
		t.Errorf("TOS %#x on the way back, want 0xba", p.IP.TOS)
	}
}

func TestUDPHopLimitEndsAtTheGateway(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = AllowAll{} })
	to := netip.AddrPortFrom(loopback4, 33434)
	b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), to, []byte("hello"), 0)
	ip := packet.IP{Src: r.guest, Dst: to.Addr(), Protocol: packet.UDP, TTL: 1, DontFragment: true}
	ip.Put(b[packet.VNetHdrBytes:], packet.UDPBytes+5)
	r.g.SendFrame(b)
	if p := r.g.Only(guesttest.Unreachable(packet.ErrorTTL, r.guest, loopback4)); p.IP.Src != rigGateway4 {
		t.Errorf("time exceeded from %s, want the gateway", p.IP.Src)
	}
}

// fragmentsOf cuts the packet of a frame, whose checksum it completes.
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
				from := r.hears(host, text(size))
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
						t.Error("the fragments make another datagram")
					}
					return
				}
			})
		})
	}
}

func TestFragmentsThatStayAway(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		_, peer := r.udpServer()
		b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(text(3000)), 0)
		r.g.SendFrame(fragmentsOf(t, b, 7, 1500)[0])
		r.g.Silent()
		r.advance(31 * time.Second)
		r.g.Await(guesttest.Unreachable(packet.ErrorReassembly, r.guest, r.peer))
		r.do(func() {
			if r.s.udp.pieces.Pending() != 0 || r.s.udp.expire.due != 0 {
				t.Errorf("%d unfinished, timer at %d", r.s.udp.pieces.Pending(), r.s.udp.expire.due)
			}
		})
	})
}

func TestUDPFullSocketWaits(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.BufferBytes = 64 << 20 })
	host, peer := r.udpServer()
	r.say(5000, peer, "first")
	r.hears(host, "first")
	var k *udpSocket
	r.do(func() {
		for _, k = range r.s.udp.sockets {
			k.full = true
		}
	})
	for i := range maxStalled + 10 {
		r.say(5000, peer, fmt.Sprint(i))
	}
	r.fence()
	r.do(func() {
		if n := r.s.stats.OverLimit; n != 10 || len(k.queue) != maxStalled {
			t.Errorf("%d dropped, %d wait; want 10 and %d", n, len(k.queue), maxStalled)
		}
		k.wait() // the kernel says at once that there is room
	})
	for i := range maxStalled {
		r.hears(host, fmt.Sprint(i))
	}
	r.do(func() {
		if r.s.large.used != 1 {
			t.Errorf("%d buffers in use", r.s.large.used)
		}
	})
}

// rounds runs a Stack by hand on the test's own goroutine.
func rounds(t *testing.T, change ...func(*Config)) (r *rig, round func()) {
	t.Helper()
	r = newStack(t, change...)
	if _, err := r.s.loop.add(r.s.dev.fd, unix.EPOLLIN|edge, &r.s.dev); err != nil {
		t.Fatal(err)
	}
	r.s.ctx = t.Context()
	r.Cleanup(func() { r.s.running = true; r.s.end() })
	return r, func() {
		r.s.dev.readable = true // so that it does not wait
		if err := r.s.round(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUDPAllocatesNothing(t *testing.T) {
	tests := []struct {
		name  string
		frame func(from, to netip.AddrPort) []byte
		count int
	}{
		{"datagrams", func(from, to netip.AddrPort) []byte { return datagramFrame(from, to, []byte(text(1400)), 0) }, 32},
		{"super-packets", func(from, to netip.AddrPort) []byte { return datagramFrame(from, to, []byte(text(1400*20)), 1400) }, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, round := rounds(t)
			host, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(host)
			_ = unix.SetsockoptInt(host, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
			if err := unix.Bind(host, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
			sa, err := unix.Getsockname(host)
			if err != nil {
				t.Fatal(err)
			}
			from := netip.AddrPortFrom(r.guest, 5000)
			peer := netip.AddrPortFrom(r.peer, addrPort(sa).Port())
			frame := tt.frame(from, peer)
			bufs := make([][]byte, 64)
			for i := range bufs {
				bufs[i] = make([]byte, 2048)
			}
			in, out := sys.NewInbox(bufs), sys.NewOutbox(64, 64)
			answers := 0
			exchange := func() {
				for range tt.count {
					r.g.SendFrame(frame)
				}
				for range 4 {
					round()
				}
				n, _ := in.RecvNow(host)
				out.Reset()
				for i := range n {
					to := in.From(i)
					out.Begin(&to)
					out.Append(in.Data(i))
				}
				if n > 0 {
					out.SendNow(host, 0)
				}
				for range 4 {
					round()
				}
				answers += r.g.Discard()
			}
			if n := testing.AllocsPerRun(20, exchange); n != 0 {
				t.Errorf("%v allocations for an exchange of %d frames, want 0", n, tt.count)
			}
			if answers < 21 {
				t.Errorf("%d answers came in 21 exchanges", answers)
			}
		})
	}
}

func BenchmarkUDPOutbound(b *testing.B) {
	for _, size := range []int{64, 1400} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			// A Stack by itself: reading the device and sending, no guest's kernel.
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Close(pair[0])
			_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
			s, err := New(Config{TUN: os.NewFile(uintptr(pair[1]), "device"), MTU: 1500, Guest4: rigGuest4, Gateway4: rigGateway4, Policy: AllowAll{}})
			if err != nil {
				b.Fatal(err)
			}
			s.ctx = b.Context()
			if _, err := s.loop.add(s.dev.fd, unix.EPOLLIN|edge, &s.dev); err != nil {
				b.Fatal(err)
			}
			defer func() { s.running = true; s.end() }()
			sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			frame := datagramFrame(netip.AddrPortFrom(rigGuest4, 5000), netip.AddrPortFrom(loopback4, localPort(sink)), make([]byte, size), 0)
			b.SetBytes(int64(size * 64))
			b.ReportAllocs()
			for b.Loop() {
				for range 64 {
					_, _ = unix.Write(pair[0], frame)
				}
				s.dev.readable = true
				for s.dev.readable {
					if err := s.round(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func TestUDPWithoutDescriptors(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 3
	r.do(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Error(err)
		}
	})
	r.say(5000, peer, "hello")
	p := r.g.Receive()
	r.do(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	if wrong := guesttest.Unreachable(packet.ErrorHost, r.guest, r.peer)(p); wrong != "" {
		t.Errorf("got %v: %s", p, wrong)
	}
	if s := r.s.Stats(); s.OverLimit != 1 {
		t.Errorf("%d over the limit, want 1", s.OverLimit)
	}
	r.advance(2 * time.Second)
	r.say(5000, peer, "again")
	r.hears(host, "again")
}

func TestUDPManyErrorReports(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = AllowAll{} })
	gone := r.udpSocketOn(loopback4)
	to := netip.AddrPortFrom(loopback4, localPort(gone))
	gone.Close()
	const count = 3 * maxReports
	var k *udpSocket
	r.say(5000, to, "hello")
	r.g.Await(guesttest.Unreachable(packet.ErrorPort, r.guest, to.Addr()))
	r.do(func() {
		for _, k = range r.s.udp.sockets {
		}
		for range count { // behind the loop's back, so that all reports wait at once
			for unix.Sendto(k.fd, []byte("hello"), 0, sockaddr(to)) != nil {
			}
		}
	})
	for range count {
		r.g.Await(guesttest.Unreachable(packet.ErrorPort, r.guest, to.Addr()))
	}
}
