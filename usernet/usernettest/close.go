package usernettest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
)

// closeCases check how connections end.
func closeCases() []Case {
	return slices.Concat(
		forPairs("close/half-inside", func(x *T, in, out *net.TCPConn) { x.Must(halfClosed(in, out)) }),
		forPairs("close/half-outside", func(x *T, in, out *net.TCPConn) { x.Must(halfClosed(out, in)) }),
		forBoth("close/simultaneous", simultaneous),
		forPairs("close/reset-inside", func(x *T, in, out *net.TCPConn) { x.Must(resets(in, out)) }),
		forPairs("close/reset-outside", func(x *T, in, out *net.TCPConn) { x.Must(resets(out, in)) }),
		forBoth("close/with-unread-data", func(x *T, s *Env, d Direction, f Family) {
			in, out := x.pair(s, d, f)
			x.Must(resetsUnread(in, out))
			in, out = x.pair(s, d, f)
			x.Must(resetsUnread(out, in))
		}),
	)
}

// halfClosed closes a's sending side first. b must read the end, and what b sends after
// that must still arrive.
func halfClosed(a, b *net.TCPConn) error {
	if err := transfer(a, b, 100_000, 5); err != nil {
		return fmt.Errorf("before the half-close: %w", err)
	}
	if err := transfer(b, a, 1<<20, 6); err != nil {
		return fmt.Errorf("after the half-close: %w", err)
	}
	return nil
}

// simultaneous closes both sending sides at the same time.
func simultaneous(x *T, s *Env, d Direction, f Family) {
	for range 20 {
		in, out := x.pair(s, d, f)
		x.Both(func() error { return sendCloseReceive(in, "inside", "outside") }, func() error { return sendCloseReceive(out, "outside", "inside") })
	}
}

// sendCloseReceive sends a word, closes the sending side, and reads the other end's word.
func sendCloseReceive(c *net.TCPConn, say, hear string) error {
	defer c.Close()
	if _, err := io.WriteString(c, say); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != hear {
		err = fmt.Errorf("received %q, want %q", got, hear)
	}
	return err
}

// resets aborts the connection at a. b must see a reset and not an end.
func resets(a, b *net.TCPConn) error {
	if err := exchange(a, b); err != nil {
		return err
	}
	a.SetLinger(0)
	a.Close()
	return seesReset(b)
}

// resetsUnread closes a while it has unread data, which aborts as well.
func resetsUnread(a, b *net.TCPConn) error {
	if err := exchange(a, b); err != nil {
		return err
	}
	if _, err := b.Write(make([]byte, 1000)); err != nil {
		return err
	}
	if err := readable(a); err != nil {
		return err
	}
	a.Close()
	return seesReset(b)
}

func seesReset(c *net.TCPConn) error {
	n, err := c.Read(make([]byte, 1))
	if !wasReset(err) {
		return fmt.Errorf("after the other end's reset: read %d bytes, error %v, want ECONNRESET", n, err)
	}
	return nil
}

// exchange sends a few bytes in both directions, so that both ends are established.
func exchange(a, b io.ReadWriter) error {
	for _, way := range []struct{ from, to io.ReadWriter }{{a, b}, {b, a}} {
		want := []byte("some words")
		if _, err := way.from.Write(want); err != nil {
			return err
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(way.to, got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("received %q, want %q", got, want)
		}
	}
	return nil
}

// readable waits until a byte can be read.
func readable(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Read(func(fd uintptr) bool {
		var n int
		n, inner = peek(int(fd))
		return n > 0 || inner != nil
	})
	return errors.Join(err, inner)
}
