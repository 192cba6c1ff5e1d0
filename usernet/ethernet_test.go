package usernet

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/guesttest"
	"cleat/usernet/lan"
)

// onTAP runs every test with a rig on a TAP device: go test ./usernet -tap
var onTAP = flag.Bool("tap", false, "give the scripted guest a TAP device")

// The addresses of a rig with a TAP.
var (
	rigMAC   = packet.MAC{2, 0, 0x5e, 0, 0, 1}
	otherMAC = packet.MAC{2, 0, 0x5e, 0, 0, 2}
	rigLink  = guesttest.Link{Guest: rigMAC, Network: lan.DefaultMAC}
)

// useTAP makes the device of a scripted guest a TAP.
func useTAP(cfg *Config, g *guesttest.Guest) {
	if cfg.Ethernet == nil {
		cfg.Ethernet = &Ethernet{}
	}
	cfg.Ethernet.Guest = rigMAC
	if cfg.Guest4.IsValid() {
		cfg.Ethernet.LAN.Addr4 = netip.PrefixFrom(cfg.Guest4, 24)
	}
	if cfg.Guest6.IsValid() {
		cfg.Ethernet.LAN.Addr6 = netip.PrefixFrom(cfg.Guest6, 64)
	}
	g.OnTAP(rigLink)
}

// All tests with a rig hold on a TAP device as well.
func TestOnTAP(t *testing.T) {
	if *onTAP {
		return
	}
	if testing.Short() {
		t.Skip("-short: go test ./usernet -tap runs all tests on a TAP device")
	}
	args := []string{"-tap", "-test.timeout=5m"}
	if f := flag.Lookup("test.cpu"); f != nil && f.Value.String() != "" {
		args = append(args, "-test.cpu="+f.Value.String())
	}
	if out, err := exec.CommandContext(t.Context(), os.Args[0], args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// withTAP is a change for newRig.
func withTAP(cfg *Config) { cfg.Ethernet = &Ethernet{} }

// ethernetFrame returns a frame with an empty virtio header.
func ethernetFrame(src packet.MAC, kind uint16, payload []byte) []byte {
	b := make([]byte, tapHeadBytes, tapHeadBytes+len(payload))
	e := packet.Ethernet{Dst: packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Src: src, Type: kind}
	e.Put(b[packet.VNetHdrBytes:])
	return append(b, payload...)
}

// arpRequest returns a request for the gateway's Ethernet address.
func arpRequest(src packet.MAC) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, src[:]...)
	guest, gateway := rigGuest4.As4(), rigGateway4.As4()
	b = append(append(b, guest[:]...), 0, 0, 0, 0, 0, 0)
	return ethernetFrame(src, packet.EtherTypeARP, append(b, gateway[:]...))
}

