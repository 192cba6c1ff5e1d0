package usernet

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// sinks are the host's ends of a random guest's connections. They write something, read a
// part, and close with RST, so that the host's kernel keeps nothing.
type sinks struct {
	tcp   net.Listener
	udp   *net.UDPConn
	wg    sync.WaitGroup // for all fields but accept
	ended chan struct{}  // closed when accept has returned
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func openSinks(t testing.TB) *sinks {
	t.Helper()
	s := &sinks{conns: map[net.Conn]bool{}, ended: make(chan struct{})}
	var err error
	if s.tcp, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if s.udp, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	go s.accept()
	s.wg.Go(func() { echo(s.udp) })
	return s
}

// close resets all connections.
func (s *sinks) close() {
	s.tcp.Close()
	s.udp.Close()
	<-s.ended // no connection is added from now on
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *sinks) accept() {
	defer close(s.ended)
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			talk(c.(*net.TCPConn))
			s.mu.Lock()
			c.Close()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

func talk(c *net.TCPConn) {
	port := c.RemoteAddr().(*net.TCPAddr).Port
	_, _ = c.Write(make([]byte, 100*(port%50)))
	if port%3 == 0 {
		_ = c.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, c, int64(port%7*1000))
}

func echo(u *net.UDPConn) {
	b := make([]byte, 1<<16)
	for {
		n, from, err := u.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		_, _ = u.WriteToUDPAddrPort(b[:n], from)
	}
}

// judge decides by the port of the destination. Nothing leaves the host's loopback.
func (s *sinks) Judge(f Flow) Verdict {
	if f.Protocol == packet.ICMP || f.Protocol == packet.ICMPv6 {
		return Verdict{Action: []Action{Refuse, Drop}[f.Source.Port()%2]}
	}
	switch f.Destination.Port() % 8 {
	case 0:
		return Verdict{Action: Refuse}
	case 1:
		return Verdict{Action: Drop}
	case 2:
		return Verdict{Action: Redirect, To: netip.MustParseAddrPort("127.0.0.1:1")} // no listener
	case 3:
		return Verdict{Action: Redirect, To: netip.MustParseAddrPort("255.255.255.255:9")} // unreachable for TCP
	}
	if f.Protocol == packet.UDP {
		return Verdict{Action: Redirect, To: s.udp.LocalAddr().(*net.UDPAddr).AddrPort()}
	}
	return Verdict{Action: Redirect, To: s.tcp.Addr().(*net.TCPAddr).AddrPort()}
}

// manualStack is a Stack that a fuzzer runs step by step.
type manualStack struct {
	s *engine
	g *guesttest.Guest
}

func newHand(t testing.TB, policy Policy, change ...func(*Config)) *manualStack {
	t.Helper()
	h := &manualStack{}
	var tun *os.File
	h.g, tun = guesttest.New(t, 1500)
	cfg := Config{
		TUN: tun, MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6,
		Policy: policy, Limits: Limits{Flows: fuzzFlows, BufferBytes: 4 << 20},
	}
	for _, c := range change {
		c(&cfg)
	}
	if cfg.Ethernet != nil || *onTAP {
		useTAP(&cfg, h.g)
	}
	stack, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.s = stack.group.engines[0]
	h.s.ctx = context.Background()
	if _, err := h.s.loop.add(h.s.dev.fd, unix.EPOLLIN|edgeTriggered, &h.s.dev); err != nil {
		t.Fatal(err)
	}
	return h
}

// fuzzFlows is the limit of flows while fuzzing.
const fuzzFlows = 64

// round runs the Stack once without waiting.
func (h *manualStack) round(t testing.TB) {
	t.Helper()
	h.s.loop.post(nothing)
	if err := h.s.round(); err != nil {
		t.Fatal(err)
	}
	if n := h.s.openFlows(); n > fuzzFlows {
		t.Fatalf("%d flows, limit %d", n, fuzzFlows)
	}
}

// later advances the clock.
func (h *manualStack) later(d time.Duration) { h.s.loop.start = h.s.loop.start.Add(-d) }

// checkTimers fails the test unless the timer of each connection suits its state.
func (h *manualStack) checkTimers(t testing.TB) {
	t.Helper()
	allowed := map[tcpState][]timerKind{
		stateJudging: {timerOff}, stateConnecting: {timerOff, timerConnect}, stateConnectExpired: {timerForget},
		stateAtGate: {timerGate}, stateSYNACKSent: {timerHandshake}, stateSYNSent: {timerHandshake},
		stateSpliced: {timerOff}, stateFinished: {timerFinished},
	}
	for _, f := range h.s.tcp.flows {
		want, kind := allowed[f.state], f.timer.kind
		switch {
		case f.state != stateEstablished:
		case f.sndUna != f.sndNxt:
			want = []timerKind{timerRetransmit}
		case f.guestWindow == 0:
			want = []timerKind{timerOff, timerProbe}
		default:
			want = []timerKind{timerOff}
		}
		if !slices.Contains(want, kind) || (kind == timerOff) != (f.timer.deadline == 0) {
			t.Fatalf("timer %d with deadline %d in state %d, want one of %d", kind, f.timer.deadline, f.state, want)
		}
	}
}

// FuzzFrames writes arbitrary bytes to a Stack.
func FuzzFrames(f *testing.F) {
	guest4, peer4 := netAddr(rigGuest4, 40000), netAddr(rigPeer4, 80)
	guest6, peer6 := netAddr(rigGuest6, 40000), netAddr(rigPeer6, 86)
	for _, s := range []guesttest.Segment{
		{From: guest4, To: peer4, Flags: packet.SYN, Options: guesttest.MSS(1460)},
		{From: guest6, To: peer6, Flags: packet.SYN, Options: guesttest.Scale(7)},
		{From: guest4, To: peer4, Flags: packet.ACK, Payload: []byte(text(3000)), GSOSize: 1400},
		{From: guest6, To: peer6, Flags: packet.ACK | packet.URG | packet.FIN, Urgent: 3, Payload: []byte("abc"), Checksum: guesttest.Complete},
		{From: guest4, To: peer4, Flags: packet.RST, Checksum: guesttest.Wrong},
	} {
		f.Add(s.Frame())
	}
	r := newRandom(1)
	for range 200 {
		f.Add(append([]byte(nil), r.Frame()...))
	}
	h := newHand(f, judgeFunc(func(flow Flow) Verdict {
		return Verdict{Action: []Action{Refuse, Drop, Redirect}[flow.Destination.Port()%3], To: netip.MustParseAddrPort("127.0.0.1:1")}
	}))
	f.Cleanup(h.s.shutdown)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 || len(frame) > 1<<16+packet.VNetHdrBytes {
			return // no device returns such a frame
		}
		for range 2 { // the second time finds the state that the first has made
			h.g.SendFrame(frame)
			h.round(t)
		}
		h.round(t)
		for g := h.g.Within(t); g.TryReceive() != nil; {
		}
		h.later(time.Minute)
	})
}

