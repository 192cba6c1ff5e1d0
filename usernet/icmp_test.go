package usernet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// echoFrame returns an echo request as the guest's kernel writes it.
func echoFrame(from, to netip.Addr, id, seq uint16, payload []byte) []byte {
	proto, ip := packet.ICMP, packet.IPBytes(from)
	if from.Is6() {
		proto = packet.ICMPv6
	}
	b := make([]byte, packet.VNetHdrBytes+ip+packet.ICMPBytes+len(payload))
	pkt := b[packet.VNetHdrBytes:]
	packet.PutIP(pkt, from, to, proto, 0, packet.ICMPBytes+len(payload))
	packet.PutEcho(pkt[ip:], proto, &packet.Echo{Request: true, ID: id, Seq: seq})
	copy(pkt[ip+packet.ICMPBytes:], payload)
	packet.PutICMPChecksum(pkt[ip:], from, to)
	return b
}

// isReply matches an echo reply.
func isReply(from, to netip.Addr, id, seq uint16, payload string) guesttest.Matcher {
	return func(p *guesttest.Packet) string {
		var e packet.Echo
		switch {
		case packet.ParseEcho(p.IP.Protocol, p.IP.Payload, &e) != nil || e.Request:
			return "want an echo reply"
		case p.IP.Src != from || p.IP.Dst != to:
			return fmt.Sprintf("want it from %s to %s", from, to)
		case e.ID != id || e.Seq != seq || string(e.Payload) != payload:
			return fmt.Sprintf("has id %d, seq %d and %d bytes, want %d, %d, %d", e.ID, e.Seq, len(e.Payload), id, seq, len(payload))
		}
		return ""
	}
}

func TestGatewayAnswersPings(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		gateway := r.s.gatewayFor(r.guest)
		for seq, size := range []int{0, 56, 1400} {
			r.g.SendFrame(echoFrame(r.guest, gateway, 77, uint16(seq), []byte(text(size))))
			r.g.Only(isReply(gateway, r.guest, 77, uint16(seq), text(size)))
		}
		if s := r.stack.Stats(); s.ICMPFlows != 0 {
			t.Errorf("%d flows", s.ICMPFlows)
		}
	})
}

func TestGatewayAnswersLongPingsInFragments(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		gateway := r.s.gatewayFor(r.guest)
		for _, p := range fragmentsOf(t, echoFrame(r.guest, gateway, 77, 1, []byte(text(5000))), 3, 1500) {
			r.g.SendFrame(p)
		}
		whole := packet.NewReassembler(1<<20, 0)
		for {
			p := r.g.Receive()
			got, err := whole.Add(0, &p.IP)
			if err != nil {
				t.Fatal(err)
			}
			if got == nil {
				continue
			}
			var ip packet.IP
			var e packet.Echo
			if packet.ParseIP(got, &ip) != nil || packet.ParseEcho(ip.Protocol, ip.Payload, &e) != nil || !bytes.Equal(e.Payload, []byte(text(5000))) || !checksumOK(&ip) {
				t.Error("no reply reassembled from the fragments")
			}
			return
		}
	})
}

// pingAllowed reports whether the host allows us ping sockets.
func pingAllowed(a netip.Addr) bool {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if a.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

func TestPing(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		if !pingAllowed(r.guest) {
			t.Skip("net.ipv4.ping_group_range allows no ping sockets here")
		}
		for _, id := range []uint16{77, 78} {
			for seq := range uint16(3) {
				r.g.SendFrame(echoFrame(r.guest, r.peer, id, seq, []byte("ahoy")))
				r.g.Await(isReply(r.peer, r.guest, id, seq, "ahoy"))
			}
		}
		r.do(func() {
			if n, s := len(r.s.udp.flows), len(r.s.udp.sockets); n != 2 || s != 2 || r.s.stats.ICMPFlows != 2 {
				t.Errorf("%d flows, %d sockets", n, s)
			}
		})
		r.advance(121 * time.Second)
		r.until("the flows have ended", func() bool { return len(r.s.udp.flows) == 0 })
	})
}

func TestPingForbiddenByHost(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		if pingAllowed(r.guest) {
			t.Skip("net.ipv4.ping_group_range allows ping sockets here")
		}
		for seq := range uint16(3) {
			r.g.SendFrame(echoFrame(r.guest, r.peer, 77, seq, []byte("ahoy")))
			r.g.Only(guesttest.Unreachable(packet.ErrorProhibited, r.guest, r.peer))
		}
	})
}

