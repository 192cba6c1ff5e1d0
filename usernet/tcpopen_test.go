package usernet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

func TestHandshakeOptions(t *testing.T) {
	tests := []struct {
		name    string
		options []byte
		segment int // payload of our segments
		window  int // what a window of 1 in the header means; 0: too large to try
		scaled  bool
	}{
		{"none", nil, 536, 1, false},
		{"no MSS", guesttest.Scale(7), 536, 128, true},
		{"MSS 0", slices.Concat(guesttest.MSS(0), guesttest.Scale(7)), 536, 128, true},
		{"MSS of 1", slices.Concat(guesttest.MSS(1), guesttest.Scale(7)), 64, 128, true},
		{"MSS 64", slices.Concat(guesttest.MSS(64), guesttest.Scale(7)), 64, 128, true},
		{"MSS 1000", slices.Concat(guesttest.MSS(1000), guesttest.Scale(7)), 1000, 128, true},
		{"huge MSS", slices.Concat(guesttest.MSS(65535), guesttest.Scale(7)), 1460, 128, true},
		{"truncated MSS", []byte{1, 2, 4, 5}, 536, 1, false},
		{"no scale", guesttest.MSS(1460), 1460, 1, false},
		{"scale 0", slices.Concat(guesttest.MSS(1460), guesttest.Scale(0)), 1460, 1, true},
		{"scale 1", slices.Concat(guesttest.MSS(1460), guesttest.Scale(1)), 1460, 2, true},
		{"scale 2", slices.Concat(guesttest.MSS(1460), guesttest.Scale(2)), 1460, 4, true},
		{"scale 3", slices.Concat(guesttest.MSS(1460), guesttest.Scale(3)), 1460, 8, true},
		{"scale 4", slices.Concat(guesttest.MSS(1460), guesttest.Scale(4)), 1460, 16, true},
		{"scale 5", slices.Concat(guesttest.MSS(1460), guesttest.Scale(5)), 1460, 32, true},
		{"scale 6", slices.Concat(guesttest.MSS(1460), guesttest.Scale(6)), 1460, 64, true},
		{"scale 8", slices.Concat(guesttest.MSS(1460), guesttest.Scale(8)), 1460, 256, true},
		{"scale 9", slices.Concat(guesttest.MSS(1460), guesttest.Scale(9)), 1460, 512, true},
		{"scale 10", slices.Concat(guesttest.MSS(1460), guesttest.Scale(10)), 1460, 1024, true},
		{"scale 11", slices.Concat(guesttest.MSS(1460), guesttest.Scale(11)), 1460, 2048, true},
		{"scale 12", slices.Concat(guesttest.MSS(1460), guesttest.Scale(12)), 1460, 4096, true},
		{"scale 13", slices.Concat(guesttest.MSS(1460), guesttest.Scale(13)), 1460, 8192, true},
		{"scale 14", slices.Concat(guesttest.MSS(1460), guesttest.Scale(14)), 1460, 16384, true},
		{"scale 15 counts as 14", slices.Concat(guesttest.MSS(1460), guesttest.Scale(15)), 1460, 16384, true},
		{"scale 255 counts as 14", slices.Concat(guesttest.MSS(1460), guesttest.Scale(255)), 1460, 16384, true},
		{"timestamps and SACK", slices.Concat(guesttest.MSS(1460), guesttest.SACKPermitted, guesttest.Timestamps, guesttest.Nop, guesttest.Scale(7)), 1460, 128, true},
		{"unknown option", slices.Concat([]byte{253, 6, 1, 2, 3, 4}, guesttest.MSS(1000), guesttest.Scale(7)), 1000, 128, true},
		{"truncated option", slices.Concat(guesttest.MSS(1000), []byte{3, 9, 7}), 1000, 1, false},
	}
	r := newRig(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := r.within(t)
			c, host := r.open(func(c *guesttest.Conn) { c.Options = tt.options })
			if o := c.PeerOptions; o.MSS != 1460 || o.HasScale != tt.scaled || o.SACKPermitted || o.Timestamps {
				t.Errorf("the SYN-ACK has %+v, want MSS 1460, scale %v, neither SACK nor timestamps", o, tt.scaled)
			}
			r.write(host, text(5000))
			p := r.g.Await(func(p *guesttest.Packet) string {
				if len(p.TCP.Payload) < 5000 {
					return "want all bytes in one segment"
				}
				return ""
			})
			if int(p.VNet.GSOSize) != tt.segment {
				t.Errorf("segments of %d bytes, want %d", p.VNet.GSOSize, tt.segment)
			}
			c.Ack += 5000
			c.Window = 1
			c.Send(packet.ACK, nil)
			r.g.Silent()
			r.write(host, text(50000))
			r.until("the window is full", func() bool { return int(r.flow(c).sndNxt-c.Ack) >= min(tt.window, tt.window/tt.segment*tt.segment+1) })
			sent := 0
			for _, p := range r.g.Settle() {
				sent += len(p.TCP.Payload)
			}
			if sent > tt.window || tt.window-sent >= tt.segment {
				t.Errorf("%d bytes arrived, the window was %d", sent, tt.window)
			}
			c.Ack += uint32(sent)
			c.Window = 0
			c.Send(packet.RST, nil)
		})
	}
}

