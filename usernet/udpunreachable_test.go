package usernet

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// freeUDPPort returns an unused port of the host.
func freeUDPPort(t *testing.T, on netip.Addr) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(on, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return netip.AddrPortFrom(on, localPort(c))
}

// connectedUDP returns a client whose socket reports errors.
func (r *rig) connectedUDP(to netip.AddrPort) *net.UDPConn {
	r.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

// rejects makes the guest's kernel report that nothing serves the port that a datagram
// from peer was for.
func (r *rig) rejects(peer netip.AddrPort, port uint16) {
	r.Helper()
	about := datagramFrame(peer, netip.AddrPortFrom(r.guest, port), []byte("a datagram"), 0)[packet.VNetHdrBytes:]
	frame := make([]byte, packet.VNetHdrBytes+packet.MaxICMPErrorBytes)
	e := packet.NewICMPError(packet.ErrorPort, r.guest.Is4(), 0)
	n := packet.PutICMPError(frame[packet.VNetHdrBytes:], &e, r.guest, about)
	if n == 0 {
		r.Fatal("no error may be sent")
	}
	r.g.SendFrame(frame[:packet.VNetHdrBytes+n])
}

// isRefused fails the test unless the socket reports ECONNREFUSED.
func (r *rig) isRefused(c *net.UDPConn) {
	r.Helper()
	if n, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
		r.Fatalf("the client reads %d bytes (%v), want ECONNREFUSED", n, err)
	}
}

// The client of a published port that nothing serves is refused, as by a host.
func TestUDPForwardUnserved(t *testing.T) {
	for name, listen := range map[string]func() netip.AddrPort{
		"IPv4": func() netip.AddrPort { return freeUDPPort(t, loopback4) },
		"IPv6": func() netip.AddrPort { return freeUDPPort(t, loopback6) },
		"both": func() netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, freeUDPPort(t, loopback4).Port()) },
	} {
		t.Run(name, func(t *testing.T) {
			needIPv6(t)
			r := newRig(t)
			at := r.publish(listen())
			if name == "both" {
				at = netip.AddrPortFrom(loopback4, at.Port())
			}
			if at.Addr().Is6() {
				r.guest, r.peer = rigGuest6, rigPeer6
			}
			client := r.connectedUDP(at)
			r.write(client, "anybody?")
			r.rejects(r.called("anybody?"), 53)
			r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 })
			r.write(client, "really?")
			r.isRefused(client)

			r.advance(refuseFor)
			r.write(client, "and now?")
			shown := r.called("and now?")
			r.rejects(shown, 53) // too soon to refuse all clients again
			r.write(client, "hello?")
			r.called("hello?")
			r.sendDatagram(53, shown, "now")
			got := make([]byte, 10)
			if n, err := client.Read(got); string(got[:n]) != "now" {
				t.Errorf("the client reads %q, %v", got[:n], err)
			}
		})
	}
}

// If the guest serves one client and refuses another, the first one is not affected.
func TestUDPForwardRefusesOneClient(t *testing.T) {
	r := newRig(t)
	at := r.publish(freeUDPPort(t, loopback4))
	friend, other := r.udpSocketOn(loopback4), r.udpSocketOn(loopback4)
	r.answer(friend, at, "hello")
	shown := r.called("hello")
	r.sendDatagram(53, shown, "hello yourself")
	r.readsDatagram(friend, "hello yourself")
	r.answer(other, at, "me too")
	r.rejects(r.called("me too"), 53)
	r.answer(friend, at, "still there?")
	r.called("still there?")
}

// A port that the kernel chose would be lost.
func TestUDPForwardKernelChosenPort(t *testing.T) {
	r := newRig(t)
	at := r.publish(netip.AddrPortFrom(loopback4, 0))
	client := r.connectedUDP(at)
	for range 2 {
		r.write(client, "anybody?")
		r.rejects(r.called("anybody?"), 53)
	}
}

// A host that still sends to a port that the guest has closed gets an error.
func TestUDPGuestPortClosed(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		server, peer := r.udpServer()
		r.sendDatagram(5000, peer, "question")
		from := r.readsDatagram(server, "question")
		r.answer(server, from, "answer")
		r.gets(peer, 5000, "answer")
		r.rejects(peer, 5000)
		r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 && len(r.s.udp.sockets) == 0 })
		late := r.connectedUDP(from)
		r.write(late, "late")
		r.isRefused(late)
	})
}

// Other messages, and errors about unknown flows, change nothing.
func TestUDPIrrelevantErrors(t *testing.T) {
	r := newRig(t)
	server, peer := r.udpServer()
	r.sendDatagram(5000, peer, "question")
	r.readsDatagram(server, "question")
	r.rejects(peer, 5001)
	r.rejects(netip.AddrPortFrom(peer.Addr(), peer.Port()+1), 5000)
	short := echoFrame(r.guest, r.peer, 1, 1, nil)
	short[packet.VNetHdrBytes+packet.IPv4Bytes] = 3 // unreachable, about an unknown flow
	r.g.SendFrame(short)
	r.g.Silent()
	r.do(func() {
		if len(r.s.udp.flows) != 1 {
			t.Errorf("%d flows", len(r.s.udp.flows))
		}
	})
}
