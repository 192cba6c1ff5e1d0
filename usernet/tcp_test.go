package usernet

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// The addresses of a rig. Connections to the peers are redirected to the host's loopback.
var (
	rigGuest4, rigGuest6     = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	rigGateway4, rigGateway6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	rigPeer4, rigPeer6       = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:1::7")
	loopback4, loopback6     = netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
)

// testTimeout is how long a test waits for the host's kernel before it fails.
const testTimeout = 10 * time.Second

// rig is a Stack between a scripted guest and the host's loopback.
type rig struct {
	*testing.T
	stack       *Stack
	s           *engine // of the first engine
	g           *guesttest.Guest
	guest, peer netip.Addr // of the family under test
	ports       uint16
	stop        func()
}

// judgeFunc is a Policy.
type judgeFunc func(Flow) Verdict

func (f judgeFunc) Judge(flow Flow) Verdict { return f(flow) }

// allowAll allows every flow, even to the host's loopback.
var allowAll = judgeFunc(func(Flow) Verdict { return Verdict{} })

// toLoopback redirects the peers' addresses to the host's loopback.
func toLoopback(f Flow) Verdict {
	switch f.Destination.Addr() {
	case rigPeer4:
		return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback4, f.Destination.Port())}
	case rigPeer6:
		return Verdict{Action: Redirect, To: netip.AddrPortFrom(loopback6, f.Destination.Port())}
	}
	return Verdict{}
}

// newStack makes a Stack and its guest for tests of IPv4, with leak checks.
func newStack(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	guesttest.NoLeaks(t)
	cfg := Config{
		MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6,
		Policy: judgeFunc(toLoopback), Limits: Limits{BufferBytes: 16 << 20},
	}
	for _, c := range change {
		c(&cfg)
	}
	r := &rig{T: t, guest: rigGuest4, peer: rigPeer4, ports: 40000}
	r.g, cfg.TUN = guesttest.New(t, cfg.MTU)
	if cfg.Ethernet != nil || *onTAP {
		useTAP(&cfg, r.g)
	}
	var err error
	if r.stack, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.s = r.stack.group.engines[0]
	return r
}

// newRig runs a Stack for tests of IPv4 until the test ends. Then all of its memory must
// have been returned.
func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := newStack(t, change...)
	r.run()
	return r
}

// run runs the Stack until the test ends.
func (r *rig) run() {
	r.g.Fence = r.fence
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.stack.Run(ctx) }()
	for started := false; !started; {
		r.s.mu.Lock()
		started = r.s.running
		r.s.mu.Unlock()
	}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				r.Errorf("run: %v", err)
			}
		case <-time.After(testTimeout):
			r.Fatal("Run does not return")
		}
		r.memoryReturned()
	}
	r.Cleanup(func() { r.stop() })
}

// memoryReturned fails the test unless an ended Stack has all its memory.
func (r *rig) memoryReturned() {
	r.Helper()
	if n := r.s.largePool.used; n != 1 { // the device's
		r.Errorf("%d large buffers in use at the end, want only the device's", n)
	}
	if n := r.s.smallPool.used; n != 0 {
		r.Errorf("%d small buffers in use at the end", n)
	}
	if n := r.s.tcp.openFlows; n != 0 {
		r.Errorf("%d connections left at the end", n)
	}
	allRefunded(r, r.s)
}

// allRefunded fails the test unless all charges of a Stack are refunded soon. Hooks and
// their connections may outlive it for a moment.
func allRefunded(t testing.TB, s *engine) {
	t.Helper()
	until := time.Now().Add(testTimeout)
	for s.group.ledger.Usage().Used != (ledger.Cost{}) {
		if time.Now().After(until) {
			t.Errorf("charged at the end: %+v", s.group.ledger.Usage())
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// family runs a test for IPv4 and for IPv6.
func family(t *testing.T, f func(t *testing.T, r *rig), change ...func(*Config)) {
	t.Helper()
	t.Run("IPv4", func(t *testing.T) { f(t, newRig(t, change...)) })
	t.Run("IPv6", func(t *testing.T) {
		needIPv6(t)
		r := newRig(t, change...)
		r.guest, r.peer = rigGuest6, rigPeer6
		f(t, r)
	})
}

func needIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("the host's loopback has no IPv6:", err)
	}
	l.Close()
}

// do calls f on the loop's thread.
func (r *rig) do(f func()) {
	r.Helper()
	if err := r.s.call(f); err != nil {
		r.Fatal(err)
	}
}

// fence returns when the Stack has handled all packets that were sent. The first call
// ensures that the device was read since. What was read then is handled when the device
// is not readable and no acknowledgement is owed.
func (r *rig) fence() {
	r.Helper()
	r.do(func() {})
	for quiet := false; !quiet; {
		r.do(func() {
			quiet = !r.s.dev.readable && !r.s.tcp.busy() && !r.s.splices.busy() && len(r.s.tcp.ackOwed) == 0
		})
	}
}

// advance advances the clock and fires the timers that are due.
func (r *rig) advance(d time.Duration) {
	r.Helper()
	r.do(func() {
		r.s.loop.start = r.s.loop.start.Add(-d)
		r.s.loop.readClock()
	})
	r.fence()
}

// until waits for a condition of the Stack that the host's kernel brings about.
func (r *rig) until(what string, holds func() bool) {
	r.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		ok := false
		r.do(func() { ok = holds() })
		if ok {
			return
		}
	}
	r.Fatalf("timed out: %s", what)
}

