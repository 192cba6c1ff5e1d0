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

// freeUDPPort is a port of the host's that nobody has.
func freeUDPPort(t *testing.T, on netip.Addr) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(on, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return netip.AddrPortFrom(on, localPort(c))
}

// connectedUDP is a client whose socket hears of errors.
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

// rejects has the guest's kernel say that nobody serves the port that a datagram from peer to
// the guest's port came for.
func (r *rig) rejects(peer netip.AddrPort, port uint16) {
	r.Helper()
	about := datagramFrame(peer, netip.AddrPortFrom(r.guest, port), []byte("what came"), 0)[packet.VNetHdrBytes:]
	frame := make([]byte, packet.VNetHdrBytes+packet.MaxICMPErrorBytes)
	e := packet.NewICMPError(packet.ErrorPort, r.guest.Is4(), 0)
	n := packet.PutICMPError(frame[packet.VNetHdrBytes:], &e, r.guest, about)
	if n == 0 {
		r.Fatal("no error may be sent")
	}
	r.g.SendFrame(frame[:packet.VNetHdrBytes+n])
}

// isRefused fails the test unless the socket hears that nobody is there.
func (r *rig) isRefused(c *net.UDPConn) {
	r.Helper()
	if n, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.ECONNREFUSED) {
		r.Fatalf("the client reads %d bytes (%v), want refused", n, err)
	}
}

// The client of a published port that nobody serves inside is refused, as by a host.
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
			r.until("the flow is gone", func() bool { return len(r.s.udp.flows) == 0 })
			r.write(client, "really?")
			r.isRefused(client)

			r.advance(refuseFor)
			r.write(client, "and now?")
			shown := r.called("and now?")
			r.rejects(shown, 53) // too soon to refuse everybody once more
			r.write(client, "hello?")
			r.called("hello?")
			r.sendDatagram(53, shown, "now")
			got := make([]byte, 10)
			if n, err := client.Read(got); string(got[:n]) != "now" {
				t.Errorf("the client hears %q, %v", got[:n], err)
			}
		})
	}
}

// Where the guest serves one client and refuses another, the first does not suffer.
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

// Who still sends to a port that the guest has closed hears of it.
func TestUDPGuestPortClosed(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		server, peer := r.udpServer()
		r.sendDatagram(5000, peer, "question")
		from := r.readsDatagram(server, "question")
		r.answer(server, from, "answer")
		r.gets(peer, 5000, "answer")
		r.rejects(peer, 5000)
		r.until("the flow is gone", func() bool { return len(r.s.udp.flows) == 0 && len(r.s.udp.sockets) == 0 })
		late := r.connectedUDP(from)
		r.write(late, "late")
		r.isRefused(late)
	})
}

// What is no such error, or about nothing that there is, changes nothing.
func TestUDPIrrelevantErrors(t *testing.T) {
	r := newRig(t)
	server, peer := r.udpServer()
	r.sendDatagram(5000, peer, "question")
	r.readsDatagram(server, "question")
	r.rejects(peer, 5001)
	r.rejects(netip.AddrPortFrom(peer.Addr(), peer.Port()+1), 5000)
	short := echoFrame(r.guest, r.peer, 1, 1, nil)
	short[packet.VNetHdrBytes+packet.IPv4Bytes] = 3 // unreachable, about nothing
	r.g.SendFrame(short)
	r.g.Silent()
	r.do(func() {
		if len(r.s.udp.flows) != 1 {
			t.Errorf("%d flows", len(r.s.udp.flows))
		}
	})
}
