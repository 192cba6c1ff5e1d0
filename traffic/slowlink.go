package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// SlowLink is a link between two TUN or TAP devices that delays and loses packets, the
// same in both directions. It has no rate limit; use a qdisc on the devices for that.
type SlowLink struct {
	A, B   int           // open descriptors of the same kind; they become non-blocking
	Delay  time.Duration // of every packet, one way; may be 0
	Jitter time.Duration // largest additional delay, uniformly distributed; packets keep their order
	Loss   float64       // probability of losing a packet, 0…1
}

// SlowStats counts what crossed a SlowLink.
type SlowStats struct {
	AB RelayStats `json:"ab"`
	BA RelayStats `json:"ba"`
}

// A slow link holds at most slowQueue packets or slowQueueBytes in each direction, and
// drops further packets: 32 MiB are 50 ms at 5 Gbit/s.
const (
	slowQueue      = 1 << 14
	slowQueueBytes = 32 << 20

	// slowTick is how long the relay sleeps between two checks of busy devices, unless a
	// tenth of the shortest delay is less. Waking up for each packet at 1.2 Gbit/s would
	// be 100,000 wake-ups a second.
	slowTick      = 200 * time.Microsecond
	slowTickShare = 10
)

// RelaySlow joins pairs of devices until ctx ends or a device is gone, and returns what
// crossed each link. One thread serves all links. A packet leaves between Delay and Delay
// + Jitter + two ticks after its arrival, and later only if the thread did not run. A
// tick is at most 200 µs and at most a tenth of the shortest delay. Losses are determined
// by the seed and the order of packets.
func RelaySlow(ctx context.Context, links []SlowLink, seed uint64) ([]SlowStats, error) {
	r, err := newSlowRelay(links, seed)
	if err != nil {
		return nil, err
	}
	defer r.close()
	release := wakeAfter(ctx, r.wake)
	onOwnThread(func() { err = r.run() })
	release()
	stats := make([]SlowStats, len(links))
	for i := range stats {
		stats[i] = SlowStats{AB: r.ways[2*i].stats, BA: r.ways[2*i+1].stats}
	}
	return stats, err
}

// slowRelay serves all directions of all links with one thread.
type slowRelay struct {
	ways   []*slowWay // two a link: from A to B, and back
	tick   time.Duration
	epoll  int
	wake   int // eventfd
	events []unix.EpollEvent
	poll   [1]unix.PollFd
}

// slowWay is one direction of a link.
type slowWay struct {
	from, to      int
	delay, jitter time.Duration
	loss          float64
	chance        *rand.Rand
	buf           []byte    // shared by all directions
	queue         []delayed // ring buffer; a packet waits for those before it
	head, count   int
	queued        int // bytes in buffers
	pool          packetPool
	stats         RelayStats
}

type delayed struct {
	due int64 // on the clock of nanos
	buf []byte
}

func newSlowRelay(links []SlowLink, seed uint64) (*slowRelay, error) {
	r := &slowRelay{tick: slowTick, epoll: -1, wake: -1}
	buf := make([]byte, relayPacketBytes)
	for i, l := range links {
		if err := l.validate(); err != nil {
			return nil, err
		}
		r.tick = min(r.tick, l.Delay/slowTickShare)
		for way, fds := range [][2]int{{l.A, l.B}, {l.B, l.A}} {
			r.ways = append(r.ways, &slowWay{from: fds[0], to: fds[1], delay: l.Delay, jitter: l.Jitter, loss: l.Loss,
				chance: chanceOf(seed, 2*i+way), buf: buf, queue: make([]delayed, slowQueue)})
		}
	}
	r.events = make([]unix.EpollEvent, len(r.ways)+1)
	if err := r.open(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func chanceOf(seed uint64, way int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(way))) }

func (l SlowLink) validate() error {
	switch {
	case l.Delay < 0:
		return &ConfigError{Field: "delay", Value: l.Delay.String(), Want: "0s or more"}
	case l.Jitter < 0:
		return &ConfigError{Field: "jitter", Value: l.Jitter.String(), Want: "0s or more"}
	case !(l.Loss >= 0 && l.Loss <= 1):
		return &ConfigError{Field: "loss", Value: fmt.Sprint(l.Loss), Want: "a fraction from 0 to 1"}
	}
	return nil
}

func (r *slowRelay) open() error {
	var err error
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll instance: %w", err)
	}
	for i, w := range r.ways {
		if err := unix.SetNonblock(w.from, true); err != nil {
			return fmt.Errorf("set device non-blocking: %w", err)
		}
		if err := watch(r.epoll, w.from, i); err != nil {
			return err
		}
	}
	return watch(r.epoll, r.wake, len(r.ways))
}

// watch registers a descriptor's events under a number.
func watch(epoll, fd, number int) error {
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(number)}); err != nil {
		return fmt.Errorf("add device to epoll instance: %w", err)
	}
	return nil
}