// listen opens a port of the host's loopback.
func (r *rig) listen() *net.TCPListener {
	r.Helper()
	at := loopback4
	if r.peer.Is6() {
		at = loopback6
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { l.Close() })
	_ = l.SetDeadline(time.Now().Add(testTimeout))
	return l
}

// toward returns the address of a listener as the guest sees it.
func (r *rig) toward(l net.Listener) netip.AddrPort {
	return netip.AddrPortFrom(r.peer, uint16(l.Addr().(*net.TCPAddr).Port))
}

// conn returns a connection from an unused port of the guest.
func (r *rig) conn(peer netip.AddrPort) *guesttest.Conn {
	r.ports++
	return r.g.Conn(netip.AddrPortFrom(r.guest, r.ports), peer, rand.Uint32())
}

// accept accepts a connection on the host.
func (r *rig) accept(l *net.TCPListener) *net.TCPConn {
	r.Helper()
	c, err := l.AcceptTCP()
	if err != nil {
		r.Fatal(err)
	}
	return r.keep(c)
}

func (r *rig) keep(c *net.TCPConn) *net.TCPConn {
	r.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

// open returns an established connection: the guest's end and the host's.
func (r *rig) open(change ...func(*guesttest.Conn)) (*guesttest.Conn, *net.TCPConn) {
	r.Helper()
	l := r.listen()
	c := r.conn(r.toward(l))
	for _, f := range change {
		f(c)
	}
	c.Open()
	return c, r.accept(l)
}

// flow returns the Stack's flow of a connection, or nil. Use it only in do.
func (r *rig) flow(c *guesttest.Conn) *tcpFlow { return r.s.tcp.flows[keyOf(c.Local, c.Peer)] }

// live returns the number of open connections.
func (r *rig) live() (n int) {
	r.Helper()
	r.do(func() { n = r.s.tcp.openFlows })
	return n
}

// gone waits until the Stack has no open connections.
func (r *rig) gone() {
	r.Helper()
	r.until("no connection is left", func() bool { return r.s.tcp.openFlows == 0 })
}

// reads fails the test unless the host's end reads exactly these bytes next.
func (r *rig) reads(host net.Conn, want string) {
	r.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(host, got); err != nil || string(got) != want {
		r.Fatalf("the host reads %q (%v), want %q", got[:n], err, want)
	}
}

// readsEOF fails the test unless the host's end reads the end next.
func (r *rig) readsEOF(host net.Conn) {
	r.Helper()
	if n, err := host.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		r.Fatalf("the host reads %d bytes (%v), want the end", n, err)
	}
}

// isReset fails the test unless the host's end was reset.
func (r *rig) isReset(host net.Conn) {
	r.Helper()
	if n, err := host.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		r.Fatalf("the host reads %d bytes (%v), want a reset", n, err)
	}
}

func (r *rig) write(host io.Writer, data string) {
	r.Helper()
	if _, err := io.WriteString(host, data); err != nil {
		r.Fatal(err)
	}
}

// netAddr returns an address and a port.
func netAddr(a netip.Addr, port int) netip.AddrPort { return netip.AddrPortFrom(a, uint16(port)) }

// text returns n bytes that depend on their position.
func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i%61]
	}
	return string(b)
}

// last returns the last packet and checks it.
func (r *rig) last(all []*guesttest.Packet, match guesttest.Matcher) *guesttest.Packet {
	r.Helper()
	if len(all) == 0 {
		r.Fatal("no packet came")
	}
	p := all[len(all)-1]
	if wrong := match(p); wrong != "" {
		r.Fatalf("the last of %v: %s", all, wrong)
	}
	return p
}

