package wiring

import (
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// hostLoopback is the host's own 127.0.0.1: nothing is built.
func hostLoopback(s *site, w *Wired) error {
	for i := range s.Pairs {
		// The host may listen on BasePort itself: stay away from it.
		at := netip.AddrPortFrom(localhost, port(i)+hostPortOffset)
		w.Pairs = append(w.Pairs, Pair{Client: lab.Host{}, Server: lab.Host{}, Listen: at, Dial: at})
	}
	return nil
}

// hostPortOffset moves servers on the host's own loopback to ports that nothing
// there is likely to use.
const hostPortOffset = 31200

func loopback(s *site, w *Wired) error {
	n, err := s.node("node1")
	if err != nil {
		return err
	}
	for i := range s.Pairs {
		at := netip.AddrPortFrom(localhost, port(i))
		w.Pairs = append(w.Pairs, Pair{Client: n, Server: n, ClientNode: n, Device: "lo", Listen: at, Dial: at})
	}
	return nil
}

// ownAddress dials an address of the node's own uplink: the kernel delivers it
// by loopback all the same.
func ownAddress(s *site, w *Wired) error {
	node1, _, err := s.hosts()
	if err != nil {
		return err
	}
	for i := range s.Pairs {
		at := netip.AddrPortFrom(hostAddr(1), port(i))
		w.Pairs = append(w.Pairs, Pair{Client: node1, Server: node1, ClientNode: node1, Device: "lo", Listen: at, Dial: at})
	}
	return nil
}

// vethPair joins each two containers by a cable of their own.
func vethPair(s *site, w *Wired) error {
	return s.pairs(w, func(client, server *lab.Node) error {
		return lab.Connect(lab.End{Node: client, Name: inside}, lab.End{Node: server, Name: inside}, lab.Cable{MTU: s.MTU})
	})
}

// netkit joins each two containers by a netkit pair.
func netkit(mode link.NetkitMode) func(*site, *Wired) error {
	return func(s *site, w *Wired) error {
		return s.pairs(w, func(client, server *lab.Node) error {
			spec := link.NetkitSpec{Attrs: link.Attrs{Name: inside, MTU: s.MTU}, Mode: mode, Peer: link.Attrs{Name: inside, MTU: s.MTU}}
			_, err := link.Create(client.NS, spec, link.Target{PeerNS: server.NS})
			return err
		})
	}
}

// pairs makes containers that are joined two by two.
func (s *site) pairs(w *Wired, join func(client, server *lab.Node) error) error {
	for i := range s.Pairs {
		client, err := s.containerNode("client", i)
		if err != nil {
			return err
		}
		server, err := s.containerNode("server", i)
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
		w.Pairs = append(w.Pairs, between(i, client, server, inside))
	}
	return nil
}
