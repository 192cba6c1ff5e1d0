package wiring

import (
	"fmt"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// openVSwitch is a switch of its own, with its daemons inside the host's
// namespace.
func openVSwitch(internal bool) func(*site, *Wired) error {
	return func(s *site, w *Wired) error {
		clients, servers, err := s.parents()
		if err != nil {
			return err
		}
		switches := map[*lab.Node]*link.OVS{}
		for i, host := range []*lab.Node{clients, servers} {
			if switches[host] != nil {
				continue
			}
			ovs, err := s.startOVS(host, i)
			if err != nil {
				return err
			}
			switches[host] = ovs
		}
		return s.containers(w, clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			name := fmt.Sprintf("p%d-%d", addr.As4()[2], pair)
			port := link.OVSPortSpec{Attrs: link.Attrs{Name: name, MTU: s.MTU}, Bridge: ovsBridge, Type: "internal", DB: switches[host].DB()}
			if internal {
				l, err := link.Create(host.NS, port, link.Target{})
				if err != nil {
					return err
				}
				if err := l.Move(c.NS, inside); err != nil {
					return err
				}
				return c.Address(inside, inNet(addr))
			}
			if err := lab.Connect(lab.End{Node: c, Name: inside}, lab.End{Node: host, Name: name}, lab.Cable{MTU: s.MTU}); err != nil {
				return err
			}
			port.Type = "system"
			if _, err := link.Create(host.NS, port, link.Target{}); err != nil {
				return err
			}
			return c.Address(inside, inNet(addr))
		})
	}
}

// ovsBridge is the name of the Open vSwitch bridge on a host.
const ovsBridge = "ovs0"

func (s *site) startOVS(host *lab.Node, i int) (*link.OVS, error) {
	ovs, err := link.StartOVS(s.ctx, host.NS, fmt.Sprintf("%s/ovs%d", s.dir, i))
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, ovs.Close)
	if _, err := link.Create(host.NS, link.OVSBridgeSpec{Attrs: link.Attrs{Name: ovsBridge}, DB: ovs.DB()}, link.Target{}); err != nil {
		return nil, err
	}
	if !s.switched() {
		return ovs, nil
	}
	_, err = link.Create(host.NS, link.OVSPortSpec{Attrs: link.Attrs{Name: uplink}, Bridge: ovsBridge, Type: "system", DB: ovs.DB()}, link.Target{})
	return ovs, err
}
