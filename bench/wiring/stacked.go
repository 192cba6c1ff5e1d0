package wiring

import (
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// Links that are stacked on a host's uplink and moved into a container.

func macvlan(mode link.MacvlanMode) func(*Network) error {
	return func(nw *Network) error {
		clients, servers, err := nw.parents()
		if err != nil {
			return err
		}
		return nw.addContainerPairs(clients, servers, func(_ int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.MacvlanSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU, MAC: macOf(addr)}, Parent: nw.uplink(), Mode: mode}
			switch mode {
			case link.MacvlanPassthru:
				spec.MAC = link.MAC{} // it takes over the parent's address
			case link.MacvlanSource:
				spec.Sources = link.ListOf(macOf(peerAddr(addr)))
			}
			return createInside(host, c, spec, addr)
		})
	}
}

// macOf makes a locally administered MAC address from an IPv4 address.
func macOf(a netip.Addr) link.MAC {
	b := a.As4()
	return link.MAC{0x02, 0x00, b[0], b[1], b[2], b[3]}
}

func ipvlan(mode link.IPvlanMode, flag link.IPvlanFlag) func(*Network) error {
	return func(nw *Network) error {
		clients, servers, err := nw.parents()
		if err != nil {
			return err
		}
		// The l3 modes use the hosts' routing tables.
		if mode != link.IPvlanL2 && nw.cfg.switched() {
			if err := addRoute(clients, netip.PrefixFrom(serverAddr(0), 24).Masked(), hostAddr(2), uplink); err != nil {
				return err
			}
			if err := addRoute(servers, netip.PrefixFrom(clientAddr(0), 24).Masked(), hostAddr(1), uplink); err != nil {
				return err
			}
		}
		return nw.addContainerPairs(clients, servers, func(_ int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.IPvlanSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU}, Parent: nw.uplink(), Mode: mode, Flag: flag}
			return createInside(host, c, spec, addr)
		})
	}
}

// firstVLAN is the VLAN of the first pair; pair i uses firstVLAN+i.
const firstVLAN = 100

// vlan gives each pair a VLAN of its own on the cable between two hosts. It needs two
// hosts in the local topology too, since a parent carries a tag only once.
func vlan(nw *Network) error {
	clients, servers, err := nw.hosts()
	if err != nil {
		return err
	}
	return nw.addContainerPairs(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		return createInside(host, c, link.VLANSpec{Attrs: link.Attrs{Name: inside}, Parent: nw.uplink(), ID: firstVLAN + pair}, addr)
	})
}
