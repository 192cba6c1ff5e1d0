package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// autoReverseSockets is how many ports of each protocol and family AutoReverseForward can
// open. The sockets are created in the namespace once, before the command starts.
const autoReverseSockets = 64

// wantedSockets returns the sockets that reverse forwards and automatic forwards need from the
// namespace.
func (n *Network) wantedSockets() []fdKind {
	var kinds []fdKind
	for _, r := range n.cfg.ReverseForwards {
		for _, at := range r.listenAddrs() {
			kinds = append(kinds, socketKind(r.Protocol, at.Addr()))
		}
	}
	for _, proto := range []Protocol{TCP, UDP} {
		if anyFollows(n.cfg.AutoReverseForward, proto) {
			kinds = append(kinds, slices.Repeat([]fdKind{socketKind(proto, netip.IPv4Unspecified()), socketKind(proto, netip.IPv6Unspecified())}, autoReverseSockets)...)
		}
	}
	if len(n.cfg.AutoForward) > 0 {
		kinds = append(kinds, fdDiag)
	}
	return kinds
}

func socketKind(p Protocol, a netip.Addr) fdKind {
	switch {
	case p == TCP && a.Is4():
		return fdTCP4
	case p == TCP:
		return fdTCP6
	case a.Is4():
		return fdUDP4
	}
	return fdUDP6
}

func (r ReverseForward) listenAddrs() []netip.AddrPort {
	if r.Listen.Addr().IsValid() {
		return []netip.AddrPort{r.Listen}
	}
	return []netip.AddrPort{netip.AddrPortFrom(loopback4, r.Listen.Port()), netip.AddrPortFrom(netip.IPv6Loopback(), r.Listen.Port())}
}

// target returns the host's address for clients of an address in the namespace.
func (r ReverseForward) target(at netip.AddrPort) netip.AddrPort {
	loopback := loopback4
	if at.Addr().Is6() {
		loopback = netip.IPv6Loopback()
	}
	return netip.AddrPortFrom(cmp.Or(r.To.Addr(), loopback), cmp.Or(r.To.Port(), at.Port()))
}

// openReverseForwards opens the reverse forwards of Config, and the socket by which
// AutoReverseForward finds more.
func (n *Network) openReverseForwards() (err error) {
	for _, r := range n.cfg.ReverseForwards {
		for _, at := range r.listenAddrs() {
			relay, err := n.openReverse(ReverseForward{r.Protocol, at, r.target(at)})
			if errors.Is(err, errNoSocket) && at.Addr().Is6() && !r.Listen.Addr().IsValid() {
				continue // the kernel has no IPv6
			}
			if err != nil {
				return fmt.Errorf("forward %s port %s of the namespace to the host: %w", r.Protocol, at, err)
			}
			if relay != nil {
				n.res.relays = append(n.res.relays, relay)
			}
		}
	}
	if len(n.cfg.AutoReverseForward) > 0 {
		n.res.hostDiag, err = n.openHostDiag()
	}
	return err
}

// errNoSocket means that no socket of the kind came from the namespace, or that all are in use.
var errNoSocket = errors.New("no socket of the namespace is left")

// openReverse opens one reverse forward. The stack carries its connections. The result relays
// its datagrams, and is nil for TCP.
func (n *Network) openReverse(r ReverseForward) (*udpRelay, error) {
	kind := socketKind(r.Protocol, r.Listen.Addr())
	fds := n.res.sockets[kind]
	if len(fds) == 0 {
		return nil, errNoSocket
	}
	n.res.sockets[kind] = fds[1:]
	f := os.NewFile(uintptr(fds[0]), "socket of the namespace")
	if err := listenReverse(fds[0], r); err != nil {
		f.Close()
		return nil, err
	}
	if r.Protocol == TCP {
		return nil, n.res.stack.ForwardOut(f, r.To)
	}
	defer f.Close() // FilePacketConn duplicates it
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return &udpRelay{conn: c.(*net.UDPConn), to: r.To, ledger: n.ledger}, nil
}

// listenReverse binds a socket of the namespace, and listens if it is a TCP socket.
func listenReverse(fd int, r ReverseForward) error {
	if r.Listen.Addr().Is6() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if r.Protocol == UDP {
		return bindSocket(fd, r.Listen)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := bindSocket(fd, r.Listen); err != nil {
		return err
	}
	return os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
}

// bindSocket binds a socket to an address of its own family.
func bindSocket(fd int, at netip.AddrPort) error {
	address := sys.MakeAddress(at, false)
	if errno := sys.BindRaw(fd, address.Raw()); errno != 0 {
		return os.NewSyscallError("bind", errno)
	}
	return nil
}
