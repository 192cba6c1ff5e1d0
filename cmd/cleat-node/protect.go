package main

import (
	"cmp"
	"slices"

	"cleat/link"
	"cleat/network/span"
	"cleat/network/span/guard"
	"cleat/overlay"
	"cleat/overlay/registry"
)

// guardTable is the name of the tables of rules by which only hosts reach hosts.
const guardTable = "cleat-node"

// usesGeneve reports whether hosts of a cluster may reach each other by Geneve.
func usesGeneve(s overlay.State) bool {
	return !s.Encrypted && slices.ContainsFunc(append([]registry.Host{s.Self}, s.Hosts...), func(h registry.Host) bool {
		return cmp.Or(h.Dataplane, s.Default) == overlay.Geneve
	})
}

// protect keeps containers and strangers from what only hosts may send. Reach calls it before there are devices that
// accept it.
func (d *dataplane) protect(s overlay.State) error {
	c := guard.Config{Name: guardTable, VNI: s.VNI, Local: s.Self.Address, Port: s.Self.Port}
	_, err := link.Find(d.host, span.GeneveDevice) // it may be there a while longer
	c.Geneve = err == nil || usesGeneve(s)
	for _, h := range s.Hosts {
		c.Hosts = append(c.Hosts, guard.Host{Address: h.Address, Port: h.Port})
	}
	networks, err := d.store.Networks()
	if err != nil {
		return err
	}
	for _, n := range networks {
		if n.Bridge != "" { // an engine's, which has a name of its own
			c.Devices = append(c.Devices, n.Bridge)
		}
	}
	_, err = d.guard.Sync(d.host, c)
	return err
}
