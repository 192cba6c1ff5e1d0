package traffic

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// streamSet is one end of the streams of a TCP test. Each stream has a goroutine in a
// loop of blocking system calls, or many share a few (pool.go). Everybody else only reads
// the counters.
type streamSet struct {
	socks  []*socket
	counts []counter
	early  time.Duration // what arrives within this time is counted separately; 0: nothing
	came   *arrivals     // nil without early
	began  chan struct{} // closed on the first byte
	once   sync.Once
	stop   atomic.Bool
	wg     sync.WaitGroup
	idle   chan struct{} // closed when all threads have ended
}

// counter has its own cache line. Only its goroutine writes it.
type counter struct {
	bytes atomic.Uint64
	_     [56]byte
}

func newStreamSet(socks []*socket, early time.Duration) *streamSet {
	return &streamSet{
		socks: socks, counts: make([]counter, len(socks)),
		early: early, came: newArrivals(early > 0),
		began: make(chan struct{}), idle: make(chan struct{}),
	}
}

// start runs loop for every stream. loop returns when its socket ends or stop is set.
func (s *streamSet) start(loop func(s *streamSet, i int)) {
	for i := range s.socks {
		s.wg.Go(func() { loop(s, i) })
	}
	go func() { s.wg.Wait(); close(s.idle) }()
}

// minRead is the smallest read of a receiver, in bytes: four of the senders' default
// writes. Reading a single one is some 4 % slower over loopback; 1 MiB is no faster.
const minRead = 512 << 10

// receiveLoop counts what arrives, reading size bytes or more at once.
func receiveLoop(size int) func(*streamSet, int) {
	return func(s *streamSet, i int) {
		fd, buf, c := s.socks[i].fd, make([]byte, max(size, minRead)), &s.counts[i].bytes
		read, wait, done := unix.Read, noWait, noop
		if takeProcessor() {
			read, wait, done = sys.ReadRaw, rawTimeout(fd, unix.SO_RCVTIMEO, unix.POLLIN), giveProcessor
		}
		defer done()
		var total uint64
		for {
			n, err := read(fd, buf)
			if n <= 0 {
				if err != nil && retry(err) && !s.stop.Load() {
					wait(err)
					continue
				}
				return
			}
			if total == 0 {
				s.once.Do(func() { close(s.began) })
			}
			total += uint64(n)
			c.Store(total)
			s.came.mark()
		}
	}
}

// sendLoop writes size bytes at a time until stopped. All streams send from one buffer,
// which is never written.
func sendLoop(size int) func(*streamSet, int) {
	buf := make([]byte, size)
	fill(buf)
	return func(s *streamSet, i int) {
		fd, c := s.socks[i].fd, &s.counts[i].bytes
		write, wait, done := unix.Write, noWait, noop
		if takeProcessor() {
			write, wait, done = sys.WriteRaw, rawTimeout(fd, unix.SO_SNDTIMEO, unix.POLLOUT), giveProcessor
		}
		defer done()
		var total uint64
		for !s.stop.Load() {
			n, err := write(fd, buf) // the Go runtime ignores SIGPIPE
			if n > 0 {
				total += uint64(n)
				c.Store(total)
			}
			if err != nil {
				if !retry(err) {
					return
				}
				wait(err)
			}
		}
	}
}

// rawStreams counts the streams of this process that keep a processor of the Go scheduler
// while they block.
var rawStreams atomic.Int32

// takeProcessor lets a stream keep a processor as long as enough remain for everything
// else. A process that wants fast streams increases GOMAXPROCS by their number.
func takeProcessor() bool {
	const others = 3 // control, timers, garbage collector
	if int(rawStreams.Add(1))+others <= runtime.GOMAXPROCS(0) {
		return true
	}
	rawStreams.Add(-1)
	return false
}

func giveProcessor() { rawStreams.Add(-1) }

func noop() {}

func noWait(error) {}

// rawWait is how long a thread may block without the scheduler's knowledge.
const rawWait = 5 * time.Millisecond // the garbage collector can wait this long

// rawTimeout sets the timeout that raw calls need, and returns what to do after a
// timeout: wait through the scheduler, for as long as it takes, with periodic checks.
func rawTimeout(fd, option int, events int16) func(error) {
	tv := unix.NsecToTimeval(int64(rawWait))
	// A socket that accepts no timeout is unusable: the first call will fail.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &tv)
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	return func(err error) {
		if err == unix.EAGAIN {
			_, _ = unix.Poll(fds, 100)
		}
	}
}

// fill writes a pattern that does not compress.
func fill(b []byte) {
	x := uint32(2463534242) // xorshift32, Marsaglia 2003
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

func (s *streamSet) total() uint64 { return sum(s.each()) }

func (s *streamSet) each() []uint64 {
	bytes := make([]uint64, len(s.counts))
	for i := range s.counts {
		bytes[i] = s.counts[i].bytes.Load()
	}
	return bytes
}

// window is what was counted in a period.
type window struct {
	bytes    uint64
	streams  []uint64 // the same, by stream
	duration time.Duration
	partial  bool // it ended early

	earlyTime  time.Duration // streamSet.early, or the whole of a shorter window
	earlyBytes uint64
	gap        time.Duration // longest pause
}

// measure counts for duration, starting omit after the first byte. It ends early when ctx
// or all streams end.
func (s *streamSet) measure(ctx context.Context, omit, duration time.Duration, opened func()) window {
	select {
	case <-s.began:
	case <-ctx.Done():
		return window{partial: true}
	case <-s.idle:
		return window{partial: true}
	}
	if !s.sleep(ctx, omit) {
		return window{partial: true}
	}
	if opened != nil {
		opened()
	}
	s.came.begin()
	began, before := nanos(), s.each()
	w := window{}
	whole := true
	if early := min(s.early, duration); early > 0 {
		whole = s.sleep(ctx, early)
		w.earlyTime = time.Duration(nanos() - began)
		w.earlyBytes = s.total() - sum(before)
	}
	whole = whole && s.sleep(ctx, duration-time.Duration(nanos()-began))
	w.streams, w.duration, w.partial, w.gap = s.each(), time.Duration(nanos()-began), !whole, s.came.longest()
	for i, b := range before {
		w.streams[i] -= b
		w.bytes += w.streams[i]
	}
	return w
}

func sum(counts []uint64) uint64 {
	var all uint64
	for _, c := range counts {
		all += c
	}
	return all
}

// sleep reports whether d elapsed before the test ended.
func (s *streamSet) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-s.idle:
	}
	return false
}

// describe reads the kernel's information about the streams into r: retransmitted
// segments of all, MSS and congestion control of the first.
func (s *streamSet) describe(r *report) {
	for i, sock := range s.socks {
		info, err := unix.GetsockoptTCPInfo(sock.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			continue
		}
		r.Retransmits += uint64(info.Total_retrans)
		if i == 0 {
			r.MSS = int(info.Snd_mss)
		}
	}
	if cc, err := unix.GetsockoptString(s.socks[0].fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		r.Congestion = cc
	}
}

// end stops every thread, waits for them and closes the sockets. Queued data is
// discarded.
func (s *streamSet) end() {
	s.stop.Store(true)
	for _, sock := range s.socks {
		sock.wake()
	}
	s.wg.Wait()
	for _, sock := range s.socks {
		sock.close(true)
	}
}
