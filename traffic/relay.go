package traffic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A packet of a device with IFF_VNET_HDR may be a whole TCP super-packet of
// 64 KiB with its Ethernet and vnet headers in front.
const relayPacketBytes = 1<<16 + 64

// relayBatch is how many packets are moved before the other work of a thread
// is looked at; a delaying relay holds at most relayQueue packets or
// relayQueueBytes a direction, and drops what comes then, as a link would.
const (
	relayBatch      = 64
	relayQueue      = 1 << 14
	relayQueueBytes = 32 << 20
)

// RelayStats counts what a relay moved in one direction.
type RelayStats struct {
	Packets uint64
	Bytes   uint64
	Dropped uint64 // the queue of a delaying relay, or the device, had no room
}

// Relay joins two TUN or TAP devices, given as open descriptors of one kind: it
// copies packets both ways, each delayed by delay (0: at once), until ctx ends
// or a device is gone, and returns what it moved from a to b and from b to a.
// Packets cross as they are: with IFF_VNET_HDR on both, checksum and
// segmentation requests cross with them. The descriptors stay open and become
// non-blocking.
func Relay(ctx context.Context, a, b int, delay time.Duration) (ab, ba RelayStats, err error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return ab, ba, fmt.Errorf("make eventfd: %w", err)
	}
	defer unix.Close(wake)
	for _, fd := range []int{a, b} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return ab, ba, fmt.Errorf("set device non-blocking: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	woken := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		defer close(woken)
		unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 1}) // not 0, whatever the byte order
	})
	there := newRelayWay(a, b, wake, delay)
	back := newRelayWay(b, a, wake, delay)
	errs := make(chan error, 2)
	var wg sync.WaitGroup
	for _, w := range []*relayWay{there, back} {
		wg.Go(func() {
			defer cancel()
			if delay > 0 {
				onOwnThread(func() { errs <- w.run() })
			} else {
				errs <- w.run()
			}
		})
	}
	wg.Wait()
	if !release() {
		<-woken // the eventfd must outlive the write
	}
	return there.stats, back.stats, errors.Join(<-errs, <-errs)
}

// relayWay is one direction. Its thread owns everything in it.
type relayWay struct {
	from, to, wake int
	delay          time.Duration
	buf            []byte
	queue          []delayed // ring
	head, count    int
	queued         int // bytes of buffers
	free           [len(relayClasses)][][]byte
	stats          RelayStats
	polls          [2]unix.PollFd
}

// delayed is a packet that waits.
type delayed struct {
	due int64 // of nanos
	buf []byte
}

func newRelayWay(from, to, wake int, delay time.Duration) *relayWay {
	w := &relayWay{from: from, to: to, wake: wake, delay: delay, buf: make([]byte, relayPacketBytes)}
	if delay > 0 {
		w.queue = make([]delayed, relayQueue)
	}
	w.polls = [2]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	return w
}

// run moves packets until it is woken or a device fails.
func (w *relayWay) run() error {
	var y yielder
	for {
		if w.delay == 0 { // a delaying relay has a thread of its own
			y.call()
		}
		more, err := w.batch()
		if err != nil {
			return err
		}
		if err := w.release(nanos()); err != nil {
			return err
		}
		timeout := -1
		switch {
		case more:
			timeout = 0
		case w.count > 0:
			timeout = int(max(w.queue[w.head].due-nanos(), 0) / int64(time.Millisecond))
		}
		if w.polls[0].Revents, w.polls[1].Revents = 0, 0; timeout != 0 || more {
			if _, err := unix.Poll(w.polls[:], timeout); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("wait for packets: %w", err)
			}
		} else if ahead := w.queue[w.head].due - nanos(); ahead > 0 {
			// Less than poll's millisecond: sleep exactly.
			ts := unix.NsecToTimespec(ahead)
			unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
		}
		if w.polls[1].Revents != 0 {
			return nil
		}
	}
}

// batch reads up to relayBatch packets; more tells that there may be others.
func (w *relayWay) batch() (more bool, err error) {
	now := int64(0)
	if w.delay > 0 {
		now = nanos()
	}
	for range relayBatch {
		n, err := unix.Read(w.from, w.buf)
		switch {
		case err == nil && n == 0:
			return false, errors.New("read packet: the device is gone")
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("read packet: %w", err)
		}
		if w.delay == 0 {
			err = w.write(w.buf[:n])
		} else {
			w.enqueue(now+int64(w.delay), n)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// write hands one packet on. A device that takes no more, or refuses this
// packet, loses it, as a link would.
func (w *relayWay) write(p []byte) error {
	for {
		_, err := unix.Write(w.to, p)
		switch {
		case err == nil:
			w.stats.Packets++
			w.stats.Bytes += uint64(len(p))
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EBADF), errors.Is(err, unix.EBADFD), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNRESET):
			return fmt.Errorf("write packet: %w", err)
		default: // EAGAIN, ENOBUFS, EIO of a device that is down, EINVAL of a malformed packet
			w.stats.Dropped++
			return nil
		}
	}
}

// enqueue keeps the first n bytes of buf until due.
func (w *relayWay) enqueue(due int64, n int) {
	if w.count == len(w.queue) || w.queued+relayClasses[relayClass(n)] > relayQueueBytes {
		w.stats.Dropped++
		return
	}
	b := w.take(n)
	copy(b, w.buf[:n])
	w.queue[(w.head+w.count)%len(w.queue)] = delayed{due, b}
	w.count++
	w.queued += cap(b)
}

// relayClasses are the sizes of buffers for waiting packets, so that small
// packets do not hold memory for large ones. In steady state buffers are only
// reused.
var relayClasses = [...]int{2048, 16 << 10, relayPacketBytes}

func relayClass(n int) int {
	for i, size := range relayClasses {
		if n <= size {
			return i
		}
	}
	return len(relayClasses) - 1
}

// take returns a buffer of n bytes.
func (w *relayWay) take(n int) []byte {
	free := &w.free[relayClass(n)]
	if len(*free) == 0 {
		return make([]byte, n, relayClasses[relayClass(n)])
	}
	b := (*free)[len(*free)-1]
	*free = (*free)[:len(*free)-1]
	return b[:n]
}

// give returns a buffer that take gave.
func (w *relayWay) give(b []byte) {
	free := &w.free[relayClass(cap(b))]
	*free = append(*free, b)
}

// release writes what is due.
func (w *relayWay) release(now int64) error {
	for w.count > 0 && w.queue[w.head].due <= now {
		p := w.queue[w.head].buf
		w.queue[w.head] = delayed{}
		w.head = (w.head + 1) % len(w.queue)
		w.count--
		w.queued -= cap(p)
		err := w.write(p)
		w.give(p)
		if err != nil {
			return err
		}
	}
	return nil
}
