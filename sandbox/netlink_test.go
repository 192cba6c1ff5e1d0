package sandbox_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"cleat/sandbox"

	"golang.org/x/sys/unix"
)

// A command that may configure its network finds the host side's netlink sockets in
// /proc/net/netlink. It can't send anything to them.
func TestGuestCannotForgeKernelAnswers(t *testing.T) {
	if !asRoot(t) {
		return
	}
	fakeInternet(t)
	for _, tt := range []struct {
		name string
		cfg  sandbox.Config
	}{
		{"seccomp", sandbox.Config{Tier: sandbox.TierSeccomp}},
		{"automatic ports", sandbox.Config{AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := runGuest(t, tt.cfg, "forge-answers"); got != "ECONNREFUSED" {
				t.Errorf("the guest printed %q: a message was accepted, or no socket found", got)
			}
		})
	}
}

// forgeAnswers sends a message to all netlink sockets that belong neither to the kernel
// nor to itself, and prints the distinct results.
func forgeAnswers([]string) error {
	table, err := os.ReadFile("/proc/net/netlink")
	if err != nil {
		return err
	}
	var results []string
	for line := range strings.Lines(string(table)) {
		var socket, protocol, port string
		if _, err := fmt.Sscan(line, &socket, &protocol, &port); err != nil || port == "Pid" || port == "0" {
			continue
		}
		var proto int
		var pid uint32
		if _, err := fmt.Sscan(protocol+" "+port, &proto, &pid); err != nil {
			return err
		}
		if proto != unix.NETLINK_ROUTE && proto != unix.NETLINK_SOCK_DIAG {
			continue
		}
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return err
		}
		forged := make([]byte, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint32(forged, unix.SizeofNlMsghdr)
		binary.NativeEndian.PutUint16(forged[4:], unix.NLMSG_DONE)
		result := errnoName(unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: pid}))
		unix.Close(fd)
		if !slices.Contains(results, result) {
			results = append(results, result)
		}
	}
	fmt.Println(strings.Join(results, " "))
	return nil
}