// within returns r for a subtest.
func (r *rig) within(t *testing.T) *rig {
	sub := *r
	sub.T = t
	sub.g = r.g.Within(t)
	r.ports += 100 // the subtest's own peer
	return &sub
}

func TestWindowScaledOnlyIfGuestScales(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []byte
		shift   int
	}{
		{"scaled", guesttest.Scale(0), windowShift},
		{"not scaled", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open(func(c *guesttest.Conn) { c.Options = tt.options })
			c.Send(packet.ACK, []byte("x"))
			r.g.Only(c.Acks())
			offered := int(c.PeerWindow) << tt.shift
			if offered < minWindow-1 || offered > maxWindow {
				t.Errorf("the window offered is %d bytes", offered)
			}
			var edge uint32
			r.do(func() { edge = r.flow(c).rcvEdge })
			if got := int(edge - c.Seq); got != offered {
				t.Errorf("%d bytes taken, but %d offered", got, offered)
			}
			r.reads(host, "x")
		})
	}
}

func TestInvalidSYN(t *testing.T) {
	tests := []struct {
		name    string
		port    uint16 // of the peer
		flags   uint8
		payload string
		reply   func(*guesttest.Segment) (flags uint8, seq, ack uint32)
	}{
		{"port 0", 0, packet.SYN, "", func(s *guesttest.Segment) (uint8, uint32, uint32) {
			return packet.RST | packet.ACK, 0, s.Seq + 1
		}},
		{"SYN|FIN", 80, packet.SYN | packet.FIN, "", func(s *guesttest.Segment) (uint8, uint32, uint32) {
			return packet.RST | packet.ACK, 0, s.Seq + 2
		}},
		{"SYN|RST", 80, packet.SYN | packet.RST, "", nil},
		{"SYN|ACK", 80, packet.SYN | packet.ACK, "", func(s *guesttest.Segment) (uint8, uint32, uint32) { return packet.RST, s.Ack, 0 }},
		{"ACK", 80, packet.ACK, "", func(s *guesttest.Segment) (uint8, uint32, uint32) { return packet.RST, s.Ack, 0 }},
		{"data", 80, packet.ACK | packet.PSH, "abc", func(s *guesttest.Segment) (uint8, uint32, uint32) { return packet.RST, s.Ack, 0 }},
		{"FIN", 80, packet.FIN | packet.ACK, "", func(s *guesttest.Segment) (uint8, uint32, uint32) { return packet.RST, s.Ack, 0 }},
		{"FIN without ACK", 80, packet.FIN, "abc", func(s *guesttest.Segment) (uint8, uint32, uint32) {
			return packet.RST | packet.ACK, 0, s.Seq + 4
		}},
		{"no flag", 80, 0, "abc", func(s *guesttest.Segment) (uint8, uint32, uint32) {
			return packet.RST | packet.ACK, 0, s.Seq + 3
		}},
		{"RST", 80, packet.RST, "", nil},
		{"RST|ACK", 80, packet.RST | packet.ACK, "", nil},
	}
	family(t, func(t *testing.T, r *rig) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				r := r.within(t)
				c := r.conn(netip.AddrPortFrom(r.peer, tt.port))
				c.Ack = 12345
				s := c.Segment(tt.flags, []byte(tt.payload))
				r.g.Send(s)
				if tt.reply == nil {
					r.g.Silent()
					return
				}
				flags, seq, ack := tt.reply(&s)
				p := r.g.Only(c.From(flags))
				if p.TCP.Seq != seq || p.TCP.Ack != ack {
					t.Errorf("got %v, want seq %d ack %d", p, seq, ack)
				}
				if n := r.live(); n != 0 {
					t.Errorf("%d connections, want none", n)
				}
			})
		}
	})
}

