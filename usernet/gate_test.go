package usernet

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// In these tests the guest lives on the host's loopback. The test does what the guest's
// kernel would do with the SYN that comes back: it connects to the gate.

// gateRig is a Stack with a gate.
type gateRig struct {
	*rig
	gate   netip.AddrPort // also the peer's address as the guest sees it
	server *net.TCPListener
}

func newGateRig(t *testing.T, v6 bool, change ...func(*Config)) *gateRig {
	t.Helper()
	at := loopback4
	if v6 {
		needIPv6(t)
		at = loopback6
	}
	g := &gateRig{}
	listener := tcpFile(t, at, true)
	caller := tcpFile(t, at, false)
	own, errno := sys.LocalAddress(int(listener.Fd()))
	if errno != 0 {
		t.Fatal(errno)
	}
	g.gate = own.AddrPort()
	var target netip.AddrPort
	g.rig = newStack(t, append([]func(*Config){func(c *Config) {
		c.Guest4, c.Gateway4 = loopback4, netip.MustParseAddr("127.0.0.9")
		c.Guest6, c.Gateway6 = loopback6, loopback6
		c.Gate = &Gate{Listener4: listener, Caller4: caller, Always: true}
		if v6 {
			c.Gate = &Gate{Listener6: listener, Caller6: caller, Always: true}
		}
		c.Policy = judgeFunc(func(f Flow) Verdict {
			if f.Destination == g.gate {
				return Verdict{Action: Redirect, To: target}
			}
			return Verdict{}
		})
	}}, change...)...)
	g.guest, g.peer = at, at
	g.server = g.listen()
	target = g.server.Addr().(*net.TCPAddr).AddrPort()
	g.run()
	return g
}

// tcpFile returns a TCP socket, which listens on a free port or is not bound.
func tcpFile(t *testing.T, at netip.Addr, listening bool) *os.File {
	t.Helper()
	kind := unix.AF_INET
	if at.Is6() {
		kind = unix.AF_INET6
	}
	fd, err := unix.Socket(kind, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "gate")
	t.Cleanup(func() { f.Close() })
	if !listening {
		return f
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sockaddr(netip.AddrPortFrom(at, 0))), unix.Listen(fd, 16))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// gates runs a test for both families.
func gates(t *testing.T, f func(t *testing.T, g *gateRig)) {
	t.Run("IPv4", func(t *testing.T) { f(t, newGateRig(t, false)) })
	t.Run("IPv6", func(t *testing.T) { f(t, newGateRig(t, true)) })
}

// port returns a free port of the guest: a dialer for a socket that will use it, and the
// scripted connection that the socket stands for.
func (g *gateRig) port() (*guesttest.Conn, *net.Dialer) {
	g.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(g.guest, 0)))
	if err != nil {
		g.Fatal(err)
	}
	local := l.Addr().(*net.TCPAddr)
	l.Close()
	return g.g.Conn(local.AddrPort(), g.gate, rand.Uint32()), &net.Dialer{LocalAddr: local, Timeout: testTimeout}
}

// sendSYN sends the guest's SYN and waits until it comes back.
func (g *gateRig) sendSYN(c *guesttest.Conn) {
	g.Helper()
	c.Send(packet.SYN, nil)
	g.g.Await(func(p *guesttest.Packet) string {
		if p.From() != c.Local || p.To() != c.Peer || p.TCP.Flags != packet.SYN || p.TCP.Seq != c.Start {
			return "want the guest's SYN"
		}
		return ""
	})
}

// through returns a spliced connection: the guest's end and the host's.
func (g *gateRig) through() (guest, host *net.TCPConn, c *guesttest.Conn) {
	g.Helper()
	c, d := g.port()
	g.sendSYN(c)
	conn, err := d.Dial("tcp", g.gate.String())
	if err != nil {
		g.Fatal(err)
	}
	guest, host = g.keep(conn.(*net.TCPConn)), g.accept(g.server)
	g.until("the connection is spliced", func() bool { f := g.flow(c); return f != nil && f.state == stateSpliced })
	return guest, host, c
}

func (g *gateRig) stats() Stats { return g.stack.Stats() }

// If the host refuses a connection, the SYN never comes back.
func TestGateNotUsedForRefused(t *testing.T) {
	g := newGateRig(t, false)
	g.server.Close()
	c, _ := g.port()
	c.Send(packet.SYN, nil)
	g.g.Await(c.Resets())
	g.gone()
	if s := g.stats(); s.Spliced != 0 {
		t.Errorf("counters %+v", s)
	}
}

// The guest may redirect anything to the gate, and gets a reset.
func TestIntruderIsReset(t *testing.T) {
	gates(t, func(t *testing.T, g *gateRig) {
		for n := range uint64(3) {
			g.connectIsReset(g.gate)
			if s := g.stats(); s.Intruders != n+1 || s.Spliced != 0 {
				t.Errorf("counters %+v", s)
			}
		}
	})
}

