package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// socket makes a non-blocking host socket for destinations of a's family, bound as the
// configuration says.
func (s *engine) socket(a netip.Addr, kind, proto int) (int, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	return s.cfg.socket(family, a, kind, proto)
}

// socket makes a socket of the given family for a destination, bound to the configured
// address and link. An IPv6 socket can also connect to an IPv4 address.
func (c *Config) socket(family int, a netip.Addr, kind, proto int) (int, error) {
	from := ofFamily(a, c.Outbound4, c.Outbound6)
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", err)
	}
	if a.IsLoopback() {
		return fd, nil // other source addresses and links do not reach loopback
	}
	if c.OutboundInterface != "" {
		err = unix.BindToDevice(fd, c.OutboundInterface)
	}
	if err == nil && from.IsValid() {
		if kind == unix.SOCK_STREAM { // the port is chosen by connect
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		}
		if family == unix.AF_INET6 {
			from = netip.AddrFrom16(from.As16())
		}
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0)))
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind socket: %w", err)
	}
	return fd, nil
}

// sockaddr converts an address for the kernel. A zone may be a number or a link's name.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().Zone() != "" {
		zone, _ := strconv.ParseUint(withNumericZone(a).Addr().Zone(), 10, 32)
		sa.ZoneId = uint32(zone)
	}
	return sa
}

// congestionControls are the system's congestion control, and the one for connections
// that stay on the host. There a control that paces, such as BBR, costs more than half of
// the rate. local is "" if the system's control is fine. Setting local must need no
// privilege, because the process may drop its own at any time. Setting reno never needs
// one, and cubic does not if tcp_allowed_congestion_control lists it.
type congestionControls struct{ system, local string }

func readCongestionControls() congestionControls {
	const dir = "/proc/sys/net/ipv4/"
	name, err := os.ReadFile(dir + "tcp_congestion_control")
	if err != nil {
		return congestionControls{}
	}
	allowed, _ := os.ReadFile(dir + "tcp_allowed_congestion_control")
	system := strings.TrimSpace(string(name))
	return congestionControls{system, localControl(system, strings.Fields(string(allowed)))}
}

// localControl returns the control to use in place of the system's.
func localControl(system string, allowed []string) string {
	switch {
	case system == "cubic" || system == "reno":
		return ""
	case slices.Contains(allowed, "cubic"):
		return "cubic"
	}
	return "reno"
}

// tune sets the congestion control of a socket to the host's loopback.
func (c congestionControls) tune(fd int, peer netip.Addr) {
	if c.local != "" && peer.IsLoopback() {
		setCongestionControl(fd, c.local)
	}
}

// tuneConnected sets the congestion control of a connected socket whose peer is the host
// itself by an address other than loopback: then both ends have the same address.
func (c congestionControls) tuneConnected(fd int, peer netip.Addr) {
	if c.local != "" && !peer.IsLoopback() && isLocalPeer(fd, peer) {
		setCongestionControl(fd, c.local)
	}
}

// Sockets makes host sockets as a Stack does, for a caller that connects them itself. It
// is safe for concurrent use.
type Sockets struct {
	cfg      Config
	controls congestionControls
}

// NewSockets returns Sockets with cfg's Outbound4, Outbound6 and OutboundInterface. It
// uses nothing else of cfg.
func NewSockets(cfg Config) *Sockets { return &Sockets{cfg, readCongestionControls()} }

// Socket makes a non-blocking socket of a family (unix.AF_INET, AF_INET6) and a kind
// (SOCK_STREAM for TCP, SOCK_DGRAM for UDP), to be connected to an address.
func (s *Sockets) Socket(family, kind int, to netip.Addr) (int, error) {
	if kind == unix.SOCK_DGRAM && s.cfg.bindsOutbound() {
		return -1, errors.New("a UDP socket could bypass the configured outbound address or interface")
	}
	fd, err := s.cfg.socket(family, to, kind, 0)
	if err == nil && kind == unix.SOCK_STREAM {
		s.controls.tune(fd, to)
	}
	return fd, err
}

// Connected tunes a socket that has been connected to an address.
func (s *Sockets) Connected(fd int, to netip.Addr) { s.controls.tuneConnected(fd, to) }

// tuneListener sets the options that accepted sockets inherit. The congestion control is
// the one for clients on the host, because a control that paces leaves its pacing behind when it
// is replaced (bbr_init, net/ipv4/tcp_bbr.c). tuneClient gives the system's control to
// clients from elsewhere.
func (s *engine) tuneListener(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // the guest's kernel has done what Nagle's algorithm asks for
	if s.controls.local != "" {
		setCongestionControl(fd, s.controls.local)
	}
}

func (s *engine) tuneClient(fd int, client netip.Addr) {
	if s.controls.local != "" && !client.IsLoopback() && !isLocalPeer(fd, client) {
		setCongestionControl(fd, s.controls.system)
	}
}

func setCongestionControl(fd int, name string) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

// isLocalPeer reports whether a connected socket's peer has the socket's own address.
func isLocalPeer(fd int, peer netip.Addr) bool {
	own, errno := sys.LocalAddress(fd)
	return errno == 0 && own.AddrPort().Addr() == peer
}

// dupDescriptor duplicates the descriptor of a plain stream.
func dupDescriptor(c net.Conn) (int, bool) {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return -1, false
	}
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, false
	}
	fd := -1
	if raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }) != nil || err != nil {
		return -1, false
	}
	return fd, true
}

// adoptConn returns a descriptor for a verdict's stream that the loop can wait for: a
// duplicate of its own, or else one end of a socket pair, with goroutines that copy
// between the stream and the other end. cancel, if not nil, ends the copying. c is closed
// in the end, or at once on failure.
func (s *engine) adoptConn(c net.Conn) (fd int, cancel func(), err error) {
	if fd, ok := dupDescriptor(c); ok {
		_ = c.Close() // the duplicate stays open
		return fd, nil, nil
	}
	if !s.group.ledger.Charge(bridgeCost) {
		c.Close()
		s.stats.OverLimit++
		return -1, nil, errors.New("use the verdict's connection: limit of goroutines, memory or open files reached")
	}
	defer func() {
		if err != nil {
			s.group.ledger.Refund(bridgeCost)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.Close()
		return -1, nil, fmt.Errorf("make socket pair: %w", err)
	}
	file := os.NewFile(uintptr(pair[1]), "bridge")
	inner, err := net.FileConn(file)
	file.Close()
	if err != nil {
		unix.Close(pair[0])
		c.Close()
		return -1, nil, fmt.Errorf("use socket pair: %w", err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	go func() {
		defer s.group.ledger.Refund(bridgeCost)
		defer cancel()
		bridge(ctx, c, inner)
	}()
	return pair[0], cancel, nil
}

// bridge copies in both directions until both have ended or ctx has, and closes both.
func bridge(ctx context.Context, a, b net.Conn) {
	closeBoth := func() { a.Close(); b.Close() }
	defer closeBoth()
	defer context.AfterFunc(ctx, closeBoth)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyOneWay(a, b)
	}()
	copyOneWay(b, a)
	<-done
}

// copyOneWay copies in one direction and passes the end on. A connection that can't be
// half closed is closed.
func copyOneWay(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
		to.Close()
	}
}
