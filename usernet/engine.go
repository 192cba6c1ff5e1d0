package usernet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/ledger"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// engine moves bytes between one queue of the device and host sockets. It is a loop on a
// thread of its own. Other goroutines use its state only through call and loop.post. The
// field s of tables and flows is their engine.
type engine struct {
	group      *group
	cfg        Config
	limits     Limits // BufferBytes is this engine's share
	loop       *loop
	dev        device
	largePool  *pool
	smallPool  *pool
	stats      Stats
	unspliced  map[string]uint64 // connections that took the device, by reason
	tcp        tcpTable
	splices    spliceTable
	peekBuffer [4 << 10]byte // for lane.peek
	udp        udpTable
	icmp       icmpTable
	ctx        context.Context // set while run runs

	forwards     map[forwardKey]*openForward
	outForwards  map[*outForward]struct{}
	runningHooks int // hooks that have not returned
	controls     congestionControls
	spin         spinner
	trimTimer    timer

	queueWanted     atomic.Bool  // the queue should be attached
	detachTimer     timer        // checks whether the queue is still needed
	handedOverBytes atomic.Int64 // bytes handed over to this engine that wait
	ownCost         account      // for what exists as long as the engine

	mu      sync.Mutex // before run, protects all fields
	running bool
	ended   bool
}

// newEngine makes an engine for a queue. cfg has been checked. Of limits, BufferBytes is the
// engine's share; the others hold for the whole Stack.
func newEngine(g *group, cfg Config, tun *os.File, limits Limits) (*engine, error) {
	s := &engine{group: g, cfg: cfg, limits: limits, forwards: map[forwardKey]*openForward{}, outForwards: map[*outForward]struct{}{}, unspliced: map[string]uint64{}, ownCost: account{ledger: g.ledger}}
	if !s.ownCost.charge(engineCost) {
		return nil, fmt.Errorf("limits of memory and open files %+v: too low for a network", g.ledger.Usage().Limit)
	}
	if err := s.open(tun); err != nil {
		s.release()
		return nil, err
	}
	s.trimTimer.fire = func() { // frees what only bulk transfers need
		s.largePool.trim()
		s.splices.pipes.trim()
	}
	s.detachTimer.fire = s.detach
	s.tcp.init(s)
	s.splices.init(s)
	s.udp.init(s)
	s.icmp.s = s
	return s, nil
}

// open makes what release frees, and sets the device's queue to non-blocking.
func (s *engine) open(tun *os.File) (err error) {
	if s.largePool, err = newPool(largeBytes, s.limits.BufferBytes/largeBytes); err != nil {
		return err
	}
	if s.smallPool, err = newPool(smallBytes, s.limits.BufferBytes/4/smallBytes); err != nil {
		return err
	}
	if s.loop, err = newLoop(); err != nil {
		return err
	}
	s.dev = device{fd: int(tun.Fd()), pool: s.largePool, buf: s.largePool.get(), stats: &s.stats}
	if e := s.cfg.Ethernet; e != nil {
		s.dev.ether, s.dev.linkBytes, s.dev.readAt = newEthernet(s, s.group.lan, e.Guest), packet.EthernetBytes, tapReadAt
	}
	if err := unix.SetNonblock(s.dev.fd, true); err != nil {
		return fmt.Errorf("make TUN non-blocking: %w", err)
	}
	return nil
}

// run is Stack.Run for one engine.
func (s *engine) run(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stopped := false
	defer context.AfterFunc(ctx, func() { s.loop.post(func() { stopped = true }) })()
	defer s.shutdown()
	if _, err := s.loop.add(s.dev.fd, unix.EPOLLIN|edgeTriggered, &s.dev); err != nil {
		return err
	}
	s.dev.readable = true
	if s == s.group.engines[0] {
		if err := s.watchGate(); err != nil {
			return err
		}
	}
	for !stopped && !s.dev.removed {
		if err := s.round(); err != nil {
			return err
		}
	}
	return nil
}

// start gives all state to the loop's thread.
func (s *engine) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running || s.ended {
		return errors.New("user-mode network was started before")
	}
	s.running, s.ctx = true, ctx
	return nil
}

