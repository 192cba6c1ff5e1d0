package guesttest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// Guest is the far end of a TUN device. It is for one goroutine.
type Guest struct {
	// Fence returns when the network under test has handled everything that was sent to
	// it. Settle, Only and Silent need it.
	Fence func()
	// Timeout is how long Await waits before it fails the test; 10 s by default.
	Timeout time.Duration

	t    testing.TB
	fd   int
	mtu  int
	buf  []byte
	link *Link // nil: the device is a TUN

	wrapped []byte // the last frame that wrap returned
}

// New makes a guest and the device for a network under test. Both are closed when the
// test ends.
func New(t testing.TB, mtu int) (*Guest, *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("make socket pair: %v", err)
	}
	for _, fd := range pair {
		const room = 8 << 20
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, room) // as far as net.core.wmem_max allows
		}
	}
	g := &Guest{t: t, fd: pair[0], mtu: mtu, buf: make([]byte, 1<<17), Timeout: 10 * time.Second}
	device := os.NewFile(uintptr(pair[1]), "scripted guest's device")
	t.Cleanup(func() {
		g.Remove()
		device.Close()
	})
	return g, device
}

// Within returns the same guest for a subtest, which fails instead of the test.
func (g *Guest) Within(t testing.TB) *Guest {
	sub := *g
	sub.t = t
	return &sub
}

// Remove removes the device, as when its namespace ends.
func (g *Guest) Remove() {
	if g.fd >= 0 {
		_ = unix.Close(g.fd)
		g.fd = -1
	}
}

// SendFrame writes a virtio header and a packet as they are. It waits while the device's
// queue is full.
func (g *Guest) SendFrame(frame []byte) {
	frame = g.wrap(frame)
	for {
		_, err := unix.Write(g.fd, frame)
		switch {
		case err == nil:
			return
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			g.waitReady(unix.POLLOUT, "room in the device's queue")
		case !errors.Is(err, unix.EINTR):
			g.t.Fatalf("send frame: %v", err)
		}
	}
}

// TrySendFrame writes a frame as it is, and reports whether there was room for it.
func (g *Guest) TrySendFrame(frame []byte) bool {
	_, err := unix.Write(g.fd, g.wrap(frame))
	return err == nil
}

// waitReady waits until the socket is ready. It fails the test after Timeout.
func (g *Guest) waitReady(events int16, what string) {
	g.t.Helper()
	end := time.Now().Add(g.Timeout)
	for {
		poll := []unix.PollFd{{Fd: int32(g.fd), Events: events}}
		n, err := unix.Poll(poll, int(max(0, time.Until(end)/time.Millisecond)))
		if n > 0 {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			g.t.Fatalf("wait for %s: %v", what, err)
		}
		if n == 0 && !time.Now().Before(end) {
			g.t.Fatalf("timed out after %v waiting for %s", g.Timeout, what)
		}
	}
}

// TryReceive returns the next packet, or nil if there is none now.
func (g *Guest) TryReceive() *Packet {
	g.t.Helper()
	for {
		n, err := unix.Read(g.fd, g.buf)
		switch {
		case err == nil && n > 0:
			return g.parse(g.unwrap(g.buf[:n]))
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ECONNRESET):
			return nil
		case !errors.Is(err, unix.EINTR):
			g.t.Fatalf("receive frame: %v", err)
		}
	}
}

// TryReceiveFrame reads the next frame without checking it, and returns its size, or 0 if
// there is none now.
func (g *Guest) TryReceiveFrame(b []byte) int {
	n, err := unix.Read(g.fd, b)
	if err != nil {
		return 0
	}
	if g.link != nil {
		n = copy(b, g.unwrap(b[:n]))
	}
	return n
}

// Discard reads and discards all waiting packets, and returns how many there were.
func (g *Guest) Discard() int {
	for count := 0; ; count++ {
		if n, err := unix.Read(g.fd, g.buf); err != nil || n == 0 {
			return count
		}
	}
}

// Receive waits for the next packet.
func (g *Guest) Receive() *Packet {
	g.t.Helper()
	for {
		if p := g.TryReceive(); p != nil {
			return p
		}
		g.waitReady(unix.POLLIN, "a packet")
	}
}

// Matcher checks a packet and returns what is wrong with it, or "".
type Matcher func(*Packet) string

// Await waits for a packet that matches and returns it. It skips others, and lists them
// if it times out.
func (g *Guest) Await(match Matcher) *Packet {
	g.t.Helper()
	end := time.Now().Add(g.Timeout)
	var skipped []string
	for {
		p := g.TryReceive()
		if p == nil {
			if !g.waitPacket(end) {
				g.t.Fatalf("timed out; skipped %q", skipped)
			}
			continue
		}
		wrong := match(p)
		if wrong == "" {
			return p
		}
		skipped = append(skipped, fmt.Sprintf("%v (%s)", p, wrong))
	}
}

// waitPacket waits for the next packet, and reports whether there is time left.
func (g *Guest) waitPacket(end time.Time) bool {
	poll := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(max(0, time.Until(end)/time.Millisecond)))
	return time.Now().Before(end)
}

// Settle waits until the network has handled what was sent, and returns all packets
// received by then, oldest first.
func (g *Guest) Settle() []*Packet {
	g.t.Helper()
	g.Fence()
	var all []*Packet
	for p := g.TryReceive(); p != nil; p = g.TryReceive() {
		all = append(all, p)
	}
	return all
}

// Only calls Settle, and fails the test unless exactly one packet came and matches.
func (g *Guest) Only(match Matcher) *Packet {
	g.t.Helper()
	all := g.Settle()
	if len(all) != 1 {
		g.t.Fatalf("got %d packets, want 1: %v", len(all), all)
	}
	if wrong := match(all[0]); wrong != "" {
		g.t.Fatalf("got %v: %s", all[0], wrong)
	}
	return all[0]
}

// Silent calls Settle, and fails the test if a packet came.
func (g *Guest) Silent() {
	g.t.Helper()
	if all := g.Settle(); len(all) > 0 {
		g.t.Fatalf("got %v, want no packet", all)
	}
}

// MTU returns the device's MTU in bytes.
func (g *Guest) MTU() int { return g.mtu }

// newFrame returns a buffer for a packet of n bytes behind a virtio header.
func newFrame(n int) []byte { return make([]byte, packet.VNetHdrBytes+n) }