func TestSourcePortZero(t *testing.T) {
	r := newRig(t)
	c := r.g.Conn(netip.AddrPortFrom(r.guest, 0), r.toward(r.listen()), 7)
	c.Send(packet.SYN, nil)
	r.g.Only(c.Resets())
}

func TestConnectRefused(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		l := r.listen()
		c := r.conn(r.toward(l))
		l.Close()
		c.Send(packet.SYN, nil)
		p := r.g.Await(c.Resets())
		if p.TCP.Flags != packet.RST|packet.ACK || p.TCP.Ack != c.Start+1 {
			t.Errorf("got %v", p)
		}
		r.gone()
	})
}

func TestConnectRefusedAcknowledgesSYNData(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	l.Close()
	c.Send(packet.SYN, []byte("early"))
	p := r.g.Await(c.From(packet.RST | packet.ACK))
	// RFC 9293 section 3.10.7.3: any acknowledgement between ISS and SND.NXT is valid.
	if n := p.TCP.Ack - c.Start; n < 1 || n > 6 {
		t.Errorf("RST acknowledges %d, valid in the guest's SYN-SENT are 1 to 6", n)
	}
}

// TCP can't connect to broadcast and multicast addresses, and the kernel reports so at
// once.
func TestConnectUnreachable(t *testing.T) {
	tests := []struct {
		name string
		to   netip.AddrPort
	}{
		{"IPv4", netip.MustParseAddrPort("255.255.255.255:80")},
		{"IPv6", netip.MustParseAddrPort("[ff02::1]:80")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) {
				cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Redirect, To: tt.to} })
			})
			if tt.to.Addr().Is6() {
				needIPv6(t)
				r.guest, r.peer = rigGuest6, rigPeer6
			}
			c := r.conn(netip.AddrPortFrom(r.peer, 80))
			c.Send(packet.SYN, nil)
			p := r.g.Only(guesttest.Unreachable(packet.ErrorNet, r.guest, r.peer))
			var quoted packet.TCPHeader
			// An error quotes at least 8 bytes of the header: ports and sequence number.
			full := append(slices.Clone(p.ICMP.Original.Payload), make([]byte, packet.TCPBytes)...)
			full[12] = 5 << 4
			if err := packet.ParseTCP(full, &quoted); err != nil || quoted.SrcPort != c.Local.Port() || quoted.DstPort != 80 || quoted.Seq != c.Start {
				t.Errorf("the error quotes %+v, %v", quoted, err)
			}
			if n := r.live(); n != 0 {
				t.Errorf("%d connections, want none", n)
			}
		})
	}
}

// blockedHook sets a hook that does not return, so that connections stay in their state.
func blockedHook(cfg *Config) {
	cfg.Hook = func(ctx context.Context, _ Flow) Verdict { <-ctx.Done(); return Verdict{} }
}

func TestConnectErrors(t *testing.T) {
	tests := []struct {
		err   unix.Errno
		reset bool
		kind  packet.ErrorKind
	}{
		{err: unix.ECONNREFUSED, reset: true},
		{err: unix.ECONNRESET, reset: true},
		{err: unix.EMFILE, reset: true},
		{err: unix.ENETUNREACH, kind: packet.ErrorNet},
		{err: unix.ENETDOWN, kind: packet.ErrorNet},
		{err: unix.EADDRNOTAVAIL, kind: packet.ErrorNet},
		{err: unix.EHOSTUNREACH, kind: packet.ErrorHost},
		{err: unix.EHOSTDOWN, kind: packet.ErrorHost},
		{err: unix.EACCES, kind: packet.ErrorProhibited},
		{err: unix.EPERM, kind: packet.ErrorProhibited},
	}
	family(t, func(t *testing.T, r *rig) {
		for _, tt := range tests {
			t.Run(unix.ErrnoName(tt.err), func(t *testing.T) {
				r := r.within(t)
				c := r.conn(netip.AddrPortFrom(r.peer, 80))
				c.Send(packet.SYN, nil)
				r.g.Silent()
				r.do(func() { r.flow(c).connectFailed(tt.err) })
				if tt.reset {
					r.g.Only(c.Resets())
				} else {
					r.g.Only(guesttest.Unreachable(tt.kind, r.guest, r.peer))
				}
				if n := r.live(); n != 0 {
					t.Errorf("%d connections, want none", n)
				}
			})
		}
	}, blockedHook)
}