// checkARPReply checks a frame from the network: the gateway's address, told to a guest.
func checkARPReply(t *testing.T, frame []byte, to packet.MAC) {
	t.Helper()
	own, gateway := lan.DefaultMAC, rigGateway4.As4()
	want := append(append(slices.Clone(to[:]), own[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	want = append(append(want, own[:]...), gateway[:]...)
	if len(frame) < packet.VNetHdrBytes || !bytes.Equal(frame[packet.VNetHdrBytes:][:len(want)], want) || !bytes.Equal(frame[:packet.VNetHdrBytes], make([]byte, packet.VNetHdrBytes)) {
		t.Errorf("got  %x\nwant %x after an empty virtio header", frame, want)
	}
}

func TestTAPResolves(t *testing.T) {
	r := newRig(t, withTAP)
	r.g.SendRaw(arpRequest(rigMAC))
	checkARPReply(t, r.g.ReceiveRaw(), rigMAC)
	if s := r.stack.Stats(); s.TunOutPackets != 1 || s.TunInPackets != 1 || s.Malformed+s.Unsupported+s.Spoofed != 0 {
		t.Errorf("counters %+v", s)
	}
}

// Frames that hold no IP packet, and frames that are cut short, are dropped and counted.
func TestTAPDrops(t *testing.T) {
	r := newRig(t, withTAP)
	r.g.SendRaw(ethernetFrame(rigMAC, 0x8100, make([]byte, 60))) // a VLAN tag
	r.g.SendRaw(ethernetFrame(rigMAC, packet.EtherTypeIPv4, nil))
	r.g.SendRaw(make([]byte, tapHeadBytes-1))
	r.g.SendRaw(ethernetFrame(rigMAC, packet.EtherTypeARP, []byte{0, 1}))
	r.g.Silent()
	if s := r.stack.Stats(); s.Unsupported != 1 || s.Malformed != 2 {
		t.Errorf("%d unsupported and %d malformed, want 1 and 2", s.Unsupported, s.Malformed)
	}
}

// The guest may change its address. A group's address never becomes the guest's.
func TestTAPLearnsAddress(t *testing.T) {
	r := newRig(t, withTAP)
	r.g.SendRaw(arpRequest(otherMAC))
	checkARPReply(t, r.g.ReceiveRaw(), otherMAC)
	r.g.OnTAP(guesttest.Link{Guest: otherMAC, Network: lan.DefaultMAC})
	c, host := r.open()
	group := otherMAC
	group[0] |= 1
	r.g.SendRaw(ethernetFrame(group, 0x8100, nil))
	r.g.Silent()
	r.write(host, "x")
	if got := c.Expect(1); string(got) != "x" {
		t.Errorf("the guest reads %q", got)
	}
}

// The offsets in the virtio header count from the Ethernet header.
func TestTAPOffsets(t *testing.T) {
	r := newRig(t, withTAP)
	c := r.conn(r.toward(r.listen()))
	c.Send(packet.SYN, nil)
	frame := r.g.ReceiveRaw()
	var v packet.VNetHdr
	if err := v.Parse(frame); err != nil {
		t.Fatal(err)
	}
	if want := uint16(packet.EthernetBytes + packet.IPv4Bytes); v.Flags != packet.NeedsChecksum || v.ChecksumStart != want || v.ChecksumOffset != packet.TCPChecksumOffset {
		t.Errorf("virtio header %+v: the checksum should start at %d", v, want)
	}
}

// A guest that asks for a router may use any address of the prefix, and ports lead to it.
func TestTAPAutoconfiguration(t *testing.T) {
	r := newRig(t, withTAP)
	chosen := netip.MustParseAddr("2001:db8::9:9")
	r.guest, r.peer = rigGuest6, rigPeer6
	port := r.forward()
	r.guest = chosen
	r.open()
	called := func(guest netip.Addr) {
		t.Helper()
		r.client(port, netip.AddrPort{})
		r.g.Await(func(p *guesttest.Packet) string {
			if p.TCP.Flags != packet.SYN || p.IP.Dst != guest {
				return "not a SYN to " + guest.String()
			}
			return ""
		})
	}
	called(chosen)
	r.g.SendRaw(ethernetFrame(rigMAC, packet.EtherTypeIPv6, solicitDHCPv6()))
	r.g.ReceiveRaw()
	called(rigGuest6) // the guest is about to have the address of its lease
	if s := r.stack.Stats(); s.Spoofed != 0 {
		t.Errorf("%d packets dropped as spoofed", s.Spoofed)
	}
}

// solicitDHCPv6 returns a packet that asks for a lease.
func solicitDHCPv6() []byte {
	m := []byte{1, 0, 0, 1, 0, 1, 0, 10, 0, 3, 0, 1} // Solicit, transaction 1, a DUID-LL
	m = append(m, rigMAC[:]...)
	src, dst := rigMAC.LinkLocal(), netip.MustParseAddr("ff02::1:2")
	b := make([]byte, packet.IPv6Bytes+packet.UDPBytes, 100)
	packet.PutIP(b, src, dst, packet.UDP, 0, packet.UDPBytes+len(m))
	packet.PutUDP(b[packet.IPv6Bytes:], 546, 547, len(m))
	b = append(b, m...)
	sum := packet.TransportChecksum(src, dst, packet.UDP, b[packet.IPv6Bytes:])
	b[packet.IPv6Bytes+packet.UDPChecksumOffset], b[packet.IPv6Bytes+packet.UDPChecksumOffset+1] = byte(sum>>8), byte(sum)
	return b
}

// Every queue sends to the guest's new address.
func TestTAPLearnsOnAllQueues(t *testing.T) {
	var second *guesttest.Guest
	r := newRig(t, withTAP, twoQueues(t, &second))
	r.g.SendRaw(arpRequest(otherMAC))
	r.g.ReceiveRaw()
	for i, e := range r.stack.group.engines {
		_ = e.call(func() {
			var v sys.Vector
			e.dev.start(&v, make([]byte, packet.VNetHdrBytes+1))
			if got := packet.MAC(e.dev.ether.head[packet.VNetHdrBytes:]); got != otherMAC {
				t.Errorf("queue %d sends to %s, want %s", i, got, otherMAC)
			}
		})
	}
}

// Without router advertisements only the configured address is the guest's.
func TestTAPSpoofed(t *testing.T) {
	r := newRig(t, withTAP, func(cfg *Config) { cfg.Ethernet.LAN.NoRA = true })
	r.guest, r.peer = netip.MustParseAddr("2001:db8::9:9"), rigPeer6
	r.conn(r.toward(r.listen())).Send(packet.SYN, nil)
	r.g.Silent()
	if s := r.stack.Stats(); s.Spoofed != 1 {
		t.Errorf("%d packets dropped as spoofed, want 1", s.Spoofed)
	}
}

// Advertisements are repeated before they expire, once the guest has asked for one.
func TestTAPRepeatsAdvertisements(t *testing.T) {
	r := newRig(t, withTAP)
	e := r.s.dev.ether
	solicit := func() {
		m := []byte{133, 0, 0, 0, 0, 0, 0, 0}
		src, dst := rigMAC.LinkLocal(), netip.MustParseAddr("ff02::2")
		packet.PutICMPChecksum(m, src, dst)
		ip := packet.IP{Src: src, Dst: dst, Protocol: packet.ICMPv6, TTL: 255}
		b := make([]byte, packet.IPv6Bytes, 100)
		ip.Put(b, len(m))
		r.g.SendRaw(ethernetFrame(rigMAC, packet.EtherTypeIPv6, append(b, m...)))
	}
	deadline := func() (d time.Duration) {
		_ = r.s.call(func() {
			if e.advertiseTimer.deadline > 0 {
				d = time.Duration(e.advertiseTimer.deadline - r.s.loop.now)
			}
		})
		return d
	}
	if d := deadline(); d != 0 {
		t.Errorf("an advertisement is due in %v before anybody has asked", d)
	}
	solicit()
	const icmp = tapHeadBytes + packet.IPv6Bytes
	if frame := r.g.ReceiveRaw(); frame[icmp] != 134 {
		t.Fatalf("got %x", frame)
	}
	if d := deadline(); d <= 0 || d > advertiseEvery {
		t.Errorf("the next advertisement is due in %v", d)
	}
	r.advance(advertiseEvery)
	if frame := r.g.ReceiveRaw(); frame[icmp] != 134 || !bytes.Equal(frame[packet.VNetHdrBytes:][:6], []byte{0x33, 0x33, 0, 0, 0, 1}) {
		t.Errorf("repeated: %x", frame)
	}
}

// A guest that changes its address with every frame costs no memory: the address is a
// number that all queues share.
func TestTAPAllocations(t *testing.T) {
	r := newStack(t, withTAP)
	r.byHand()
	frames := [][]byte{arpRequest(rigMAC), arpRequest(otherMAC)}
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			r.g.SendRaw(f)
			r.rounds(1)
			for r.g.Discard() > 0 {
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations for two requests by ARP", n)
	}
}

// A capture of a TAP holds Ethernet frames, ARP among them.
func TestTAPCapture(t *testing.T) {
	var file bytes.Buffer
	r := newRig(t, withTAP, func(cfg *Config) { cfg.Pcap = &file })
	r.g.SendRaw(arpRequest(rigMAC))
	r.g.ReceiveRaw()
	r.open()
	r.stop()
	b := file.Bytes()
	if b[20] != packet.LinkTypeEthernet {
		t.Fatalf("link type %d", b[20])
	}
	var kinds []uint16
	for b = b[packet.PcapFileBytes:]; len(b) > 0; {
		n := int(b[8]) | int(b[9])<<8
		var e packet.Ethernet
		frame := b[packet.PcapRecordBytes:][:n]
		if err := e.Parse(frame); err != nil {
			t.Fatal(err)
		}
		if ends := []packet.MAC{e.Src, e.Dst}; !slices.Contains(ends, rigMAC) {
			t.Errorf("a frame from %s to %s", e.Src, e.Dst)
		}
		kinds = append(kinds, e.Type)
		var ip packet.IP
		if e.Type == packet.EtherTypeIPv4 && (packet.ParseIP(frame[packet.EthernetBytes:], &ip) != nil || packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) != 0) {
			t.Errorf("wrong packet %x", frame)
		}
		b = b[packet.PcapRecordBytes+n:]
	}
	if want := []uint16{packet.EtherTypeARP, packet.EtherTypeARP, packet.EtherTypeIPv4, packet.EtherTypeIPv4, packet.EtherTypeIPv4}; !slices.Equal(kinds, want) {
		t.Errorf("captured types %x, want %x", kinds, want)
	}
}

// FuzzTAPFrames writes arbitrary bytes to a Stack with a TAP device.
func FuzzTAPFrames(f *testing.F) {
	f.Add(arpRequest(rigMAC))
	f.Add(arpRequest(otherMAC))
	f.Add(ethernetFrame(rigMAC, packet.EtherTypeIPv6, solicitDHCPv6()))
	syn := guesttest.Segment{From: netAddr(rigGuest4, 40000), To: netAddr(rigPeer4, 80), Flags: packet.SYN, Options: guesttest.MSS(1460)}
	f.Add(ethernetFrame(rigMAC, packet.EtherTypeIPv4, syn.Frame()[packet.VNetHdrBytes:]))
	r := newRandom(1)
	for range 50 {
		frame := r.Frame()
		b := ethernetFrame(rigMAC, packet.EtherTypeIPv4, frame[min(len(frame), packet.VNetHdrBytes):])
		packet.MoveVNetHdr(b, append(bytes.Clone(frame), make([]byte, packet.VNetHdrBytes)...), packet.EthernetBytes)
		f.Add(b)
	}
	h := newHand(f, judgeFunc(func(flow Flow) Verdict { return Verdict{Action: Refuse} }), withTAP)
	f.Cleanup(h.s.shutdown)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 || len(frame) > 1<<16+tapHeadBytes {
			return // no device returns such a frame
		}
		h.g.Within(t).SendRaw(frame)
		h.round(t)
		h.round(t)
		h.g.Discard()
		h.later(time.Minute)
	})
}

func TestTAPConfig(t *testing.T) {
	_, tun := guesttest.New(t, 1500)
	for name, change := range map[string]func(*Config){
		"no address of the guest's": func(c *Config) { c.Ethernet.Guest = packet.MAC{} },
		"other IPv4 address":        func(c *Config) { c.Ethernet.LAN.Addr4 = netip.PrefixFrom(rigGateway4, 24) },
		"IPv6 missing":              func(c *Config) { c.Guest6 = rigGuest6 },
		"group address":             func(c *Config) { c.Ethernet.LAN.MAC = packet.MAC{1} },
	} {
		cfg := Config{TUN: tun, MTU: 1500, Guest4: rigGuest4, Ethernet: &Ethernet{Guest: rigMAC, LAN: lan.Config{Addr4: netip.PrefixFrom(rigGuest4, 24)}}}
		change(&cfg)
		if s, err := New(cfg); err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
