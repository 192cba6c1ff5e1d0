package docker

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"cleat/network/named"
)

// lender gets the host another block when it asks for more addresses.
type lender struct {
	d     *fakeDaemon
	span  named.Span
	asked []netip.Addr
}

func (l *lender) MoreAddresses(ctx context.Context, network string, a netip.Addr) error {
	l.asked = append(l.asked, a)
	block := netip.MustParsePrefix("10.64.0.128/30")
	if a.IsValid() {
		block = netip.PrefixFrom(a, 32)
	}
	l.span.Blocks = append(l.span.Blocks, block)
	return named.ChangeSpan(ctx, l.d.cfg, spannedSpec(), l.span)
}
func (l *lender) Create(context.Context, named.NetworkSpec) error { return nil }
func (l *lender) Change(context.Context, named.NetworkSpec) error { return nil }
func (l *lender) Remove(context.Context, string, bool) error      { return nil }

func spannedSpec() named.NetworkSpec {
	return named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/18"), Gateway: netip.MustParseAddr("10.64.0.1")}}}
}

// On a network that spans hosts, addresses are those of the host's blocks. When these are full the host gets more, and
// a certain address of another host is fetched.
func TestSpan(t *testing.T) {
	d := newDaemon(t)
	l := &lender{d: d, span: named.Span{Blocks: []netip.Prefix{netip.MustParsePrefix("10.64.1.64/30")}}}
	d.cfg.Registrar = l
	must(t, d.host.Do(func() error { _, err := named.CreateSpan(t.Context(), d.cfg, spannedSpec(), l.span); return err }))

	local := createNetwork{NetworkID: network1, Options: obj{optionGeneric: obj{"cleat.network": "web"}}, IPv4Data: []poolData{{AddressSpace: "LocalDefault", Pool: "10.64.0.0/18", Gateway: "10.64.0.1/18"}}}
	if err := d.call("NetworkDriver.CreateNetwork", local, nil); err == nil || !strings.Contains(err.Error(), "belong to other hosts") {
		t.Errorf("another IPAM driver: %v", err)
	}
	var p requestedPool
	must(t, d.call("IpamDriver.RequestPool", requestPool{AddressSpace: addressSpace, Options: map[string]string{"cleat.network": "web"}}, &p))
	r := createNetwork{NetworkID: network1, Options: obj{optionGeneric: obj{"cleat.network": "web"}}, IPv4Data: []poolData{{AddressSpace: addressSpace, Pool: p.Pool, Gateway: "10.64.0.1/18"}}}
	must(t, d.call("NetworkDriver.CreateNetwork", r, nil))

	request := func(wanted string) string {
		t.Helper()
		var got requestedAddress
		must(t, d.call("IpamDriver.RequestAddress", requestAddress{PoolID: p.PoolID, Address: wanted}, &got))
		return got.Address
	}
	for i, tt := range []struct{ wanted, want string }{
		{"", "10.64.1.65/32"}, // 10.64.1.64 is the host's
		{"", "10.64.1.66/32"},
		{"", "10.64.1.67/32"},
		{"10.64.2.9", "10.64.2.9/32"},
		{"", "10.64.0.128/32"},
	} {
		if got := request(tt.wanted); got != tt.want {
			t.Errorf("address %d: %s, want %s", i, got, tt.want)
		}
	}
	if want := []netip.Addr{netip.MustParseAddr("10.64.2.9"), {}}; len(l.asked) != 2 || l.asked[0] != want[0] || l.asked[1] != want[1] {
		t.Errorf("asked for %v, want %v", l.asked, want)
	}
}
