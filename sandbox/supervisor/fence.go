package supervisor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// Check tells what of the host's is known to be missing, before there is a program.
func Check(h Host) error {
	if sys.NativeArch == 0 {
		return sys.ErrSeccompArch
	}
	if err := mayLook(); err != nil {
		return err
	}
	s := &Supervisor{cfg: Config{Host: h}}
	defer s.freePort()
	return s.reserve()
}

// mayLook tries the calls by which other processes are looked into, on ourselves. A
// container engine's profile may refuse them, and Yama may for all others.
func mayLook() error {
	const nobody = "3" // may attach to another process (Documentation/admin-guide/LSM/Yama.rst)
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && strings.TrimSpace(string(scope)) == nobody {
		return errors.New("look into other processes: kernel.yama.ptrace_scope is 3, so that nobody may")
	}
	self := os.Getpid()
	pidfd, err := unix.PidfdOpen(self, 0)
	if err != nil {
		return fmt.Errorf("look into other processes: pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	own, errno := sys.Getfd(pidfd, pidfd)
	if errno != 0 {
		return fmt.Errorf("look into other processes: pidfd_getfd: %w", errno)
	}
	unix.Close(own)
	if !sys.SameFile(self, pidfd, pidfd) {
		return errors.New("look into other processes: kcmp is refused")
	}
	return nil
}

// reserve takes a port of the host, in both families, so that no socket can be
// bound to it, and tries what it is for.
func (s *Supervisor) reserve() error {
	for range 16 { // another program may have the port in the other family
		err := s.takePort()
		if err == nil {
			break
		}
		s.freePort()
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("reserve a port: %w", err)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := s.tryFence(family)
		if family == unix.AF_INET6 && noFamily(err) {
			continue
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("keep sockets from new ports: try one that is taken: %v, want %w (it takes Linux 6.3)", err, unix.EADDRINUSE)
		}
	}
	return nil
}

// takePort binds a port that is free, to all addresses.
func (s *Supervisor) takePort() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.reserved = append(s.reserved, fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	s.taken = at.(*unix.SockaddrInet4).Port
	if fd, err = only6(); err != nil {
		if noFamily(err) {
			err = nil
		}
		return err
	}
	s.reserved = append(s.reserved, fd)
	if err = unix.Bind(fd, &unix.SockaddrInet6{Port: s.taken}); noFamily(err) {
		err = nil
	}
	return err
}

// only6 is a TCP socket that has nothing to do with IPv4.
func only6() (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// noFamily tells errors of a kernel without IPv6.
func noFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

func (s *Supervisor) freePort() {
	for _, fd := range s.reserved {
		unix.Close(fd)
	}
	s.reserved = nil
}

// tryFence connects and listens with a socket of the host's that has but the port
// that is taken. EADDRINUSE: it could do neither.
func (s *Supervisor) tryFence(family int) error {
	to := netip.IPv6Loopback()
	if family == unix.AF_INET {
		to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	fd, err := s.cfg.Host.Socket(family, unix.SOCK_STREAM, to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := s.fence(fd); err != nil {
		return err
	}
	switch errno := sys.ConnectNow(fd, address(netip.AddrPortFrom(to, uint16(s.taken)), family)); errno {
	case unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH: // the latter where loopback is down
	default:
		return fmt.Errorf("connect: %w", errno)
	}
	return unix.Listen(fd, 1)
}

// fenced tells whether that is still so: a socket's ports count only within
// those that the host's configuration has for connections (ip_local_port_range),
// which may change.
func (s *Supervisor) fenced() bool {
	if now := time.Now(); now.Sub(s.fenceTried) > time.Second {
		s.fenceTried = now
		s.fenceHolds = errors.Is(s.tryFence(unix.AF_INET), unix.EADDRINUSE)
	}
	return s.fenceHolds
}

// fence leaves a socket no port to be bound to but the one that is taken.
func (s *Supervisor) fence(fd int) error {
	if errno := sys.SetInt(fd, unix.IPPROTO_IP, localPortRange, s.taken<<16|s.taken); errno != 0 {
		return errno
	}
	return nil
}