func TestTCPBothWays(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		c.Send(packet.ACK|packet.PSH, []byte("a question"))
		r.g.Only(c.Acks())
		r.reads(host, "a question")
		r.write(host, "an answer")
		if got := c.Expect(9); string(got) != "an answer" {
			t.Errorf("the guest reads %q", got)
		}
		if n := r.live(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

func TestTCPFlowIsDescribed(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	c.Send(packet.ACK, []byte("12345"))
	r.reads(host, "12345")
	r.write(host, "123")
	c.Expect(3)
	r.g.Settle()
	all, err := r.stack.Flows()
	if err != nil || len(all) != 1 {
		t.Fatalf("flows %v, %v", all, err)
	}
	f := all[0]
	if f.Source != c.Local || f.Destination != c.Peer || f.Inbound || f.Protocol != packet.TCP {
		t.Errorf("flow %+v", f.Flow)
	}
	if f.Host.Addr() != loopback4 || f.Host.Port() != c.Peer.Port() || f.State != "established" || f.Tier != "tun" {
		t.Errorf("flow leads to %s, state %s, tier %s", f.Host, f.State, f.Tier)
	}
	if f.OutBytes != 5 || f.InBytes != 3 || f.QueuedIn != 0 || f.QueuedOut != 0 {
		t.Errorf("flow has %d bytes out, %d in, %d and %d queued", f.OutBytes, f.InBytes, f.QueuedOut, f.QueuedIn)
	}
	if time.Since(f.Started) > time.Minute || time.Since(f.Started) < 0 {
		t.Errorf("flow started at %s", f.Started)
	}
	c.Send(packet.FIN|packet.ACK, nil)
	r.g.Settle()
	if all, err = r.stack.Flows(); err != nil || len(all) != 1 || all[0].State != "closing" {
		t.Errorf("after FIN: %v, %v", all, err)
	}
}

func TestSpoofedAndBrokenSegmentsAreDropped(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	good := r.conn(r.toward(l)).Segment(packet.SYN, nil)
	tests := []struct {
		name   string
		change func(*guesttest.Segment)
		count  func(Stats) uint64
	}{
		{"another source", func(s *guesttest.Segment) { s.From = netip.MustParseAddrPort("192.0.2.3:40000") }, func(s Stats) uint64 { return s.Spoofed }},
		{"the gateway as source", func(s *guesttest.Segment) { s.From = netip.AddrPortFrom(rigGateway4, 40000) }, func(s Stats) uint64 { return s.Spoofed }},
		{"loopback as source", func(s *guesttest.Segment) { s.From = netip.MustParseAddrPort("127.0.0.1:40000") }, func(s Stats) uint64 { return s.Spoofed }},
		{"a wrong checksum", func(s *guesttest.Segment) { s.Checksum = guesttest.Wrong }, func(s Stats) uint64 { return s.Malformed }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.count(r.stack.Stats())
			s := good
			s.Options = slices.Clone(good.Options)
			tt.change(&s)
			r.g.Send(s)
			r.g.Silent()
			if n := tt.count(r.stack.Stats()) - before; n != 1 {
				t.Errorf("counted %d times, want once", n)
			}
		})
	}
	if n := r.live(); n != 0 {
		t.Errorf("%d connections, want none", n)
	}
	t.Run("a complete checksum is good", func(t *testing.T) {
		s := good
		s.Checksum = guesttest.Complete
		r.g.Send(s)
		r.g.Await(guesttest.FromTo(s.To, s.From, packet.SYN|packet.ACK))
	})
}

func TestBrokenTCPHeaders(t *testing.T) {
	r := newRig(t)
	s := r.conn(netip.AddrPortFrom(r.peer, 80)).Segment(packet.SYN, nil)
	at := packet.VNetHdrBytes + packet.IPv4Bytes
	tests := []struct {
		name  string
		spoil func(frame []byte) []byte
	}{
		{"header length below 20", func(f []byte) []byte { f[at+12] = 4 << 4; return f }},
		{"header length beyond the segment", func(f []byte) []byte { f[at+12] = 15 << 4; return f }},
		{"cut", func(f []byte) []byte { return f[:at+10] }},
		{"only a virtio header", func(f []byte) []byte { return f[:packet.VNetHdrBytes] }},
		{"less than that", func(f []byte) []byte { return f[:5] }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := r.stack.Stats().Malformed
			r.g.SendFrame(tt.spoil(s.Frame()))
			r.g.Silent()
			if n := r.stack.Stats().Malformed - before; n != 1 {
				t.Errorf("counted %d times, want once", n)
			}
		})
	}
}
