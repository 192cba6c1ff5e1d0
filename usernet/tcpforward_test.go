package usernet

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// forward opens a port of the host's loopback that leads to port 80 of the guest.
func (r *rig) forward() netip.AddrPort {
	r.Helper()
	listen := loopback4
	if r.guest.Is6() {
		listen = loopback6
	}
	at, err := r.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(listen, 0), To: netip.AddrPortFrom(netip.Addr{}, 80)})
	if err != nil {
		r.Fatal(err)
	}
	return at
}

// client connects to a forwarded port; from is its own address.
func (r *rig) client(to netip.AddrPort, from netip.AddrPort) *net.TCPConn {
	r.Helper()
	d := net.Dialer{Timeout: testTimeout}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		r.Fatal(err)
	}
	return r.keep(c.(*net.TCPConn))
}

// server returns the guest's listening port.
func (r *rig) server() netip.AddrPort { return netip.AddrPortFrom(r.guest, 80) }

// gatewayOf returns the address that the guest sees for the host's loopback.
func (r *rig) gatewayOf() netip.Addr { return r.s.gatewayFor(r.guest) }

func TestForwardAccepted(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		client := r.client(r.forward(), netip.AddrPort{})
		r.write(client, "before the answer")
		c := r.g.AwaitSYN(r.server(), 1000)
		if c.Peer.Addr() != r.gatewayOf() {
			t.Errorf("the client appears as %s, want the gateway's address", c.Peer)
		}
		if port := client.LocalAddr().(*net.TCPAddr).Port; int(c.Peer.Port()) != port {
			t.Errorf("the client's port is %d, it appears as %d", port, c.Peer.Port())
		}
		if mss := int(c.PeerOptions.MSS); mss != 1500-packet.IPBytes(r.guest)-packet.TCPBytes || !c.PeerOptions.HasScale {
			t.Errorf("our SYN has %+v", c.PeerOptions)
		}
		c.AnswerSYN()
		if got := c.Expect(17); string(got) != "before the answer" {
			t.Errorf("the guest reads %q", got)
		}
		c.Send(packet.ACK, []byte("welcome"))
		r.g.Only(c.Acks())
		r.reads(client, "welcome")
		all, err := r.stack.Flows()
		if err != nil || len(all) != 1 {
			t.Fatalf("flows %v, %v", all, err)
		}
		f := all[0]
		if !f.Inbound || f.Source != c.Peer || f.Destination != c.Local || f.Host.String() != client.LocalAddr().String() {
			t.Errorf("flow %+v of client %s", f, client.LocalAddr())
		}
		client.Close()
		c.ExpectFIN()
		c.Send(packet.ACK|packet.FIN, nil)
		r.g.Only(c.Acks())
		r.gone()
	})
}

func TestForwardRefusedByGuest(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		client := r.client(r.forward(), netip.AddrPort{})
		c := r.g.AwaitSYN(r.server(), 0)
		c.Send(packet.RST|packet.ACK, nil)
		r.g.Silent()
		r.isReset(client)
		r.gone()
	})
}

func TestForwardUnanswered(t *testing.T) {
	r := newRig(t)
	client := r.client(r.forward(), netip.AddrPort{})
	c := r.g.AwaitSYN(r.server(), 0)
	wait := synTimeout
	for range maxSYNTimeouts {
		r.advance(wait)
		p := r.g.Only(c.From(packet.SYN))
		if p.TCP.Seq != c.PeerStart {
			t.Fatalf("the repeated SYN has another number: %v", p)
		}
		wait = min(2*wait, maxRTO)
	}
	r.advance(wait)
	r.g.Silent()
	r.isReset(client)
	r.gone()
}

func TestForwardInvalidAnswers(t *testing.T) {
	tests := []struct {
		name  string
		flags uint8
		ack   uint32 // offset from the right number
		reset bool
	}{
		{"SYN-ACK without our SYN", packet.SYN | packet.ACK, ^uint32(0), true},
		{"SYN-ACK of unsent data", packet.SYN | packet.ACK, 1, true},
		{"ACK of unsent data", packet.ACK, 100, true},
		{"ACK alone", packet.ACK, 0, false},
		{"RST with a wrong ack", packet.RST | packet.ACK, 1, false},
		{"RST without ack", packet.RST, 0, false},
		{"FIN", packet.FIN | packet.ACK, 0, false},
		{"SYN of its own", packet.SYN, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			client := r.client(r.forward(), netip.AddrPort{})
			c := r.g.AwaitSYN(r.server(), 5)
			c.Ack += tt.ack
			c.SendAt(0, tt.flags, nil)
			if tt.reset {
				if p := r.g.Only(c.From(packet.RST)); p.TCP.Seq != c.Ack {
					t.Errorf("got %v, want seq %d", p, c.Ack)
				}
			} else {
				r.g.Silent()
			}
			c.Ack -= tt.ack
			c.Accept()
			c.Send(packet.ACK, []byte("x"))
			r.g.Only(c.Acks())
			r.reads(client, "x")
		})
	}
}

