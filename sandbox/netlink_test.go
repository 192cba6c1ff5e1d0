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

// A command that may configure its network finds our netlink sockets there by
// /proc/net/netlink. It can send them nothing.
func TestGuestCannotAnswerForTheKernel(t *testing.T) {
	if !asRoot(t) {
		return
	}
	world(t)
	for _, tt := range []struct {
		name string
		cfg  sandbox.Config
	}{
		{"seccomp", sandbox.Config{Tier: sandbox.TierSeccomp}},
		{"automatic ports", sandbox.Config{AutoForward: []sandbox.AutoForward{{TCP: true, UDP: true}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := run(t, tt.cfg, "forge-answers"); got != "ECONNREFUSED" {
				t.Errorf("the guest printed %q: it sent something to our sockets, or found none", got)
			}
		})
	}
}

// forgeAnswers sends to all netlink sockets that are neither the kernel's nor its own,
// and prints the different results.
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
		result := name(unix.Sendto(fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: pid}))
		unix.Close(fd)
		if !slices.Contains(results, result) {
			results = append(results, result)
		}
	}
	fmt.Println(strings.Join(results, " "))
	return nil
}
