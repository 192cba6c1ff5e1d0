package wiring

import (
	"fmt"
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
		return nw.containers(clients, servers, func(_ int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.MacvlanSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU, MAC: stackedMAC(addr)}, Parent: uplink, Mode: mode}
			switch mode {
			case link.MacvlanPassthru:
				spec.MAC = link.MAC{} // it takes over the parent's address
			case link.MacvlanSource:
				spec.Sources = link.ListOf(stackedMAC(other(addr))) // the one container that talks to this one
			}
			return place(host, c, spec, addr)
		})
	}
}

// stackedMAC is a locally administered address made from the IPv4 address.
func stackedMAC(a netip.Addr) link.MAC {
	b := a.As4()
	return link.MAC{0x02, 0x00, b[0], b[1], b[2], b[3]}
}

// other is the address at the other end of a pair.
func other(a netip.Addr) netip.Addr {
	b := a.As4()
	b[2] = 3 - b[2] // clients are .1.x, servers .2.x
	return netip.AddrFrom4(b)
}

func ipvlan(mode link.IPvlanMode, flag link.IPvlanFlag) func(*Network) error {
	return func(nw *Network) error {
		clients, servers, err := nw.parents()
		if err != nil {
			return err
		}
		if mode != link.IPvlanL2 && nw.cfg.switched() {
			if err := routeByHosts(clients, servers); err != nil {
				return err
			}
		}
		return nw.containers(clients, servers, func(_ int, host, c *lab.Node, addr netip.Addr) error {
			spec := link.IPvlanSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU}, Parent: uplink, Mode: mode, Flag: flag}
			return place(host, c, spec, addr)
		})
	}
}

// routeByHosts makes two hosts route to each other's containers, as the l3
// modes of ipvlan use the hosts' routing tables.
func routeByHosts(clients, servers *lab.Node) error {
	if err := route(clients, netip.PrefixFrom(serverAddr(0), 24).Masked(), hostAddr(2), uplink); err != nil {
		return err
	}
	return route(servers, netip.PrefixFrom(clientAddr(0), 24).Masked(), hostAddr(1), uplink)
}

// firstVLAN is the tag of the first pair; pair i uses firstVLAN+i.
const firstVLAN = 100

// vlan gives each pair a tag of its own on the cable between two hosts: in the
// local topology too, because one parent carries a tag only once.
func vlan(nw *Network) error {
	clients, servers, err := nw.hosts()
	if err != nil {
		return err
	}
	return nw.containers(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		spec := link.VLANSpec{Attrs: link.Attrs{Name: inside}, Parent: uplink, ID: firstVLAN + pair}
		return place(host, c, spec, addr)
	})
}

// tag is the name of a host's own link for a pair.
func tag(role string, pair int) string { return fmt.Sprintf("%s%d", role, pair) }
