package supervisor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// fence is a port of the host's, in both families, that is taken, so that no socket can be
// bound to it. A socket of the host's gets it as its only port to choose. It is safe for
// concurrent use once it is reserved.
type fence struct {
	host     Host
	port     int
	reserved []int

	mu    sync.Mutex
	tried time.Time
	works bool
}

// Check returns what of the host's is known to be missing, before there is a program.
func Check(h Host) error {
	if sys.NativeArch == 0 {
		return sys.ErrSeccompArch
	}
	if err := mayLook(); err != nil {
		return err
	}
	f := fence{host: h}
	defer f.free()
	return f.reserve()
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

// reserve takes a port, and tries what it is for.
func (f *fence) reserve() error {
	for range 16 { // another program may have the port in the other family
		err := f.take()
		if err == nil {
			break
		}
		f.free()
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("reserve a port: %w", err)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := f.try(family)
		if family == unix.AF_INET6 && noFamily(err) {
			continue
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("keep sockets from new ports: try one that is taken: %v, want %w (it takes Linux 6.3)", err, unix.EADDRINUSE)
		}
	}
	return nil
}

// take binds a port that is free, to all addresses.
func (f *fence) take() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f.reserved = append(f.reserved, fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return err
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	f.port = at.(*unix.SockaddrInet4).Port
	if fd, err = only6(); err != nil {
		if noFamily(err) {
			err = nil
		}
		return err
	}
	f.reserved = append(f.reserved, fd)
	if err = unix.Bind(fd, &unix.SockaddrInet6{Port: f.port}); noFamily(err) {
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

func (f *fence) free() {
	for _, fd := range f.reserved {
		unix.Close(fd)
	}
	f.reserved = nil
}

// try connects and listens with a socket of the host's that has but the port
// that is taken. EADDRINUSE: it could do neither.
func (f *fence) try(family int) error {
	to := netip.IPv6Loopback()
	if family == unix.AF_INET {
		to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	fd, err := f.host.Socket(family, unix.SOCK_STREAM, to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := f.put(fd); err != nil {
		return err
	}
	switch errno := sys.ConnectNow(fd, address(netip.AddrPortFrom(to, uint16(f.port)), family)); errno {
	case unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH: // the latter where loopback is down
	default:
		return fmt.Errorf("connect: %w", errno)
	}
	return unix.Listen(fd, 1)
}

// holds reports whether that is still so: a socket's ports count only within
// those that the host's configuration has for connections (ip_local_port_range),
// which may change.
func (f *fence) holds() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.tried) > time.Second {
		f.tried = now
		f.works = errors.Is(f.try(unix.AF_INET), unix.EADDRINUSE)
	}
	return f.works
}

// put leaves a socket no port to be bound to but the one that is taken.
func (f *fence) put(fd int) error {
	if errno := sys.SetInt(fd, unix.IPPROTO_IP, localPortRange, f.port<<16|f.port); errno != 0 {
		return errno
	}
	return nil
}