// edgeTriggered makes epoll report each change once.
const edgeTriggered = unix.EPOLLET & 0xffffffff

// shutdown closes everything that run used.
func (s *engine) shutdown() {
	s.mu.Lock()
	s.running, s.ended = false, true
	s.mu.Unlock()
	s.loop.drain()
	s.tcp.closeAll()
	s.udp.closeAll()
	s.closeListeners()
	s.release()
}

func (s *engine) closeListeners() {
	for _, l := range s.forwards {
		l.close()
		l.costs.close()
	}
	for o := range s.outForwards {
		o.close()
	}
}

func (s *engine) release() {
	s.splices.pipes.trim()
	s.ownCost.close()
	if s.loop != nil {
		s.loop.close()
	}
	for _, p := range []*pool{s.largePool, s.smallPool} {
		if p != nil {
			p.close()
		}
	}
}

// discard frees what newEngine made, for an engine that was never run.
func (s *engine) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running && !s.ended {
		s.ended = true
		s.closeListeners()
		s.release()
	}
}

// batchPackets is how many packets of 64 KiB are read from the device before
// acknowledgements are sent. With more, the guest waits longer for them. With fewer, more
// acknowledgements are sent, each by a system call.
const batchPackets = 16

// maxBatchPackets is the limit for packets that are too small to take time, such as
// acknowledgements. Leaving them behind would only delay connections with small windows.
const maxBatchPackets = 256

// round waits until there is work, and does it.
func (s *engine) round() error {
	if s.idle() {
		if err := s.waitForWork(); err != nil {
			return err
		}
	} else if _, err := s.loop.poll(); err != nil {
		return err
	}
	before := s.movedBytes()
	if s.dev.readable {
		for n, bytes := 0, 0; n < maxBatchPackets && bytes < batchPackets<<16; n++ {
			frame := s.dev.read()
			if frame == nil {
				break
			}
			bytes += len(frame)
			s.input(frame)
		}
		s.udp.flush()
	}
	s.tcp.pump()
	s.splices.pump()
	s.udp.pump()
	s.loop.timers.run(s.loop.now)
	moved := s.movedBytes() - before
	if moved > 0 {
		s.spin.lastSmall = moved < spinMaxBytes
	}
	s.tcp.acknowledge(s.spin.worthwhile())
	if moved > largeBytes {
		s.loop.timers.set(&s.trimTimer, s.loop.after(trimAfter))
	}
	return nil
}

func (s *engine) movedBytes() uint64 {
	return s.stats.TunInBytes + s.stats.TunOutBytes + s.splices.movedBytes
}

// trimAfter is how long after the last bulk transfer its memory is freed.
const trimAfter = 2 * time.Second

// idle reports whether there is no work without a new event.
func (s *engine) idle() bool {
	return !s.dev.readable && !s.tcp.busy() && !s.splices.busy() && !s.udp.busy()
}

// input handles one packet from the guest.
func (s *engine) input(frame []byte) {
	var v packet.VNetHdr
	var ip packet.IP
	if v.Parse(frame) != nil || packet.ParseIP(frame[packet.VNetHdrBytes:], &ip) != nil {
		s.stats.Malformed++
		return
	}
	if ip.Src != s.cfg.Guest4 && ip.Src != s.cfg.Guest6 && !s.otherSource(&v, &ip) {
		return
	}
	if ip.Routed { // the policy would see a hop instead of the destination
		s.stats.Unsupported++
		s.unreachable(frame, packet.ErrorRoute)
		return
	}
	if ip.IsFragment() {
		s.reassemble(&ip)
		return
	}
	s.transport(frame, &v, &ip)
}

