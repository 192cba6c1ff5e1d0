package wiring

import (
	"fmt"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

const ovsBridge = "ovs0"

// openVSwitch gives each host an Open vSwitch, whose daemons run in the host's
// namespace. The containers have its internal ports, or veth pairs.
func openVSwitch(internal bool) func(*Network) error {
	return func(nw *Network) error {
		clients, servers, err := nw.parents()
		if err != nil {
			return err
		}
		switches := map[*lab.Node]*link.OVS{}
		for i, host := range []*lab.Node{clients, servers} {
			if switches[host] == nil {
				if switches[host], err = nw.startOVS(host, i); err != nil {
					return err
				}
			}
		}
		err = nw.addContainerPairs(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.OVSPortSpec{Attrs: link.Attrs{Name: ovsPort(addr, pair), MTU: nw.cfg.MTU}, Bridge: ovsBridge, DB: switches[host].DB()}
			if internal {
				spec.Type = link.OVSInternalPort
			} else if err := lab.Connect(lab.End{Node: c, Name: inside}, lab.End{Node: host, Name: spec.Name}, lab.Cable{MTU: nw.cfg.MTU}); err != nil {
				return err
			}
			return nw.addOVSPort(host, c, spec, addr)
		})
		if internal {
			for i := range nw.Pairs {
				nw.Pairs[i].Device = ovsPort(clientAddr(i), i)
			}
		}
		return err
	}
}

// ovsPort names the port of the container with that address.
func ovsPort(addr netip.Addr, pair int) string { return fmt.Sprintf("p%d-%d", addr.As4()[2], pair) }

// addOVSPort adds a port. An internal one moves into the container and keeps its name
// there: ovs-vswitchd knows its ports by name, and loses one that is renamed.
func (nw *Network) addOVSPort(host, c *lab.Node, spec link.OVSPortSpec, addr netip.Addr) error {
	to, device := link.Target{}, inside
	if spec.Type == link.OVSInternalPort {
		to.NS, device = c.NS, spec.Name
	}
	l, err := link.Create(host.NS, spec, to)
	if err != nil {
		return err
	}
	nw.ovsPorts = append(nw.ovsPorts, l)
	return c.Address(device, withPrefix(addr))
}

func (nw *Network) startOVS(host *lab.Node, number int) (*link.OVS, error) {
	ovs, err := link.StartOVS(nw.ctx, host.NS, fmt.Sprintf("%s/ovs%d", nw.dir, number))
	if err != nil {
		return nil, err
	}
	nw.cleanups = append(nw.cleanups, ovs.Close)
	if _, err := link.Create(host.NS, link.OVSBridgeSpec{Attrs: link.Attrs{Name: ovsBridge}, DB: ovs.DB()}, link.Target{}); err != nil {
		return nil, err
	}
	if nw.cfg.switched() {
		_, err = link.Create(host.NS, link.OVSPortSpec{Attrs: link.Attrs{Name: uplink}, Bridge: ovsBridge, Type: "system", DB: ovs.DB()}, link.Target{})
	}
	return ovs, err
}
