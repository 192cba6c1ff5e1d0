package usernet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// datagramFrame returns a datagram as the guest's kernel writes it, or a super-packet of
// datagrams of segment bytes if segment is not 0.
func datagramFrame(from, to netip.AddrPort, payload []byte, segment int) []byte {
	ip := packet.IPBytes(from.Addr())
	b := make([]byte, packet.VNetHdrBytes+ip+packet.UDPBytes+len(payload))
	pkt := b[packet.VNetHdrBytes:]
	packet.PutIP(pkt, from.Addr(), to.Addr(), packet.UDP, 0, packet.UDPBytes+len(payload))
	packet.PutUDP(pkt[ip:], from.Port(), to.Port(), len(payload))
	copy(pkt[ip+packet.UDPBytes:], payload)
	putVNetHdr(b, from.Addr(), to.Addr(), packet.UDP, packet.UDPBytes, len(payload), segment)
	return b
}

// sendDatagram sends a datagram from the guest's port.
func (r *rig) sendDatagram(port uint16, to netip.AddrPort, payload string) {
	r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, port), to, []byte(payload), 0))
}

// udpSocketOn returns a host socket on an address. Its reads have a deadline.
func (r *rig) udpSocketOn(a netip.Addr) *net.UDPConn {
	r.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	_ = c.SetReadBuffer(2 << 20) // some tests send much before they read
	return c
}

// udpServer returns a host socket on the loopback, and its address as the guest sees it.
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

// readsDatagram fails the test unless the host's socket reads exactly this datagram next.
// It returns the sender.
func (r *rig) readsDatagram(c *net.UDPConn, want string) netip.AddrPort {
	r.Helper()
	buf := make([]byte, 1<<16)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != want {
		r.Fatalf("the host reads %q (%v), want %q", shortened(string(buf[:n])), err, shortened(want))
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

// datagrams returns the datagrams that a packet stands for.
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

// gets waits for datagrams from a peer, which may come in super-packets.
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

// udpFlows returns the datagram flows.
func (r *rig) udpFlows() (n int) {
	r.Helper()
	r.do(func() { n = len(r.s.udp.flows) })
	return n
}

func TestUDPBothWays(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		host, peer := r.udpServer()
		for i, question := range []string{"a question", "", text(1400), "another"} {
			r.sendDatagram(5000, peer, question)
			from := r.readsDatagram(host, question)
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

func TestUDPOnlyContactedPeersGetIn(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	stranger, _ := r.udpServer()
	r.sendDatagram(5000, peer, "hello")
	from := r.readsDatagram(host, "hello")
	r.answer(stranger, from, "let me in")
	r.answer(host, from, "first")
	r.answer(stranger, from, "please")
	r.answer(host, from, "second")
	r.gets(peer, 5000, "first", "second")
	r.g.Silent()
}

func TestUDPManyPeersOneDescriptor(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = allowAll })
	host := r.udpSocketOn(netip.IPv4Unspecified())
	before := guesttest.Descriptors(t)
	const peers = 1000
	var from netip.AddrPort
	for i := range peers {
		peer := netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})
		r.sendDatagram(5000, netip.AddrPortFrom(peer, localPort(host)), "hello")
		at := r.readsDatagram(host, "hello")
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
			r.sendDatagram(5000, peer, "hello")
			from := r.readsDatagram(host, "hello")
			if tt.answer {
				r.answer(host, from, "yes")
				r.gets(peer, 5000, "yes")
			}
			r.advance(tt.lives - time.Second)
			if n := r.udpFlows(); n != 1 {
				t.Fatalf("%d flows a second before the end", n)
			}
			r.advance(2 * time.Second)
			r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 })
			if n := guesttest.Descriptors(t) - before; n != 1 { // the server's
				t.Errorf("%d descriptors, want the server's only", n)
			}
			r.sendDatagram(5000, peer, "again")
			r.readsDatagram(host, "again")
		})
	}
}

func TestUDPTrafficRestartsTimeout(t *testing.T) {
	r := newRig(t)
	host, peer := r.udpServer()
	for range 5 {
		r.sendDatagram(5000, peer, "hello")
		r.readsDatagram(host, "hello")
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
			r.sendDatagram(5000, to, "hello")
			r.g.Only(guesttest.Unreachable(packet.ErrorProhibited, r.guest, r.peer))
		}
		r.do(func() {
			if judged != 1 || r.s.stats.Refused != 1 {
				t.Errorf("judged %d times, %d counted; want once", judged, r.s.stats.Refused)
			}
		})
		r.advance(refusedFor + time.Second)
		r.until("the refusal was forgotten", func() bool { return len(r.s.udp.flows) == 0 })
		r.do(func() { verdict = Verdict{Action: Drop} })
		r.sendDatagram(5000, to, "hello")
		r.g.Silent()
	})
}

func TestUDPRedirectedFlowsOfOnePort(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Policy = nil })
	host, _ := r.udpServer()
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict {
			return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback4, localPort(host))}
		})
	})
	for i := range 3 {
		peer := netip.AddrPortFrom(r.peer, uint16(100+i))
		r.sendDatagram(5000, peer, fmt.Sprint(i))
		from := r.readsDatagram(host, fmt.Sprint(i))
		r.answer(host, from, fmt.Sprint("to ", i))
		r.gets(peer, 5000, fmt.Sprint("to ", i))
	}
}

func TestUDPRedirectToOtherFamily(t *testing.T) {
	needIPv6(t)
	r := newRig(t, func(c *Config) { c.Policy = nil })
	host := r.udpSocketOn(loopback6)
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict {
			return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback6, localPort(host))}
		})
	})
	peer := netip.AddrPortFrom(r.peer, 53)
	r.sendDatagram(5000, peer, "hello")
	r.answer(host, r.readsDatagram(host, "hello"), "yes")
	r.gets(peer, 5000, "yes")
}

func TestUDPFlowsAreLimited(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Flows = 4 })
	host, peer := r.udpServer()
	for i := range 4 {
		r.sendDatagram(uint16(5000+i), peer, "hello")
		r.readsDatagram(host, "hello")
	}
	r.sendDatagram(6000, peer, "one too many")
	r.g.Only(guesttest.Unreachable(packet.ErrorHost, r.guest, r.peer))
	r.sendDatagram(5000, peer, "an old one")
	r.readsDatagram(host, "an old one")
	if s := r.stack.Stats(); s.OverLimit != 1 || s.Open != 4 {
		t.Errorf("%+v", s)
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
	r.sendDatagram(5000, peer, "hello")
	p := r.g.Receive()
	r.do(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	if wrong := guesttest.Unreachable(packet.ErrorHost, r.guest, r.peer)(p); wrong != "" {
		t.Errorf("got %v: %s", p, wrong)
	}
	if s := r.stack.Stats(); s.OverLimit != 1 {
		t.Errorf("%d over the limit, want 1", s.OverLimit)
	}
	r.advance(2 * time.Second)
	r.sendDatagram(5000, peer, "again")
	r.readsDatagram(host, "again")
}
