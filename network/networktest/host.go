package networktest

import (
	"net/netip"
	"os"
	"testing"

	"cleat/link"
	"cleat/netns"
)

// NewNS makes a namespace with a loopback device that is up, which does not forward, and whose links get no
// IPv6 addresses from the kernel, as containers' and hosts' of tests are. It is closed with the test.
func NewNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns, err := netns.New(name)
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	must(t, ns.Do(func() error {
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("1"), 0))
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0)
	}))
	up(t, ns, "lo")
	return ns
}

// Connect connects a host with what is outside of it:
//
//	outside wire 198.51.100.2/24 ═══ host nic 198.51.100.1/24
func Connect(t *testing.T, host, outside *netns.NS) {
	t.Helper()
	_, err := link.Create(host, link.VethSpec{Attrs: link.Attrs{Name: "nic"}, Peer: link.Attrs{Name: "wire"}}, link.Target{PeerNS: outside})
	must(t, err)
	up(t, host, "nic", "198.51.100.1/24")
	up(t, outside, "wire", "198.51.100.2/24")
}

// up gives a link addresses, and sets it up.
func up(t *testing.T, ns *netns.NS, name string, addresses ...string) {
	t.Helper()
	l, err := link.Find(ns, name)
	must(t, err)
	for _, a := range addresses {
		must(t, l.AddAddr(netip.MustParsePrefix(a)))
	}
	must(t, l.Up())
}
