// Package labtest provides other machines for tests in a lab: addresses on the lab's own
// loopback, and servers that listen there.
//
// # Theory of operation
//
// A lab's own network namespace (lab.RunTests) stands for the host, and its loopback for
// everything outside the host: sockets connect to an address there as to that of another
// machine.
//
// # Limits
//
// Packets are never lost, delayed or reordered. For that there are the cables of package
// lab.
package labtest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RunTests is lab.RunTests, but if root runs the tests, root makes the lab: the kernel loads BPF programs for its own root
// alone.
func RunTests(m *testing.M) int {
	if os.Getenv(lab.TestFlavour) == "" && os.Getuid() == 0 {
		os.Setenv(lab.TestFlavour, string(lab.Root))
	}
	return lab.RunTests(m)
}

// InRoot reports whether the test runs in a lab that root has made. If not, it has run the test in such a lab, with
// further environment variables, NAME=VALUE.
func InRoot(t *testing.T, env ...string) bool {
	t.Helper()
	lab.Need(t)
	switch f, _ := lab.Inside(); f {
	case lab.Root:
		return true
	case lab.None:
		t.Skip("this needs the files of a machine")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	args := slices.Concat([]string{"env", lab.TestFlavour + "=" + string(lab.Root)}, env, []string{self, "-test.v", "-test.run", "^" + t.Name() + "$"})
	p, err := (lab.Host{}).Start(lab.Command{Args: args, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "--- SKIP: "+t.Name()+" ") {
		t.Skip(string(out))
	}
	t.Logf("%s", out)
	return false
}

// KernelAtLeast reports whether the running kernel has a version or a newer one.
func KernelAtLeast(t testing.TB, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a > major || a == major && b >= minor
}

// Outside adds addresses of other machines to the lab's loopback, and brings it up. It
// skips the test if there is no lab. Every test of a package may call it; the addresses
// stay.
func Outside(t testing.TB, addrs ...string) {
	t.Helper()
	lab.Need(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("bring loopback up: %v", err)
	}
	for _, a := range addrs {
		ip := net.ParseIP(a)
		if ip == nil {
			t.Fatalf("invalid address %q", a)
		}
		// Without IFA_F_NODAD an IPv6 address is tentative until a worker of the kernel has
		// run, on a loopback too, and can't be bound before.
		if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: netlink.NewIPNet(ip), Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatalf("add address %s to loopback: %v", a, err)
		}
		// Its route comes from that worker too.
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			_, err := netlink.RouteGet(ip)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("route to %s: %v", a, err)
			}
		}
	}
}

// Serve listens for TCP in a namespace until the test ends; nil is the current namespace.
// It calls talk for each client on a goroutine of its own, and then closes the
// connection. Port 0 is any free port.
func Serve(t testing.TB, in *netns.NS, address string, talk func(net.Conn)) netip.AddrPort {
	t.Helper()
	var l net.Listener
	listen := func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}
	var err error
	if in == nil {
		err = listen()
	} else {
		err = in.Do(listen)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				talk(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Reply returns a talk function for Serve that sends a text.
func Reply(text string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, text) }
}
