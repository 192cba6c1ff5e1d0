package wiring

import (
	"cmp"
	"net/netip"
	"slices"

	"cleat/lab"
	"cleat/link"
)

// Overlays and tunnels between two hosts. Each pair has a tunnel of its own, whose
// device is created on the host, so that the host's network is the underlay, and moved
// into the container. Under a bridge one tunnel a host serves all pairs.

// vxlanMode is how a VXLAN device knows where to send.
type vxlanMode int

const (
	oneRemote vxlanMode = iota
	multicastGroup
	staticEntries // in the forwarding and the neighbour table
)

const (
	firstVNI       = 100 // of the first pair; pair i uses firstVNI+i
	underBridgeVNI = firstVNI - 1
)

var vxlanGroup = netip.AddrFrom4([4]byte{239, 1, 1, 1})

// tunnelEnd is one of the two hosts with the underlay addresses of a tunnel.
type tunnelEnd struct {
	host          *lab.Node
	device        string // of the host, toward the other one
	number        int    // 1 or 2
	local, remote netip.Addr
}

// underlay returns the ends of tunnels on the hosts that this machine has: one of a
// Side, else two, which it makes, joined by one cable or by the switch.
func (nw *Network) underlay() ([]tunnelEnd, error) {
	if s := nw.side; s != nil {
		return []tunnelEnd{{s.Host, s.Device, s.Number, s.Local, s.Remote}}, nil
	}
	first, second, err := nw.hosts()
	return []tunnelEnd{{first, uplink, 1, hostAddr(1), hostAddr(2)}, {second, uplink, 2, hostAddr(2), hostAddr(1)}}, err
}

// addTunnelPairs makes the containers of each pair. For each container create creates
// its end of the pair's tunnel.
func (nw *Network) addTunnelPairs(create func(pair int, end tunnelEnd, container *lab.Node, addr netip.Addr) error) error {
	ends, err := nw.underlay()
	if err != nil {
		return err
	}
	return nw.addContainerPairs(ends[0].host, ends[len(ends)-1].host, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		end := ends[slices.IndexFunc(ends, func(e tunnelEnd) bool { return e.host == host })]
		return create(pair, end, c, addr)
	})
}

func vxlan(mode vxlanMode, underBridge bool) func(*Network) error {
	return func(nw *Network) error {
		if underBridge {
			return nw.vxlanUnderBridge(mode)
		}
		return nw.addTunnelPairs(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
			l, err := link.Create(end.host.NS, nw.vxlanSpec(mode, inside, firstVNI+pair, end, macOf(addr)), link.Target{NS: c.NS})
			if err != nil {
				return err
			}
			if err := c.Address(inside, withPrefix(addr)); err != nil {
				return err
			}
			if mode != staticEntries {
				return nil
			}
			return addEntries(l, l, addr, end.remote)
		})
	}
}

// addEntries adds the static entries of the container with address addr for its peer,
// which is behind the VTEP remote.
func addEntries(vxlan, container *link.Link, addr, remote netip.Addr) error {
	peer := peerAddr(addr)
	if err := vxlan.AddFDB(macOf(peer), remote); err != nil {
		return err
	}
	return container.AddNeighbor(peer, macOf(peer))
}

func (nw *Network) vxlanSpec(mode vxlanMode, name string, vni int, end tunnelEnd, mac link.MAC) link.VXLANSpec {
	if nw.side != nil { // other networks have devices in the same namespace
		vni += nw.side.Slot * maxPairs
	}
	spec := link.VXLANSpec{
		Attrs: link.Attrs{Name: name, MAC: mac}, VNI: vni, Parent: end.device, Local: end.local,
		Port: cmp.Or(nw.cfg.VXLANPort, link.VXLANPort),
	}
	switch mode {
	case oneRemote:
		spec.Remote = end.remote
	case multicastGroup:
		spec.Group = vxlanGroup
	case staticEntries:
		spec.Learning = link.Off
	}
	return spec
}

