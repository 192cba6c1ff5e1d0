package named_test

import (
	"net/netip"
	"slices"
	"testing"

	"cleat/link"
	"cleat/network/dhcp/dhcptest"
	"cleat/network/named"
	"cleat/network/names"
)

// Containers of a network with DHCP have the addresses that its server gives them, also under
// their names, and after the server has given another one.
func TestDHCP(t *testing.T) {
	needKinds(t, "macvlan")
	tb := newTestbed(t, "a", "b")
	wire, err := link.Find(tb.outside, "wire")
	must(t, err)
	must(t, wire.AddAddr(dhcptest.Addr()))
	var server dhcptest.Server
	var stop func()
	must(t, tb.outside.Do(func() (err error) { stop, err = server.Listen("wire"); return err }))
	t.Cleanup(func() { stop() })
	must(t, tb.create(named.NetworkSpec{Name: "lan", Driver: named.Macvlan, Parent: "nic", DHCP: true}))
	client := tb.startNameServer()
	must(t, tb.onHost(func() error { return named.SendNames(t.Context(), tb.cfg, client) }))
	for i, c := range []string{"a", "b"} {
		e, err := tb.connect("lan", c, named.Connection{})
		must(t, err)
		want := dhcptest.First()
		for range i {
			want = want.Next()
		}
		if !slices.Equal(e.Addresses, []netip.Addr{want}) {
			t.Errorf("%s has %v, want %s", c, e.Addresses, want)
		}
	}
	tb.check()
	tb.exportAndApply()
	answer(t, tb.outside, 80)
	if got := ask(tb.containers["a"], "192.0.2.1:80"); got != dhcptest.First().String() {
		t.Errorf("the outside sees %q", got)
	}
	if err := ignore(tb.connect("lan", "a", named.Connection{})); err == nil {
		t.Error("connected twice")
	}

	// A server that has forgotten its leases gives another address.
	must(t, tb.disconnect("lan", "a"))
	stop()
	must(t, tb.outside.Do(func() (err error) { stop, err = server.Listen("wire"); return err }))
	tb.restart("b")
	var found []named.Difference
	must(t, tb.onHost(func() (err error) { found, err = named.Check(t.Context(), tb.cfg); return err }))
	if len(found) != 1 || found[0].What != "its DHCP server has given it the address 192.0.2.10" {
		t.Errorf("after another lease: differences %v", found)
	}
	must(t, tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err }))
	tb.check()
	e, err := tb.store.Endpoint("lan", "test.b")
	must(t, err)
	zone, err := client.Network(t.Context(), "lan")
	must(t, err)
	i := slices.IndexFunc(zone.Endpoints, func(h names.Endpoint) bool { return h.Name == "b" })
	if e.Addresses[0] != dhcptest.First() || i < 0 || !slices.Equal(zone.Endpoints[i].Addrs, e.Addresses) {
		t.Errorf("after another lease: the endpoint has %v, its name %+v", e.Addresses, zone.Endpoints)
	}
	must(t, tb.remove("lan", true))
	tb.eventually("all leases are released", func() bool { return server.Leases() == 0 })
}
