package wiring

import (
	"cmp"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// Overlays and tunnels between two hosts. Each pair has a tunnel of its own,
// whose device is made on the host, so that the underlay is the host's, and
// lives in the container; under a bridge one tunnel a host serves all pairs.

// Ways for a VXLAN to know where to send.
type vxlanMode int

const (
	pointToPoint vxlanMode = iota // one remote
	multicast                     // a group
	filledIn                      // forwarding and neighbour entries
)

const (
	firstVNI       = 100
	vxlanGroup     = "239.1.1.1"
	underBridgeVNI = firstVNI - 1
)

// tunnelEnd is one of the two hosts with the addresses that matter to a tunnel.
type tunnelEnd struct {
	host          *lab.Node
	local, remote netip.Addr // of the underlay
}

// underlay makes the two hosts, joined by one cable or by the switch.
func (nw *Network) underlay() (a, b tunnelEnd, err error) {
	node1, node2, err := nw.hosts()
	return tunnelEnd{node1, hostAddr(1), hostAddr(2)}, tunnelEnd{node2, hostAddr(2), hostAddr(1)}, err
}

// tunnels makes the containers of each pair, with one tunnel between them.
func (nw *Network) tunnels(create func(pair int, end tunnelEnd, container *lab.Node, addr netip.Addr) error) error {
	a, b, err := nw.underlay()
	if err != nil {
		return err
	}
	return nw.containers(a.host, b.host, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		end := a
		if host == b.host {
			end = b
		}
		return create(pair, end, c, addr)
	})
}

func vxlan(mode vxlanMode, underBridge bool) func(*Network) error {
	return func(nw *Network) error {
		p := cmp.Or(nw.cfg.VXLANPort, link.VXLANPort)
		if underBridge {
			return nw.vxlanUnderBridge(mode, p)
		}
		return nw.tunnels(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
			l, err := link.Create(end.host.NS, vxlanSpec(mode, inside, firstVNI+pair, p, end, stackedMAC(addr)), link.Target{NS: c.NS})
			if err != nil {
				return err
			}
			if err := c.Address(inside, inNet(addr)); err != nil {
				return err
			}
			if mode != filledIn {
				return nil
			}
			peer := other(addr)
			if err := l.AddFDB(stackedMAC(peer), end.remote); err != nil {
				return err
			}
			return l.AddNeighbor(peer, stackedMAC(peer))
		})
	}
}

func vxlanSpec(mode vxlanMode, name string, vni, port int, end tunnelEnd, mac link.MAC) link.VXLANSpec {
	spec := link.VXLANSpec{
		Attrs: link.Attrs{Name: name, MAC: mac}, VNI: vni, Parent: uplink, Local: end.local, Port: port,
	}
	switch mode {
	case pointToPoint:
		spec.Remote = end.remote
	case multicast:
		spec.Group = netip.MustParseAddr(vxlanGroup)
	case filledIn:
		spec.Learning = link.Off
	}
	return spec
}

// vxlanUnderBridge gives each host a bridge with the VXLAN device and the
// containers' veth pairs as ports, as container platforms do.
func (nw *Network) vxlanUnderBridge(mode vxlanMode, vxlanPort int) error {
	a, b, err := nw.underlay()
	if err != nil {
		return err
	}
	devices := map[*lab.Node]*link.Link{}
	for _, end := range []tunnelEnd{a, b} {
		l, err := link.Create(end.host.NS, vxlanSpec(mode, "vxlan0", underBridgeVNI, vxlanPort, end, link.MAC{}), link.Target{})
		if err != nil {
			return err
		}
		spec, err := l.MTU()
		if err != nil {
			return err
		}
		if err := addBridge(end.host, spec); err != nil {
			return err
		}
		if err := l.SetMaster(containerBridge); err != nil {
			return err
		}
		if err := l.Up(); err != nil {
			return err
		}
		devices[end.host] = l
	}
	remotes := map[*lab.Node]netip.Addr{a.host: a.remote, b.host: b.remote}
	return nw.containers(a.host, b.host, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		mtu, err := devices[host].MTU()
		if err != nil {
			return err
		}
		if err := attach(host, c, tag("port", pair), mtu, addr); err != nil {
			return err
		}
		in, err := link.Find(c.NS, inside)
		if err != nil {
			return err
		}
		if mode != filledIn {
			return nil
		}
		if err := in.SetMAC(stackedMAC(addr)); err != nil {
			return err
		}
		peer := other(addr)
		if err := devices[host].AddFDB(stackedMAC(peer), remotes[host]); err != nil {
			return err
		}
		return in.AddNeighbor(peer, stackedMAC(peer))
	})
}

func geneve(nw *Network) error {
	return nw.tunnels(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		spec := link.GeneveSpec{Attrs: link.Attrs{Name: inside}, VNI: firstVNI + pair, Remote: end.remote}
		return place(end.host, c, spec, addr)
	})
}

func ipip(nw *Network) error {
	return nw.tunnels(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		local, remote, err := outer(pair, end)
		if err != nil {
			return err
		}
		return place(end.host, c, link.IPIPSpec{Attrs: link.Attrs{Name: inside}, Local: local, Remote: remote}, addr)
	})
}

func gre(nw *Network) error {
	return nw.tunnels(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		local, remote, err := outer(pair, end)
		if err != nil {
			return err
		}
		return place(end.host, c, link.GRESpec{Attrs: link.Attrs{Name: inside}, Local: local, Remote: remote}, addr)
	})
}

// outer gives the pair's tunnel outer addresses of its own, which the kernel
// wants to tell tunnels without a key apart.
func outer(pair int, end tunnelEnd) (local, remote netip.Addr, err error) {
	here, there := 1, 2
	if end.local == hostAddr(2) {
		here, there = 2, 1
	}
	local, remote = tunnelAddr(here, pair), tunnelAddr(there, pair)
	return local, remote, end.host.Address(uplink, inNet(local))
}
