package named_test

import (
	"os"
	"strings"
	"testing"

	"cleat/netns"
	"cleat/network/named"
	"cleat/network/networktest"
)

// A host that has IPv6 disabled for its devices gets networks, also with IPv6: it is enabled on their
// devices, and nowhere else.
func TestHostDisablesIPv6(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			for _, devices := range []string{"all", "default"} {
				must(t, tb.onHost(func() error {
					return os.WriteFile("/proc/sys/net/ipv6/conf/"+devices+"/disable_ipv6", []byte("1"), 0)
				}))
			}
			must(t, tb.create(named.NetworkSpec{Name: "old", Driver: driver, Subnets: subnets(1)[:1]}))
			must(t, tb.create(named.NetworkSpec{Name: "both", Driver: driver, Subnets: subnets(2)}))
			ports := []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}
			_, err := tb.connect("old", "a", named.Connection{Ports: ports})
			must(t, err)
			for _, c := range []string{"b", "c"} {
				_, err = tb.connect("both", c, named.Connection{})
				must(t, err)
			}
			for _, c := range tb.containers {
				answer(t, c, 80)
			}
			if got := ask(tb.outside, "198.51.100.1:8080"); got != "198.51.100.2" {
				t.Errorf("a published port: the server sees %q", got)
			}
			if got := ask(tb.containers["b"], "[fd00:2::3]:80"); got != "fd00:2::2" {
				t.Errorf("a neighbour, IPv6: the server sees %q", got)
			}
			if got := ask(tb.host, "[fd00:2::3]:80"); got == "" {
				t.Error("the host does not reach a container, IPv6")
			}
			tb.check()
			var disabled []byte
			must(t, tb.onHost(func() error {
				disabled, err = os.ReadFile("/proc/sys/net/ipv6/conf/nic/disable_ipv6")
				return err
			}))
			if strings.TrimSpace(string(disabled)) != "1" {
				t.Error("IPv6 is enabled on the host's own device")
			}
		})
	}
}

// Links to a network without IPv6 get no link-local addresses, so the kernel tells nobody about
// them. Those to a network with IPv6 do.
func TestLinkLocalAddresses(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			tb := newTestbed(t, "a", "b")
			for _, ns := range []*netns.NS{tb.host, tb.containers["a"], tb.containers["b"]} {
				must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("0"), 0) }))
			}
			must(t, tb.create(named.NetworkSpec{Name: "old", Driver: driver, Subnets: subnets(1)[:1]}))
			must(t, tb.create(named.NetworkSpec{Name: "both", Driver: driver, Subnets: subnets(2)}))
			before := linkLocal(t, tb.host)
			_, err := tb.connect("old", "a", named.Connection{})
			must(t, err)
			if now := linkLocal(t, tb.host); now != before || linkLocal(t, tb.containers["a"]) != 0 {
				t.Error("a link to a network without IPv6 has a link-local address")
			}
			_, err = tb.connect("both", "b", named.Connection{})
			must(t, err)
			if linkLocal(t, tb.containers["b"]) == 0 {
				t.Error("a link to a network with IPv6 has no link-local address")
			}
		})
	}
}

// linkLocal counts the link-local addresses of a namespace, but for those of bridges, which come with
// a bridge's first port.
func linkLocal(t *testing.T, ns *netns.NS) (n int) {
	t.Helper()
	for _, line := range networktest.Netlink(t, ns) {
		if strings.HasPrefix(line, "address ") && !strings.HasPrefix(line, "address cl-") && strings.Contains(line, " fe80:") {
			n++
		}
	}
	return n
}