// otherSource handles a packet whose source is not the guest's address. It reports whether
// the guest may use the source all the same.
func (s *engine) otherSource(v *packet.VNetHdr, ip *packet.IP) bool {
	// An IPv6 stack also uses its link-local and the unspecified address (RFC 4861), and a
	// DHCP client the unspecified one.
	nameless := ip.Src.IsUnspecified() || ip.Src.Is6() && ip.Src.IsLinkLocalUnicast()
	switch {
	case s.dev.ether != nil && nameless && (v.Flags&packet.NeedsChecksum != 0 || checksumOK(ip)) && s.dev.ether.request(ip):
	case s.group.autoPrefix.Contains(ip.Src):
		s.group.chose(ip.Src)
		return true
	case ip.Src.Is6() && nameless:
		s.stats.Unsupported++
	default:
		s.stats.Spoofed++
	}
	return false
}

// transport handles a packet that is not a fragment.
func (s *engine) transport(frame []byte, v *packet.VNetHdr, ip *packet.IP) {
	if v.Flags&packet.NeedsChecksum == 0 && v.GSOType == packet.GSONone && !checksumOK(ip) {
		s.stats.Malformed++
		return
	}
	switch {
	case ip.Protocol == packet.TCP:
		s.tcp.input(frame, ip)
	case s.dev.ether != nil && s.dev.ether.request(ip):
	case ip.Protocol == packet.UDP:
		s.udp.input(frame, v, ip)
	case ip.Protocol == packet.ICMP && ip.Src.Is4(), ip.Protocol == packet.ICMPv6 && ip.Src.Is6():
		s.icmp.input(frame, ip)
	default:
		s.stats.Unsupported++
		s.unreachable(frame, packet.ErrorProtocol)
	}
}

// checksumOK verifies the checksum of a packet that the guest's kernel has not just made:
// one that it has forwarded, or that was written to a raw socket.
func checksumOK(ip *packet.IP) bool {
	switch ip.Protocol {
	case packet.TCP, packet.ICMPv6:
		return packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) == 0
	case packet.UDP:
		none := len(ip.Payload) >= packet.UDPBytes && ip.Payload[6] == 0 && ip.Payload[7] == 0 && ip.Src.Is4()
		return none || packet.TransportChecksum(ip.Src, ip.Dst, ip.Protocol, ip.Payload) == 0
	case packet.ICMP:
		return packet.Checksum(ip.Payload) == 0
	}
	return true
}

// ofFamily returns v4 or v6, whichever is for a's family.
func ofFamily(a, v4, v6 netip.Addr) netip.Addr {
	if a.Is4() {
		return v4
	}
	return v6
}

func (s *engine) gatewayFor(a netip.Addr) netip.Addr {
	return ofFamily(a, s.cfg.Gateway4, s.cfg.Gateway6)
}

// call calls f where it may use the engine's state: on the loop's thread while run runs,
// else here.
func (s *engine) call(f func()) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return ErrClosed
	}
	if !s.running {
		defer s.mu.Unlock()
		f()
		return nil
	}
	ctx := s.ctx
	s.mu.Unlock()
	done := make(chan struct{})
	if !s.loop.post(func() { f(); close(done) }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ErrClosed
	}
}

// callError is call for a function that returns an error. If call fails, f may still be
// running, so its error is not read.
func (s *engine) callError(f func() error) error {
	var err error
	if callErr := s.call(func() { err = f() }); callErr != nil {
		return callErr
	}
	return err
}

// counters returns the engine's part of Stats. After run they keep their last values.
func (s *engine) counters() Stats {
	var now Stats
	read := func() {
		now = s.stats
		now.Open = s.openFlows()
		for j := range s.splices.junctions {
			now.SplicedOutBytes += j.out.bytes
			now.SplicedInBytes += j.in.bytes
		}
		now.Unspliced = maps.Clone(s.unspliced)
	}
	if s.call(read) != nil {
		now = s.stats
		now.Unspliced = maps.Clone(s.unspliced)
	}
	return now
}

// openFlows returns the number of flows that are not finished.
func (s *engine) openFlows() int { return s.tcp.openFlows + len(s.udp.flows) }

// admit charges for one more flow, and reports whether the limits allow it. It counts a
// flow that they don't.
func (s *engine) admit(c ledger.Cost) (account, bool) {
	costs := account{ledger: s.group.ledger}
	if s.group.flows.Load() < int64(s.limits.Flows) && costs.charge(c) {
		return costs, true
	}
	s.stats.OverLimit++
	return costs, false
}
