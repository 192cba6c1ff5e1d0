package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// autoOutwardSockets is how many ports of each protocol and family AutoOutward
// can lead to the host: sockets are made inside once, before the command begins.
const autoOutwardSockets = 64

// wantedSockets is what Outward and AutoOutward take.
func (n *Network) wantedSockets() socketCounts {
	var c socketCounts
	for _, o := range n.cfg.ReverseForwards {
		for _, at := range o.places() {
			*c.of(o.Protocol, at.Addr())++
		}
	}
	if anyAuto(n.cfg.AutoReverseForward, TCP) {
		c.TCP4 += autoOutwardSockets
		c.TCP6 += autoOutwardSockets
	}
	if anyAuto(n.cfg.AutoReverseForward, UDP) {
		c.UDP4 += autoOutwardSockets
		c.UDP6 += autoOutwardSockets
	}
	return c
}

func (c *socketCounts) of(p Protocol, a netip.Addr) *int {
	switch {
	case p == TCP && a.Is4():
		return &c.TCP4
	case p == TCP:
		return &c.TCP6
	case a.Is4():
		return &c.UDP4
	}
	return &c.UDP6
}

func kindOf(p Protocol, a netip.Addr) kind {
	switch {
	case p == TCP && a.Is4():
		return kindTCP4
	case p == TCP:
		return kindTCP6
	case a.Is4():
		return kindUDP4
	}
	return kindUDP6
}

// places are the addresses inside that an Outward listens on.
func (o ReverseForward) places() []netip.AddrPort {
	if o.Listen.Addr().IsValid() {
		return []netip.AddrPort{o.Listen}
	}
	return []netip.AddrPort{
		netip.AddrPortFrom(loopback(unix.AF_INET), o.Listen.Port()),
		netip.AddrPortFrom(loopback(unix.AF_INET6), o.Listen.Port()),
	}
}

// target is where a client of an address inside is led to.
func (o ReverseForward) target(at netip.AddrPort) netip.AddrPort {
	addr, port := o.To.Addr(), o.To.Port()
	if !addr.IsValid() {
		addr = loopback(unix.AF_INET)
		if at.Addr().Is6() {
			addr = loopback(unix.AF_INET6)
		}
	}
	if port == 0 {
		port = at.Port()
	}
	return netip.AddrPortFrom(addr, port)
}

// openOutward opens what Config names, and what AutoOutward needs to find more.
func (n *Network) openOutward() error {
	for _, o := range n.cfg.ReverseForwards {
		for _, at := range o.places() {
			one := ReverseForward{o.Protocol, at, o.target(at)}
			r, err := n.lead(one)
			if errors.Is(err, errNoSocket) && at.Addr().Is6() && !o.Listen.Addr().IsValid() {
				continue // a kernel without IPv6
			}
			if err != nil {
				return fmt.Errorf("lead %s port %s inside to the host: %w", o.Protocol, at, err)
			}
			if r != nil {
				n.opened.outward = append(n.opened.outward, r)
			}
		}
	}
	if len(n.cfg.AutoReverseForward) == 0 {
		return nil
	}
	fd, diag, err := openDiag()
	if err != nil {
		return err
	}
	n.opened.diags, n.opened.hostDiag = append(n.opened.diags, fd), diag
	return nil
}

// errNoSocket says that no socket of the kind came from the inside, or that all
// are in use.
var errNoSocket = errors.New("no socket inside is left")

// lead opens a port inside that leads to the host. Connections are the stack's to carry; for
// datagrams the result carries them, else it is nil.
func (n *Network) lead(o ReverseForward) (*udpRelay, error) {
	fd, err := n.take(kindOf(o.Protocol, o.Listen.Addr()))
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket inside")
	if err := bindInside(fd, o); err != nil {
		f.Close()
		return nil, err
	}
	if o.Protocol == TCP {
		return nil, n.opened.stack.Outward(f, o.To)
	}
	defer f.Close() // net works on a copy
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &udpRelay{conn: c.(*net.UDPConn), to: o.To, ledger: n.ledger}, nil
}

func (n *Network) take(k kind) (int, error) {
	left := n.opened.sockets[k]
	if len(left) == 0 {
		return -1, errNoSocket
	}
	n.opened.sockets[k] = left[1:]
	return left[0], nil
}

// bindInside gives a socket that was made inside its address there.
func bindInside(fd int, o ReverseForward) error {
	a := o.Listen.Addr()
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(o.Listen.Port())}
	if a.Is4() {
		sa.(*unix.SockaddrInet4).Addr = a.As4()
	} else {
		sa = &unix.SockaddrInet6{Port: int(o.Listen.Port()), Addr: a.As16()}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if o.Protocol == UDP {
		return os.NewSyscallError("bind", unix.Bind(fd, sa))
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
}
