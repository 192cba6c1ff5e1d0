package named_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"cleat/network/attach"
	"cleat/network/ipam"
	"cleat/network/named"
	"cleat/network/networktest"
)

// A reserved address goes to its container and to no other, also when the network has no other
// addresses left; and a file can reserve other ones.
func TestReserve(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c", "d")
	kept, kept6 := netip.MustParseAddr("10.20.1.2"), netip.MustParseAddr("fd00:1::5")
	spec := named.NetworkSpec{Name: "web", Subnets: subnets(1), Reserve: named.Reservations{"c": {kept, kept6}}}
	spec.Subnets[0].Prefix = netip.MustParsePrefix("10.20.1.0/29") // .2 to .6 are for containers
	must(t, tb.create(spec))
	connect := func(name string, want string) {
		t.Helper()
		e, err := tb.connect("web", name, named.Connection{})
		must(t, err)
		if e.Addresses[0].String() != want {
			t.Errorf("%s has %v, want %s", name, e.Addresses, want)
		}
	}
	connect("a", "10.20.1.3")
	var reserved *named.AddressReservedError
	if _, err := tb.connect("web", "b", named.Connection{Addresses: []netip.Addr{kept}}); !errors.As(err, &reserved) || reserved.For != "c" {
		t.Errorf("a reserved address by --ip: got %v", err)
	}
	tb.check()
	for i, free := range []string{"10.20.1.4", "10.20.1.5", "10.20.1.6"} {
		e, err := tb.connect("web", "b", named.Connection{Addresses: []netip.Addr{netip.MustParseAddr(free)}})
		must(t, err)
		if i < 2 {
			must(t, tb.disconnect("web", "b"))
		}
		if slices.Contains(e.Addresses, kept6) {
			t.Error("b has the IPv6 address of c")
		}
	}
	connect("d", "10.20.1.4")
	connect("c", "10.20.1.2")
	must(t, tb.disconnect("web", "c"))
	must(t, tb.disconnect("web", "d"))
	connect("d", "10.20.1.4") // what it had before
	connect("c", "10.20.1.2")
	must(t, tb.disconnect("web", "c"))

	export := func() (f *named.File) {
		must(t, tb.onHost(func() (err error) { f, err = named.Export(tb.cfg); return err }))
		return f
	}
	if got := export().Networks["web"].Reserve["c"]; got != "10.20.1.2,fd00:1::5" {
		t.Errorf("exported %q", got)
	}
	w, err := named.ParseFile("x.yaml", []byte("networks: {web: {subnets: [{subnet: 10.20.1.0/29}, {subnet: 'fd00:1::/64'}], reserve: {c: 10.20.1.5}}}"))
	must(t, err)
	var changes []named.PlannedChange
	must(t, tb.onHost(func() (err error) {
		if changes, err = named.Plan(t.Context(), tb.cfg, w, false); err != nil {
			return err
		}
		return named.Apply(t.Context(), tb.cfg, changes, func(named.PlannedChange) {})
	}))
	if len(changes) != 1 || changes[0].Text != "change network web: reserve" {
		t.Errorf("changes: %+v", changes)
	}
	connect("c", "10.20.1.5")
	tb.check()
}

// Reservations that are not possible are refused.
func TestReserveMistakes(t *testing.T) {
	tb := newTestbed(t)
	for reason, r := range map[string]named.Reservations{
		"is in no subnet of network web":          {"a": {netip.MustParseAddr("10.99.0.1")}},
		"is the gateway":                          {"a": {netip.MustParseAddr("10.20.1.1")}},
		"is reserved for a":                       {"a": {netip.MustParseAddr("10.20.1.9")}, "b": {netip.MustParseAddr("10.20.1.9")}},
		"is the second one of its address family": {"a": {netip.MustParseAddr("10.20.1.9"), netip.MustParseAddr("10.20.1.8")}},
		"want the name of a container":            {"a b": {netip.MustParseAddr("10.20.1.9")}},
	} {
		var spec *attach.SpecError
		if err := tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1), Reserve: r}); !errors.As(err, &spec) || spec.Reason != reason {
			t.Errorf("%v: got %v, want that it %s", r, err, reason)
		}
	}
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.1.0/30")}}, Reserve: named.Reservations{"x": {netip.MustParseAddr("10.20.1.2")}}}))
	tb.containers["a"] = networktest.NewNS(t, "a")
	if _, err := tb.connect("web", "a", named.Connection{}); !errors.As(err, new(*ipam.FullError)) {
		t.Errorf("the only address is reserved: got %v", err)
	}
}
