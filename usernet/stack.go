package usernet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// ErrClosed says that the Stack has ended or was never started.
var ErrClosed = errors.New("user-mode network is not running")

// Stack moves bytes between a TUN device and sockets. Make it with New, then
// call Run once. The other methods are safe for concurrent use and may be
// called before Run.
type Stack struct {
	cfg    Config
	limits Limits
	loop   *loop
	dev    device
	large  *pool
	small  *pool
	stats  Stats
	tcp    tcpTable
	udp    udpTable
	icmp   icmpTable
	ctx    context.Context // while Run runs

	forwards map[forwardKey]*listener
	hooks    int    // under way
	loopback string // congestion control of sockets to the host itself; "": as the system has it
	spin     spinner
	trim     timer

	mu      sync.Mutex // before Run: who may touch the rest
	running bool
	ended   bool
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Stack, error) {
	if cfg.TUN == nil {
		return nil, errors.New("no TUN device given")
	}
	if err := checkMTU(cfg.MTU, cfg.Guest6.IsValid()); err != nil {
		return nil, err
	}
	if !cfg.Guest4.IsValid() && !cfg.Guest6.IsValid() {
		return nil, errors.New("guest has neither an IPv4 nor an IPv6 address")
	}
	limits, err := cfg.Limits.complete()
	if err != nil {
		return nil, err
	}
	s := &Stack{cfg: cfg, limits: limits, forwards: map[forwardKey]*listener{}, loopback: loopbackControl()}
	if s.large, err = newPool(largeBytes, limits.BufferBytes/largeBytes); err != nil {
		return nil, err
	}
	if s.small, err = newPool(smallBytes, limits.BufferBytes/4/smallBytes); err != nil {
		s.large.close()
		return nil, err
	}
	if s.loop, err = newLoop(); err != nil {
		s.large.close()
		s.small.close()
		return nil, err
	}
	s.dev = device{fd: int(cfg.TUN.Fd()), pool: s.large, buf: s.large.get(), stats: &s.stats}
	if err := unix.SetNonblock(s.dev.fd, true); err != nil {
		s.release()
		return nil, fmt.Errorf("make TUN non-blocking: %w", err)
	}
	s.trim.fire = s.large.trim
	s.tcp.init(s)
	s.udp.init(s)
	s.icmp.init(s)
	if cfg.Pcap != nil {
		if s.dev.capture, err = newCapture(cfg.Pcap); err != nil {
			s.release()
			return nil, err
		}
	}
	return s, nil
}

// complete fills in what was left zero.
func (l Limits) complete() (Limits, error) {
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return l, fmt.Errorf("read the limit of open files: %w", err)
	}
	const reserve = 64 // descriptors that are not flows: listeners, the device, what the caller has
	allowed := max(int(min(nofile.Cur, 1<<20))-reserve, 16)
	if l.Flows == 0 {
		l.Flows = 1 << 16
	}
	l.Flows = min(l.Flows, allowed)
	if l.BufferBytes == 0 {
		l.BufferBytes = 64 << 20
	}
	if l.BufferBytes < 1<<20 {
		return l, fmt.Errorf("limit of packet memory %d: want 1 MiB at least", l.BufferBytes)
	}
	if l.UDPIdle == 0 {
		l.UDPIdle = 120 * time.Second
	}
	if l.UDPReply == 0 {
		l.UDPReply = 30 * time.Second
	}
	return l, nil
}

// Run moves bytes until ctx ends (nil), or the device is gone (nil), or waiting
// itself fails. It may be called once. It locks its goroutine to a thread; flows
// that are open when it returns are reset.
func (s *Stack) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running || s.ended {
		s.mu.Unlock()
		return errors.New("user-mode network was started before")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.running, s.ctx = true, ctx
	s.mu.Unlock()

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stopped := false
	defer context.AfterFunc(ctx, func() { s.loop.post(func() { stopped = true }) })()
	defer s.end()
	if _, err := s.loop.add(s.dev.fd, unix.EPOLLIN|edge, &s.dev); err != nil {
		return err
	}
	s.dev.readable = true
	for !stopped && !s.dev.gone {
		if err := s.round(); err != nil {
			return err
		}
	}
	return nil
}

// edge makes epoll report a change once.
const edge = unix.EPOLLET & 0xffffffff

// end closes everything that Run used.
func (s *Stack) end() {
	s.mu.Lock()
	s.running, s.ended = false, true
	s.mu.Unlock()
	s.tcp.closeAll()
	s.udp.closeAll()
	for _, l := range s.forwards {
		l.close()
	}
	s.release()
}

func (s *Stack) release() {
	s.loop.close()
	s.large.close()
	s.small.close()
}

// Close frees what New made, for a Stack that was never run. After Run it does
// nothing.
func (s *Stack) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running && !s.ended {
		s.ended = true
		for _, l := range s.forwards {
			l.close()
		}
		s.release()
	}
}

