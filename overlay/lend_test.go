package overlay

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
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

// sparing is a dataplane that lends all addresses but one, which a container has.
type sparing struct {
	noDataplane
	taken netip.Addr
}

func (s sparing) Lend(_ context.Context, _ string, a netip.Addr, _ netip.Prefix, _ string) (netip.Addr, error) {
	if a == s.taken {
		return a, errors.New("a container has it")
	}
	return a, nil
}

// disconnecting is a dataplane that counts containers that it has disconnected.
type disconnecting struct {
	noDataplane
	count *atomic.Int32
}

func (d disconnecting) Disconnect(context.Context, registry.Endpoint) error {
	d.count.Add(1)
	return nil
}

// TestRegain asks a host for two addresses that it had lent. One is taken, which says nothing about the other one, and
// nothing is disconnected at once.
func TestRegain(t *testing.T) {
	block := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.1.0/26"), Host: "a"}
	taken := block.Prefix.Addr().Next()
	free := taken.Next()
	a, b := newHost(t, "a"), newHost(t, "b")
	a.plane, b.plane = sparing{taken: taken}, disconnecting{count: &atomic.Int32{}}
	a.create(time.Now())
	a.start()
	b.join(a, time.Now())
	b.start()
	must(t, a.node.registry.CreateNetwork(t.Context(), registry.Network{Name: "web", Subnets: []registry.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/18"), BlockBits: 26}}}))
	if ok, err := a.node.registry.ClaimBlock(t.Context(), block); !ok || err != nil {
		t.Fatal(ok, err)
	}
	waitFor(t, "both know whose block it is", func() bool {
		known := true
		for _, n := range []*Node{a.node, b.node} {
			n.mu.Lock()
			known = known && n.mirror.Blocks["web"][block.Prefix.String()].Host == "a"
			n.mu.Unlock()
		}
		return known && b.node.isAlive("a")
	})
	var all []foreignEndpoint
	for _, address := range []netip.Addr{taken, free} {
		all = append(all, foreignEndpoint{registry.Endpoint{Network: "web", ID: address.String(), Container: address.String()}, address, block})
	}
	err := b.node.keepForeign(t.Context(), all)
	if err == nil || !strings.Contains(err.Error(), taken.String()) || strings.Contains(err.Error(), free.String()) {
		t.Errorf("asked for %s and %s: %v", taken, free, err)
	}
	got, err := b.node.registry.Block(t.Context(), registry.Block{Network: "web", Prefix: single(free)})
	if err != nil || got.Host != "b" {
		t.Errorf("host %q has %s: %v", got.Host, free, err)
	}
	if n := b.plane.(disconnecting).count.Load(); n > 0 {
		t.Errorf("%d containers are disconnected", n)
	}
}