func TestForwardSYNACKIsRepeated(t *testing.T) {
	r := newRig(t)
	client := r.client(r.forward(), netip.AddrPort{})
	c := r.g.AwaitSYN(r.server(), 5)
	c.Accept()
	c.SendAt(-1, packet.SYN|packet.ACK, nil) // our ACK was lost
	r.g.Only(c.Acks())
	c.Send(packet.ACK, []byte("x"))
	r.g.Only(c.Acks())
	r.reads(client, "x")
}

func TestForwardClientClosesEarly(t *testing.T) {
	tests := []struct {
		name  string
		leave func(r *rig, client *net.TCPConn)
		reset bool
	}{
		{"by FIN", func(_ *rig, client *net.TCPConn) { client.Close() }, false},
		{"by FIN behind data", func(r *rig, client *net.TCPConn) { r.write(client, "bye"); client.Close() }, false},
		{"by RST", func(r *rig, client *net.TCPConn) { r.resetNow(client) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			client := r.client(r.forward(), netip.AddrPort{})
			c := r.g.AwaitSYN(r.server(), 5)
			tt.leave(r, client)
			c.Send(packet.SYN|packet.ACK, nil)
			if tt.reset {
				r.g.Await(c.Resets())
				r.gone()
				return
			}
			if tt.name == "by FIN behind data" {
				if got := c.Expect(3); string(got) != "bye" {
					t.Errorf("the guest reads %q", got)
				}
			}
			c.ExpectFIN()
			c.Send(packet.ACK|packet.FIN, nil)
			r.last(r.g.Settle(), c.Acks())
			r.gone()
		})
	}
}

// Two clients with the same port, which both appear with the gateway's address.
func TestForwardClientsWithSamePort(t *testing.T) {
	r := newRig(t)
	at := r.forward()
	first := r.client(at, netip.MustParseAddrPort("127.0.0.1:0"))
	port := uint16(first.LocalAddr().(*net.TCPAddr).Port)
	one := r.g.AwaitSYN(r.server(), 100)
	second := r.client(at, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port))
	two := r.g.AwaitSYN(r.server(), 200)
	if one.Peer.Port() != port || one.Peer.Addr() != two.Peer.Addr() || one.Peer == two.Peer {
		t.Fatalf("the clients appear as %s and %s", one.Peer, two.Peer)
	}
	one.Accept()
	two.Accept()
	r.write(first, "first")
	if got := one.Expect(5); string(got) != "first" {
		t.Errorf("the first is heard as %q", got)
	}
	r.write(second, "second")
	if got := two.Expect(6); string(got) != "second" {
		t.Errorf("the second is heard as %q", got)
	}
}

func TestForwardReusesFinishedPort(t *testing.T) {
	r := newRig(t)
	at := r.forward()
	client := r.client(at, netip.MustParseAddrPort("127.0.0.1:0"))
	port := uint16(client.LocalAddr().(*net.TCPAddr).Port)
	c := r.g.AwaitSYN(r.server(), 100)
	c.Accept()
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Settle()
	r.readsEOF(client)
	client.Close()
	c.ExpectFIN()
	r.gone()
	r.client(at, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port))
	again := r.g.AwaitSYN(r.server(), 300)
	if again.Peer != c.Peer {
		t.Errorf("the next client appears as %s, want %s", again.Peer, c.Peer)
	}
}

func TestForwardRefusedByPolicyOrLimit(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
	}{
		{"by policy", func(cfg *Config) {
			cfg.Policy = judgeFunc(func(f Flow) Verdict {
				if !f.Inbound {
					return Verdict{}
				}
				return Verdict{Action: Refuse}
			})
		}},
		{"dropped by policy", func(cfg *Config) {
			cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Drop} })
		}},
		{"by the limit of flows", func(cfg *Config) { cfg.Limits.Flows = 1 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.change)
			at := r.forward()
			if tt.name == "by the limit of flows" {
				r.client(at, netip.AddrPort{})
				r.g.AwaitSYN(r.server(), 0)
			}
			// The kernel accepts before we do, so the connect usually succeeds.
			d := net.Dialer{Timeout: testTimeout}
			client, err := d.Dial("tcp", at.String())
			if err == nil {
				r.isReset(r.keep(client.(*net.TCPConn)))
			} else if !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the client gets %v, want a reset", err)
			}
			r.g.Silent()
		})
	}
}

func TestUnforward(t *testing.T) {
	r := newRig(t)
	at := r.forward()
	client := r.client(at, netip.AddrPort{})
	c := r.g.AwaitSYN(r.server(), 5)
	c.Accept()
	f := Forward{Protocol: packet.TCP, Listen: at}
	if err := r.stack.Unforward(f); err != nil {
		t.Fatal(err)
	}
	if err := r.stack.Unforward(f); !errors.Is(err, ErrNoForward) {
		t.Errorf("the second time: %v, want %v", err, ErrNoForward)
	}
	if _, err := net.Dial("tcp", at.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the port answers: %v", err)
	}
	if all, err := r.stack.Forwards(); err != nil || len(all) != 0 {
		t.Errorf("forwards %v, %v", all, err)
	}
	r.write(client, "still here")
	if got := c.Expect(10); string(got) != "still here" {
		t.Errorf("the guest reads %q", got)
	}
}

