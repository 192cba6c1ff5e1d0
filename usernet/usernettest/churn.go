package usernettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// churnCases open and close connections in unusual ways.
func churnCases() []Case {
	return slices.Concat(
		forBoth("churn/mixed", mixed),
		forFamilies("churn/same-port-again", samePort),
		forFamilies("churn/fast-open", fastOpen, FastOpen),
		[]Case{{Name: "churn/many-that-get-no-answer", Needs: []Ability{Helper}, Check: manyUnanswered}},
	)
}

// Ways in which a client of mixed closes its connection.
const (
	closeOrderly = iota
	closeByReset
	closeWithUnread // with an answer that it has not read
	closeSilently   // without sending anything
	closeKinds
)

// mixed runs many connections at once that close in different ways. Those that close in
// order must succeed.
func mixed(x *T, s *Env, d Direction, f Family) {
	const workers, each = 16, 40
	l, to := x.service(s, d, f)
	go echoServer(l)
	node := s.client(d)
	done := make(chan error, workers)
	for w := range workers {
		go func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			done <- node.NS.Do(func() error {
				for i := range each {
					if err := x.mixedConnection(to, random); err != nil {
						return fmt.Errorf("worker %d, connection %d: %w", w, i, err)
					}
				}
				return nil
			})
		}()
	}
	var errs []error
	for range workers {
		errs = append(errs, <-done)
	}
	x.Must(errors.Join(errs...))
}

func (x *T) mixedConnection(to netip.AddrPort, random *rand.Rand) error {
	dialed, err := (&net.Dialer{KeepAlive: -1}).DialContext(x.ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	c := dialed.(*net.TCPConn)
	defer c.Close()
	c.SetDeadline(x.deadline())
	ending := random.IntN(closeKinds)
	if ending == closeSilently {
		return nil
	}
	say := bytes.Repeat([]byte{byte(random.Uint32())}, 1+random.IntN(1<<random.IntN(16)))
	if _, err := c.Write(say); err != nil {
		return err
	}
	switch ending {
	case closeByReset:
		return c.SetLinger(0)
	case closeWithUnread:
		return readable(c)
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, say) {
		err = fmt.Errorf("received %d bytes, sent %d", len(got), len(say))
	}
	return err
}

// samePort connects repeatedly from one port to one server, which closes first, so that
// TIME_WAIT does not block the client's port.
func samePort(x *T, s *Env, f Family) {
	l, to := x.service(s, Out, f)
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			io.WriteString(c, "bye")
			c.CloseWrite()
			go func() {
				io.Copy(io.Discard, onlyReader{c})
				c.Close()
			}()
		}
	}()
	dialer := net.Dialer{KeepAlive: -1, LocalAddr: net.TCPAddrFromAddrPort(unspecified(f, 34567)), Control: setOption(unix.SOL_SOCKET, unix.SO_REUSEADDR)}
	x.Must(s.Container.NS.Do(func() error {
		for i := range 30 {
			// The host may delay a new connection between the same ports.
			if err := await(x.ctx, func() error { return readBye(x.ctx, &dialer, x, to) }); err != nil {
				return fmt.Errorf("connection %d from the same port: %w", i, err)
			}
		}
		return nil
	}))
}

func readBye(ctx context.Context, d *net.Dialer, x *T, to netip.AddrPort) error {
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(x.deadline())
	got, err := io.ReadAll(c)
	if err == nil && string(got) != "bye" {
		err = fmt.Errorf("received %q", got)
	}
	return err
}

// setOption returns a dialer's Control that sets a socket option to 1.
func setOption(level, option int) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var inner error
		if err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
			return err
		}
		return inner
	}
}

// fastOpen asks for TCP Fast Open (RFC 7413). A data path without it must ignore the
// option, and nothing may arrive twice.
func fastOpen(x *T, s *Env, f Family) {
	l, to := x.service(s, Out, f)
	go echoServer(l)
	d := net.Dialer{KeepAlive: -1, Control: setOption(unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT)}
	for range 3 {
		var c net.Conn
		x.Must(s.Container.NS.Do(func() (err error) {
			c, err = d.DialContext(x.ctx, "tcp", to.String())
			return err
		}))
		closeAfter(x, c)
		x.Must(roundTrip(c, 5000))
		c.Close()
	}
}

// manyUnanswered starts many connects to an address that does not answer and closes them.
// Other connections must still succeed, and the helper must keep nothing.
func manyUnanswered(x *T, s *Env) {
	const many = 500
	hole := netip.AddrPortFrom(remoteAddr(V4, remoteSilent), 80)
	x.checkNoLeak(s, func() {
		var fds []int
		defer func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}()
		x.Must(s.Container.NS.Do(func() error {
			for range many {
				fd, err := beginConnect(hole)
				if err != nil {
					return err
				}
				fds = append(fds, fd)
			}
			return nil
		}))
		in, out := x.pair(s, Out, V4)
		x.Must(exchange(in, out))
		in.Close()
		out.Close()
	})
}

// beginConnect sends a SYN and does not wait.
func beginConnect(to netip.AddrPort) (int, error) {
	domain, sa := sockaddr(to)
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return -1, fmt.Errorf("start connect to %s: %w", to, err)
	}
	return fd, nil
}
