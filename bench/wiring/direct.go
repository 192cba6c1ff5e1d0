package wiring

import (
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// hostLoopback is the host's own 127.0.0.1: nothing is built.
func hostLoopback(nw *Network) error {
	for i := range nw.cfg.Pairs {
		// The host may listen on BasePort itself: stay away from it.
		at := netip.AddrPortFrom(localhost, port(i)+hostPortOffset)
		nw.Pairs = append(nw.Pairs, Pair{Client: lab.Host{}, Server: lab.Host{}, Listen: at, Dial: at})
	}
	return nil
}

// hostPortOffset moves servers on the host's own loopback to ports that nothing
// there is likely to use.
const hostPortOffset = 31200

func loopback(nw *Network) error {
	n, err := nw.node("node1")
	if err != nil {
		return err
	}
	for i := range nw.cfg.Pairs {
		at := netip.AddrPortFrom(localhost, port(i))
		nw.Pairs = append(nw.Pairs, Pair{Client: n, Server: n, ClientNode: n, Device: "lo", Listen: at, Dial: at})
	}
	return nil
}

// ownAddress dials an address of the node's own uplink: the kernel delivers it
// by loopback all the same.
func ownAddress(nw *Network) error {
	node1, _, err := nw.hosts()
	if err != nil {
		return err
	}
	for i := range nw.cfg.Pairs {
		at := netip.AddrPortFrom(hostAddr(1), port(i))
		nw.Pairs = append(nw.Pairs, Pair{Client: node1, Server: node1, ClientNode: node1, Device: "lo", Listen: at, Dial: at})
	}
	return nil
}

// vethPair joins each two containers by a cable of their own.
func vethPair(nw *Network) error {
	return nw.pairs(func(client, server *lab.Node) error {
		return lab.Connect(lab.End{Node: client, Name: inside}, lab.End{Node: server, Name: inside}, lab.Cable{MTU: nw.cfg.MTU})
	})
}

// netkit joins each two containers by a netkit pair.
func netkit(mode link.NetkitMode) func(*Network) error {
	return func(nw *Network) error {
		return nw.pairs(func(client, server *lab.Node) error {
			spec := link.NetkitSpec{Attrs: link.Attrs{Name: inside, MTU: nw.cfg.MTU}, Mode: mode, Peer: link.Attrs{Name: inside, MTU: nw.cfg.MTU}}
			_, err := link.Create(client.NS, spec, link.Target{PeerNS: server.NS})
			return err
		})
	}
}

// pairs makes containers that are joined two by two.
func (nw *Network) pairs(join func(client, server *lab.Node) error) error {
	for i := range nw.cfg.Pairs {
		client, err := nw.containerNode("client", i)
		if err != nil {
			return err
		}
		server, err := nw.containerNode("server", i)
		if err != nil {
			return err
		}
		if err := join(client, server); err != nil {
			return err
		}
		if err := client.Address(inside, inNet(clientAddr(i))); err != nil {
			return err
		}
		if err := server.Address(inside, inNet(serverAddr(i))); err != nil {
			return err
		}
		nw.Pairs = append(nw.Pairs, between(i, client, server, inside))
	}
	return nil
}