func TestForwardOfUsedPort(t *testing.T) {
	r := newRig(t)
	at := r.forward()
	if _, err := r.stack.Forward(Forward{Protocol: packet.TCP, Listen: at}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("got %v, want %v", err, unix.EADDRINUSE)
	}
	if all, err := r.stack.Forwards(); err != nil || len(all) != 1 || all[0].Listen != at {
		t.Errorf("forwards %v, %v", all, err)
	}
}

func TestForwardBeforeRun(t *testing.T) {
	r := newStack(t)
	at := r.forward()
	client := r.client(at, netip.AddrPort{})
	r.run()
	c := r.g.AwaitSYN(r.server(), 5)
	c.AnswerSYN()
	r.write(client, "early")
	if got := c.Expect(5); string(got) != "early" {
		t.Errorf("the guest reads %q", got)
	}
}

func TestForwardClientAddress(t *testing.T) {
	s := &engine{group: &group{}, cfg: Config{Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6}}
	only4 := &engine{group: &group{}, cfg: Config{Guest4: rigGuest4, Gateway4: rigGateway4}}
	mapped := &engine{group: &group{}, cfg: Config{Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6, ClientAliases: map[netip.Addr]netip.Addr{
		rigGuest4: netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("127.0.0.1"): netip.MustParseAddr("192.0.2.8"),
		netip.MustParseAddr("198.51.100.9"): netip.MustParseAddr("192.0.2.9"),
	}}}
	own, other := netip.Addr{}, netip.MustParseAddr("203.0.113.9")
	tests := []struct {
		name   string
		s      *engine
		to     netip.Addr
		client string
		guest  netip.Addr
		shown  string
	}{
		{"its own address", s, own, "198.51.100.9", rigGuest4, "198.51.100.9"},
		{"its own address, IPv6", s, own, "2001:db8:9::1", rigGuest6, "2001:db8:9::1"},
		{"loopback", s, own, "127.0.0.1", rigGuest4, "192.0.2.1"},
		{"loopback, IPv6", s, own, "::1", rigGuest6, "2001:db8::1"},
		{"link-local", s, own, "169.254.7.7", rigGuest4, "192.0.2.1"},
		{"link-local, IPv6", s, own, "fe80::7", rigGuest6, "2001:db8::1"},
		{"the guest's own", s, own, "192.0.2.2", rigGuest4, "192.0.2.1"},
		{"another address of the guest's", s, other, "198.51.100.9", other, "198.51.100.9"},
		{"that address itself", s, other, "203.0.113.9", other, "192.0.2.1"},
		{"IPv6 to a guest of IPv4", only4, own, "2001:db8:9::1", rigGuest4, "192.0.2.1"},
		{"the guest's own, that another leads to", mapped, own, "192.0.2.2", rigGuest4, "192.0.2.7"},
		{"loopback, that an address leads to", mapped, own, "127.0.0.1", rigGuest4, "192.0.2.8"},
		{"loopback, to a guest's address of the other family", mapped, rigGuest6, "127.0.0.1", rigGuest6, "2001:db8::1"},
		{"its own address, that another leads to", mapped, own, "198.51.100.9", rigGuest4, "198.51.100.9"},
		{"IPv6 to an IPv4 address", s, rigGuest4, "2001:db8:9::1", rigGuest4, "192.0.2.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := Forward{Protocol: packet.TCP, To: netip.AddrPortFrom(tt.to, 80)}
			guest, shown, ok := tt.s.guestEndpoint(f, netip.AddrPortFrom(netip.MustParseAddr(tt.client), 5555))
			if !ok || guest != netip.AddrPortFrom(tt.guest, 80) || shown != netip.AddrPortFrom(netip.MustParseAddr(tt.shown), 5555) {
				t.Errorf("%s appears as %s at %s (%v), want %s at %s", tt.client, shown, guest, ok, tt.shown, tt.guest)
			}
		})
	}
}

// If everything before it was read already, an urgent byte causes no EPOLLIN.
func TestUrgentByteAlone(t *testing.T) {
	r := newRig(t)
	client := r.client(r.forward(), netip.AddrPort{})
	c := r.g.AwaitSYN(r.server(), 5)
	c.Accept()
	r.write(client, "ab")
	if got := c.Expect(2); string(got) != "ab" {
		t.Errorf("the guest reads %q", got)
	}
	r.urgent(client, "!")
	p := r.g.Await(c.Carries(packet.ACK|packet.URG, []byte("!")))
	if p.TCP.Urgent != 1 {
		t.Errorf("got %v", p)
	}
	c.Ack++
	c.Send(packet.ACK|packet.FIN, nil)
	if _, err := io.ReadAll(client); err != nil {
		t.Error(err)
	}
}
