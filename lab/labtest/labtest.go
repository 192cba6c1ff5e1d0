// Package labtest is the world outside for tests in a lab: addresses that stand
// on the lab's own loopback, and servers at them.
//
// # Theory of operation
//
// A lab's own network namespace (lab.RunTests) plays the host, and its loopback
// everything else: a socket of the host connects to an address there as it would
// to another machine's.
//
// # Limits
//
// Nothing is lost, late or out of order out there; package lab's cables are for
// that.
package labtest

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"cleat/lab"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// World brings the lab's loopback up, which is down at first, and gives it the
// addresses. It skips the test where there is no lab. It may be called by every
// test of a package: what is there stays.
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
			t.Fatalf("%q is no address", a)
		}
		// On a loopback nothing has to be detected before an address can be used.
		if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: netlink.NewIPNet(ip)}); err != nil {
			t.Fatalf("add address %s to loopback: %v", a, err)
		}
	}
}

// Serve listens for TCP in a namespace, nil being the one we are in, until the
// test ends. Each client is talked to on a goroutine of its own, and closed.
// Port 0 is any that is free.
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

// Say is for Serve: to say one thing.
func Reply(text string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, text) }
}
