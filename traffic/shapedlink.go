package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cleat/internal/linkzoo"
	"cleat/internal/sys"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// ShapedLink is a link between two TAP devices: token buckets with queues, policers, delay,
// jitter, loss, changing rates and outages, as its zoo link says. Rates count frames as the
// devices have them, with Ethernet's 14 bytes.
type ShapedLink struct {
	A, B int // open descriptors of devices without offloads; they become non-blocking
	linkzoo.Link
}

// ShapedStats counts what crossed one direction of a ShapedLink.
type ShapedStats struct {
	RelayStats          // Dropped: no room in the queue of the bucket
	OfferedBytes uint64 `json:"offered_bytes"`
	DroppedBytes uint64 `json:"dropped_bytes"` // of Dropped
	Cut          uint64 `json:"cut"`           // dropped in an outage
	Refused      uint64 `json:"refused"`       // the device had no room for a delivered packet
}

// ShapedReport is what a relay of shaped links has done so far, and how precisely.
type ShapedReport struct {
	Links []ShapedLinkStats `json:"links"`
	// Late is by how much packets were delivered after they were due.
	LateP50  time.Duration `json:"late_p50_ns"`
	LateP99  time.Duration `json:"late_p99_ns"`
	LateP999 time.Duration `json:"late_p999_ns"`
	LateMax  time.Duration `json:"late_max_ns"`
	// Gap is how long a packet may have waited before the relay noticed it.
	GapP99  time.Duration `json:"gap_p99_ns"`
	GapMax  time.Duration `json:"gap_max_ns"`
	CPU     time.Duration `json:"cpu_ns"` // processor time of the relay's thread
	Running time.Duration `json:"running_ns"`
	// Priority is the relay's scheduling: "fifo", "nice" or "normal".
	Priority string `json:"priority"`
}

// ShapedLinkStats counts both directions of a link.
type ShapedLinkStats struct {
	AB ShapedStats `json:"ab"`
	BA ShapedStats `json:"ba"`
}

// ShapedRelay joins pairs of devices by shaped links. One thread serves all of them. It
// checks for packets once in shapedTick while there are any, and delivers what is due; its
// report has the distribution of its lateness. The rates do not suffer from that: a packet
// leaves its bucket at the computed instant.
type ShapedRelay struct {
	links    *shapedLinks
	ask      chan func() // run by the relay's thread
	done     chan struct{}
	wake     int // eventfd
	epoll    int
	events   []unix.EpollEvent
	poll     [1]unix.PollFd
	late     *hdrhistogram.Histogram
	gap      *hdrhistogram.Histogram
	checked  int64 // when the devices were last checked
	began    int64
	priority string
}

const (
	// shapedTick is how long the relay sleeps between two checks of busy devices. A packet
	// waits for up to one tick to be noticed and for up to another to be delivered: 0.3 ms.
	// To wake up for each packet instead costs a processor twice as much at 200 Mbit/s.
	shapedTick = 150 * time.Microsecond
	// shapedPriority is the real-time priority that the relay asks for: other programs of a
	// lab should not delay the wire.
	shapedPriority = 1
	shapedNice     = -20 // if real-time priorities are not permitted
)

// NewShapedRelay returns a relay. Losses and jitter are determined by the seed and the order
// of packets.
func NewShapedRelay(links []ShapedLink, seed uint64) (*ShapedRelay, error) {
	r := &ShapedRelay{ask: make(chan func(), 1), done: make(chan struct{}), wake: -1, epoll: -1, late: newLatency(), gap: newLatency()}
	var zoo []linkzoo.Link
	for _, l := range links {
		zoo = append(zoo, l.Link)
	}
	r.links = newShapedLinks(nanos(), zoo, seed, r.write)
	for i, w := range r.links.ways {
		w.from, w.to = links[i/2].A, links[i/2].B
		if i%2 == 1 {
			w.from, w.to = w.to, w.from
		}
	}
	r.events = make([]unix.EpollEvent, len(r.links.ways)+1)
	if err := r.open(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *ShapedRelay) open() (err error) {
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll instance: %w", err)
	}
	for i, w := range r.links.ways {
		if err := unix.SetNonblock(w.from, true); err != nil {
			return fmt.Errorf("set device non-blocking: %w", err)
		}
		if err := watch(r.epoll, w.from, i); err != nil {
			return err
		}
	}
	return watch(r.epoll, r.wake, len(r.links.ways))
}

func (r *ShapedRelay) close() {
	for _, fd := range []int{r.wake, r.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// Run moves packets until ctx ends or a device fails. It may be called once.
func (r *ShapedRelay) Run(ctx context.Context) (err error) {
	defer r.close()
	release := wakeAfter(ctx, r.wake)
	onOwnThread(func() {
		r.priority = raisePriority()
		r.began = nanos()
		err = r.run(ctx)
	})
	close(r.done)
	release()
	return err
}

// raisePriority gives the calling thread the highest priority that it may have.
func raisePriority() string {
	fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: shapedPriority}
	if unix.SchedSetAttr(0, &fifo, 0) == nil {
		return "fifo"
	}
	if unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), shapedNice) == nil {
		return "nice"
	}
	return "normal"
}

