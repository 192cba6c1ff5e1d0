package wiring

import (
	"fmt"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// openVSwitch is a switch of its own, with its daemons inside the host's
// namespace.
func openVSwitch(internal bool) func(*Network) error {
	return func(nw *Network) error {
		clients, servers, err := nw.parents()
		if err != nil {
			return err
		}
		switches := map[*lab.Node]*link.OVS{}
		for i, host := range []*lab.Node{clients, servers} {
			if switches[host] != nil {
				continue
			}
			ovs, err := nw.startOVS(host, i)
			if err != nil {
				return err
			}
			switches[host] = ovs
		}
		err = nw.containers(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.OVSPortSpec{Attrs: link.Attrs{Name: ovsPort(addr, pair), MTU: nw.cfg.MTU}, Bridge: ovsBridge, DB: switches[host].DB()}
			if internal {
				spec.Type = link.OVSInternalPort
			} else if err := lab.Connect(lab.End{Node: c, Name: inside}, lab.End{Node: host, Name: spec.Name}, lab.Cable{MTU: nw.cfg.MTU}); err != nil {
				return err
			}
			return nw.ovsAttach(host, c, spec, addr)
		})
		if internal {
			for i := range nw.Pairs {
				nw.Pairs[i].Device = ovsPort(clientAddr(i), i)
			}
		}
		return err
	}
}

// ovsPort names a pair's port on its host: by the third octet of the container's
// address, which tells clients from servers.
func ovsPort(addr netip.Addr, pair int) string {
	return fmt.Sprintf("p%d-%d", addr.As4()[2], pair)
}

// ovsAttach adds the port. An internal one moves into the container and keeps
// its name there: ovs-vswitchd knows its ports by name, and loses one that is
// renamed.
func (nw *Network) ovsAttach(host, c *lab.Node, spec link.OVSPortSpec, addr netip.Addr) error {
	to, device := link.Target{}, inside
	if spec.Type == link.OVSInternalPort {
		to.NS, device = c.NS, spec.Name
	}
	l, err := link.Create(host.NS, spec, to)
	if err != nil {
		return err
	}
	nw.ovsPorts = append(nw.ovsPorts, l)
	return c.Address(device, inNet(addr))
}

// ovsBridge is the name of the Open vSwitch bridge on a host.
const ovsBridge = "ovs0"

func (nw *Network) startOVS(host *lab.Node, i int) (*link.OVS, error) {
	ovs, err := link.StartOVS(nw.ctx, host.NS, fmt.Sprintf("%s/ovs%d", nw.dir, i))
	if err != nil {
		return nil, err
	}
	nw.stops = append(nw.stops, ovs.Close)
	if _, err := link.Create(host.NS, link.OVSBridgeSpec{Attrs: link.Attrs{Name: ovsBridge}, DB: ovs.DB()}, link.Target{}); err != nil {
		return nil, err
	}
	if !nw.cfg.switched() {
		return ovs, nil
	}
	_, err = link.Create(host.NS, link.OVSPortSpec{Attrs: link.Attrs{Name: uplink}, Bridge: ovsBridge, Type: "system", DB: ovs.DB()}, link.Target{})
	return ovs, err
}
