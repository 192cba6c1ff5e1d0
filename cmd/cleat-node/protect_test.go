package main

import (
	"testing"

	"cleat/overlay"
	"cleat/overlay/registry"
)

// TestUsesGeneve checks when the rules between hosts are for Geneve as well.
func TestUsesGeneve(t *testing.T) {
	host := func(dataplane string) registry.Host { return registry.Host{Dataplane: dataplane} }
	for _, c := range []struct {
		name  string
		state overlay.State
		want  bool
	}{
		{"nobody", overlay.State{Hosts: []registry.Host{host("")}}, false},
		{"this host", overlay.State{Self: host(overlay.Geneve)}, true},
		{"another one, that reaches this one otherwise", overlay.State{Self: host(overlay.WireGuardWay), Hosts: []registry.Host{host(""), host(overlay.Geneve)}}, true},
		{"the cluster", overlay.State{Default: overlay.Geneve, Self: host(overlay.Routes)}, false},
		{"the cluster, and a host without a choice", overlay.State{Default: overlay.Geneve, Self: host(overlay.Routes), Hosts: []registry.Host{host("")}}, true},
		{"everything is encrypted", overlay.State{Encrypted: true, Self: host(overlay.Geneve)}, false},
	} {
		if got := usesGeneve(c.state); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