func TestConnectTimesOut(t *testing.T) {
	r := newRig(t, blockedHook)
	c := r.conn(netip.AddrPortFrom(r.peer, 80))
	c.Send(packet.SYN, nil)
	r.g.Silent()
	r.do(func() { r.flow(c).connectFailed(unix.ETIMEDOUT) })
	r.g.Silent()
	for range 3 { // the guest's kernel still tries
		r.g.Send(guesttest.Segment{From: c.Local, To: c.Peer, Seq: c.Start, Flags: packet.SYN, Options: c.Options})
		r.g.Silent()
	}
	r.advance(ignoreFor)
	r.g.Silent()
	if n := r.live(); n != 0 {
		t.Errorf("%d connections after the guest has timed out", n)
	}
}

// deaf is a port of the host's loopback whose backlog is full: the kernel drops
// further SYNs.
type deaf struct {
	at     netip.AddrPort // the address as the guest sees it
	fd     int
	closed func() // it was closed already
}

func (r *rig) deafListener() netip.AddrPort { return r.deafListenerFD().at }

func (r *rig) deafListenerFD() deaf {
	r.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.Fatal(err)
	}
	open := true
	r.Cleanup(func() {
		if open {
			unix.Close(fd)
		}
	})
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback4.As4()}); err != nil {
		r.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		r.Fatal(err)
	}
	own, errno := sys.LocalAddress(fd)
	if errno != 0 {
		r.Fatal(errno)
	}
	at := own.AddrPort()
	d := net.Dialer{Timeout: testTimeout}
	c, err := d.Dial("tcp", at.String()) // a backlog of 0 holds one connection
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	return deaf{at: netip.AddrPortFrom(r.peer, at.Port()), fd: fd, closed: func() { open = false }}
}

func TestSYNRepeatedWhileConnecting(t *testing.T) {
	r := newRig(t)
	c := r.conn(r.deafListener())
	syn := c.Segment(packet.SYN, nil)
	for range 4 {
		r.g.Send(syn)
		r.g.Silent()
	}
	if n := r.live(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	t.Run("a segment other than a SYN gets no answer", func(t *testing.T) {
		for _, flags := range []uint8{packet.ACK, packet.ACK | packet.PSH, packet.FIN | packet.ACK} {
			c.SendAt(1, flags, []byte("x"))
		}
		r.g.Silent()
	})
	t.Run("the guest gives up", func(t *testing.T) {
		c.SendAt(1, packet.RST, nil)
		r.g.Silent()
		if n := r.live(); n != 0 {
			t.Errorf("%d connections, want none", n)
		}
	})
}

func TestConnectTimeoutLimit(t *testing.T) {
	r := newRig(t, func(cfg *Config) { cfg.Limits.TCPConnect = 5 * time.Second })
	c := r.conn(r.deafListener())
	c.Send(packet.SYN, nil)
	r.g.Silent()
	fd := func() (fd int) { r.do(func() { fd = r.flow(c).hostFD }); return fd }
	if fd() < 0 {
		t.Fatal("no connect in progress")
	}
	r.advance(5 * time.Second)
	r.g.Silent()
	if fd() >= 0 {
		t.Error("the host still tries after the timeout")
	}
}

func TestNewSYNWhileConnecting(t *testing.T) {
	r := newRig(t, blockedHook)
	c := r.conn(netip.AddrPortFrom(r.peer, 80))
	c.Send(packet.SYN, nil)
	r.g.Silent()
	c.Seq, c.Start = c.Start+1000, c.Start+1000
	c.Send(packet.SYN, nil)
	r.g.Silent()
	if n := r.live(); n != 1 {
		t.Fatalf("%d connections, want the new one", n)
	}
	var start uint32
	r.do(func() { start = r.flow(c).rcvStart })
	if start != c.Start {
		t.Errorf("the initial sequence number is %d, that of the guest's second SYN %d", start, c.Start)
	}
}

func TestSYNWithData(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	s := c.Segment(packet.SYN, []byte("early"))
	r.g.Send(s)
	p := r.g.Await(c.From(packet.SYN | packet.ACK))
	taken := p.TCP.Ack - (c.Start + 1)
	if taken > 5 {
		t.Fatalf("the SYN-ACK acknowledges %d bytes of 5", taken)
	}
	c.HandleSYN(p)
	c.Seq = p.TCP.Ack
	c.Send(packet.ACK, []byte("early")[taken:])
	r.g.Only(c.Acks())
	r.reads(r.accept(l), "early")
}

func TestSYNRepeatedAfterSYNACK(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	syn := c.Segment(packet.SYN, nil)
	r.g.Send(syn)
	first := r.g.Await(c.From(packet.SYN | packet.ACK))
	r.g.Send(syn)
	again := r.g.Only(c.From(packet.SYN | packet.ACK))
	if again.TCP.Seq != first.TCP.Seq || again.TCP.Ack != first.TCP.Ack {
		t.Errorf("first %v, then %v", first, again)
	}
	r.accept(l)
}

func TestSYNACKRepeatedUntilGivenUp(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Send(packet.SYN, nil)
	first := r.g.Await(c.From(packet.SYN | packet.ACK))
	host := r.accept(l)
	wait := synTimeout
	for i := range maxSYNTimeouts {
		r.advance(wait)
		p := r.g.Only(c.From(packet.SYN | packet.ACK))
		if p.TCP.Seq != first.TCP.Seq {
			t.Fatalf("repetition %d has another number: %v", i, p)
		}
		wait = min(2*wait, maxRTO)
	}
	r.advance(wait)
	r.g.Silent()
	r.isReset(host)
	r.gone()
}

func TestInvalidACKOfSYNACK(t *testing.T) {
	tests := []struct {
		name string
		off  uint32
	}{
		{"the SYN itself", ^uint32(0)},
		{"old bytes", ^uint32(100)},
		{"bytes never sent", 1},
		{"bytes far ahead", 1 << 30},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			l := r.listen()
			c := r.conn(r.toward(l))
			c.Send(packet.SYN, nil)
			c.HandleSYN(r.g.Await(c.From(packet.SYN | packet.ACK)))
			c.Ack += tt.off
			c.SendAt(0, packet.ACK, []byte("not yet"))
			p := r.g.Only(c.From(packet.RST))
			if p.TCP.Seq != c.Ack {
				t.Errorf("got %v, want seq %d", p, c.Ack)
			}
			c.Ack -= tt.off
			c.Send(packet.ACK, []byte("now"))
			r.g.Only(c.Acks())
			r.reads(r.accept(l), "now")
		})
	}
}

