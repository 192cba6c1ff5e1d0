package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"cleat/overlay/registry"
)

// TestTunnelPorts checks which tunnels a host has, and that they keep their ports while others come and go.
func TestTunnelPorts(t *testing.T) {
	uplinks := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")}
	two, one := registry.Host{Name: "two", Uplinks: uplinks}, registry.Host{Name: "one"}
	others := func(names ...string) map[string]registry.Host {
		all := map[string]registry.Host{}
		for _, n := range names {
			all[n] = registry.Host{Name: n}
		}
		return all
	}
	for _, c := range []struct {
		name      string
		self      registry.Host
		old, want map[string]uint16
		others    map[string]registry.Host
	}{
		{"one uplink each", one, nil, nil, others("b", "c")},
		{"several here", two, nil, map[string]uint16{"b": 7800, "c": 7801}, others("b", "c")},
		{"several there", one, nil, map[string]uint16{"two": 7800}, map[string]registry.Host{"b": {Name: "b"}, "two": two}},
		{"one more", two, map[string]uint16{"c": 7800}, map[string]uint16{"b": 7801, "c": 7800, "d": 7802}, others("b", "c", "d")},
		{"one less", two, map[string]uint16{"b": 7800, "c": 7801}, map[string]uint16{"c": 7801}, others("c")},
		{"a port is free again", two, map[string]uint16{"c": 7801}, map[string]uint16{"a": 7800, "c": 7801, "d": 7802}, others("a", "c", "d")},
		{"none any more", one, map[string]uint16{"b": 7800}, nil, others("b")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := tunnelPorts(c.self, c.old, c.others)
			if err != nil || !maps.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
	many := map[string]registry.Host{}
	for i := range LastTunnelPort - FirstTunnelPort + 2 {
		many[fmt.Sprint(i)] = registry.Host{}
	}
	if got, err := tunnelPorts(two, nil, many); err == nil || len(got) != len(many)-1 {
		t.Errorf("%d ports for %d hosts", len(got), len(many))
	}
}
