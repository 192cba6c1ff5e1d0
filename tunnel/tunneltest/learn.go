package tunneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"cleat/tunnel"

	"golang.org/x/sys/unix"
)

// LearnConfig returns the configuration of the path for the Tunnel of side 1, which learns
// its remote. All such paths of an Opener share a port.
func (p *Path) LearnConfig() tunnel.PathConfig { return tunnel.PathConfig{Name: p.name, MTU: 1500} }

// Rebind gives the relay another socket towards side 1, as a NAT gives a connection
// another port. The old one is closed.
func (p *Path) Rebind() error {
	s := &p.sides[1]
	old := s.conn.Load()
	fresh, err := listen(old.LocalAddr().(*net.UDPAddr).AddrPort().Addr())
	if err != nil {
		return fmt.Errorf("rebind path %q: %w", p.name, err)
	}
	s.conn.Store(fresh)
	return old.Close()
}

// Server returns the address at which side 1 takes packets of the path.
func (p *Path) Server() netip.AddrPort {
	if at := p.sides[1].endAddr.Load(); at != nil {
		return *at
	}
	return netip.AddrPort{}
}

// At returns the relay's address towards side 1.
func (p *Path) At() netip.AddrPort {
	return p.sides[1].conn.Load().LocalAddr().(*net.UDPAddr).AddrPort()
}

// openListeners opens the sockets of a path that learns its remote.
func (o Opener) openListeners(p tunnel.PathConfig) (tunnel.Socket, error) {
	s := tunnel.Socket{MTU: p.MTU}
	for _, path := range o.Paths {
		if path.name != p.Name {
			continue
		}
		at := netip.AddrPortFrom(path.At().Addr(), o.Port)
		fd, err := openShared(at, netip.AddrPort{})
		if err != nil {
			return s, fmt.Errorf("open path %q: %w", p.Name, err)
		}
		if at.Addr().Is6() {
			s.Listen6 = fd
		} else {
			s.Listen = fd
		}
		path.sides[o.Side].endAddr.Store(&at)
	}
	return s, nil
}

// Connect implements tunnel.Opener.
func (o Opener) Connect(p tunnel.PathConfig, local netip.Addr, remote netip.AddrPort) (tunnel.Socket, error) {
	fd, err := openShared(netip.AddrPortFrom(local, o.Port), remote)
	if err != nil {
		return tunnel.Socket{}, fmt.Errorf("connect path %q: %w", p.Name, err)
	}
	return tunnel.Socket{FD: fd, MTU: p.MTU}, nil
}

// Refuse implements tunnel.Opener. It refuses nothing.
func (o Opener) Refuse(tunnel.PathConfig, netip.AddrPort) error { return nil }

// openShared opens a socket at an address that others share, and connects it if remote is
// valid.
func openShared(local, remote netip.AddrPort) (fd int, err error) {
	var c net.ListenConfig
	c.Control = func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}
	conn, err := c.ListenPacket(context.Background(), "udp", local.String())
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	controlErr := raw.Control(func(own uintptr) {
		if fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0); err == nil && remote.IsValid() {
			err = unix.Connect(fd, sockaddr(remote))
		}
	})
	return fd, errors.Join(controlErr, err)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// listen opens a socket of the relay.
func listen(addr netip.Addr) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err == nil {
		_ = conn.SetReadBuffer(4 << 20) // as far as allowed
	}
	return conn, err
}