// A second connection that looks like an expected one is reset.
func TestIntruderWithSamePorts(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, c := g.through()
	g.do(func() {
		fd, err := unix.Dup(int(must(tcpPair(t)).Fd()))
		if err != nil {
			t.Fatal(err)
		}
		g.s.tcp.spliceArrival(g.s.group.gate.family(loopback4), g.flow(c), fd)
	})
	if s := g.stats(); s.Intruders != 1 || s.Spliced != 1 {
		t.Errorf("counters %+v", s)
	}
	g.write(guest, "still here")
	g.reads(host, "still here")
}

// tcpPair returns one end of a connection with itself.
func tcpPair(t *testing.T) (*os.File, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	other, err := l.Accept()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { other.Close() })
	f, err := c.(*net.TCPConn).File()
	if err == nil {
		t.Cleanup(func() { f.Close() })
	}
	return f, err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// If the SYN does not come through, the device carries the connection. After a few of
// those the gate is not tried, until some time has passed.
func TestGateTimeout(t *testing.T) {
	g := newGateRig(t, false)
	byDevice := func(c *guesttest.Conn) (why string) {
		g.g.Await(func(p *guesttest.Packet) string {
			if wrong := c.From(packet.SYN | packet.ACK)(p); wrong != "" {
				return wrong
			}
			c.HandleSYN(p)
			return ""
		})
		c.Send(packet.ACK, []byte("by the device"))
		host := g.accept(g.server)
		g.reads(host, "by the device")
		g.do(func() { why = g.flow(c).deviceReason })
		_ = host.SetLinger(0)
		host.Close()
		g.gone()
		g.g.Settle()
		return why
	}
	for range maxFailures {
		c, _ := g.port()
		g.sendSYN(c)
		g.advance(gateTimeout)
		if why := byDevice(c); why != reasonGateTimeout {
			t.Errorf("it goes by the device: %q", why)
		}
	}
	c, _ := g.port()
	c.Send(packet.SYN, nil)
	if why := byDevice(c); why != reasonGatePaused {
		t.Errorf("it goes by the device: %q", why)
	}
	g.do(func() { g.s.group.gate.start = g.s.group.gate.start.Add(-minPause) })
	guest, host, _ := g.through()
	g.write(guest, "through again")
	g.reads(host, "through again")
	g.do(func() {
		if gate := g.s.group.gate; gate.failures.Load() != 0 || gate.retryAt.Load() != 0 {
			t.Error("the gate does not know that it works")
		}
	})
}

// A guest that gives up while its SYN is at the gate leaves nothing.
func TestGuestGivesUpAtGate(t *testing.T) {
	g := newGateRig(t, false)
	c, _ := g.port()
	g.sendSYN(c)
	c.Send(packet.RST, nil)
	g.isReset(g.accept(g.server))
	g.gone()
}

// Packets of a spliced connection that take the device are returned to the guest's kernel
// unchanged.
func TestPacketsOfSplicedConnectionsAreReturned(t *testing.T) {
	g := newGateRig(t, false)
	_, _, c := g.through()
	c.Send(packet.ACK|packet.PSH, []byte("stray"))
	g.g.Only(func(p *guesttest.Packet) string {
		if p.From() != c.Local || p.To() != c.Peer || string(p.TCP.Payload) != "stray" {
			return "want the guest's packet"
		}
		return ""
	})
	if s := g.stats(); s.Returned != 1 {
		t.Errorf("counters %+v", s)
	}
}

// A SYN between the ports of a spliced connection that the guest has forgotten opens
// another one.
func TestSplicedPortsReused(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, c := g.through()
	next := g.g.Conn(c.Local, c.Peer, c.Start+1<<20)
	g.sendSYN(next)
	g.isReset(host)
	g.isReset(guest)
	second := g.accept(g.server)
	c.Guest.Send(next.Segment(packet.RST, nil))
	g.isReset(second)
	g.gone()
}

// A forward's client connects to the guest's server from its own address, through a
// socket made in the guest's namespace.
func TestForwardThroughGate(t *testing.T) {
	g := newGateRig(t, false)
	inside, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback4.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	at, err := g.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(loopback4, 0),
		To: netip.AddrPortFrom(netip.Addr{}, uint16(inside.Addr().(*net.TCPAddr).Port))})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // first with a stocked socket, then with new ones
		client := g.client(at, netip.AddrPort{})
		server := g.accept(inside)
		from := client.LocalAddr().(*net.TCPAddr).AddrPort()
		if got := server.RemoteAddr().(*net.TCPAddr).AddrPort(); got != netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), from.Port()) {
			t.Errorf("the client %s appears as %s", from, got)
		}
		g.write(client, "a question")
		g.reads(server, "a question")
		server.Close()
		g.readsEOF(client)
		client.Close()
		g.gone()
	}
	if s := g.stats(); s.Spliced != 3 {
		t.Errorf("counters %+v", s)
	}
	inside.Close()
	g.connectIsReset(at)
	g.gone()
}

