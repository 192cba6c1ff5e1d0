package usernet

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// sinks are the host's ends of what a random guest gets through to: they say
// something, listen to a part, and leave by RST, so that the host's kernel keeps
// nothing.
type sinks struct {
	tcp   net.Listener
	udp   *net.UDPConn
	wg    sync.WaitGroup // all but accept
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
	<-s.ended // from now on no connection is added
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

// judge gives each port of a destination its fate. Nothing leaves the host's
// loopback.
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
		return Verdict{Action: Redirect, To: netip.MustParseAddrPort("127.0.0.1:1")} // nobody there
	case 3:
		return Verdict{Action: Redirect, To: netip.MustParseAddrPort("255.255.255.255:9")} // unreachable to TCP
	}
	if f.Protocol == packet.UDP {
		return Verdict{Action: Redirect, To: s.udp.LocalAddr().(*net.UDPAddr).AddrPort()}
	}
	return Verdict{Action: Redirect, To: s.tcp.Addr().(*net.TCPAddr).AddrPort()}
}

// hand is a Stack that a fuzzer runs by hand.
type hand struct {
	s *engine
	g *guesttest.Guest
}

func newHand(t testing.TB, policy Policy) *hand {
	t.Helper()
	h := &hand{}
	var tun *os.File
	h.g, tun = guesttest.New(t, 1500)
	stack, err := New(Config{
		TUN: tun, MTU: 1500, Guest4: rigGuest4, Guest6: rigGuest6, Gateway4: rigGateway4, Gateway6: rigGateway6,
		Policy: policy, Limits: Limits{Flows: fuzzFlows, BufferBytes: 4 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.s = stack.group.engines[0]
	h.s.ctx = context.Background()
	if _, err := h.s.loop.add(h.s.dev.fd, unix.EPOLLIN|edge, &h.s.dev); err != nil {
		t.Fatal(err)
	}
	return h
}

// fuzzFlows is the limit of flows while fuzzing.
const fuzzFlows = 64

// round runs the Stack once without waiting.
func (h *hand) round(t testing.TB) {
	t.Helper()
	h.s.loop.post(nothing)
	if err := h.s.round(); err != nil {
		t.Fatal(err)
	}
	if n := h.s.open(); n > fuzzFlows {
		t.Fatalf("%d flows, the limit is %d", n, fuzzFlows)
	}
}

// later lets time pass.
func (h *hand) later(d time.Duration) { h.s.loop.start = h.s.loop.start.Add(-d) }

// FuzzFrames throws arbitrary bytes at a Stack.
func FuzzFrames(f *testing.F) {
	guest4, peer4 := netAddr(rigGuest4, 40000), netAddr(rigPeer4, 80)
	guest6, peer6 := netAddr(rigGuest6, 40000), netAddr(rigPeer6, 86)
	for _, s := range []guesttest.Segment{
		{From: guest4, To: peer4, Flags: packet.SYN, Options: guesttest.MSS(1460)},
		{From: guest6, To: peer6, Flags: packet.SYN, Options: guesttest.Scale(7)},
		{From: guest4, To: peer4, Flags: packet.ACK, Payload: []byte(text(3000)), Cut: 1400},
		{From: guest6, To: peer6, Flags: packet.ACK | packet.URG | packet.FIN, Urgent: 3, Payload: []byte("abc"), Checksum: guesttest.Complete},
		{From: guest4, To: peer4, Flags: packet.RST, Checksum: guesttest.Wrong},
	} {
		f.Add(s.Frame())
	}
	r := &randomGuest{Rand: rand.New(rand.NewPCG(1, 1))}
	for range 200 {
		f.Add(append([]byte(nil), r.frame()...))
	}
	h := newHand(f, judgeFunc(func(flow Flow) Verdict {
		return Verdict{Action: []Action{Refuse, Drop, Redirect}[flow.Destination.Port()%3], To: netip.MustParseAddrPort("127.0.0.1:1")}
	}))
	f.Cleanup(h.s.end)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) == 0 || len(frame) > 1<<16+packet.VNetHdrBytes {
			return // no device gives such
		}
		for range 2 { // the second finds the state that the first has made
			h.g.SendFrame(frame)
			h.round(t)
		}
		h.round(t)
		for g := h.g.Within(t); g.TryReceive() != nil; {
		}
		h.later(time.Minute)
	})
}

// randomGuest makes frames that are mostly sensible: most arbitrary bytes would
// come no farther than the first length.
type randomGuest struct {
	*rand.Rand
	buf  []byte
	seen [64]struct{ seq, ack uint32 } // per connection: what would be next
}

// connection is one of the few that a random guest has.
func (r *randomGuest) connection() (i int, guest, peer netip.AddrPort) {
	i = r.IntN(len(r.seen))
	if i%2 == 0 {
		return i, netAddr(rigGuest4, 40000+i), netAddr(rigPeer4, 80+i/2)
	}
	return i, netAddr(rigGuest6, 40000+i), netAddr(rigPeer6, 80+i/2)
}

