package wiring

import (
	"os"

	"cleat/lab"
	"cleat/link"
)

// hostPortOffset moves servers on the host's own loopback to ports that nothing there
// is likely to use.
const hostPortOffset = 31200

// hostLoopback is the host's own 127.0.0.1: nothing is built.
func hostLoopback(nw *Network) error {
	for i := range nw.cfg.Pairs {
		at := endpoint(localhost, i+hostPortOffset)
		nw.Pairs = append(nw.Pairs, Pair{Client: lab.Host{}, Server: lab.Host{}, Listen: at, Dial: at})
	}
	return nil
}

func loopback(nw *Network) error {
	n, err := nw.node("node1")
	if err != nil {
		return err
	}
	nw.addPairsTo(n, localhost, n, "lo")
	return nil
}

// ownAddress dials the address of the node's own uplink, which the kernel delivers by
// loopback.
func ownAddress(nw *Network) error {
	n, _, err := nw.hosts()
	if err != nil {
		return err
	}
	nw.addPairsTo(n, hostAddr(1), n, "lo")
	return nil
}

// addDirectPairs makes the containers of each pair and lets join connect the two by
// links named inside, which get their addresses then.
func (nw *Network) addDirectPairs(join func(client, server *lab.Node) error) error {
	return nw.addPairs(func(i int, client, server *lab.Node) error {
		if err := join(client, server); err != nil {
			return err
		}
		if err := client.Address(inside, withPrefix(clientAddr(i))); err != nil {
			return err
		}
		return server.Address(inside, withPrefix(serverAddr(i)))
	})
}

func vethPair(nw *Network) error {
	return nw.addDirectPairs(func(client, server *lab.Node) error {
		return lab.Connect(lab.End{Node: client, Name: inside}, lab.End{Node: server, Name: inside}, lab.Cable{MTU: nw.cfg.MTU})
	})
}

func netkit(mode link.NetkitMode) func(*Network) error {
	return func(nw *Network) error {
		return nw.addDirectPairs(func(client, server *lab.Node) error {
			attrs := link.Attrs{Name: inside, MTU: nw.cfg.MTU}
			_, err := link.Create(client.NS, link.NetkitSpec{Attrs: attrs, Mode: mode, Peer: attrs}, link.Target{PeerNS: server.NS})
			return err
		})
	}
}

// relayed joins the containers of each pair by TUN or TAP devices and a process of its
// own, the relay of package traffic.
func relayed(mode link.TunMode) func(*Network) error {
	return func(nw *Network) error {
		return nw.addDirectPairs(func(client, server *lab.Node) error {
			var tuns []*link.Tun
			for _, n := range []*lab.Node{client, server} {
				t, err := nw.openTun(n, inside, mode, true)
				if err != nil {
					return err
				}
				tuns = append(tuns, t)
			}
			return nw.startRelay(client, tuns)
		})
	}
}

// openTun makes a TUN or TAP device, which lives as long as the network. With offloads it
// passes the kernel's super-packets whole.
func (nw *Network) openTun(n *lab.Node, name string, mode link.TunMode, offloads bool) (*link.Tun, error) {
	t, err := nw.openTunAs(n, link.TunSpec{Attrs: link.Attrs{Name: name, MTU: nw.cfg.MTU}, Mode: mode, VNetHdr: true})
	if err == nil && offloads {
		err = t.OffloadAll()
	}
	return t, err
}

func (nw *Network) openTunAs(n *lab.Node, spec link.TunSpec) (*link.Tun, error) {
	t, err := link.OpenTun(n.NS, spec)
	if err == nil {
		nw.cleanups = append(nw.cleanups, t.Close)
	}
	return t, err
}

// startRelay starts a relay between devices, of which each two are a pair.
func (nw *Network) startRelay(on *lab.Node, tuns []*link.Tun, args ...string) error {
	return nw.start(on, lab.Command{Args: append([]string{lab.Self, "traffic", "relay"}, args...), Extra: filesOf(tuns)})
}

func filesOf(tuns []*link.Tun) (files []*os.File) {
	for _, t := range tuns {
		files = append(files, t.Files()...)
	}
	return files
}
