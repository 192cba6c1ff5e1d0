package named_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cleat/network/named"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A connection that begins right after a port was published goes on, although connections of former
// owners are forgotten some time later.
func TestNewConnectionsGoOn(t *testing.T) {
	port := named.Port{Protocol: "tcp", HostPort: 8080, Port: 80}
	for name, publish := range map[string]func(tb *testbed) error{
		"join": func(tb *testbed) error {
			_, err := tb.join("a", named.Connection{NoDNS: true, Ports: []named.Port{port}})
			return err
		},
		"join again": func(tb *testbed) error {
			if _, err := tb.join("a", named.Connection{NoDNS: true, Ports: []named.Port{port}}); err != nil {
				return err
			}
			if err := tb.onHost(func() error { return named.Leave(t.Context(), tb.cfg, "web", tb.joined("a")) }); err != nil {
				return err
			}
			tb.cfg.Attach.Background.Wait()
			_, err := tb.join("a", named.Connection{NoDNS: true, Ports: []named.Port{port}})
			return err
		},
		"publish": func(tb *testbed) error {
			if _, err := tb.join("a", named.Connection{NoDNS: true}); err != nil {
				return err
			}
			return tb.onHost(func() error {
				_, err := named.SetPorts(t.Context(), tb.cfg, "web", tb.joined("a"), []named.Port{port})
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTestbed(t, "a")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
			owner, err := named.TableOf(tb.store, tb.host).Own()
			must(t, err)
			defer owner.Close()
			tb.cfg.Rules = owner
			must(t, tb.onHost(func() error { return named.SyncRules(t.Context(), tb.cfg) }))
			var background sync.WaitGroup
			tb.cfg.Attach.Background = &background
			must(t, publish(tb))
			c := dial(t, tb.outside, tb.containers["a"], "80", "198.51.100.1:8080")
			background.Wait() // until connections are forgotten
			if !c.lives(2 * time.Second) {
				t.Error("the connection has ended")
			}
		})
	}
}

// Whoever gets an address after somebody else gets no packets of its connections.
func TestFormerConnectionsEnd(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
	address := netip.MustParseAddr("10.20.0.7")
	c := named.Connection{NoDNS: true, Addresses: []netip.Addr{address}}
	_, err := tb.join("a", c)
	must(t, err)
	must(t, tb.onHost(func() error { return named.Leave(t.Context(), tb.cfg, "web", tb.joined("a")) }))
	_, err = tb.join("b", named.Connection{NoDNS: true}) // so that the network has its rules, and connections are tracked
	must(t, err)
	flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 1000,
		Forward: netlink.IPTuple{SrcIP: address.AsSlice(), DstIP: net.IPv4(198, 51, 100, 2).To4(), SrcPort: 1000, DstPort: 53, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: net.IPv4(198, 51, 100, 2).To4(), DstIP: net.IPv4(198, 51, 100, 1).To4(), SrcPort: 53, DstPort: 1000, Protocol: unix.IPPROTO_UDP}}
	var h *netlink.Handle
	must(t, tb.onHost(func() (err error) { h, err = netlink.NewHandle(unix.NETLINK_NETFILTER); return err }))
	defer h.Close()
	must(t, h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
	tracked := func() (n int) {
		all, err := h.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		must(t, err)
		for _, f := range all {
			if f.Forward.SrcIP.Equal(flow.Forward.SrcIP) {
				n++
			}
		}
		return n
	}
	if n := tracked(); n != 1 {
		t.Fatalf("%d connections of the address are tracked, want 1", n)
	}
	tb.cfg.Files = &named.Files{} // another process, which did not disconnect a
	_, err = tb.join("a", c)
	must(t, err)
	if n := tracked(); n != 0 {
		t.Errorf("%d connections of the former owner are tracked, want none", n)
	}
}

// An address counts as forgotten only while nobody has it, and no search for its last owner's connections is
// outstanding.
func TestForgottenAddresses(t *testing.T) {
	a, b := netip.MustParseAddr("10.20.0.7"), netip.MustParseAddr("fd00:20::7")
	f := &named.Files{}
	take := func(want bool, addrs ...netip.Addr) {
		t.Helper()
		if got := named.TakeForgotten(f, addrs); got != want {
			t.Errorf("%v are forgotten: %v, want %v", addrs, got, want)
		}
	}
	take(false, a)
	named.AddForgotten(f, []netip.Addr{a})
	take(false, a, b)
	take(false, a) // the first call has taken it
	named.AddForgotten(f, []netip.Addr{a, b})
	take(true, a, b)
	take(false, b)
}
