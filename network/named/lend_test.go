package named_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"cleat/network/ipam"
	"cleat/network/named"
)

// spanBlocks is a network web of two subnets, of which this host has some blocks.
func spanBlocks(blocks ...string) (spec named.NetworkSpec, part named.Span) {
	spec = named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: []named.Subnet{
		{Prefix: netip.MustParsePrefix("10.64.0.0/18")}, {Prefix: netip.MustParsePrefix("2001:db8:64::/64")}}}
	for _, b := range blocks {
		part.Blocks = append(part.Blocks, netip.MustParsePrefix(b))
	}
	return spec, part
}

// TestBorrowedInBlock checks that a host may get the block around an address that it has borrowed. The container with
// the address keeps it.
func TestBorrowedInBlock(t *testing.T) {
	for _, borrowed := range []string{"10.64.1.5", "10.64.1.0"} { // the second one would be the host's own
		t.Run(borrowed, func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			a := netip.MustParseAddr(borrowed)
			spec, part := spanBlocks("10.64.9.0/26", borrowed+"/32")
			spec.Subnets = spec.Subnets[:1]
			must(t, tb.onHost(func() error { _, err := named.CreateSpan(t.Context(), tb.cfg, spec, part); return err }))
			must(t, ignore(tb.connect("web", "a", named.Connection{Addresses: []netip.Addr{a}})))
			part.Blocks = []netip.Prefix{netip.MustParsePrefix("10.64.1.0/26"), netip.PrefixFrom(a, 32)}
			must(t, tb.onHost(func() error { return named.ChangeSpan(t.Context(), tb.cfg, spec, part) }))
			b, err := tb.connect("web", "b", named.Connection{})
			must(t, err)
			n, err := tb.store.Network("web")
			must(t, err)
			if own := n.OwnAddresses(); !part.Blocks[0].Contains(b.Addresses[0]) || len(own) != 1 || slices.Contains([]netip.Addr{a, b.Addresses[0]}, own[0]) || b.Addresses[0] == a {
				t.Errorf("a has %s, b %s, and the host %s", a, b.Addresses, own)
			}
			if _, err := tb.connect("web", "c", named.Connection{Addresses: []netip.Addr{a}}); !errors.As(err, new(*named.AddressTakenError)) {
				t.Errorf("another container gets the address: %v", err)
			}
			tb.check()
		})
	}
}

// TestLendOf checks that any address is one of the prefix that the other host needs.
func TestLendOf(t *testing.T) {
	tb := newTestbed(t)
	spec, part := spanBlocks("10.64.1.0/29", "2001:db8:64::100/120")
	must(t, tb.onHost(func() error { _, err := named.CreateSpan(t.Context(), tb.cfg, spec, part); return err }))
	lend := func(of netip.Prefix) (a netip.Addr, err error) {
		err = tb.onHost(func() error {
			a, err = named.Lend(t.Context(), tb.cfg, "web", netip.Addr{}, of, "b")
			return err
		})
		return a, err
	}
	of4, of6 := spec.Subnets[0].Prefix, spec.Subnets[1].Prefix
	if a, err := lend(of6); err != nil || !of6.Contains(a) {
		t.Errorf("of %s: %s, %v", of6, a, err)
	}
	for range 7 { // the first one of the block is the host's own
		if a, err := lend(of4); err != nil || !of4.Contains(a) {
			t.Fatalf("of %s: %s, %v", of4, a, err)
		}
	}
	for name, of := range map[string]netip.Prefix{"none left": of4, "no block": netip.MustParsePrefix("10.80.0.0/18")} {
		if a, err := lend(of); !errors.As(err, new(*ipam.FullError)) {
			t.Errorf("%s: %s, %v", name, a, err)
		}
	}
	if a, err := lend(netip.Prefix{}); err != nil || !of6.Contains(a) { // a host of an earlier version
		t.Errorf("of any: %s, %v", a, err)
	}
}