// Begin starts the case: the times of its steps and outages count from now on. Until then,
// rates are those of the links, and no link is broken. It is safe for concurrent use with
// Run, but must not be called after it.
func (r *ShapedRelay) Begin(at time.Time) {
	start := nanos() + int64(time.Until(at))
	r.do(func() { r.links.begin(start) })
}

// Report returns what the relay has done so far. It blocks until the relay runs.
func (r *ShapedRelay) Report() (report ShapedReport) {
	r.do(func() { report = r.report() })
	return report
}

// do lets the relay's thread call f. It returns at once after Run.
func (r *ShapedRelay) do(f func()) {
	finished := make(chan struct{})
	select {
	case r.ask <- func() { f(); close(finished) }:
	case <-r.done:
		return
	}
	unix.Write(r.wake, binary.NativeEndian.AppendUint64(nil, 1))
	select {
	case <-finished:
	case <-r.done:
	}
}

// answer calls what do has been given.
func (r *ShapedRelay) answer() {
	var count [8]byte
	unix.Read(r.wake, count[:])
	for {
		select {
		case f := <-r.ask:
			f()
		default:
			return
		}
	}
}

func (r *ShapedRelay) report() ShapedReport {
	p := func(h *hdrhistogram.Histogram, q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
	var used unix.Rusage
	unix.Getrusage(unix.RUSAGE_THREAD, &used)
	report := ShapedReport{
		LateP50: p(r.late, 50), LateP99: p(r.late, 99), LateP999: p(r.late, 99.9), LateMax: time.Duration(r.late.Max()),
		GapP99: p(r.gap, 99), GapMax: time.Duration(r.gap.Max()),
		CPU: time.Duration(used.Utime.Nano() + used.Stime.Nano()), Running: time.Duration(nanos() - r.began), Priority: r.priority,
	}
	for i := 0; i < len(r.links.ways); i += 2 {
		report.Links = append(report.Links, ShapedLinkStats{AB: r.links.ways[i].stats, BA: r.links.ways[i+1].stats})
	}
	return report
}

// run moves packets until ctx ends or a device fails.
func (r *ShapedRelay) run(ctx context.Context) error {
	idle := 0
	for {
		ready, err := r.wait(idle)
		if err != nil {
			return err
		}
		now := nanos()
		moved := false
		for _, event := range r.events[:ready] {
			i := int(event.Fd)
			if i == len(r.links.ways) {
				if ctx.Err() != nil {
					return nil
				}
				r.answer()
				continue
			}
			took, err := r.take(r.links.ways[i])
			if err != nil {
				return err
			}
			moved = moved || took
		}
		if moved {
			if idle == 0 { // after a pause the relay slept until the packet arrived
				record(r.gap, now-r.checked)
			}
			idle = 0
		} else {
			idle++
		}
		r.checked = now
		if err := r.links.advance(nanos()); err != nil {
			return err
		}
	}
}

// wait returns how many devices have packets. While packets arrived recently it checks once a
// tick; otherwise it waits for the next arrival, or until a packet is due.
func (r *ShapedRelay) wait(idle int) (int, error) {
	if idle < slowIdle {
		ts := unix.NsecToTimespec(int64(shapedTick))
		unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // interrupted by a signal: run checks again
	} else if err := pollUntil(r.epoll, &r.poll, r.links.next()); err != nil {
		return 0, err
	}
	n, errno := sys.EpollNow(r.epoll, r.events)
	if errno != 0 && errno != unix.EINTR {
		return 0, fmt.Errorf("wait for packets: %w", errno)
	}
	return max(n, 0), nil
}

// take reads up to relayBatch packets and reports whether there were any.
func (r *ShapedRelay) take(w *shapedWay) (took bool, err error) {
	for range relayBatch {
		buf := r.links.pool.get(slowClasses[0])
		n, errno := sys.ReadNow(w.from, buf)
		if errno == 0 && n > 0 {
			took = true
			r.links.accept(nanos(), w, buf[:n])
			continue
		}
		r.links.pool.put(buf)
		switch {
		case errno == unix.EAGAIN:
			return took, nil
		case errno == unix.EINTR:
		case errno != 0:
			return took, fmt.Errorf("read packet: %w", errno)
		default:
			return took, errDeviceGone
		}
	}
	return took, nil
}

// write delivers a packet. A device that is down or full loses it, as on a link.
func (r *ShapedRelay) write(w *shapedWay, due int64, buf []byte) error {
	record(r.late, nanos()-due)
	for {
		_, errno := sys.WriteNow(w.to, buf)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == 0:
		case errors.Is(errno, unix.EBADF), errors.Is(errno, unix.EBADFD), errors.Is(errno, unix.EPIPE), errors.Is(errno, unix.ECONNRESET), errors.Is(errno, unix.ENOTCONN):
			return fmt.Errorf("write packet: %w", errno)
		default:
			w.stats.Refused++
		}
		return nil
	}
}