// vxlanUnderBridge gives each host a bridge whose ports are the VXLAN device and the
// containers' veth pairs, as container platforms do. The bridge of a Side is in a
// namespace of its own.
func (nw *Network) vxlanUnderBridge(mode vxlanMode) error {
	ends, err := nw.underlay()
	if err != nil {
		return err
	}
	devices, remotes, bridges := map[*lab.Node]*link.Link{}, map[*lab.Node]netip.Addr{}, map[*lab.Node]*lab.Node{}
	mtu := 0
	for _, end := range ends {
		on := end.host
		if nw.side != nil {
			if on, err = nw.node("bridge"); err != nil {
				return err
			}
		}
		l, err := link.Create(end.host.NS, nw.vxlanSpec(mode, "vxlan0", underBridgeVNI, end, link.MAC{}), link.Target{NS: on.NS})
		if err != nil {
			return err
		}
		if mtu, err = l.MTU(); err != nil {
			return err
		}
		if err := addBridge(on, link.BridgeSpec{Attrs: link.Attrs{MTU: mtu}}); err != nil {
			return err
		}
		if err := l.SetMaster(containerBridge); err != nil {
			return err
		}
		if err := l.Up(); err != nil {
			return err
		}
		devices[end.host], remotes[end.host], bridges[end.host] = l, end.remote, on
	}
	return nw.addContainerPairs(ends[0].host, ends[len(ends)-1].host, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		if err := attachToBridge(bridges[host], c, bridgePort(pair, addr), mtu, addr); err != nil {
			return err
		}
		if mode != staticEntries {
			return nil
		}
		return onLink(c, inside, func(l *link.Link) error {
			if err := l.SetMAC(macOf(addr)); err != nil {
				return err
			}
			return addEntries(devices[host], l, addr, remotes[host])
		})
	})
}

func geneve(nw *Network) error {
	return nw.addTunnelPairs(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		return createInside(end.host, c, link.GeneveSpec{Attrs: link.Attrs{Name: inside}, VNI: firstVNI + pair, Remote: end.remote}, addr)
	})
}

func ipip(local, remote netip.Addr) link.Spec {
	return link.IPIPSpec{Attrs: link.Attrs{Name: inside}, Local: local, Remote: remote}
}

func gre(local, remote netip.Addr) link.Spec {
	return link.GRESpec{Attrs: link.Attrs{Name: inside}, Local: local, Remote: remote}
}

// keyless gives each pair's tunnel outer addresses of its own: the kernel tells tunnels
// without a key apart by these.
func keyless(spec func(local, remote netip.Addr) link.Spec) func(*Network) error {
	return func(nw *Network) error {
		return nw.addTunnelPairs(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
			if nw.side != nil { // which has one pair
				return createInside(end.host, c, spec(end.local, end.remote), addr)
			}
			outer := func(host int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, byte(host), byte(pair + 1)}) }
			local, remote := outer(end.number), outer(3-end.number)
			if err := end.host.Address(uplink, withPrefix(local)); err != nil {
				return err
			}
			return createInside(end.host, c, spec(local, remote), addr)
		})
	}
}

// wireguardPort is the UDP port of the first pair; pair i uses wireguardPort+i.
const wireguardPort = 51820

// maxSlots is how many networks with maxPairs ports have room above wireguardPort.
const maxSlots = (1<<16 - wireguardPort) / maxPairs

// wireguard gives each pair a tunnel with keys of its own.
func wireguard(nw *Network) error {
	own, peers, err := nw.wireguardKeys()
	if err != nil {
		return err
	}
	first := wireguardPort
	if nw.side != nil { // other networks have ports in the same namespace
		first += nw.side.Slot % maxSlots * maxPairs
	}
	return nw.addTunnelPairs(func(pair int, end tunnelEnd, c *lab.Node, addr netip.Addr) error {
		return createInside(end.host, c, link.WireGuardSpec{
			Attrs: link.Attrs{Name: inside}, PrivateKey: own[[2]int{pair, end.number}], ListenPort: first + pair,
			Peers: link.ListOf(link.WireGuardPeer{
				PublicKey:  peers[[2]int{pair, end.number}],
				Endpoint:   netip.AddrPortFrom(end.remote, uint16(first+pair)),
				AllowedIPs: link.ListOf(netip.PrefixFrom(peerAddr(addr), 32)),
			}),
		}, addr)
	})
}

// wireguardKeys returns the private key of each end, and its peer's public key, by pair
// and host number.
func (nw *Network) wireguardKeys() (own map[[2]int]link.WireGuardKey, peers map[[2]int]link.WireGuardPublic, err error) {
	own, peers = map[[2]int]link.WireGuardKey{}, map[[2]int]link.WireGuardPublic{}
	for pair := range nw.cfg.Pairs {
		if s := nw.side; s != nil {
			at := [2]int{pair, s.Number}
			own[at], peers[at] = s.Keys[pair].Private, s.Keys[pair].Peer
			continue
		}
		for host := 1; host <= 2; host++ {
			key, err := link.NewWireGuardKey()
			if err != nil {
				return nil, nil, err
			}
			own[[2]int{pair, host}], peers[[2]int{pair, 3 - host}] = key, key.Public()
		}
	}
	return own, peers, nil
}
