package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a blocking socket that one thread uses with raw system calls. wake makes that
// thread's call return. The creator of the socket closes it after the thread has ended.
type socket struct {
	fd     int
	mu     sync.Mutex
	closed bool
}

// wake interrupts blocking calls on the socket. It is safe for concurrent use.
func (s *socket) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
}

// close is idempotent. An abortive close resets the connection, so that queued data does
// not linger on a slow path.
func (s *socket) close(abort bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if abort {
		unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	unix.Close(s.fd)
}

// setTimeouts sets the timeout of each blocking call; 0 means none.
func setTimeouts(fd int, d time.Duration) error {
	tv := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("set SO_RCVTIMEO: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fmt.Errorf("set SO_SNDTIMEO: %w", err)
	}
	return nil
}

// setBuffers requests a buffer size in both directions. It returns what the kernel
// granted for receiving, in bytes of payload and bookkeeping.
func setBuffers(fd, size int) (granted int, err error) {
	if size > 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
			return 0, fmt.Errorf("set SO_SNDBUF: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size); err != nil {
			return 0, fmt.Errorf("set SO_RCVBUF: %w", err)
		}
	}
	granted, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0, fmt.Errorf("read SO_RCVBUF: %w", err)
	}
	return granted, nil
}

type tcpOptions struct {
	congestion string
	mss        int
	buffer     int
	noDelay    bool
	mptcp      bool
}

func (o tcpOptions) apply(fd int) error {
	if o.congestion != "" {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.congestion); err != nil {
			return fmt.Errorf("set TCP congestion control %q: %w", o.congestion, congestionHint(err))
		}
	}
	if o.mss > 0 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, o.mss); err != nil {
			return fmt.Errorf("set TCP_MAXSEG to %d: %w", o.mss, err)
		}
	}
	if o.buffer > 0 {
		if _, err := setBuffers(fd, o.buffer); err != nil {
			return err
		}
	}
	if o.noDelay {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return fmt.Errorf("set TCP_NODELAY: %w", err)
		}
	}
	return nil
}

// surestCongestion is the congestion control that every kernel has and permits.
const surestCongestion = "reno"

// unpaced makes connections of a listener start with Reno. A stream gets its congestion
// control when its session is known. Had it started with BBR, it would stay paced with
// any other (sk_pacing_status is never reset, net/ipv4/tcp_bbr.c), at half the rate of a
// veth. If this fails, connections start with the default.
func unpaced(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, surestCongestion)
}

// usualCongestion returns the default congestion control of TCP sockets, or "" if
// unknown.
func usualCongestion() string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return ""
	}
	return name
}

func congestionHint(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (not in net.ipv4.tcp_available_congestion_control)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (not in net.ipv4.tcp_allowed_congestion_control)", err)
	}
	return err
}

// sockaddr converts an address for raw system calls, and returns its family.
func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zoneIndex(a.Addr().Zone())}, unix.AF_INET6
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 && a.Is6() {
			a = a.WithZone(fmt.Sprint(sa.ZoneId))
		}
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// dialTCP connects a blocking stream socket and sends the preamble.
func dialTCP(ctx context.Context, to netip.AddrPort, o tcpOptions, p preamble) (*socket, error) {
	sa, family := sockaddr(to)
	protocol := unix.IPPROTO_TCP
	if o.mptcp {
		protocol = unix.IPPROTO_MPTCP
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("create stream socket: %w", mptcpHint(o.mptcp, err))
	}
	s := &socket{fd: fd}
	err = s.connect(ctx, to, sa, o, p)
	if err != nil {
		s.close(true)
		return nil, err
	}
	return s, nil
}

func mptcpHint(mptcp bool, err error) error {
	if mptcp && (errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT)) {
		return fmt.Errorf("%w (needs CONFIG_MPTCP and sysctl net.mptcp.enabled=1)", err)
	}
	return err
}

func (s *socket) connect(ctx context.Context, to netip.AddrPort, sa unix.Sockaddr, o tcpOptions, p preamble) error {
	if err := o.apply(s.fd); err != nil {
		return err
	}
	if err := unix.Connect(s.fd, sa); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	if err := waitFD(ctx, s.fd, unix.POLLOUT); err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	if code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		if err == nil {
			err = unix.Errno(code)
		}
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	if err := unix.SetNonblock(s.fd, false); err != nil {
		return fmt.Errorf("set socket blocking: %w", err)
	}
	if _, err := unix.Write(s.fd, p.append(nil)); err != nil {
		return fmt.Errorf("write preamble to %s: %w", to, err)
	}
	return nil
}

// waitFD waits until fd is ready for events or ctx ends.
func waitFD(ctx context.Context, fd int, events int16) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		// Use short slices, because a cancelled context can't interrupt poll.
		n, err := unix.Poll(fds, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openUDP creates a blocking datagram socket, bound to local if that is valid and
// connected to peer.
func openUDP(local, peer netip.AddrPort, buffer int) (*socket, error) {
	sa, family := sockaddr(peer)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create datagram socket: %w", err)
	}
	s := &socket{fd: fd}
	if err := s.setUpUDP(local, buffer); err != nil {
		s.close(false)
		return nil, err
	}
	if err := unix.Connect(fd, sa); err != nil {
		s.close(false)
		return nil, fmt.Errorf("connect datagram socket to %s: %w", peer, err)
	}
	return s, nil
}

func (s *socket) setUpUDP(local netip.AddrPort, buffer int) error {
	if _, err := setBuffers(s.fd, cmp.Or(buffer, UDPBufferBytes)); err != nil {
		return err
	}
	// Each call returns from time to time, so that a thread notices a stop.
	if err := setTimeouts(s.fd, stopCheck); err != nil {
		return err
	}
	if !local.IsValid() {
		return nil
	}
	// The flow shares its port with the socket that receives greetings.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	sa, _ := sockaddr(local)
	if err := unix.Bind(s.fd, sa); err != nil {
		return fmt.Errorf("bind datagram socket to %s: %w", local, err)
	}
	return nil
}

// tuneUDP sets the options of a flow's socket.
func (s *socket) tuneUDP(gro, noChecksum bool) error {
	if gro {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
			return fmt.Errorf("set UDP_GRO: %w", err)
		}
	}
	if noChecksum {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
			return fmt.Errorf("set SO_NO_CHECK: %w", err)
		}
	}
	return nil
}

// stopCheck limits how long a thread stays in one system call after it was stopped.
const stopCheck = 100 * time.Millisecond

// retry reports whether an error of a system call means "call again".
func retry(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}
