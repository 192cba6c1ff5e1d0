package wiring

import (
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// docker is what Docker builds on a host: a bridge with the containers' veth
// pairs as ports, and the rules of docker.go.
type containerHost struct {
	host, outside *lab.Node
}

// containerBridge is the bridge's name on the host.
const containerBridge = "docker0"

// newContainerHost makes the host with its bridge, an outside node across the uplink,
// and the sysctls that a container host sets.
func (nw *Network) newContainerHost(netfilter bool) (containerHost, error) {
	host, outside, err := nw.hosts()
	if err != nil {
		return containerHost{}, err
	}
	h := containerHost{host, outside}
	if err := addBridge(host, nw.cfg.MTU); err != nil {
		return h, err
	}
	if err := host.Address(containerBridge, inNet(gateway)); err != nil {
		return h, err
	}
	if err := host.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return h, err
	}
	return h, link.SetBridgeNetfilter(host.NS, link.BridgeNetfilter{IPTables: netfilter, IP6Tables: netfilter, ARPTables: netfilter})
}

func addBridge(host *lab.Node, mtu int) error {
	_, err := link.Create(host.NS, link.BridgeSpec{Attrs: link.Attrs{Name: containerBridge, MTU: mtu}}, link.Target{})
	if err != nil {
		return err
	}
	l, err := link.Find(host.NS, containerBridge)
	if err != nil {
		return err
	}
	return l.Up()
}

// attach gives a container a veth pair with the address given, whose other end,
// of the name given, is a port of the host's bridge.
func attach(host, container *lab.Node, portName string, mtu int, addr netip.Addr) error {
	if err := lab.Connect(lab.End{Node: container, Name: inside}, lab.End{Node: host, Name: portName}, lab.Cable{MTU: mtu}); err != nil {
		return err
	}
	l, err := link.Find(host.NS, portName)
	if err != nil {
		return err
	}
	if err := l.SetMaster(containerBridge); err != nil {
		return err
	}
	return container.Address(inside, inNet(addr))
}

// onBridge makes one container on the host's bridge, with the host as its
// default gateway.
func (nw *Network) onBridge(host *lab.Node, role string, pair int, addr netip.Addr) (*lab.Node, error) {
	c, err := nw.containerNode(role, pair)
	if err != nil {
		return nil, err
	}
	if err := attach(host, c, tag(role, pair), nw.cfg.MTU, addr); err != nil {
		return nil, err
	}
	return c, route(c, netip.Prefix{}, gateway, "")
}

// bridged is container to container over the host's bridge. Switched, each
// host has a bridge, and the uplink is a port of it.
func bridged(netfilter bool) func(*Network) error {
	return func(nw *Network) error {
		h, err := nw.newContainerHost(netfilter)
		if err != nil {
			return err
		}
		servers := h.host
		if nw.cfg.switched() {
			servers = h.outside
			if err := nw.joinBridges(h, netfilter); err != nil {
				return err
			}
		}
		if err := rules(h.host, byProxy, published(nw.cfg.Pairs)); err != nil {
			return err
		}
		return nw.containers(h.host, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			return attach(host, c, tag("port", int(addr.As4()[2])*1000+pair), nw.cfg.MTU, addr)
		})
	}
}

// joinBridges makes the second host like the first and both uplinks ports of
// the bridges.
func (nw *Network) joinBridges(h containerHost, netfilter bool) error {
	if err := addBridge(h.outside, nw.cfg.MTU); err != nil {
		return err
	}
	if err := link.SetBridgeNetfilter(h.outside.NS, link.BridgeNetfilter{IPTables: netfilter, IP6Tables: netfilter, ARPTables: netfilter}); err != nil {
		return err
	}
	if err := rules(h.outside, byProxy, published(nw.cfg.Pairs)); err != nil {
		return err
	}
	for _, host := range []*lab.Node{h.host, h.outside} {
		up, err := link.Find(host.NS, uplink)
		if err != nil {
			return err
		}
		if err := up.SetMaster(containerBridge); err != nil {
			return err
		}
	}
	return nil
}

// bridgeVLAN is a bridge that forwards by tag; each pair has a VLAN of its own,
// untagged at its ports.
func bridgeVLAN(nw *Network) error {
	clients, servers, err := nw.parents()
	if err != nil {
		return err
	}
	hosts := []*lab.Node{clients}
	if servers != clients {
		hosts = append(hosts, servers)
	}
	for _, host := range hosts {
		br, err := link.Create(host.NS, link.BridgeSpec{Attrs: link.Attrs{Name: containerBridge, MTU: nw.cfg.MTU}, VLANFiltering: true}, link.Target{})
		if err != nil {
			return err
		}
		if err := br.Up(); err != nil {
			return err
		}
		up, err := link.Find(host.NS, uplink)
		if err != nil {
			return err
		}
		if err := up.SetMaster(containerBridge); err != nil {
			return err
		}
		for pair := range nw.cfg.Pairs {
			if err := up.AddVLAN(link.PortVLAN{ID: firstVLAN + pair}); err != nil {
				return err
			}
		}
	}
	return nw.containers(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		name := tag("port", int(addr.As4()[2])*1000+pair)
		if err := attach(host, c, name, nw.cfg.MTU, addr); err != nil {
			return err
		}
		l, err := link.Find(host.NS, name)
		if err != nil {
			return err
		}
		return l.AddVLAN(link.PortVLAN{ID: firstVLAN + pair, PVID: true, Untagged: true})
	})
}

