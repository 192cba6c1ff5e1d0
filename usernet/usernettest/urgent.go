package usernettest

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// urgentCases: the urgent byte arrives as such, at its place in the stream.
func urgentCases() []Case {
	return families(func(f Family) Case {
		return Case{Name: "urgent", Check: func(x *X, s *Scene) {
			in, out := x.pair(s, Out, f)
			if err := urgent(in, out); err != nil {
				x.Errorf("outbound: %v", err)
			}
			in, out = x.pair(s, Out, f)
			if err := urgent(out, in); err != nil {
				x.Errorf("inbound: %v", err)
			}
		}}
	})
}

// urgent sends "before", the urgent "!" and "after" from a to b.
func urgent(a, b *net.TCPConn) error {
	if err := exchange(a, b); err != nil {
		return err
	}
	if _, err := io.WriteString(a, "before"); err != nil {
		return err
	}
	if err := control(a, func(fd int) error { return unix.Send(fd, []byte("!"), unix.MSG_OOB) }); err != nil {
		return fmt.Errorf("send an urgent byte: %w", err)
	}
	if _, err := io.WriteString(a, "after"); err != nil {
		return err
	}
	if err := a.CloseWrite(); err != nil {
		return err
	}
	// It is no part of the ordinary stream.
	rest, err := io.ReadAll(b)
	if err != nil {
		return err
	}
	var got [1]byte
	if err := control(b, func(fd int) error {
		n, _, err := unix.Recvfrom(fd, got[:], unix.MSG_OOB|unix.MSG_DONTWAIT)
		if err == nil && n != 1 {
			err = errors.New("nothing")
		}
		return err
	}); err != nil {
		return fmt.Errorf("receive the urgent byte: %w; the stream was %q", err, rest)
	}
	if string(rest) != "beforeafter" || got[0] != '!' {
		return fmt.Errorf("received %q and urgent %q, want %q and %q", rest, got, "beforeafter", "!")
	}
	return nil
}
