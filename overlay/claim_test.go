package overlay

import (
	"net/netip"
	"testing"
	"time"

	"cleat/overlay/registry"
)

// TestReclaim checks that a host which gets its block back claims no other one in its place.
func TestReclaim(t *testing.T) {
	h := newHost(t, "a")
	h.create(time.Now())
	h.start()
	net := registry.Network{Name: "web", Subnets: []registry.Subnet{{Prefix: netip.MustParsePrefix("10.64.0.0/24"), BlockBits: 28}}}
	b := registry.Host{Name: "b", Pin: "pin", Address: netip.MustParseAddr("192.0.2.2"), Port: 1}
	must(t, h.node.registry.AddHost(t.Context(), b))
	must(t, h.node.registry.CreateNetwork(t.Context(), net))

	block := registry.Block{Network: "web", Prefix: netip.MustParsePrefix("10.64.0.32/28"), Host: "b"}
	for _, host := range []string{"a", "b"} {
		if first, _ := freeBlock("web", net.Subnets[0], nil, host); first == block.Prefix {
			t.Fatalf("the block is the one that %s would claim", host)
		}
	}
	m := newMirror()
	m.Networks["web"] = net
	n := &Node{settings: &Settings{Host: "b"}, mirror: m, registry: h.node.registry, listed: true, answers: true,
		taken: map[string]registry.Block{blockKey(block): block}, apply: make(chan struct{}, 1)}
	must(t, n.claimBlocks(t.Context()))
	if got, err := h.node.registry.BlocksOf(t.Context(), "b"); err != nil || len(got) != 1 || got[0].Prefix != block.Prefix {
		t.Errorf("b has %v, %v, want %s alone", got, err, block.Prefix)
	}
}
