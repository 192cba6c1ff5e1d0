package usernettest

import (
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// connectCases check that a connect that fails on the host fails inside with the same
// error number.
func connectCases() []Case {
	var cases []Case
	for _, c := range []struct {
		name string
		to   func(f Family) netip.AddrPort
	}{
		{name: "refused", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(remoteAddr(f, remoteServer), 9) }},
		{name: "host-unreachable", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(remoteAddr(f, remoteUnreachable), 80) }},
		{name: "prohibited", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(remoteAddr(f, remoteProhibited), 80) }},
		{name: "no-route", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(remoteAddr(f, remoteNoRoute), 80) }},
	} {
		var needs []Ability
		if c.name == "no-route" {
			needs = []Ability{AsHost}
		}
		cases = append(cases, families(func(f Family) Case {
			return Case{Name: "connect/" + c.name, Needs: needs, Check: func(x *T, s *Env) {
				var inside, host string
				x.Both(func() error {
					_, err := x.dial(s.Container, "tcp", c.to(f))
					inside = errno(err)
					return nil
				}, func() error {
					_, err := x.dial(s.Host, "tcp", c.to(f))
					host = errno(err)
					return nil
				})
				if host == "" {
					x.Fatalf("the host itself can connect to %s", c.to(f))
				}
				if inside != host {
					x.Fatalf("connect to %s: %s inside, %s on the host", c.to(f), errnoText(inside), host)
				}
			}}
		})...)
	}
	cases = append(cases, both(func(d Direction, f Family) Case {
		return Case{Name: "connect/server-speaks-first", Check: func(x *T, s *Env) { serverFirst(x, s, d, f) }}
	})...)
	return append(cases, Case{Name: "connect/no-answer", Check: noAnswer})
}

// noAnswer connects to addresses that do not answer: a black hole, and a listener with a
// full backlog, which accepts no more SYNs. A client inside must not be connected before
// the server is.
func noAnswer(x *T, s *Env) {
	type attempt struct {
		what  string
		errno chan string
	}
	var attempts []attempt
	begin := func(what string, from *lab.Node, to netip.AddrPort) {
		a := attempt{fmt.Sprintf("%s at %s", what, to), make(chan string, 1)}
		attempts = append(attempts, a)
		go func() {
			_, err := x.dial(from, "tcp", to)
			a.errno <- errnoText(errno(err))
		}()
	}
	for _, f := range []Family{V4, V6} {
		if f == V6 && !s.dataPath.has(IPv6) {
			continue
		}
		fd, full := x.fullListener(s, f)
		defer unix.Close(fd)
		hole := netip.AddrPortFrom(remoteAddr(f, remoteSilent), 80)
		begin("black hole, from the host,", s.Host, hole)
		begin("black hole", s.Container, hole)
		begin("full listener", s.Container, full)
	}
	for _, a := range attempts {
		if e := <-a.errno; e != "ETIMEDOUT" {
			x.Errorf("connect to a %s: %s, want ETIMEDOUT", a.what, e)
		}
	}
}

// serverFirst checks that a server accepts a client that sends nothing, and that the
// server's greeting arrives.
func serverFirst(x *T, s *Env, d Direction, f Family) {
	l, to := x.service(s, d, f)
	c := x.dialTCP(s.client(d), to)
	server, err := l.AcceptTCP()
	if err != nil {
		x.Fatalf("accept a client that sends nothing: %v", err)
	}
	closeAfter(x, server)
	_, err = io.WriteString(server, "220 hello")
	x.Must(err)
	_, err = io.ReadFull(c, make([]byte, len("220 hello")))
	x.Must(err)
}

// errnoText names an error number, or its absence.
func errnoText(errno string) string {
	if errno == "" {
		return "no error"
	}
	return errno
}

// fullListener returns a listening socket outside with a full backlog.
func (x *T) fullListener(s *Env, f Family) (int, netip.AddrPort) {
	var fd int
	at := netip.AddrPortFrom(remoteAddr(f, remoteServer), 7777)
	x.Must(x.bind(s.Outside, func() (err error) {
		domain, sa := sockaddr(at)
		if fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := unix.Bind(fd, sa); err != nil {
			unix.Close(fd)
			return fmt.Errorf("bind %s: %w", at, err)
		}
		return unix.Listen(fd, 0)
	}))
	// A backlog of 0 holds one connection, which the outside node makes.
	if _, err := x.dial(s.Outside, "tcp", at); err != nil {
		unix.Close(fd)
		x.Fatalf("fill the backlog: %v", err)
	}
	return fd, at
}

// wasReset reports whether err is a reset by the peer.
func wasReset(err error) bool { return errno(err) == "ECONNRESET" || isPipe(err) }

func isPipe(err error) bool { return errno(err) == unix.ErrnoName(syscall.EPIPE) }
