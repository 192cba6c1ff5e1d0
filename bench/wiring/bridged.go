package wiring

import (
	"fmt"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// containerHost is a host laid out as Docker does: a bridge whose ports are the
// containers' veth pairs, and the rules of writeRules.
type containerHost struct {
	host    *lab.Node
	outside *lab.Node // the other end of the uplink
}

const containerBridge = "docker0"

// newContainerHost makes a host with its bridge and sysctls, and an outside node.
func (nw *Network) newContainerHost(netfilter bool) (containerHost, error) {
	host, outside, err := nw.hosts()
	if err != nil {
		return containerHost{}, err
	}
	h := containerHost{host, outside}
	if err := addBridge(host, link.BridgeSpec{Attrs: link.Attrs{MTU: nw.cfg.MTU}}); err != nil {
		return h, err
	}
	if err := host.Address(containerBridge, withPrefix(gateway)); err != nil {
		return h, err
	}
	if err := host.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return h, err
	}
	return h, link.SetBridgeNetfilter(host.NS, netfilter)
}

func addBridge(host *lab.Node, spec link.BridgeSpec) error {
	spec.Name = containerBridge
	br, err := link.Create(host.NS, spec, link.Target{})
	if err != nil {
		return err
	}
	return br.Up()
}

func addPort(host *lab.Node, name string) error {
	return onLink(host, name, func(l *link.Link) error { return l.SetMaster(containerBridge) })
}

// attachToBridge gives a container a veth pair whose other end is a port of the host's
// bridge.
func attachToBridge(host, container *lab.Node, port string, mtu int, addr netip.Addr) error {
	if err := lab.Connect(lab.End{Node: container, Name: inside}, lab.End{Node: host, Name: port}, lab.Cable{MTU: mtu}); err != nil {
		return err
	}
	if err := addPort(host, port); err != nil {
		return err
	}
	return container.Address(inside, withPrefix(addr))
}

// bridgePort names the port of the container with that address. One host may have
// both containers of a pair.
func bridgePort(pair int, addr netip.Addr) string {
	return fmt.Sprintf("port%d", int(addr.As4()[2])*1000+pair)
}

// containerPort names the port of a container of newContainerOn.
func containerPort(role string, pair int) string { return fmt.Sprintf("%s%d", role, pair) }

// newContainerOn makes a container on the host's bridge, whose default gateway is the
// host.
func (nw *Network) newContainerOn(host *lab.Node, role string, pair int, addr netip.Addr) (*lab.Node, error) {
	c, err := nw.container(role, pair)
	if err != nil {
		return nil, err
	}
	if err := attachToBridge(host, c, containerPort(role, pair), nw.cfg.MTU, addr); err != nil {
		return nil, err
	}
	return c, addRoute(c, netip.Prefix{}, gateway, "")
}

// bridged joins containers by the host's bridge. In the switched topology each host
// has a bridge, whose ports include the uplink.
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
		if err := writeRules(h.host, userlandProxy, publishedEndpoints(nw.cfg.Pairs)); err != nil {
			return err
		}
		return nw.addContainerPairs(h.host, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			return attachToBridge(host, c, bridgePort(pair, addr), nw.cfg.MTU, addr)
		})
	}
}

// joinBridges makes the outside node a second container host, and both uplinks ports of
// the bridges.
func (nw *Network) joinBridges(h containerHost, netfilter bool) error {
	if err := addBridge(h.outside, link.BridgeSpec{Attrs: link.Attrs{MTU: nw.cfg.MTU}}); err != nil {
		return err
	}
	if err := link.SetBridgeNetfilter(h.outside.NS, netfilter); err != nil {
		return err
	}
	if err := writeRules(h.outside, userlandProxy, publishedEndpoints(nw.cfg.Pairs)); err != nil {
		return err
	}
	if err := addPort(h.host, uplink); err != nil {
		return err
	}
	return addPort(h.outside, uplink)
}

// bridgeVLAN is a bridge that filters VLANs. Each pair has a VLAN of its own, which is
// untagged at the containers' ports and tagged on the uplink.
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
		if err := addBridge(host, link.BridgeSpec{Attrs: link.Attrs{MTU: nw.cfg.MTU}, VLANFiltering: true}); err != nil {
			return err
		}
		if err := addPort(host, uplink); err != nil {
			return err
		}
		for pair := range nw.cfg.Pairs {
			if err := addVLAN(host, uplink, link.PortVLAN{ID: firstVLAN + pair}); err != nil {
				return err
			}
		}
	}
	return nw.addContainerPairs(clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		port := bridgePort(pair, addr)
		if err := attachToBridge(host, c, port, nw.cfg.MTU, addr); err != nil {
			return err
		}
		return addVLAN(host, port, link.PortVLAN{ID: firstVLAN + pair, PVID: true, Untagged: true})
	})
}

