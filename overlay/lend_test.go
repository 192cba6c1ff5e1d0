package overlay

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"cleat/overlay/registry"
)

// lender is a dataplane that lends an address of the subnet that it is asked for or, as earlier versions did, of another
// one.
type lender struct {
	noDataplane
	earlier bool
}

func (l lender) Lend(_ context.Context, _ string, _ netip.Addr, of netip.Prefix, _ string) (netip.Addr, error) {
	if l.earlier || !of.IsValid() {
		return netip.MustParseAddr("2001:db8:64::5"), nil
	}
	return of.Addr().Next(), nil
}

// TestBorrowOf checks that a host borrows an address of the subnet that it needs one of, also where the other host does
// not read which it is.
func TestBorrowOf(t *testing.T) {
	of4 := registry.Subnet{Prefix: netip.MustParsePrefix("10.64.0.0/18"), BlockBits: 26}
	web := registry.Network{Name: "web", Subnets: []registry.Subnet{of4, {Prefix: netip.MustParsePrefix("2001:db8:64::/64"), BlockBits: 120}}}
	none := errors.New("no block")
	for name, tt := range map[string]struct {
		earlier bool
		want    netip.Prefix
		err     error
	}{
		"this version":       {false, netip.MustParsePrefix("10.64.0.1/32"), nil},
		"an earlier version": {true, netip.Prefix{}, none},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newHost(t, "a"), newHost(t, "b")
			a.plane = lender{earlier: tt.earlier}
			a.create(time.Now())
			a.start()
			b.join(a, time.Now())
			b.start()
			must(t, a.node.registry.CreateNetwork(t.Context(), web))
			waitFor(t, "the lender is alive, and knows the network", func() bool {
				a.node.mu.Lock()
				_, known := a.node.mirror.Networks["web"]
				a.node.mu.Unlock()
				return known && b.node.isAlive("a")
			})
			b.node.mu.Lock()
			m := b.node.mirror.copy()
			b.node.mu.Unlock()
			m.Blocks["web"] = map[string]registry.Block{"10.64.1.0/26": {Network: "web", Prefix: netip.MustParsePrefix("10.64.1.0/26"), Host: "a"}}
			if got, err := b.node.borrow(t.Context(), m, web, of4, none); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("borrowed %s, %v; want %s, %v", got, err, tt.want, tt.err)
			}
		})
	}
}
