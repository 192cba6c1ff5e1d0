package names

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// receiveBytes is the receive buffer of a UDP socket: some 1,000 queries, which all
	// containers of a host may send at once when it starts.
	receiveBytes = 1 << 20
	backlog      = 256 // connections waiting for accept
)

// Open opens the sockets for Serve in the network namespace of the calling thread, bound to an
// address and a port, usually 53. The address may be missing or tentative yet. The caller
// closes both.
func Open(at netip.AddrPort) (udp, tcp *os.File, err error) { return OpenInVRF("", at) }

// OpenInVRF is Open for an address of a VRF, whose packets other sockets don't get; "": of none.
func OpenInVRF(vrf string, at netip.AddrPort) (udp, tcp *os.File, err error) {
	var fds [2]int
	for i, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
		fd, err := open(vrf, at, kind)
		if err != nil {
			closeAll(fds[:i])
			return nil, nil, fmt.Errorf("open a socket at %s: %w", at, err)
		}
		fds[i] = fd
	}
	return os.NewFile(uintptr(fds[0]), "udp"), os.NewFile(uintptr(fds[1]), "tcp"), nil
}

func open(vrf string, at netip.AddrPort, kind int) (int, error) {
	family, level, freebind := unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	var name unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if at.Addr().Is4() {
		family, level, freebind = unix.AF_INET, unix.IPPROTO_IP, unix.IP_FREEBIND
		name = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.SetsockoptInt(fd, level, freebind, 1)
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	} else if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil { // needs CAP_NET_ADMIN
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes))
	}
	if err == nil && vrf != "" {
		err = os.NewSyscallError("setsockopt", unix.BindToDevice(fd, vrf))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, name))
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
