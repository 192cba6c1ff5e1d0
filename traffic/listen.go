package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// listener is a server's pair of sockets: streams and datagrams on one port number.
type listener struct {
	tcp  int
	udp  int
	addr netip.AddrPort
}

// listen opens both. An MPTCP listener accepts plain TCP clients with plain TCP sockets,
// so it serves both where the kernel has MPTCP.
func listen(ctx context.Context, address string) (*listener, error) {
	at, err := resolveListen(ctx, address)
	if err != nil {
		return nil, err
	}
	// The port that the kernel chose for TCP may be in use for UDP.
	for attempt := 0; ; attempt++ {
		l, err := listenAt(at)
		if err == nil || at.Port() != 0 || attempt == 10 || !errors.Is(err, unix.EADDRINUSE) {
			return l, err
		}
	}
}

func resolveListen(ctx context.Context, address string) (netip.AddrPort, error) {
	host, port, err := splitAddress("listen", address)
	switch {
	case err != nil:
		return netip.AddrPort{}, err
	case host == "":
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port), nil
	}
	return resolve(ctx, host, port)
}

// resolve returns the first address of a host.
func resolve(ctx context.Context, host string, port uint16) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(a, port), nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("resolve %q: %w", host, err)
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), port), nil
}

func listenAt(at netip.AddrPort) (*listener, error) {
	tcp, err := listenTCP(at)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		if at.Addr() == netip.IPv6Unspecified() { // a host without IPv6
			at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
			tcp, err = listenTCP(at)
		}
	}
	if err != nil {
		return nil, err
	}
	bound, err := unix.Getsockname(tcp)
	if err != nil {
		unix.Close(tcp)
		return nil, fmt.Errorf("read listening address: %w", err)
	}
	at = netip.AddrPortFrom(at.Addr(), addrPort(bound).Port())
	udp, err := listenUDP(at)
	if err != nil {
		unix.Close(tcp)
		return nil, err
	}
	return &listener{tcp: tcp, udp: udp, addr: at}, nil
}

func (l *listener) close() {
	unix.Close(l.tcp)
	unix.Close(l.udp)
}

// bindSocket binds fd. The IPv6 wildcard includes IPv4.
func bindSocket(fd int, at netip.AddrPort) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	sa, family := sockaddr(at)
	if family == unix.AF_INET6 {
		only := 1
		if at.Addr() == netip.IPv6Unspecified() {
			only = 0
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return fmt.Errorf("set IPV6_V6ONLY: %w", err)
		}
	}
	return unix.Bind(fd, sa)
}

func listenTCP(at netip.AddrPort) (int, error) {
	_, family := sockaddr(at)
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(family, kind, unix.IPPROTO_MPTCP)
	if err != nil {
		fd, err = unix.Socket(family, kind, unix.IPPROTO_TCP)
	}
	if err != nil {
		return -1, fmt.Errorf("create listening socket: %w", err)
	}
	if err = bindSocket(fd, at); err == nil {
		unpaced(fd)
		err = setTimeouts(fd, preamblePatience) // accepted connections inherit it
	}
	if err == nil {
		err = unix.Listen(fd, 4096)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on tcp %s: %w", at, err)
	}
	return fd, nil
}

func listenUDP(at netip.AddrPort) (int, error) {
	_, family := sockaddr(at)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("create datagram socket: %w", err)
	}
	// Another program's socket on this port must be an error, which SO_REUSEADDR would
	// hide. So bind once without it.
	if err := probeUDP(family, at); err != nil {
		unix.Close(fd)
		return -1, err
	}
	err = bindSocket(fd, at)
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	if err == nil && (family == unix.AF_INET || at.Addr() == netip.IPv6Unspecified()) {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on udp %s: %w", at, err)
	}
	return fd, nil
}

func probeUDP(family int, at netip.AddrPort) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create datagram socket: %w", err)
	}
	defer unix.Close(fd)
	sa, _ := sockaddr(at)
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("listen on udp %s: %w", at, err)
	}
	return nil
}

// receiveGreeting reads one datagram, and returns its source and the local address it was
// sent to.
func receiveGreeting(fd int, buf, oob []byte) (n int, from, to netip.AddrPort, err error) {
	n, oobn, _, sa, err := unix.Recvmsg(fd, buf, oob, 0)
	if err != nil {
		return 0, from, to, err
	}
	from = addrPort(sa)
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, from, to, fmt.Errorf("parse control messages: %w", err)
	}
	for i := range msgs {
		if a, ok := destination(&msgs[i]); ok {
			to = netip.AddrPortFrom(a.Unmap(), 0)
			if from.Addr().Is4() == to.Addr().Is4() {
				return n, from, to, nil
			}
		}
	}
	return n, from, to, nil
}

// destination parses struct in_pktinfo or struct in6_pktinfo.
func destination(m *unix.SocketControlMessage) (netip.Addr, bool) {
	switch {
	case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
		return netip.AddrFrom4([4]byte(m.Data[8:12])), true // ipi_addr
	case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 20:
		a := netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		if a.IsLinkLocalUnicast() && a.Is6() {
			a = a.WithZone(strconv.Itoa(int(binary.NativeEndian.Uint32(m.Data[16:20]))))
		}
		return a, true
	}
	return netip.Addr{}, false
}

// listenUnix opens the control socket. It replaces the socket of a dead server; a live
// one is an error.
func listenUnix(path string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on unix:%s: %w", path, unix.EADDRINUSE)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace stale control socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix:%s: %w", path, err)
	}
	return l, nil
}
