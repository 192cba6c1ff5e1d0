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

// fence keeps sockets of the host from being bound to ports. It reserves a port in both
// families and makes it the only one in a socket's range of local ports. A fence is safe
// for concurrent use after reserve.
type fence struct {
	host     Host
	port     int
	reserved []int // sockets bound to the port

	mu     sync.Mutex
	tested time.Time
	works  bool
}

// Check reports a missing feature of the host, before there is a program.
func Check(h Host) error {
	if sys.NativeArch == 0 {
		return sys.ErrSeccompArch
	}
	if err := checkInspection(); err != nil {
		return err
	}
	f := fence{host: h}
	defer f.free()
	return f.reserve()
}

// checkInspection tries the system calls that inspect other processes, on our own. The
// seccomp profile of a container engine may refuse them, and Yama may refuse them for
// other processes.
func checkInspection() error {
	const noAttach = "3" // no process may attach to another (Documentation/admin-guide/LSM/Yama.rst)
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && strings.TrimSpace(string(scope)) == noAttach {
		return errors.New("inspect other processes: forbidden, since kernel.yama.ptrace_scope is 3")
	}
	self := os.Getpid()
	pidfd, err := unix.PidfdOpen(self, 0)
	if err != nil {
		return fmt.Errorf("inspect other processes: pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	own, errno := sys.Getfd(pidfd, pidfd)
	if errno != 0 {
		return fmt.Errorf("inspect other processes: pidfd_getfd: %w", errno)
	}
	unix.Close(own)
	if !sys.SameFile(self, pidfd, pidfd) {
		return errors.New("inspect other processes: kcmp is refused")
	}
	return nil
}

// reserve takes a free port and tests that the fence works.
func (f *fence) reserve() error {
	for range 16 { // another program may have the same port in the other family
		err := f.bind()
		if err == nil {
			break
		}
		f.free()
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("reserve a port: %w", err)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := f.test(family)
		if family == unix.AF_INET6 && noIPv6(err) {
			continue
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("restrict a socket to a reserved port (needs Linux 6.3): got %v, want %v", err, unix.EADDRINUSE)
		}
	}
	return nil
}

// bind binds sockets of both families to all addresses of a free port.
func (f *fence) bind() error {
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
	if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		f.reserved = append(f.reserved, fd)
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: f.port})
		}
	}
	if noIPv6(err) {
		return nil
	}
	return err
}

func noIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)
}

func (f *fence) free() {
	for _, fd := range f.reserved {
		unix.Close(fd)
	}
	f.reserved = nil
}

// test tries to connect and to listen with a fenced socket. If the fence works the connect
// fails, and test returns EADDRINUSE from the listen.
func (f *fence) test(family int) error {
	to := netip.IPv6Loopback()
	if family == unix.AF_INET {
		to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	fd, err := f.host.Socket(family, unix.SOCK_STREAM, to)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := f.apply(fd); err != nil {
		return err
	}
	switch errno := sys.ConnectNow(fd, address(netip.AddrPortFrom(to, uint16(f.port)), family)); errno {
	case unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH: // the latter two if loopback is down
	default:
		return fmt.Errorf("connect: %w", errno)
	}
	return unix.Listen(fd, 1)
}

// effective reports whether the fence still works. It tests once a second: a socket's
// range counts only within the host's range of ephemeral ports (ip_local_port_range),
// which may change.
func (f *fence) effective() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.tested) > time.Second {
		f.tested = now
		f.works = errors.Is(f.test(unix.AF_INET), unix.EADDRINUSE)
	}
	return f.works
}

// apply restricts a socket to the reserved port.
func (f *fence) apply(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, localPortRange, f.port<<16|f.port)
}
