package usernettest

import (
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// connectCases: a connect that fails on the host fails inside with the same
// error number.
func connectCases() []Case {
	var cases []Case
	for _, c := range []struct {
		name  string
		to    func(f Family) netip.AddrPort
		short bool
	}{
		{name: "refused", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(far(f, farServer), 9) }},
		{name: "host-unreachable", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(far(f, farUnreachable), 80) }},
		{name: "prohibited", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(far(f, farProhibited), 80) }},
		{name: "no-route", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(far(f, farNoRoute), 80) }},
		{name: "blackhole", to: func(f Family) netip.AddrPort { return netip.AddrPortFrom(far(f, farSilent), 80) }},
	} {
		cases = append(cases, families(func(f Family) Case {
			return Case{Name: "connect/" + c.name, Check: func(x *X, s *Scene) {
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
					x.Fatalf("the host itself could connect to %s", c.to(f))
				}
				x.Notef("on the host: %s", host)
				if inside != host {
					x.Fatalf("connect to %s: inside %s, on the host %s", c.to(f), orNone(inside), host)
				}
			}}
		})...)
	}
	return append(cases, families(func(f Family) Case {
		return Case{Name: "connect/only-when-the-server-answered", Check: func(x *X, s *Scene) {
			// A listener whose backlog is full lets no more SYNs in: then nobody
			// inside may be told that it is connected.
			fd, at := x.fullListener(s, f)
			defer unix.Close(fd)
			c, err := x.dial(s.Container, "tcp", at)
			if err == nil {
				c.Close()
				x.Fatalf("connected inside to a server that never answered the SYN")
			}
			if got := errno(err); got != "ETIMEDOUT" {
				x.Fatalf("connect to a server that does not answer: %s, want ETIMEDOUT", got)
			}
		}}
	})...)
}

// orNone names the absence of an error.
func orNone(errno string) string {
	if errno == "" {
		return "no error"
	}
	return errno
}

// fullListener is a listening socket outside whose queue is full.
func (x *X) fullListener(s *Scene, f Family) (int, netip.AddrPort) {
	var fd int
	at := netip.AddrPortFrom(far(f, farServer), 7777)
	x.Must(s.Outside.NS.Do(func() (err error) {
		domain, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: far(V4, farServer).As4()})
		if f == V6 {
			domain, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		}
		if fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := unix.Bind(fd, sa); err != nil {
			return fmt.Errorf("bind %s: %w", at, err)
		}
		return unix.Listen(fd, 0)
	}))
	// A backlog of 0 holds one connection; the host takes it.
	if _, err := x.dial(s.Outside, "tcp", at); err != nil {
		unix.Close(fd)
		x.Fatalf("fill the backlog: %v", err)
	}
	return fd, at
}

// wasReset tells whether err is a reset by the peer.
func wasReset(err error) bool { return errno(err) == "ECONNRESET" || isPipe(err) }

func isPipe(err error) bool { return errno(err) == unix.ErrnoName(syscall.EPIPE) }
