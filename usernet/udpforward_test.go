package usernet

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

// publish opens a UDP forward to port 53 of the guest.
func (r *rig) publish(listen netip.AddrPort) netip.AddrPort {
	r.Helper()
	at, err := r.stack.Forward(Forward{Protocol: packet.UDP, Listen: listen, To: netip.AddrPortFrom(netip.Addr{}, 53)})
	if err != nil {
		r.Fatal(err)
	}
	return at
}

// called waits for a datagram to port 53 of the guest and returns its sender.
func (r *rig) called(want string) netip.AddrPort {
	r.Helper()
	p := r.g.Await(func(p *guesttest.Packet) string {
		var h packet.UDPHeader
		if p.IP.Protocol != packet.UDP || packet.ParseUDP(p.IP.Payload, &h) != nil || h.DstPort != 53 || p.IP.Dst != r.guest {
			return "want a datagram to the guest's port 53"
		}
		return ""
	})
	var h packet.UDPHeader
	_ = packet.ParseUDP(p.IP.Payload, &h)
	if got := r.datagrams(p); len(got) != 1 || got[0] != want {
		r.Fatalf("the guest receives %q, want %q", got, want)
	}
	return netip.AddrPortFrom(p.IP.Src, h.SrcPort)
}

func TestUDPForward(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		own, gateway := loopback4, rigGateway4
		if r.peer.Is6() {
			own, gateway = loopback6, rigGateway6
		}
		at := r.publish(netip.AddrPortFrom(own, 0))
		client := r.udpSocketOn(own)
		for i := range 3 {
			r.answer(client, at, fmt.Sprint("question ", i))
			shown := r.called(fmt.Sprint("question ", i))
			if want := netip.AddrPortFrom(gateway, localPort(client)); shown != want {
				t.Errorf("the client appears as %s, want %s", shown, want)
			}
			r.sendDatagram(53, shown, "answer")
			if from := r.readsDatagram(client, "answer"); from != at {
				t.Errorf("the answer comes from %s, want %s", from, at)
			}
		}
		r.do(func() {
			all := r.s.udp.describe(nil)
			if len(all) != 1 || !all[0].Inbound || all[0].State != "established" || all[0].Host.Port() != localPort(client) {
				t.Errorf("described as %+v", all)
			}
		})
	})
}

func TestUDPForwardAnswersFromSameAddress(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", "any"} {
		t.Run(listen, func(t *testing.T) {
			r := newRig(t)
			var on netip.AddrPort
			if listen != "any" {
				on = netip.MustParseAddrPort(listen)
			}
			at := r.publish(on)
			// A socket that sends to two addresses of the host has two flows.
			client := r.udpSocketOn(loopback4)
			one, two := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.5"), at.Port()), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.6"), at.Port())
			r.answer(client, one, "to five")
			shownOne := r.called("to five")
			r.answer(client, two, "to six")
			shownTwo := r.called("to six")
			if shownOne == shownTwo {
				t.Fatalf("both flows appear as %s", shownOne)
			}
			r.sendDatagram(53, shownTwo, "from six")
			if from := r.readsDatagram(client, "from six"); from != two {
				t.Errorf("the answer comes from %s, want %s", from, two)
			}
			r.sendDatagram(53, shownOne, "from five")
			if from := r.readsDatagram(client, "from five"); from != one {
				t.Errorf("the answer comes from %s, want %s", from, one)
			}
		})
	}
}

func TestUDPForwardBothFamilies(t *testing.T) {
	needIPv6(t)
	r := newRig(t)
	at := r.publish(netip.AddrPort{})
	client4, client6 := r.udpSocketOn(loopback4), r.udpSocketOn(loopback6)
	r.answer(client4, netip.AddrPortFrom(loopback4, at.Port()), "four")
	shown4 := r.called("four")
	r.guest = rigGuest6
	r.answer(client6, netip.AddrPortFrom(loopback6, at.Port()), "six")
	shown6 := r.called("six")
	r.sendDatagram(53, shown6, "to six")
	r.readsDatagram(client6, "to six")
	r.guest = rigGuest4
	r.sendDatagram(53, shown4, "to four")
	r.readsDatagram(client4, "to four")
}

func TestUDPForwardToOtherFamily(t *testing.T) {
	needIPv6(t)
	r := newRig(t, func(c *Config) { c.Guest6 = netip.Addr{} })
	at := r.publish(netip.AddrPortFrom(loopback6, 0))
	client := r.udpSocketOn(loopback6)
	r.answer(client, at, "hello")
	shown := r.called("hello")
	if shown.Addr() != rigGateway4 {
		t.Errorf("the client appears as %s", shown)
	}
	r.sendDatagram(53, shown, "yes")
	r.readsDatagram(client, "yes")
}

func TestUDPUnforward(t *testing.T) {
	r := newRig(t)
	at := r.publish(netip.AddrPortFrom(loopback4, 0))
	client, late := r.udpSocketOn(loopback4), r.udpSocketOn(loopback4)
	r.answer(client, at, "hello")
	shown := r.called("hello")
	if err := r.stack.Unforward(Forward{Protocol: packet.UDP, Listen: at}); err != nil {
		t.Fatal(err)
	}
	r.answer(late, at, "too late")
	r.answer(client, at, "still here")
	r.called("still here")
	r.sendDatagram(53, shown, "yes")
	r.readsDatagram(client, "yes")
	r.advance(121 * time.Second)
	r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 })
	// Now the port is free.
	again, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestUDPForwardPolicy(t *testing.T) {
	r := newRig(t)
	var seen []Flow
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(f Flow) Verdict {
			seen = append(seen, f)
			return Verdict{Action: Drop}
		})
	})
	at := r.publish(netip.AddrPortFrom(loopback4, 0))
	client := r.udpSocketOn(loopback4)
	r.answer(client, at, "hello")
	r.until("the flow is refused", func() bool { return len(seen) > 0 })
	r.g.Silent()
	want := Flow{Protocol: packet.UDP, Source: netip.AddrPortFrom(rigGateway4, localPort(client)), Destination: netip.AddrPortFrom(rigGuest4, 53), Inbound: true}
	r.do(func() {
		if seen[0] != want || r.s.stats.Refused != 1 {
			t.Errorf("judged %+v, want %+v; refused %d", seen[0], want, r.s.stats.Refused)
		}
	})
}

func TestUDPForwardClosesWithStack(t *testing.T) {
	r := newRig(t)
	r.publish(netip.AddrPortFrom(loopback4, 0))
	at := r.publish(netip.AddrPortFrom(loopback4, 0))
	client := r.udpSocketOn(loopback4)
	r.answer(client, at, "hello")
	r.called("hello")
	r.stop() // the rig checks for leaks
}

func TestUDPForwardLeavesFlowsToGuest(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Flows = 8 })
	at := r.publish(netip.AddrPortFrom(loopback4, 0))
	for i := range 6 {
		r.answer(r.udpSocketOn(loopback4), at, fmt.Sprint(i))
		r.called(fmt.Sprint(i))
	}
	r.answer(r.udpSocketOn(loopback4), at, "one too many")
	r.until("the client is refused", func() bool { return r.s.stats.OverLimit == 1 })
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "the guest's own")
	r.readsDatagram(host, "the guest's own")
	r.advance(31 * time.Second)
	r.until("the clients' flows have ended", func() bool { return r.s.udp.inboundFlows == 0 })
	r.answer(r.udpSocketOn(loopback4), at, "again")
	r.called("again")
}
