package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// urgentCases check that an urgent byte arrives as such, at its place in the stream.
func urgentCases() []Case {
	return forFamilies("urgent", func(x *T, s *Env, f Family) {
		in, out := x.pair(s, Out, f)
		if err := urgent(x, in, out); err != nil {
			x.Errorf("outbound: %v", err)
		}
		in, out = x.pair(s, Out, f)
		if err := urgent(x, out, in); err != nil {
			x.Errorf("inbound: %v", err)
		}
	})
}

// urgent sends "before", the urgent "!" and "after" from a to b.
func urgent(x *T, a, b *net.TCPConn) error {
	if err := exchange(a, b); err != nil {
		return err
	}
	if _, err := io.WriteString(a, "before"); err != nil {
		return err
	}
	if err := control(a, func(fd int) error { return unix.Send(fd, []byte("!"), unix.MSG_OOB) }); err != nil {
		return fmt.Errorf("send urgent byte: %w", err)
	}
	if _, err := io.WriteString(a, "after"); err != nil {
		return err
	}
	if err := a.CloseWrite(); err != nil {
		return err
	}
	// The urgent byte is not part of the ordinary stream. A read stops before it, and the
	// next read discards it.
	before := make([]byte, len("before"))
	if _, err := io.ReadFull(b, before); err != nil {
		return err
	}
	var got [1]byte
	var late neverComes
	if err := await(x.ctx, func() error {
		err := control(b, func(fd int) error {
			err := receiveUrgent(fd, got[:])
			if n, _ := peek(fd); errors.Is(err, unix.EINVAL) && n > 0 {
				// The bytes after it have arrived. So the urgent byte has arrived as
				// well, perhaps after the first look, or never will.
				if err = receiveUrgent(fd, got[:]); errors.Is(err, unix.EINVAL) {
					return neverComes{err}
				}
			}
			return err
		})
		if errors.As(err, &late) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("receive urgent byte: %w", err)
	}
	if late.error != nil {
		return fmt.Errorf("no urgent byte: %w", late.error)
	}
	after, err := io.ReadAll(b)
	if err != nil {
		return err
	}
	if string(before) != "before" || got[0] != '!' || string(after) != "after" {
		return fmt.Errorf("received %q, urgent %q, %q", before, got, after)
	}
	return nil
}

// receiveUrgent reads the urgent byte. It returns EINVAL if there is none, or not yet.
func receiveUrgent(fd int, b []byte) error {
	_, _, err := unix.Recvfrom(fd, b, unix.MSG_OOB|unix.MSG_DONTWAIT)
	return err
}

// neverComes wraps the error of a condition that will never hold.
type neverComes struct{ error }
