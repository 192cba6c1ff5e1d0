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
	// Fence returns when the network under test has dealt with all that was
	// sent to it. Settle and Silent need it.
	Fence func()
	// Patience is how long Await waits before it fails the test; 10 s by default.
	Patience time.Duration

	t   testing.TB
	fd  int
	mtu int
	buf []byte
}

// New makes a guest and the device that a network under test may use. Both are
// closed when the test ends.
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
	g := &Guest{t: t, fd: pair[0], mtu: mtu, buf: make([]byte, 1<<17), Patience: 10 * time.Second}
	device := os.NewFile(uintptr(pair[1]), "scripted guest's device")
	t.Cleanup(func() {
		g.Remove()
		device.Close()
	})
	return g, device
}

// Within is the same guest, whose failures are a subtest's.
func (g *Guest) Within(t testing.TB) *Guest {
	sub := *g
	sub.t = t
	return &sub
}

// Remove ends the device, as if its namespace had gone.
func (g *Guest) Remove() {
	if g.fd >= 0 {
		_ = unix.Close(g.fd)
		g.fd = -1
	}
}

// SendFrame writes bytes as they are: virtio header and packet. It waits while
// the device's queue is full.
func (g *Guest) SendFrame(frame []byte) {
	for {
		_, err := unix.Write(g.fd, frame)
		switch {
		case err == nil:
			return
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			g.wait(unix.POLLOUT, "room in the device's queue")
		case !errors.Is(err, unix.EINTR):
			g.t.Fatalf("send frame: %v", err)
		}
	}
}

// TrySendFrame writes bytes as they are and tells whether there was room.
func (g *Guest) TrySendFrame(frame []byte) bool {
	_, err := unix.Write(g.fd, frame)
	return err == nil
}

// wait fails the test when patience ends before the socket is ready.
func (g *Guest) wait(events int16, what string) {
	g.t.Helper()
	end := time.Now().Add(g.Patience)
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
			g.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TryReceive is the next packet; nil: none is there.
func (g *Guest) TryReceive() *Packet {
	g.t.Helper()
	for {
		n, err := unix.Read(g.fd, g.buf)
		switch {
		case err == nil && n > 0:
			return g.checked(g.buf[:n])
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ECONNRESET):
			return nil
		case !errors.Is(err, unix.EINTR):
			g.t.Fatalf("receive frame: %v", err)
		}
	}
}

// TryReceiveFrame reads the next frame as it is, unchecked, and returns its
// size; 0: none is there.
func (g *Guest) TryReceiveFrame(b []byte) int {
	n, err := unix.Read(g.fd, b)
	if err != nil {
		return 0
	}
	return n
}

// Discard throws away all packets that are there, without a look, and says how
// many there were.
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
		g.wait(unix.POLLIN, "a packet")
	}
}

// A Matcher says what is wrong with a packet; "": nothing.
type Matcher func(*Packet) string

// Await waits for a packet that matches and returns it. Others are skipped, and
// named if the wait is in vain.
func (g *Guest) Await(match Matcher) *Packet {
	g.t.Helper()
	end := time.Now().Add(g.Patience)
	var skipped []string
	for {
		p := g.TryReceive()
		if p == nil {
			if !g.await(end) {
				g.t.Fatalf("waited in vain; skipped %q", skipped)
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

// await waits for the next packet, or until end.
func (g *Guest) await(end time.Time) bool {
	poll := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}
	_, _ = unix.Poll(poll, int(max(0, time.Until(end)/time.Millisecond)))
	return time.Now().Before(end)
}

// Settle lets the network deal with what was sent and returns all packets that
// are there then, oldest first.
func (g *Guest) Settle() []*Packet {
	g.t.Helper()
	g.Fence()
	var all []*Packet
	for p := g.TryReceive(); p != nil; p = g.TryReceive() {
		all = append(all, p)
	}
	return all
}

// Only settles and fails the test unless exactly one packet came, and matches.
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

// Silent settles and fails the test if a packet came.
func (g *Guest) Silent() {
	g.t.Helper()
	if all := g.Settle(); len(all) > 0 {
		g.t.Fatalf("got %v, want silence", all)
	}
}

// MTU is the device's, in bytes.
func (g *Guest) MTU() int { return g.mtu }

// frame is room for a packet of n bytes behind a virtio header.
func frame(n int) []byte { return make([]byte, packet.VNetHdrBytes+n) }
