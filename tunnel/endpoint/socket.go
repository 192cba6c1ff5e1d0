package endpoint

import (
	"cmp"
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
	var s tunnel.Socket
	var err error
	if p.Remote.IsValid() {
		s, err = openSockets(p, at, form != spec.Native && !key)
	} else {
		s, err = openListeners(p, at.local)
	}
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

// openListeners opens the sockets of a path without a remote: at its local address, or at
// all addresses of both families as far as the kernel has them.
func openListeners(p tunnel.PathConfig, local netip.Addr) (s tunnel.Socket, err error) {
	all := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if local.IsValid() {
		all = []netip.Addr{local}
	}
	for _, a := range all {
		fd := 0
		if fd, err = openSocket(p, a); err != nil {
			if errors.Is(err, unix.EAFNOSUPPORT) {
				continue
			}
			if s.Listen > 0 {
				err = errors.Join(err, unix.Close(s.Listen))
			}
			return tunnel.Socket{}, err
		}
		if a.Is4() {
			s.Listen = fd
		} else {
			s.Listen6 = fd
		}
	}
	if s.Listen == 0 && s.Listen6 == 0 {
		return s, err
	}
	return s, nil
}

// ErrPortTaken is returned for a path without a remote if another socket has its port: the
// kernel would give some of its packets to that.
var ErrPortTaken = errors.New("the port is in use")

// checkExclusive checks that nobody has the port of a path that is about to get its first
// sockets, if the path has no remote.
func checkExclusive(p *spec.Path) error {
	if p.Remote.IsValid() {
		return nil
	}
	local := cmp.Or(p.Local, netip.IPv4Unspecified())
	fd, err := unix.Socket(nl.GetIPFamily(local.AsSlice()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil // opening the path will show it
	}
	defer unix.Close(fd)
	if p.Device != "" {
		_ = unix.BindToDevice(fd, p.Device)
	}
	if errors.Is(unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, p.LocalPort))), unix.EADDRINUSE) {
		return fmt.Errorf("open path %q at %s: %w", p.Name, netip.AddrPortFrom(local, p.LocalPort), ErrPortTaken)
	}
	return nil
}

// Connect implements tunnel.Opener.
func (o opener) Connect(p tunnel.PathConfig, local netip.Addr, remote netip.AddrPort) (tunnel.Socket, error) {
	p.Remote = remote
	o.e.mu.Lock()
	at := location{binding: binding{local: local}, route: route{mtu: cmp.Or(o.e.located[p.Name].mtu, o.e.localMTU[local])}}
	o.e.mu.Unlock()
	s, err := openSockets(p, at, false)
	if err == nil {
		o.e.requestMTU()
	}
	return s, err
}

// Refuse implements tunnel.Opener. It refuses what spec.checkLoop refuses in a file.
func (o opener) Refuse(p tunnel.PathConfig, remote netip.AddrPort) error {
	a := remote.Addr()
	o.e.mu.Lock()
	defer o.e.mu.Unlock()
	if by := o.e.spec.Routed(p.Device, a); by.IsValid() {
		return fmt.Errorf("the other end sends from an address within the tunnel's %s: the tunnel's own packets would go into the tunnel", by)
	}
	if a.IsLinkLocalUnicast() && p.Device == "" {
		return errors.New("the other end sends from a link-local address: the path needs a device")
	}
	return nil
}

func openSocket(p tunnel.PathConfig, local netip.Addr) (int, error) {
	fd, err := unix.Socket(nl.GetIPFamily(local.AsSlice()), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open path %q: %w", p.Name, os.NewSyscallError("socket", err))
	}
	// Several paths may share an address, and each may have a listener beside its own
	// socket. With SO_REUSEADDR any user's program could open a socket like the path's
	// and receive its packets; SO_REUSEPORT shares with the same user only
	// (udp_lib_lport_inuse, net/ipv4/udp.c).
	err = os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	if err == nil && local.IsUnspecified() && local.Is6() { // IPv4 has a socket of its own
		err = os.NewSyscallError("setsockopt IPV6_V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
	}
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
