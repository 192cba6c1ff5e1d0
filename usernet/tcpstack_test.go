package usernet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

func TestNewRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
	}{
		{"no device", func(cfg *Config) { cfg.TUN = nil }},
		{"no address", func(cfg *Config) { cfg.Guest4, cfg.Guest6 = netip.Addr{}, netip.Addr{} }},
		{"MTU below the minimum of IPv4", func(cfg *Config) { cfg.MTU, cfg.Guest6 = 575, netip.Addr{} }},
		{"MTU below the minimum of IPv6", func(cfg *Config) { cfg.MTU = 1279 }},
		{"MTU above the maximum", func(cfg *Config) { cfg.MTU = 65521 }},
		{"too little memory", func(cfg *Config) { cfg.Limits.BufferBytes = 1<<20 - 1 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			guesttest.NoLeaks(t)
			_, tun := guesttest.New(t, 1500)
			cfg := Config{TUN: tun, MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6}
			tt.change(&cfg)
			if s, err := New(cfg); err == nil {
				s.Close()
				t.Error("no error")
			}
		})
	}
}

func TestStackNeverRun(t *testing.T) {
	r := newStack(t)
	at := r.forward()
	r.stack.Close()
	r.stack.Close()
	if _, err := net.Dial("tcp", at.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the forward accepts after Close: %v", err)
	}
	if err := r.stack.Run(context.Background()); err == nil {
		t.Error("Run succeeds after Close")
	}
}

func TestStackEnded(t *testing.T) {
	r := newRig(t)
	r.open()
	at := r.forward()
	r.stop()
	r.stack.Close()
	if err := r.stack.Run(context.Background()); err == nil {
		t.Error("Run succeeds a second time")
	}
	if _, err := r.stack.Forward(Forward{Protocol: packet.TCP}); !errors.Is(err, ErrClosed) {
		t.Errorf("forward: %v, want %v", err, ErrClosed)
	}
	if err := r.stack.Unforward(Forward{Protocol: packet.TCP, Listen: at}); !errors.Is(err, ErrClosed) {
		t.Errorf("unforward: %v, want %v", err, ErrClosed)
	}
	if _, err := r.stack.Flows(); !errors.Is(err, ErrClosed) {
		t.Errorf("flows: %v, want %v", err, ErrClosed)
	}
	if s := r.stack.Stats(); s.TCPFlows != 1 || s.TunOutPackets == 0 || s.TunInPackets == 0 || s.Open != 0 {
		t.Errorf("the last counters are %+v", s)
	}
	if _, err := net.Dial("tcp", at.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the forward accepts after Run: %v", err)
	}
}

func TestForwardListenAddress(t *testing.T) {
	needIPv6(t)
	tests := []struct {
		name   string
		listen netip.Addr
		v4, v6 bool
	}{
		{"no address", netip.Addr{}, true, true},
		{"all of IPv4", netip.IPv4Unspecified(), true, false},
		{"all of IPv6 and IPv4", netip.IPv6Unspecified(), true, true},
		{"loopback", loopback4, true, false},
		{"IPv6 loopback", loopback6, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			at, err := r.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(tt.listen, 0), To: netip.AddrPortFrom(netip.Addr{}, 80)})
			if err != nil {
				t.Fatal(err)
			}
			if at.Addr() != tt.listen || at.Port() == 0 {
				t.Errorf("listens at %s", at)
			}
			for _, way := range []struct {
				to, guest netip.Addr
				open      bool
			}{{loopback4, rigGuest4, tt.v4}, {loopback6, rigGuest6, tt.v6}} {
				to := netip.AddrPortFrom(way.to, at.Port())
				if !way.open {
					if _, err := net.Dial("tcp", to.String()); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s answers: %v", to, err)
					}
					continue
				}
				r.client(to, netip.AddrPort{})
				c := r.g.AwaitSYN(netip.AddrPortFrom(way.guest, 80), 7)
				if c.Peer.Addr() != r.s.gatewayFor(way.guest) {
					t.Errorf("the client of %s appears as %s", to, c.Peer)
				}
				c.Accept()
			}
		})
	}
}

func TestForwardToTheSamePort(t *testing.T) {
	r := newRig(t)
	at, err := r.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(loopback4, 0)})
	if err != nil {
		t.Fatal(err)
	}
	r.client(at, netip.AddrPort{})
	r.g.AwaitSYN(netip.AddrPortFrom(r.guest, at.Port()), 7)
}

func TestForwardToAnotherFamily(t *testing.T) {
	r := newRig(t)
	at, err := r.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(loopback4, 0), To: netip.AddrPortFrom(rigGuest6, 80)})
	if err != nil {
		t.Fatal(err)
	}
	client := r.client(at, netip.AddrPort{})
	r.guest = rigGuest6
	c := r.g.AwaitSYN(r.server(), 7)
	if c.Peer.Addr() != rigGateway6 {
		t.Errorf("the client appears as %s", c.Peer)
	}
	c.Accept()
	c.Send(packet.ACK, []byte("x"))
	r.g.Only(c.Acks())
	r.reads(client, "x")
}

func TestForwardProtocols(t *testing.T) {
	r := newRig(t)
	if _, err := r.stack.Forward(Forward{Protocol: packet.ICMP}); err == nil {
		t.Error("a forward of ICMP was opened")
	}
}

// The host's connect is in progress when the answer arrives, a second later, because the
// kernel repeats its SYN only then.
func TestSlowConnect(t *testing.T) {
	r := newRig(t)
	heard, lost := r.deafListenerFD(), r.deafListenerFD()
	one, two := r.conn(heard.at), r.conn(lost.at)
	one.Send(packet.SYN, nil)
	two.Send(packet.SYN, nil)
	r.g.Silent()
	if err := unix.Close(lost.fd); err != nil {
		t.Fatal(err)
	}
	lost.closed()
	first, _, err := unix.Accept(heard.fd) // makes room for the next
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(first)
	answered, refused := false, false
	for !answered || !refused {
		switch p := r.g.Receive(); {
		case one.From(packet.SYN|packet.ACK)(p) == "":
			one.HandleSYN(p)
			answered = true
		case two.Resets()(p) == "":
			refused = true
		default:
			t.Fatalf("got %v", p)
		}
	}
	one.Send(packet.ACK, []byte("at last"))
	r.g.Only(one.Acks())
	second, _, err := unix.Accept(heard.fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(second)
	b := make([]byte, 100)
	if n, err := unix.Read(second, b); err != nil || string(b[:n]) != "at last" {
		t.Errorf("the host reads %q, %v", b[:n], err)
	}
}
