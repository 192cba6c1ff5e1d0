package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// peek returns the number of bytes that can be read without blocking, at most 1.
func peek(fd int) (int, error) {
	n, _, err := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil
	}
	return n, err
}

// flowCases check sides that are slow, stop, or vanish.
func flowCases() []Case {
	return slices.Concat(
		forPairs("flow/zero-window-outside", func(x *T, in, out *net.TCPConn) { stall(x, in, out) }),
		forPairs("flow/zero-window-inside", func(x *T, in, out *net.TCPConn) { stall(x, out, in) }),
		forFamilies("flow/slow-reader", func(x *T, s *Env, f Family) {
			in, out := x.pair(s, Out, f)
			x.Must(trickleRead(in, out))
			in, out = x.pair(s, Out, f)
			x.Must(trickleRead(out, in))
		}),
		forFamilies("flow/slow-writer", func(x *T, s *Env, f Family) {
			in, out := x.pair(s, Out, f)
			x.Must(trickleWrite(in, out))
			x.Must(trickleWrite(out, in))
		}),
		forFamilies("flow/ping-pong", pingPong),
		forFamilies("flow/keepalive", keepalive),
		vanishCases(),
	)
}

// maxBuffered is more than any sane data path buffers for a connection that is not read.
const maxBuffered = 64 << 20

// stall lets a write until nothing moves because b does not read, and then lets b read
// everything.
func stall(x *T, a, b *net.TCPConn) {
	st := startStream(a, maxBuffered, 7)
	x.Cleanup(func() { a.Close() }) // ends the goroutine
	at := x.awaitStalled(&st.progress)
	x.Notef("%d KiB buffered", at>>10)
	if at >= maxBuffered {
		x.Fatalf("%d bytes were taken although the receiver does not read", at)
	}
	if err := st.check(b); err != nil {
		x.Fatalf("after the window opened: %v", err)
	}
}

// trickleRead reads in small pieces, with a small buffer, what a sends at once.
func trickleRead(a, b *net.TCPConn) error {
	b.SetReadBuffer(4096)
	return startStream(a, 2<<20, 8).check(smallReader{b})
}

// smallReader reads a few bytes at a time.
type smallReader struct{ io.Reader }

func (r smallReader) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), 700)]) }

// trickleWrite writes single bytes, each in a segment of its own.
func trickleWrite(a, b *net.TCPConn) error {
	const bytes = 5000
	failed := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < bytes && err == nil; i++ {
			_, err = a.Write([]byte{byte(i)})
		}
		failed <- err
	}()
	got := make([]byte, bytes)
	if _, err := io.ReadFull(b, got); err != nil {
		return err
	}
	for i := range got {
		if got[i] != byte(i) {
			return fmt.Errorf("byte %d is %d, want %d", i, got[i], byte(i))
		}
	}
	return <-failed
}

// pingPong exchanges requests and responses of many sizes.
func pingPong(x *T, s *Env, f Family) {
	in, out := x.pair(s, Out, f)
	x.Both(func() error {
		_, err := io.Copy(onlyWriter{out}, onlyReader{out})
		return err
	}, func() error {
		defer in.CloseWrite()
		for size := 1; size < 200_000; size = size*3/2 + 1 {
			if err := roundTrip(in, size); err != nil {
				return fmt.Errorf("round trip of %d bytes: %w", size, err)
			}
		}
		return nil
	})
}

type onlyWriter struct{ io.Writer }

func roundTrip(c net.Conn, size int) error {
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		failed <- err
	}()
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != string(want) {
		return errors.New("the answer differs from the request")
	}
	return <-failed
}

// keepalive checks that the guest's keepalive probes on an idle connection are answered.
func keepalive(x *T, s *Env, f Family) {
	in, out := x.pair(s, Out, f)
	x.Must(exchange(in, out))
	x.Must(in.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}))
	// An acknowledgement that is newer than the last data can only answer a probe.
	x.Await(func() error {
		var info *unix.TCPInfo
		if err := control(in, func(fd int) (err error) {
			info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			return err
		}); err != nil {
			return err
		}
		if info.State != tcpEstablished {
			x.Fatalf("the connection ended while it was idle")
		}
		if info.Last_data_sent < 900 || info.Last_ack_recv+500 > info.Last_data_sent {
			return errors.New("no keepalive probe was answered")
		}
		return nil
	})
	x.Must(exchange(in, out))
}

// tcpEstablished is TCP_ESTABLISHED (net/tcp_states.h).
const tcpEstablished = 1