// containerToHost is 004's third cell: a container reaches a server of the host
// by the host's own address.
func containerToHost(nw *Network) error {
	return nw.outbound(func(h containerHost) (*lab.Node, netip.Addr) { return h.host, hostAddr(1) })
}

// natOut is container → outside by masquerade.
func natOut(nw *Network) error {
	return nw.outbound(func(h containerHost) (*lab.Node, netip.Addr) { return h.outside, hostAddr(2) })
}

// outbound makes one container a pair that reaches a server beyond its bridge.
func (nw *Network) outbound(server func(containerHost) (*lab.Node, netip.Addr)) error {
	h, err := nw.newContainerHost(false)
	if err != nil {
		return err
	}
	if err := rules(h.host, byProxy, published(0)); err != nil {
		return err
	}
	node, addr := server(h)
	for i := range nw.cfg.Pairs {
		c, err := nw.onBridge(h.host, "client", i, clientAddr(i))
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(addr, port(i))
		nw.Pairs = append(nw.Pairs, Pair{Client: c, Server: node, ClientNode: c, Device: inside, Listen: at, Dial: at})
	}
	return nil
}

// mode says how the host hands on what comes to a published port from its own
// loopback and from its own containers.
type mode int

const (
	byProxy mode = iota // by a program, as Docker does by default
	byNAT               // by its rules alone, as dockerd --userland-proxy=false does
)

// publish makes one container a pair that publishes its port on the host, and
// asks for the client's side. A proxy listens at the address given, since one
// at all addresses would answer datagrams from another one.
func (nw *Network) publish(m mode, at netip.Addr, client func(h containerHost, i int, server *lab.Node) (Pair, error)) error {
	h, err := nw.newContainerHost(m == byNAT)
	if err != nil {
		return err
	}
	if err := rules(h.host, m, published(nw.cfg.Pairs)); err != nil {
		return err
	}
	if m == byNAT {
		if err := h.host.Sysctl("net/ipv4/conf/"+containerBridge+"/route_localnet", "1"); err != nil {
			return err
		}
	}
	for i := range nw.cfg.Pairs {
		server, err := nw.onBridge(h.host, "server", i, serverAddr(i))
		if err != nil {
			return err
		}
		if m == byProxy {
			if err := nw.proxy(h.host, i, at); err != nil {
				return err
			}
		}
		p, err := client(h, i, server)
		if err != nil {
			return err
		}
		p.Server = server
		p.Listen = netip.AddrPortFrom(everywhere, port(i))
		nw.Pairs = append(nw.Pairs, p)
	}
	return nil
}

// proxy runs the program that takes what the rules leave to it.
func (nw *Network) proxy(host *lab.Node, pair int, addr netip.Addr) error {
	at := netip.AddrPortFrom(addr, port(pair))
	to := netip.AddrPortFrom(serverAddr(pair), port(pair))
	return nw.start(host, lab.Command{Args: []string{lab.Self, "traffic", "proxy", "--listen", at.String(), "--to", to.String()}})
}

// hostToContainer is 004's fifth cell: the host reaches a container by the
// container's own address.
func hostToContainer(nw *Network) error {
	return nw.publish(byProxy, hostAddr(1), func(h containerHost, i int, _ *lab.Node) (Pair, error) {
		return Pair{Client: h.host, ClientNode: h.host, Device: containerBridge, Dial: netip.AddrPortFrom(serverAddr(i), port(i))}, nil
	})
}

// publishedLoopback is the host's own 127.0.0.1.
func publishedLoopback(m mode) func(*Network) error {
	return func(nw *Network) error {
		return nw.publish(m, localhost, func(h containerHost, i int, _ *lab.Node) (Pair, error) {
			return Pair{Client: h.host, ClientNode: h.host, Device: "lo", Dial: netip.AddrPortFrom(localhost, port(i))}, nil
		})
	}
}

func publishedHost(nw *Network) error {
	return nw.publish(byProxy, hostAddr(1), func(h containerHost, i int, _ *lab.Node) (Pair, error) {
		return Pair{Client: h.host, ClientNode: h.host, Device: "lo", Dial: onHost(i)}, nil
	})
}

func publishedContainer(m mode) func(*Network) error {
	return func(nw *Network) error {
		return nw.publish(m, hostAddr(1), func(h containerHost, i int, _ *lab.Node) (Pair, error) {
			c, err := nw.onBridge(h.host, "client", i, clientAddr(i))
			return Pair{Client: c, ClientNode: c, Device: inside, Dial: onHost(i)}, err
		})
	}
}

// publishedHairpin is a container that reaches its own published port: without
// the proxy, the bridge must send frames back out of the port they came in by.
func publishedHairpin(m mode) func(*Network) error {
	return func(nw *Network) error {
		return nw.publish(m, hostAddr(1), func(h containerHost, i int, server *lab.Node) (Pair, error) {
			p := Pair{Client: server, ClientNode: server, Device: inside, Dial: onHost(i)}
			if m == byProxy {
				return p, nil
			}
			l, err := link.Find(h.host.NS, tag("server", i))
			if err != nil {
				return p, err
			}
			return p, l.SetPort(link.BridgePort{Hairpin: true})
		})
	}
}

func publishedOutside(nw *Network) error {
	return nw.publish(byProxy, hostAddr(1), func(h containerHost, i int, _ *lab.Node) (Pair, error) {
		return Pair{Client: h.outside, ClientNode: h.outside, Device: uplink, Dial: onHost(i)}, nil
	})
}

// onHost is the published address of pair i's server.
func onHost(i int) netip.AddrPort { return netip.AddrPortFrom(hostAddr(1), port(i)) }