func TestRSTAfterSYNACK(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Send(packet.SYN, nil)
	r.g.Await(c.From(packet.SYN | packet.ACK))
	c.SendAt(0, packet.RST, nil)
	r.g.Silent()
	r.isReset(r.accept(l))
	r.gone()
}

func TestPolicyRefusesOrDrops(t *testing.T) {
	tests := []struct {
		action Action
		silent bool
	}{{Refuse, false}, {Drop, true}}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.action), func(t *testing.T) {
			r := newRig(t, func(cfg *Config) {
				cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: tt.action} })
			})
			c := r.conn(netip.AddrPortFrom(r.peer, 80))
			c.Send(packet.SYN, nil)
			if tt.silent {
				r.g.Silent()
			} else {
				r.g.Only(c.Resets())
			}
			if s := r.stack.Stats(); s.Refused != 1 || s.Open != 0 {
				t.Errorf("%d refused, %d open", s.Refused, s.Open)
			}
		})
	}
}

func TestPolicySeesTheFlow(t *testing.T) {
	var seen []Flow
	r := newRig(t, func(cfg *Config) {
		cfg.Policy = judgeFunc(func(f Flow) Verdict { seen = append(seen, f); return toLoopback(f) })
	})
	c, _ := r.open()
	c.Send(packet.ACK, []byte("x"))
	r.g.Settle()
	r.do(func() {
		if len(seen) != 1 || seen[0] != (Flow{Protocol: packet.TCP, Source: c.Local, Destination: c.Peer}) {
			t.Errorf("the policy was called for %v", seen)
		}
	})
}

func TestInitialSequenceNumbers(t *testing.T) {
	r := newRig(t)
	one := netip.MustParseAddrPort("192.0.2.2:1000")
	two := netip.MustParseAddrPort("192.0.2.2:1001")
	peer := netip.MustParseAddrPort("198.51.100.7:80")
	r.do(func() {
		first, other := r.s.tcp.initialSequence(keyOf(one, peer)), r.s.tcp.initialSequence(keyOf(two, peer))
		if first == other {
			t.Error("two pairs of ends have the same initial number")
		}
		r.s.loop.now += int64(time.Second)
		if later := r.s.tcp.initialSequence(keyOf(one, peer)); !before(first, later) {
			t.Errorf("%d now, %d a second later", first, later)
		}
	})
}
