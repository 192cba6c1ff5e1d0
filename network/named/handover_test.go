package named_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cleat/link"
	"cleat/network/attach"
	"cleat/network/named"

	"github.com/vishvananda/netlink"
)

// handedOver is a container whose engine moves its link. It has no namespace yet.
func (tb *testbed) handedOver(name string) attach.Container {
	c := attach.Container{Manager: "docker", Engine: "docker", Key: "e1", Name: "e1", Path: filepath.Join(tb.state, "..", "key")}
	if name != "" {
		c.Name, c.ID = name, "0123456789abcdef"
	}
	return c
}

// joinHandedOver connects it with the address that is reserved for it.
func (tb *testbed) joinHandedOver(ports []named.Port) (got *named.Result, err error) {
	c := named.Connection{NoDNS: true, Ports: ports, Addresses: []netip.Addr{netip.MustParseAddr("10.20.0.7")},
		Managed: &named.Managed{HandOver: true, Resolvers: []netip.Addr{netip.MustParseAddr("198.51.100.2")}, Reservation: "docker"}}
	err = tb.onHost(func() error { got, err = named.Join(tb.t.Context(), tb.cfg, "web", tb.handedOver(""), c); return err })
	return got, err
}

// A container whose engine moves its link is connected before it exists, gets its name later, publishes
// ports, and is forgotten when its link is gone.
func TestHandedOver(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
	address, subnet := netip.MustParseAddr("10.20.0.7"), subnets(0)[0].Prefix
	hold := func(a netip.Addr) (got netip.Addr, err error) {
		err = tb.onHost(func() error {
			got, err = named.HoldAddress(t.Context(), tb.cfg, "web", subnet, a, "docker")
			return err
		})
		return got, err
	}
	_, err := hold(address)
	must(t, err)
	if _, err := hold(address); err == nil {
		t.Errorf("an address is reserved twice: %v", err)
	}
	if _, err := tb.connect("web", "b", named.Connection{Addresses: []netip.Addr{address}}); err == nil {
		t.Error("a reserved address was given to another container")
	}
	if free, err := hold(netip.Addr{}); err != nil || free == address || !subnet.Contains(free) {
		t.Errorf("a free address: %v, %v", free, err)
	}
	got, err := tb.joinHandedOver(nil)
	must(t, err)
	tb.check()
	link1, err := link.Find(tb.host, got.Endpoint.Interface)
	must(t, err)
	must(t, link1.Move(tb.containers["a"], "eth0"))
	eth0, err := link.Find(tb.containers["a"], "eth0")
	must(t, err)
	must(t, eth0.AddAddr(netip.PrefixFrom(address, subnet.Bits())))
	must(t, eth0.Up())
	c, err := link.Handle(tb.containers["a"])
	must(t, err)
	defer c.Close()
	must(t, c.RouteAdd(&netlink.Route{LinkIndex: eth0.Index(), Gw: netip.MustParseAddr("10.20.0.1").AsSlice()}))
	tb.check()

	must(t, tb.onHost(func() error {
		_, err := named.Identify(t.Context(), tb.cfg, "web", named.Identity{Container: tb.handedOver("api"), Aliases: []string{"db", "not a name"}})
		return err
	}))
	e, err := tb.store.Endpoint("web", tb.handedOver("").FileName())
	must(t, err)
	if want := []string{"api", "0123456789ab", "db"}; !slices.Equal(e.Names, want) {
		t.Errorf("names are %q, want %q", e.Names, want)
	}
	must(t, tb.onHost(func() error {
		_, err := named.SetPorts(t.Context(), tb.cfg, "web", tb.handedOver(""), []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}})
		return err
	}))
	tb.check()
	dial(t, tb.outside, tb.containers["a"], "80", "198.51.100.1:8080")

	released := func() (all []string) {
		must(t, tb.onHost(func() (err error) { all, err = named.ReleaseForgotten(t.Context(), tb.cfg, ""); return err }))
		return all
	}
	if all := released(); len(all) > 0 {
		t.Errorf("released while the container runs: %q", all)
	}
	must(t, eth0.Move(tb.outside, "moved")) // as good as gone
	h, err := link.Handle(tb.outside)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName("moved")
	must(t, err)
	must(t, h.LinkDel(l))
	if all := released(); len(all) != 1 {
		t.Errorf("released %q, want one", all)
	}
	held, err := func() (all map[netip.Addr]time.Time, err error) {
		err = tb.onHost(func() error { all, err = named.HeldAddresses(tb.cfg, "web", "docker"); return err })
		return all, err
	}()
	must(t, err)
	if held[address].IsZero() {
		t.Errorf("its engine has not released the address, but reserved are %v", held)
	}
	must(t, tb.onHost(func() error { return named.DropAddress(tb.cfg, "web", address, "docker") }))
	tb.check()
}
