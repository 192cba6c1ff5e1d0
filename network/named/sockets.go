package named

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// checkSockets returns a *PortTakenError if a program of the host has one of the ports: it
// would no longer receive what is published. Binding tells, as bind(2) knows all rules of
// overlap. Programs outside of the network's VRF don't count.
func (n *Network) checkSockets(p Port) error {
	if p.Protocol == "sctp" {
		return nil // the kernel may lack the module
	}
	for i := range p.Count {
		for _, family := range []int{unix.AF_INET6, unix.AF_INET} {
			if p.HostAddr.IsValid() && p.HostAddr.Is4() != (family == unix.AF_INET) {
				continue
			}
			err := bindOnce(n.VRF, family, p.Protocol, p.HostAddr, p.HostPort+i)
			if errors.Is(err, unix.EADDRINUSE) {
				return &PortTakenError{Port: p, HostPort: p.HostPort + i, Owner: programOn(p.Protocol, p.HostPort+i)}
			}
			if errors.Is(err, unix.EADDRNOTAVAIL) {
				return badSpec("publish", p.String(), "the host has no address "+p.HostAddr.String())
			}
			if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
				return fmt.Errorf("check port %s: %w", p, err)
			}
		}
	}
	return nil
}

// checkAllSockets is checkSockets for several ports.
func (n *Network) checkAllSockets(ports []Port) error {
	for _, p := range ports {
		if err := n.checkSockets(p); err != nil {
			return err
		}
	}
	return nil
}

// bindOnce binds a socket to an address, of a VRF if there is one, and closes it.
func bindOnce(vrf string, family int, protocol string, a netip.Addr, port uint16) error {
	kind := unix.SOCK_STREAM
	if protocol == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if vrf != "" {
		if err := unix.BindToDevice(fd, vrf); err != nil {
			return err
		}
	}
	// Without this, connections that ended a moment ago would count (TIME_WAIT).
	if kind == unix.SOCK_STREAM {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	if family == unix.AF_INET {
		sa := &unix.SockaddrInet4{Port: int(port)}
		if a.IsValid() {
			sa.Addr = a.As4()
		}
		return unix.Bind(fd, sa)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		return err
	}
	sa := &unix.SockaddrInet6{Port: int(port)}
	if a.IsValid() {
		sa.Addr = a.As16()
	}
	return unix.Bind(fd, sa)
}

// programOn describes the program that has a port of the host, as far as this process may see.
func programOn(protocol string, port uint16) string {
	inodes := map[string]bool{}
	for _, table := range []string{protocol, protocol + "6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			const local, inode = 1, 9
			if len(f) > inode && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+f[inode]+"]"] = true
			}
		}
	}
	return cmp.Or(ProcessWith(inodes), "a program of the host")
}

// ProcessWith describes the process that has one of some sockets open, e.g. "process 4711
// (nginx)"; "" if this process sees none. The sockets are given as in /proc/PID/fd, e.g.
// "socket:[12345]".
func ProcessWith(sockets map[string]bool) string {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range files {
		target, err := os.Readlink(fd)
		if err != nil || !sockets[target] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(string(name)))
	}
	return ""
}
