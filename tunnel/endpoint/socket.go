package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"cleat/tunnel"
	"cleat/tunnel/spec"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

type opener struct{ e *Endpoint }

// Open implements tunnel.Opener. It uses the location from the last look, because the
// engine, whose lock is held, must not wait for the kernel's lists.
func (o opener) Open(p tunnel.PathConfig) (tunnel.Socket, error) {
	o.e.mu.Lock()
	at, form, key := o.e.located[p.Name], o.e.spec.Form, o.e.spec.Key != nil
	o.e.mu.Unlock()
	if at.err != nil {
		return tunnel.Socket{}, at.err
	}
	s, err := openSockets(p, at, form != spec.Native && !key)
	if err != nil {
		return tunnel.Socket{}, err
	}
	o.e.mu.Lock()
	o.e.boundAt[p.Name] = at.binding
	delete(o.e.reported, p.Name)
	o.e.mu.Unlock()
	o.e.requestMTU()
	return s, nil
}

// openSockets opens the socket of a path, and a second one to listen if wanted.
func openSockets(p tunnel.PathConfig, at location, listen bool) (tunnel.Socket, error) {
	s := tunnel.Socket{MTU: p.MTU}
	if s.MTU == 0 {
		s.MTU = at.mtu
	}
	var err error
	if s.FD, err = openSocket(p, at.local); err != nil {
		return tunnel.Socket{}, err
	}
	if err = unix.Connect(s.FD, sockaddr(p.Remote)); err != nil {
		return tunnel.Socket{}, errors.Join(fmt.Errorf("connect path %q to %s: %w", p.Name, p.Remote, os.NewSyscallError("connect", err)), unix.Close(s.FD))
	}
	if listen {
		if s.Listen, err = openSocket(p, at.local); err != nil {
			return tunnel.Socket{}, errors.Join(err, unix.Close(s.FD))
		}
	}
	return s, nil
}

func openSocket(p tunnel.PathConfig, local netip.Addr) (int, error) {
	fd, err := unix.Socket(nl.GetIPFamily(p.Remote.Addr().AsSlice()), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open path %q: %w", p.Name, os.NewSyscallError("socket", err))
	}
	// Several paths may share an address, and each may have a listener beside its own
	// socket. With SO_REUSEADDR any user's program could open a socket like the path's
	// and receive its packets; SO_REUSEPORT shares with the same user only
	// (udp_lib_lport_inuse, net/ipv4/udp.c).
	err = os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	if err == nil && p.Device != "" {
		err = os.NewSyscallError("setsockopt SO_BINDTODEVICE", unix.BindToDevice(fd, p.Device))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, p.Port))))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("open path %q at %s: %w", p.Name, netip.AddrPortFrom(local, p.Port), err), unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