func TestICMPIgnored(t *testing.T) {
	r := newRig(t)
	unreachable := make([]byte, packet.VNetHdrBytes+packet.MaxICMPErrorBytes)
	e := packet.NewICMPError(packet.ErrorPort, true, 0)
	about := datagramFrame(netip.AddrPortFrom(r.peer, 53), netip.AddrPortFrom(r.guest, 5000), nil, 0)
	n := packet.PutICMPError(unreachable[packet.VNetHdrBytes:], &e, rigPeer4, about[packet.VNetHdrBytes:])
	solicitation := echoFrame(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::2"), 0, 0, nil)
	solicitation[packet.VNetHdrBytes+packet.IPv6Bytes] = 133 // router solicitation
	reply := echoFrame(rigGuest4, rigPeer4, 1, 1, nil)
	reply[packet.VNetHdrBytes+packet.IPv4Bytes] = packet.ICMPEchoReply
	for name, frame := range map[string][]byte{
		"error":                     unreachable[:packet.VNetHdrBytes+n],
		"router solicitation":       solicitation,
		"reply without a request":   reply,
		"echo request to multicast": echoFrame(rigGuest4, netip.MustParseAddr("224.0.0.1"), 1, 1, nil),
	} {
		r.g.SendFrame(frame)
		if all := r.g.Settle(); len(all) != 0 {
			t.Errorf("%s was answered with %v", name, all)
		}
	}
}

func TestUnknownProtocolIsUnreachable(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		b := datagramFrame(netip.AddrPortFrom(r.guest, 5000), netip.AddrPortFrom(r.peer, 53), []byte("ahoy"), 0)
		at := packet.VNetHdrBytes
		ip := packet.IP{Src: r.guest, Dst: r.peer, Protocol: 132, TTL: 64}
		ip.Put(b[at:], packet.UDPBytes+4)
		clear(b[:at])
		r.g.SendFrame(b)
		r.g.Only(guesttest.Unreachable(packet.ErrorProtocol, r.guest, r.peer))
	})
}

// memory is a file whose Write can be made to fail.
type memory struct {
	bytes.Buffer
	err error
}

func (m *memory) Write(b []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	return m.Buffer.Write(b)
}

func TestCapture(t *testing.T) {
	if *onTAP {
		t.Skip("TestTAPCapture is about a TAP device")
	}
	file := new(memory)
	r := newRig(t, func(c *Config) { c.Pcap = file })
	r.g.SendFrame(echoFrame(r.guest, rigGateway4, 1, 1, []byte("ahoy")))
	r.g.Only(isReply(rigGateway4, r.guest, 1, 1, "ahoy"))
	host, peer := r.udpServer()
	r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte(text(2500)), 1000))
	for _, size := range []int{1000, 1000, 500} {
		buf := make([]byte, 2000)
		if n, err := host.Read(buf); n != size || err != nil {
			t.Fatal(n, err)
		}
	}
	r.stop()
	b := file.Bytes()
	if len(b) < packet.PcapFileBytes || binary.LittleEndian.Uint32(b) != 0xa1b23c4d {
		t.Fatalf("not a capture file: % x", b[:min(len(b), 24)])
	}
	b = b[packet.PcapFileBytes:]
	var sizes []int
	for len(b) > 0 {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		var ip packet.IP
		if err := packet.ParseIP(b[packet.PcapRecordBytes:packet.PcapRecordBytes+n], &ip); err != nil || !checksumOK(&ip) {
			t.Fatalf("record of %d bytes: %v, or wrong checksum", n, err)
		}
		sizes = append(sizes, n)
		b = b[packet.PcapRecordBytes+n:]
	}
	if want := "[32 32 1028 1028 528]"; fmt.Sprint(sizes) != want {
		t.Errorf("packets of %v, want %s", sizes, want)
	}
}

func TestCaptureWriteError(t *testing.T) {
	file := new(memory)
	r := newRig(t, func(c *Config) { c.Pcap = file })
	r.do(func() { file.err = os.ErrClosed })
	for seq := range uint16(2) {
		r.g.SendFrame(echoFrame(r.guest, rigGateway4, 1, seq, nil))
		r.g.Only(isReply(rigGateway4, r.guest, 1, seq, ""))
	}
	guest, device := guesttest.New(t, 1500)
	guest.Remove()
	if _, err := New(Config{TUN: device, MTU: 1500, Guest4: rigGuest4, Pcap: &memory{err: os.ErrClosed}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("New: %v", err)
	}
}
