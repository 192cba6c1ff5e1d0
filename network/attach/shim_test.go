package attach_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/lab/labtest"
	"cleat/netns"
	"cleat/network/attach"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestShim checks that the host and its macvlan containers reach each other by the shim,
// and that the shim goes with the last container.
func TestShim(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	must(t, find(t, tb.host, "nic").AddAddr(netip.MustParsePrefix("2001:db8::1/64")))
	waitRoute(t, tb.host, "2001:db8::1/128")
	tb.repair()
	before := tb.snapshot()
	_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24", "2001:db8::7/64"), HostShim: true}, nil)
	must(t, err)
	_, err = tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::8/64"), HostShim: true}, nil)
	must(t, err)
	reaches := func(from, to *netns.NS, address string) {
		t.Helper()
		server := labtest.Serve(t, to, net.JoinHostPort(address, "0"), labtest.Reply("hello"))
		must(t, from.Do(func() error {
			c, err := net.DialTimeout("tcp", server.String(), 5*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}))
	}
	for _, address := range []string{"198.51.100.7", "2001:db8::7", "2001:db8::8"} {
		reaches(tb.host, tb.web, address)
	}
	reaches(tb.web, tb.host, "198.51.100.1")
	must(t, tb.detach("eth0", nil))
	reaches(tb.host, tb.web, "2001:db8::8")
	reaches(tb.web, tb.host, "2001:db8::1")
	must(t, tb.detach("eth1", nil))
	tb.unchanged(before, "detached")
}

// TestShimAddressUsableAtOnce checks that the shim's own address, which the host uses as
// source if it has none in the container's network, needs no duplicate address detection.
func TestShimAddressUsableAtOnce(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t)
	sysctl(t, tb.host, "net/ipv6/conf/default/addr_gen_mode", "0") // the kernel's default
	_, err := tb.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::7/64"), HostShim: true}, nil)
	must(t, err)
	h := handle(t, tb.host)
	shim, err := h.LinkByName("shim-nic")
	must(t, err)
	all, err := h.AddrList(shim, netlink.FAMILY_V6)
	if err != nil || len(all) != 1 || all[0].Flags&unix.IFA_F_TENTATIVE != 0 {
		t.Errorf("the shim's addresses: %+v, %v", all, err)
	}
}