// newRandom returns the random guest of a rig.
func newRandom(seed uint64) *guesttest.Random {
	var peers []netip.AddrPort
	for i := range 32 {
		peers = append(peers, netAddr(rigPeer4, 80+i), netAddr(rigPeer6, 80+i))
	}
	r := guesttest.NewRandom(seed, rigGuest4, rigGuest6, peers)
	r.Gateway4, r.Gateway6 = rigGateway4, rigGateway6
	return r
}

// residentBytes returns the memory of this process.
func residentBytes(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// framesToTry returns how many frames a random guest sends: CLEAT_FUZZ_FRAMES, or what
// takes a second or two.
func framesToTry(t testing.TB) int {
	t.Helper()
	s := os.Getenv("CLEAT_FUZZ_FRAMES")
	if s == "" {
		return 200_000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("CLEAT_FUZZ_FRAMES: %v", err)
	}
	return n
}

func TestRandomGuest(t *testing.T) {
	guesttest.NoLeaks(t)
	sinks := openSinks(t)
	h := newHand(t, sinks)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newRandom(seed)
	answer := make([]byte, 1<<17)
	frames := framesToTry(t)
	early, files := 0, guesttest.Descriptors(t)
	for i := range frames {
		for !h.g.TrySendFrame(r.Frame()) {
			h.round(t)
		}
		if r.IntN(8) == 0 {
			h.round(t)
			h.checkTimers(t)
		}
		if r.IntN(8) == 0 {
			for {
				n := h.g.TryReceiveFrame(answer)
				if n == 0 {
					break
				}
				r.Learn(answer[:n])
			}
		}
		if r.IntN(500) == 0 {
			h.later(time.Duration(r.Int64N(int64(40 * time.Second))))
		}
		if i == frames/4 {
			early = residentBytes(t)
		}
		if i%10_000 == 0 {
			// For each flow a socket here and one at the sink, or a few that are closing.
			if n := guesttest.Descriptors(t); n > files+4*fuzzFlows {
				t.Fatalf("%d open files after %d frames, %d at the start", n, i, files)
			}
		}
	}
	if late := residentBytes(t); late > early+16<<20 {
		t.Errorf("%d MiB resident after a quarter of the frames, %d MiB at the end", early>>20, late>>20)
	}
	s := h.s.stats
	t.Logf("%d frames: %+v", frames, s)
	if s.TCPFlows < 100 || s.UDPFlows < 10 || s.Retransmits == 0 || s.OverLimit == 0 {
		t.Error("the frames got nowhere: this test checks nothing")
	}
	sinks.close()
	h.end(t)
}

// end advances the clock until all flows must have ended without an answer, and checks
// that nothing is left.
func (h *manualStack) end(t testing.TB) {
	t.Helper()
	// The host's kernel and other goroutines need a moment.
	for n, until := 0, time.Now().Add(testTimeout); n < 200 || h.s.openFlows() > 0 && time.Now().Before(until); n++ {
		h.later(maxRTO)
		h.round(t)
		h.g.Discard()
	}
	if n := h.s.openFlows(); n != 0 {
		t.Errorf("%d flows did not end: %+v", n, h.s.udp.describe(h.s.tcp.describe(nil)))
	}
	if n := len(h.s.tcp.flows); n != 0 {
		t.Errorf("%d connections are left in the table", n)
	}
	h.s.shutdown()
	if h.s.largePool.used != 1 || h.s.smallPool.used != 0 {
		t.Errorf("%d large and %d small buffers in use at the end, want only the device's", h.s.largePool.used, h.s.smallPool.used)
	}
	h.s.group.gate.close()
	allRefunded(t, h.s)
}