func (r *slowRelay) close() {
	for _, fd := range []int{r.wake, r.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// run moves packets until it is woken or a device fails.
func (r *slowRelay) run() error {
	idle := 0
	for {
		ready, err := r.wait(idle)
		if err != nil {
			return err
		}
		moved := false
		for _, event := range r.events[:ready] {
			i := int(event.Fd)
			if i == len(r.ways) {
				return nil
			}
			took, err := r.ways[i].take()
			if err != nil {
				return err
			}
			moved = moved || took
		}
		for _, w := range r.ways {
			if err := w.release(nanos()); err != nil {
				return err
			}
		}
		if idle++; moved {
			idle = 0
		}
	}
}

// slowIdle is the number of checks without packets after which the relay sleeps until one
// arrives.
const slowIdle = 16

// wait returns how many devices have packets. While packets arrived recently it checks
// once a tick; otherwise it waits for the next arrival, or until a packet is due.
func (r *slowRelay) wait(idle int) (int, error) {
	next := r.nextDue()
	if r.tick > 0 && idle < slowIdle {
		if ns := min(int64(r.tick), next-nanos()); ns > 0 {
			ts := unix.NsecToTimespec(ns)
			unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // interrupted by a signal: run checks again
		}
	} else if err := pollUntil(r.epoll, &r.poll, next); err != nil {
		return 0, err
	}
	n, errno := sys.EpollNow(r.epoll, r.events)
	if errno != 0 && errno != unix.EINTR {
		return 0, fmt.Errorf("wait for packets: %w", errno)
	}
	return max(n, 0), nil
}

// pollUntil sleeps until a time (nanos) or until a packet arrives. Polling the epoll
// descriptor has nanosecond timeouts, unlike epoll_wait.
func pollUntil(epoll int, poll *[1]unix.PollFd, next int64) error {
	var limit *unix.Timespec
	if next != never {
		ts := unix.NsecToTimespec(max(next-nanos(), 0))
		limit = &ts
	}
	poll[0] = unix.PollFd{Fd: int32(epoll), Events: unix.POLLIN}
	if _, err := unix.Ppoll(poll[:], limit, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}

const never = int64(1) << 62

// nextDue returns when the next packet is due, or never.
func (r *slowRelay) nextDue() int64 {
	next := never
	for _, w := range r.ways {
		if w.count > 0 {
			next = min(next, w.queue[w.head].due)
		}
	}
	return next
}

// take reads up to relayBatch packets and reports whether there were any. It reads the
// clock after each packet: if the thread is preempted in between, packets that arrived
// meanwhile must not leave early.
func (w *slowWay) take() (took bool, err error) {
	for range relayBatch {
		n, errno := sys.ReadNow(w.from, w.buf)
		switch {
		case errno == unix.EAGAIN:
			return took, nil
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return took, fmt.Errorf("read packet: %w", errno)
		case n == 0:
			return took, errDeviceGone
		}
		took = true
		if err := w.accept(nanos(), n); err != nil {
			return took, err
		}
	}
	return took, nil
}

// accept loses, delivers or queues the first n bytes of buf.
func (w *slowWay) accept(now int64, n int) error {
	if w.loss > 0 && w.chance.Float64() < w.loss {
		w.stats.Lost++
		return nil
	}
	if w.delay == 0 && w.jitter == 0 {
		return w.stats.write(w.to, w.buf[:n])
	}
	due := now + int64(w.delay)
	if w.jitter > 0 {
		due += w.chance.Int64N(int64(w.jitter) + 1)
	}
	w.enqueue(due, n)
	return nil
}

// enqueue queues the first n bytes of buf until due.
func (w *slowWay) enqueue(due int64, n int) {
	if w.count == len(w.queue) || w.queued+slowClasses[slowClass(n)] > slowQueueBytes {
		w.stats.Dropped++
		return
	}
	b := w.pool.get(n)
	copy(b, w.buf[:n])
	w.queue[(w.head+w.count)%len(w.queue)] = delayed{due, b}
	w.count++
	w.queued += cap(b)
}

// slowClasses are the buffer sizes for waiting packets, so that small packets do not hold
// memory for large ones. In steady state, buffers are only reused.
var slowClasses = [...]int{2048, 16 << 10, relayPacketBytes}

func slowClass(n int) int {
	for i, size := range slowClasses {
		if n <= size {
			return i
		}
	}
	return len(slowClasses) - 1
}

// release writes the packets that are due.
func (w *slowWay) release(now int64) error {
	for w.count > 0 && w.queue[w.head].due <= now {
		p := w.queue[w.head].buf
		w.queue[w.head] = delayed{}
		w.head = (w.head + 1) % len(w.queue)
		w.count--
		w.queued -= cap(p)
		err := w.stats.write(w.to, p)
		w.pool.put(p)
		if err != nil {
			return err
		}
	}
	return nil
}
