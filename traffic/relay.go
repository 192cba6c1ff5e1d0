package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// relayPacketBytes is the buffer size for a packet. With IFF_VNET_HDR, a packet may be a
// TCP super-packet of 64 KiB with Ethernet and vnet headers.
const relayPacketBytes = 1<<16 + 64

// relayBatch is how many packets a thread moves before it does other work.
const relayBatch = 64

// RelayStats counts what a relay moved in one direction.
type RelayStats struct {
	Packets uint64 `json:"packets"` // delivered
	Bytes   uint64 `json:"bytes"`
	Dropped uint64 `json:"dropped"` // no room in the queue of a slow link or in the device
	Lost    uint64 `json:"lost"`    // dropped at random by a slow link
}

// Relay joins two TUN or TAP devices of the same kind, given as open descriptors. It
// copies packets both ways until ctx ends or a device is gone, and returns what it moved
// from a to b and from b to a. Packets are not changed: with IFF_VNET_HDR on both
// devices, checksum and segmentation requests pass through. The descriptors stay open and
// become non-blocking. For links that delay and lose, see RelaySlow.
func Relay(ctx context.Context, a, b int) (ab, ba RelayStats, err error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return ab, ba, fmt.Errorf("create eventfd: %w", err)
	}
	defer unix.Close(wake)
	for _, fd := range []int{a, b} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return ab, ba, fmt.Errorf("set device non-blocking: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release := wakeAfter(ctx, wake)
	there := newRelayWay(a, b, wake)
	back := newRelayWay(b, a, wake)
	errs := make(chan error, 2)
	var wg sync.WaitGroup
	for _, w := range []*relayWay{there, back} {
		wg.Go(func() {
			defer cancel()
			errs <- w.run()
		})
	}
	wg.Wait()
	release()
	return there.stats, back.stats, errors.Join(<-errs, <-errs)
}

// wakeAfter makes an eventfd readable when ctx ends. release must be called before the
// eventfd is closed.
func wakeAfter(ctx context.Context, eventfd int) (release func()) {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		unix.Write(eventfd, binary.NativeEndian.AppendUint64(nil, 1))
	})
	return func() {
		if !stop() {
			<-woken
		}
	}
}

// relayWay is one direction. Its thread owns all of it.
type relayWay struct {
	from, to int
	buf      []byte
	stats    RelayStats
	polls    [2]unix.PollFd
}

func newRelayWay(from, to, wake int) *relayWay {
	w := &relayWay{from: from, to: to, buf: make([]byte, relayPacketBytes)}
	w.polls = [2]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	return w
}

// run moves packets until it is woken or a device fails.
func (w *relayWay) run() error {
	var y yielder
	for {
		y.call()
		more, err := w.batch()
		if err != nil {
			return err
		}
		timeout := -1
		if more {
			timeout = 0
		}
		w.polls[0].Revents, w.polls[1].Revents = 0, 0
		if _, err := unix.Poll(w.polls[:], timeout); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for packets: %w", err)
		}
		if w.polls[1].Revents != 0 {
			return nil
		}
	}
}

// batch moves up to relayBatch packets. more means that there may be others.
func (w *relayWay) batch() (more bool, err error) {
	for range relayBatch {
		n, err := unix.Read(w.from, w.buf)
		switch {
		case err == nil && n == 0:
			return false, errDeviceGone
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("read packet: %w", err)
		}
		if err := w.stats.write(w.to, w.buf[:n]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// errDeviceGone means that reading from a device returned end of file.
var errDeviceGone = errors.New("read packet: the device is gone")

// write delivers one packet. If the device is full or rejects the packet, the packet is
// lost, as on a link.
func (s *RelayStats) write(to int, p []byte) error {
	for {
		_, err := unix.Write(to, p)
		switch {
		case err == nil:
			s.Packets++
			s.Bytes += uint64(len(p))
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EBADF), errors.Is(err, unix.EBADFD), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNRESET):
			return fmt.Errorf("write packet: %w", err)
		default: // EAGAIN, ENOBUFS, EIO from a device that is down, EINVAL for a malformed packet
			s.Dropped++
			return nil
		}
	}
}