// connectIsReset fails the test unless a connection is reset, during connect or later.
func (g *gateRig) connectIsReset(at netip.AddrPort) {
	g.Helper()
	conn, err := net.Dial("tcp", at.String())
	if errors.Is(err, unix.ECONNRESET) {
		return
	}
	if err != nil {
		g.Fatal(err)
	}
	g.isReset(g.keep(conn.(*net.TCPConn)))
}

// await waits for a condition that kernels bring about.
func (g *gateRig) await(what string, holds func() bool) {
	g.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		if holds() {
			return
		}
	}
	g.Fatalf("timed out: %s", what)
}

// Without a socket in the guest's namespace a client's connection takes the device.
func TestForwardWithoutGuestSocket(t *testing.T) {
	g := newGateRig(t, false, func(c *Config) { c.Gate.Caller4 = nil })
	client := g.client(g.forward(), netip.AddrPort{})
	g.write(client, "by the device")
	c := g.g.AwaitSYN(netip.AddrPortFrom(loopback4, 80), 0)
	c.AnswerSYN()
	if got := c.Expect(13); string(got) != "by the device" {
		t.Errorf("the guest reads %q", got)
	}
	g.do(func() {
		if f := g.flow(c); f.deviceReason != reasonNoInsideSocket {
			t.Errorf("it goes by the device: %q", f.deviceReason)
		}
	})
}

// After short connections to a port the next one takes the device, until one is long
// again.
func TestGateForLongConnections(t *testing.T) {
	g := newGateRig(t, false, func(c *Config) { c.Gate.Always = false })
	for range shortThreshold {
		guest, host, _ := g.through()
		g.write(guest, "short")
		g.reads(host, "short")
		guest.Close()
		g.readsEOF(host)
		host.Close()
		g.gone()
	}
	g.do(func() { // however long the test has taken
		for port, h := range g.s.group.gate.history.ports {
			g.s.group.gate.history.ports[port] = portRecord{h.shortInRow, time.Now().Add(testTimeout)}
		}
	})
	c, _ := g.port()
	c.Open()
	host := g.accept(g.server)
	g.do(func() {
		if f := g.flow(c); f.deviceReason != reasonShort {
			t.Errorf("it goes by the device: %q", f.deviceReason)
		}
	})
	for sent := 0; sent < longFlowBytes; {
		part := text(1000)
		c.Send(packet.ACK|packet.PSH, []byte(part))
		g.g.Only(c.Acks())
		g.reads(host, part)
		sent += len(part)
	}
	g.through()
}

func TestPortHistory(t *testing.T) {
	h := portHistory{ports: map[netip.AddrPort]portRecord{}}
	port := netip.MustParseAddrPort("192.0.2.7:80")
	now := time.Now()
	short := func() {
		for n := range shortThreshold + 3 {
			if got, want := h.expectShort(port, now), n >= shortThreshold; got != want {
				t.Errorf("after %d short connections another one is expected: %v", n, got)
			}
			h.record(port, 1000, now)
			now = now.Add(time.Millisecond)
		}
	}
	short()
	if h.expectShort(netip.MustParseAddrPort("192.0.2.7:81"), now) {
		t.Error("another port is expected to be short as well")
	}
	h.record(port, longFlowBytes, now)
	if h.expectShort(port, now) {
		t.Error("a long connection has changed nothing")
	}
	short()
	if now = now.Add(shortGap); h.expectShort(port, now) {
		t.Error("a pause has changed nothing")
	}
	short()
	for n := range maxPortRecords + 10 {
		h.record(netip.AddrPortFrom(port.Addr(), uint16(n+1)), 0, now)
	}
	if len(h.ports) > maxPortRecords {
		t.Errorf("%d ports remembered", len(h.ports))
	}
}

// Our socket in the guest's namespace must not send segments that are longer than a small
// receive buffer.
func TestLowerMSS(t *testing.T) {
	for _, tt := range []struct{ name, options, want string }{
		{"none", "", ""},
		{"high", "\x02\x04\xff\xc8", "\x02\x04\x20\x00"},
		{"low", "\x02\x04\x05\xb4", "\x02\x04\x05\xb4"},
		{"behind others", "\x01\x03\x03\x07\x02\x04\xff\xff\x04\x02", "\x01\x03\x03\x07\x02\x04\x20\x00\x04\x02"},
		{"behind the end", "\x00\x02\x04\xff\xff", "\x00\x02\x04\xff\xff"},
		{"cut", "\x02\x04\xff", "\x02\x04\xff"},
		{"of length 0", "\x02\x00\xff\xff", "\x02\x00\xff\xff"},
	} {
		got := []byte(tt.options)
		if lowerMSS(got); string(got) != tt.want {
			t.Errorf("%s: %x, want %x", tt.name, got, tt.want)
		}
	}
}