// learn takes the numbers from an answer.
func (r *randomGuest) learn(raw []byte) {
	var ip packet.IP
	var h packet.TCPHeader
	if packet.ParseIP(raw[packet.VNetHdrBytes:], &ip) != nil || ip.Protocol != packet.TCP || packet.ParseTCP(ip.Payload, &h) != nil {
		return
	}
	if i := int(h.DstPort) - 40000; i >= 0 && i < len(r.seen) {
		r.seen[i].ack = h.Seq + uint32(len(h.Payload)) + uint32(h.Flags&packet.SYN>>1) + uint32(h.Flags&packet.FIN)
		if h.Flags&packet.ACK != 0 {
			r.seen[i].seq = h.Ack
		}
	}
}

// frame is the next frame, valid until the one after.
func (r *randomGuest) frame() []byte {
	i, guest, peer := r.connection()
	var f []byte
	switch kind := r.IntN(100); {
	case kind < 65:
		f = r.tcp(i, guest, peer)
	case kind < 80:
		f = r.datagram(guest, peer)
	case kind < 90:
		f = r.icmp(guest, peer)
	case kind < 95:
		f = r.fragment(guest, peer)
	default:
		f = r.garbage(r.IntN(200))
	}
	if r.IntN(10) == 0 && len(f) > 0 {
		for range 1 + r.IntN(4) {
			f[r.IntN(len(f))] = byte(r.Uint32())
		}
	}
	if r.IntN(50) == 0 && len(f) > 1 {
		f = f[:1+r.IntN(len(f)-1)]
	}
	return f
}

func (r *randomGuest) garbage(n int) []byte {
	r.buf = r.room(n + 1)
	for i := range r.buf {
		r.buf[i] = byte(r.Uint32())
	}
	return r.buf
}

func (r *randomGuest) room(n int) []byte {
	if cap(r.buf) < n {
		r.buf = make([]byte, n, 2*n)
	}
	r.buf = r.buf[:n]
	clear(r.buf)
	return r.buf
}

// size is a payload's: mostly small.
func (r *randomGuest) size() int {
	switch r.IntN(20) {
	case 0:
		return r.IntN(60000)
	case 1, 2, 3:
		return r.IntN(1460)
	case 4, 5, 6, 7:
		return 1 + r.IntN(10)
	}
	return 0
}

func (r *randomGuest) tcp(i int, guest, peer netip.AddrPort) []byte {
	h := packet.TCPHeader{SrcPort: guest.Port(), DstPort: peer.Port(), Window: uint16(r.Uint32()) >> r.IntN(16), Urgent: uint16(r.IntN(2000))}
	n := r.size()
	h.Seq, h.Ack = r.seen[i].seq, r.seen[i].ack
	switch r.IntN(12) {
	case 0, 1:
		h.Flags, h.Seq = packet.SYN, r.Uint32()
		n = 0
	case 2:
		h.Flags = packet.FIN | packet.ACK
	case 3:
		h.Flags = []uint8{packet.RST, packet.RST | packet.ACK, packet.ACK, packet.ACK}[r.IntN(4)]
	case 4:
		h.Flags = uint8(r.Uint32())
	case 5:
		h.Flags = packet.ACK | packet.URG
	default:
		h.Flags = packet.ACK
	}
	switch r.IntN(12) {
	case 0:
		h.Seq += uint32(r.IntN(4000)) - 2000
	case 1:
		h.Ack += uint32(r.IntN(4000)) - 2000
	case 2:
		h.Seq = r.Uint32()
	case 3:
		h.Ack = r.Uint32()
	}
	options := 4 * r.IntN(11) * int(h.Flags&packet.SYN>>1)
	headers := packet.TCPBytes + options
	at := packet.IPBytes(guest.Addr())
	f := r.room(packet.VNetHdrBytes + at + headers + n)
	pkt := f[packet.VNetHdrBytes:]
	packet.PutIP(pkt, guest.Addr(), peer.Addr(), packet.TCP, 0, headers+n)
	packet.PutTCP(pkt[at:], &h)
	pkt[at+12] = uint8(headers / 4 << 4)
	for o := range options {
		pkt[at+packet.TCPBytes+o] = byte(r.IntN(12))
	}
	r.vnet(f, at, packet.TCPChecksumOffset, n, headers, guest.Addr().Is4())
	return f
}

// vnet writes the virtio header: nearly always one that asks for a checksum.
func (r *randomGuest) vnet(f []byte, at, offset, payload, headers int, is4 bool) {
	v := packet.VNetHdr{Flags: packet.NeedsChecksum, ChecksumStart: uint16(at), ChecksumOffset: uint16(offset)}
	if payload > 1460 {
		v.GSOSize, v.HeaderBytes, v.GSOType = uint16(1+r.IntN(1460)), uint16(at+headers), packet.GSOUDP
		if offset == packet.TCPChecksumOffset {
			v.GSOType = packet.GSOTCPv6
			if is4 {
				v.GSOType = packet.GSOTCPv4
			}
		}
	}
	if r.IntN(50) == 0 {
		v.Flags = 0
	}
	v.Put(f)
}