func addVLAN(host *lab.Node, port string, v link.PortVLAN) error {
	return onLink(host, port, func(l *link.Link) error { return l.AddVLAN(v) })
}

// outbound makes one container a pair, which reaches a server on the host, by the host's
// address, or on the outside node, masqueraded.
func outbound(toOutside bool) func(*Network) error {
	return func(nw *Network) error {
		h, err := nw.newContainerHost(false)
		if err != nil {
			return err
		}
		if err := writeRules(h.host, userlandProxy, publishedEndpoints(0)); err != nil {
			return err
		}
		server, addr := h.host, hostAddr(1)
		if toOutside {
			server, addr = h.outside, hostAddr(2)
		}
		for i := range nw.cfg.Pairs {
			c, err := nw.newContainerOn(h.host, "client", i, clientAddr(i))
			if err != nil {
				return err
			}
			nw.addPair(c, inside, server, endpoint(addr, i), endpoint(addr, i))
		}
		return nil
	}
}

// publishMode is how the host forwards connections to a published port that come from
// its own loopback or from its own containers.
type publishMode int

const (
	userlandProxy publishMode = iota // by a program, Docker's default
	kernelNAT                        // by rules alone, as dockerd --userland-proxy=false does
)

// clientFunc returns the client of a pair, and the device through which it sends.
type clientFunc func(nw *Network, h containerHost, pair int, server *lab.Node) (client *lab.Node, device string, err error)

// published makes one container a pair, whose port the host publishes, and a client that
// dials the port at the given address of the host. A proxy listens at this address only:
// one that listened at all addresses would answer datagrams from another one.
func published(m publishMode, addr netip.Addr, client clientFunc) func(*Network) error {
	return func(nw *Network) error {
		h, err := nw.newContainerHost(m == kernelNAT)
		if err != nil {
			return err
		}
		if err := writeRules(h.host, m, publishedEndpoints(nw.cfg.Pairs)); err != nil {
			return err
		}
		if m == kernelNAT {
			if err := h.host.Sysctl("net/ipv4/conf/"+containerBridge+"/route_localnet", "1"); err != nil {
				return err
			}
		}
		for i := range nw.cfg.Pairs {
			server, err := nw.newContainerOn(h.host, "server", i, serverAddr(i))
			if err != nil {
				return err
			}
			if m == userlandProxy {
				if err := nw.start(h.host, lab.Command{Args: []string{lab.Self, "traffic", "proxy",
					"--listen", endpoint(addr, i).String(), "--to", endpoint(serverAddr(i), i).String()}}); err != nil {
					return err
				}
			}
			node, device, err := client(nw, h, i, server)
			if err != nil {
				return err
			}
			nw.addPair(node, device, server, endpoint(anyAddr, i), endpoint(addr, i))
		}
		return nil
	}
}

// hostToContainer reaches a container from the host, by the container's own address.
func hostToContainer(nw *Network) error {
	if err := published(userlandProxy, hostAddr(1), fromHost(containerBridge))(nw); err != nil {
		return err
	}
	for i := range nw.Pairs {
		nw.Pairs[i].Dial = endpoint(serverAddr(i), i)
	}
	return nil
}

func fromHost(device string) clientFunc {
	return func(_ *Network, h containerHost, _ int, _ *lab.Node) (*lab.Node, string, error) {
		return h.host, device, nil
	}
}

func fromOutside(_ *Network, h containerHost, _ int, _ *lab.Node) (*lab.Node, string, error) {
	return h.outside, uplink, nil
}

// fromContainer makes the client another container of the host.
func fromContainer(nw *Network, h containerHost, pair int, _ *lab.Node) (*lab.Node, string, error) {
	c, err := nw.newContainerOn(h.host, "client", pair, clientAddr(pair))
	return c, inside, err
}

// fromItself makes the server's container the client, too.
func fromItself(_ *Network, _ containerHost, _ int, server *lab.Node) (*lab.Node, string, error) {
	return server, inside, nil
}

// fromItselfHairpin is fromItself without a proxy: the bridge must send frames back out of
// the port they came in by.
func fromItselfHairpin(_ *Network, h containerHost, pair int, server *lab.Node) (*lab.Node, string, error) {
	return server, inside, onLink(h.host, containerPort("server", pair), func(l *link.Link) error {
		return l.SetHairpin(true)
	})
}