// batch is how many packets of 64 KiB are read from the device before
// acknowledgements go back; more makes the guest wait, fewer cost a system call
// each.
const batch = 16

// maxBatch is the same for packets so small that they are not what takes time,
// such as acknowledgements: left behind, they would hold up connections whose
// windows are small, and only those.
const maxBatch = 256

// round does what is to be done and waits when that was nothing.
func (s *Stack) round() error {
	if s.idle() {
		if err := s.rest(); err != nil {
			return err
		}
	} else if _, err := s.loop.poll(); err != nil {
		return err
	}
	before := s.stats.TunInBytes + s.stats.TunOutBytes
	if s.dev.readable {
		for n, bytes := 0, 0; n < maxBatch && bytes < batch<<16; n++ {
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
	s.udp.pump()
	s.loop.timers.run(s.loop.now)
	moved := s.stats.TunInBytes + s.stats.TunOutBytes - before
	s.spin.moved(moved)
	s.tcp.acknowledge(s.spin.worthwhile())
	if moved > largeBytes {
		s.loop.timers.set(&s.trim, s.loop.after(trimAfter))
	}
	return nil
}

// trimAfter is how long after the last bulk the packet memory is given back.
const trimAfter = 2 * time.Second

// idle tells whether only the outside can bring work.
func (s *Stack) idle() bool {
	return !s.dev.readable && !s.tcp.busy() && !s.udp.busy()
}

// input takes one packet from the guest.
func (s *Stack) input(frame []byte) {
	var v packet.VNetHdr
	var ip packet.IP
	if v.Parse(frame) != nil || packet.ParseIP(frame[packet.VNetHdrBytes:], &ip) != nil {
		s.stats.Malformed++
		return
	}
	if ip.Src != s.cfg.Guest4 && ip.Src != s.cfg.Guest6 {
		s.foreign(&ip)
		return
	}
	if ip.IsFragment() {
		s.fragment(frame, &ip)
		return
	}
	s.transport(frame, &v, &ip)
}

// transport takes a packet that is whole.
func (s *Stack) transport(frame []byte, v *packet.VNetHdr, ip *packet.IP) {
	if v.Flags&packet.NeedsChecksum == 0 && v.GSOType == packet.GSONone && !intact(ip) {
		s.stats.Malformed++
		return
	}
	switch {
	case ip.Protocol == packet.TCP:
		s.tcp.input(v, ip)
	case ip.Protocol == packet.UDP:
		s.udp.input(frame, v, ip)
	case ip.Protocol == packet.ICMP && ip.Src.Is4(), ip.Protocol == packet.ICMPv6 && ip.Src.Is6():
		s.icmp.input(frame, ip)
	default:
		s.stats.Unsupported++
		s.unreachable(frame, packet.ErrorProtocol)
	}
}

// intact verifies the checksum of a packet that the guest's kernel has not just
// made: one that came to it from elsewhere, or was written raw.
func intact(ip *packet.IP) bool {
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

// foreign drops what does not come from the guest's address. An IPv6 stack says
// things from its link-local or the unspecified address (RFC 4861): those are
// no forgeries.
func (s *Stack) foreign(ip *packet.IP) {
	if ip.Src.Is6() && (ip.Src.IsUnspecified() || ip.Src.IsLinkLocalUnicast()) {
		s.stats.Unsupported++
		return
	}
	s.stats.Spoofed++
}

// gateway is our own address of a's family.
func (s *Stack) gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return s.cfg.Gateway4
	}
	return s.cfg.Gateway6
}

// guest is the guest's address of a's family.
func (s *Stack) guest(a netip.Addr) netip.Addr {
	if a.Is4() {
		return s.cfg.Guest4
	}
	return s.cfg.Guest6
}

// call runs f where it may touch everything: on the loop's thread while Run
// runs, else here.
func (s *Stack) call(f func()) error {
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

// Flows describes all flows of the moment, in no particular order.
func (s *Stack) Flows() ([]FlowInfo, error) {
	var all []FlowInfo
	err := s.call(func() {
		all = s.tcp.describe(all)
		all = s.udp.describe(all)
	})
	return all, err
}

// Stats are the counters; after Run has returned, the last.
func (s *Stack) Stats() Stats {
	var now Stats
	read := func() {
		now = s.stats
		now.Open = s.open()
	}
	if s.call(read) != nil {
		now = s.stats
	}
	return now
}

// open is the number of flows.
func (s *Stack) open() int { return s.tcp.open() + s.udp.open() }

// full tells whether there is no room for one more flow, and counts it.
func (s *Stack) full() bool {
	if s.open() < s.limits.Flows {
		return false
	}
	s.stats.OverLimit++
	return true
}