func (r *randomGuest) datagram(guest, peer netip.AddrPort) []byte {
	n := r.size()
	at := packet.IPBytes(guest.Addr())
	f := r.room(packet.VNetHdrBytes + at + packet.UDPBytes + n)
	pkt := f[packet.VNetHdrBytes:]
	packet.PutIP(pkt, guest.Addr(), peer.Addr(), packet.UDP, 0, packet.UDPBytes+n)
	packet.PutUDP(pkt[at:], guest.Port(), peer.Port(), n)
	r.vnet(f, at, packet.UDPChecksumOffset, n, packet.UDPBytes, guest.Addr().Is4())
	return f
}

func (r *randomGuest) icmp(guest, peer netip.AddrPort) []byte {
	n := r.IntN(200)
	at := packet.IPBytes(guest.Addr())
	f := r.room(packet.VNetHdrBytes + at + packet.ICMPBytes + n)
	pkt := f[packet.VNetHdrBytes:]
	proto := packet.ICMPv6
	if guest.Addr().Is4() {
		proto = packet.ICMP
	}
	to := peer.Addr()
	if r.IntN(3) == 0 {
		to = map[bool]netip.Addr{true: rigGateway4, false: rigGateway6}[to.Is4()]
	}
	packet.PutIP(pkt, guest.Addr(), to, proto, 0, packet.ICMPBytes+n)
	packet.PutEcho(pkt[at:], proto, &packet.Echo{Request: r.IntN(4) > 0, ID: uint16(r.IntN(4)), Seq: uint16(r.Uint32())})
	if r.IntN(4) == 0 {
		pkt[at], pkt[at+1] = byte(r.Uint32()), byte(r.IntN(16))
	}
	packet.PutICMPChecksum(pkt[at:], guest.Addr(), to)
	return f
}

func (r *randomGuest) fragment(guest, peer netip.AddrPort) []byte {
	n := 8 * (1 + r.IntN(180))
	ip := packet.IP{
		Src: guest.Addr(), Dst: peer.Addr(), Protocol: []packet.Protocol{packet.TCP, packet.UDP, packet.ICMP}[r.IntN(3)], TTL: 64,
		ID: uint32(r.IntN(8)), Offset: 8 * r.IntN(100) * r.IntN(2), More: r.IntN(3) > 0,
	}
	if r.IntN(10) == 0 {
		ip.Offset = 65528 - 8*r.IntN(200)
	}
	f := r.room(packet.VNetHdrBytes + packet.IPv6Bytes + packet.FragmentBytes + n)
	at := ip.Put(f[packet.VNetHdrBytes:], n)
	if ip.Offset == 0 && ip.Protocol == packet.UDP {
		packet.PutUDP(f[packet.VNetHdrBytes+at:], guest.Port(), peer.Port(), max(0, n-packet.UDPBytes))
	}
	return f[:packet.VNetHdrBytes+at+n]
}

// residentBytes is this process's memory.
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

// framesToTry is how many frames a random guest sends: CLEAT_FUZZ_FRAMES, or
// what takes a second or two.
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
	r := &randomGuest{Rand: rand.New(rand.NewPCG(seed, 0))}
	answer := make([]byte, 1<<17)
	frames := framesToTry(t)
	early, files := 0, guesttest.Descriptors(t)
	for i := range frames {
		for !h.g.TrySendFrame(r.frame()) {
			h.round(t)
		}
		if r.IntN(8) == 0 {
			h.round(t)
		}
		if r.IntN(8) == 0 {
			for {
				n := h.g.TryReceiveFrame(answer)
				if n == 0 {
					break
				}
				r.learn(answer[:n])
			}
		}
		if r.IntN(500) == 0 {
			h.later(time.Duration(r.Int64N(int64(40 * time.Second))))
		}
		if i == frames/4 {
			early = residentBytes(t)
		}
		if i%10_000 == 0 {
			// Per flow a socket here and one at the sink, or a few that are closing.
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
		t.Error("this test does not get far enough to try anything")
	}
	sinks.close()
	h.end(t)
}

// end lets time pass after which nobody answers any more: all flows must end by
// themselves and leave nothing.
func (h *hand) end(t testing.TB) {
	t.Helper()
	// What the host's kernel and other goroutines still have to say takes its time.
	for n, until := 0, time.Now().Add(patience); n < 200 || h.s.open() > 0 && time.Now().Before(until); n++ {
		h.later(mostTimeout)
		h.round(t)
		h.g.Discard()
	}
	if n := h.s.open(); n != 0 {
		t.Errorf("%d flows never end: %+v", n, h.s.udp.describe(h.s.tcp.describe(nil)))
	}
	if n := len(h.s.tcp.flows); n != 0 {
		t.Errorf("%d connections are left in the table", n)
	}
	h.s.end()
	if h.s.large.used != 1 || h.s.small.used != 0 {
		t.Errorf("%d large and %d small buffers are in use at the end, want the device's only", h.s.large.used, h.s.small.used)
	}
	h.s.group.gate.close()
	allRefunded(t, h.s)
}
