package main

import (
	"cleat/network/span/guard"
	"cleat/overlay"
)

// guardTable is the name of the tables of rules by which only hosts reach hosts.
const guardTable = "cleat-node"

// protect keeps containers and strangers from what only hosts may send.
func (d *dataplane) protect(s overlay.State) error {
	c := guard.Config{Name: guardTable, VNI: s.VNI, Local: s.Self.Address, Port: s.Self.Port}
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
	_, err = guard.Sync(d.host, c)
	return err
}
