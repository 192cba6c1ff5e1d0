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

// The host and its own macvlan containers reach each other by way of the shim; with
// the last container the host's addresses on the shim go.
func TestShim(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	must(t, find(t, w.host, "nic").AddAddr(netip.MustParsePrefix("2001:db8::1/64")))
	eventuallyRouted(t, w.host, "2001:db8::1/128")
	w.repair()
	before := w.snapshot()
	_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("198.51.100.7/24", "2001:db8::7/64"), HostShim: true}, nil)
	must(t, err)
	_, err = w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::8/64"), HostShim: true}, nil)
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
		reaches(w.host, w.web, address)
	}
	reaches(w.web, w.host, "198.51.100.1")
	must(t, w.detach("eth0", nil))
	reaches(w.host, w.web, "2001:db8::8")
	reaches(w.web, w.host, "2001:db8::1")
	must(t, w.detach("eth1", nil))
	w.unchanged(before, "detached")
}

// The shim's own address can be used at once: it is what the host sends from where it has none
// of the container's network.
func TestShimAtOnce(t *testing.T) {
	need(t, "macvlan")
	w := newWorld(t)
	sysctl(t, w.host, "net/ipv6/conf/default/addr_gen_mode", "0") // the kernel's own
	_, err := w.attach(attach.Spec{Kind: "macvlan", Parent: "nic", Addresses: prefixes("2001:db8::7/64"), HostShim: true}, nil)
	must(t, err)
	h := handle(t, w.host)
	shim, err := h.LinkByName("shim-nic")
	must(t, err)
	all, err := h.AddrList(shim, netlink.FAMILY_V6)
	if err != nil || len(all) != 1 || all[0].Flags&unix.IFA_F_TENTATIVE != 0 {
		t.Errorf("the shim's addresses: %+v, %v", all, err)
	}
}
