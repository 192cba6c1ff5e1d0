package wiring

import (
	"fmt"
	"net/netip"

	"cleat/lab"
	"cleat/link"
)

// docker is what Docker builds on a host: a bridge with the containers' veth
// pairs as ports, and the rules of docker.go.
type docker struct {
	host, outside *lab.Node
}

// containerBridge is the bridge's name on the host.
const containerBridge = "docker0"

// newDocker makes the host with its bridge, an outside node across the uplink,
// and the sysctls that a container host sets.
func (s *site) newDocker(netfilter bool) (docker, error) {
	host, outside, err := s.hosts()
	if err != nil {
		return docker{}, err
	}
	d := docker{host, outside}
	if err := addBridge(host, s.MTU); err != nil {
		return d, err
	}
	if err := host.Address(containerBridge, inNet(gateway)); err != nil {
		return d, err
	}
	if err := host.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return d, err
	}
	return d, link.SetBridgeNetfilter(host.NS, link.BridgeNetfilter{IPTables: netfilter, IP6Tables: netfilter, ARPTables: netfilter})
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

// attach gives a container a veth pair whose other end is a port of the host's
// bridge, and returns that port's name.
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
func (s *site) onBridge(host *lab.Node, role string, pair int, addr netip.Addr) (*lab.Node, error) {
	c, err := s.containerNode(role, pair)
	if err != nil {
		return nil, err
	}
	if err := attach(host, c, tag(role, pair), s.MTU, addr); err != nil {
		return nil, err
	}
	return c, route(c, netip.Prefix{}, gateway, "")
}

// bridged is container to container over the host's bridge. Switched, each
// host has a bridge, and the uplink is a port of it.
func bridged(netfilter bool) func(*site, *Wired) error {
	return func(s *site, w *Wired) error {
		d, err := s.newDocker(netfilter)
		if err != nil {
			return err
		}
		servers := d.host
		if s.switched() {
			servers = d.outside
			if err := s.joinBridges(d, netfilter); err != nil {
				return err
			}
		}
		if err := rules(d.host, published(s.Pairs)); err != nil {
			return err
		}
		return s.containers(w, d.host, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
			return attach(host, c, tag("port", int(addr.As4()[2])*1000+pair), s.MTU, addr)
		})
	}
}

// joinBridges makes the second host like the first and both uplinks ports of
// the bridges.
func (s *site) joinBridges(d docker, netfilter bool) error {
	if err := addBridge(d.outside, s.MTU); err != nil {
		return err
	}
	if err := link.SetBridgeNetfilter(d.outside.NS, link.BridgeNetfilter{IPTables: netfilter, IP6Tables: netfilter, ARPTables: netfilter}); err != nil {
		return err
	}
	if err := rules(d.outside, published(s.Pairs)); err != nil {
		return err
	}
	for _, host := range []*lab.Node{d.host, d.outside} {
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
func bridgeVLAN(s *site, w *Wired) error {
	clients, servers, err := s.parents()
	if err != nil {
		return err
	}
	hosts := []*lab.Node{clients}
	if servers != clients {
		hosts = append(hosts, servers)
	}
	for _, host := range hosts {
		br, err := link.Create(host.NS, link.BridgeSpec{Attrs: link.Attrs{Name: containerBridge, MTU: s.MTU}, VLANFiltering: true}, link.Target{})
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
		for pair := range s.Pairs {
			if err := up.AddVLAN(link.PortVLAN{ID: firstVLAN + pair}); err != nil {
				return err
			}
		}
	}
	return s.containers(w, clients, servers, func(pair int, host, c *lab.Node, addr netip.Addr) error {
		name := tag("port", int(addr.As4()[2])*1000+pair)
		if err := attach(host, c, name, s.MTU, addr); err != nil {
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
func containerToHost(s *site, w *Wired) error {
	d, err := s.newDocker(false)
	if err != nil {
		return err
	}
	if err := rules(d.host, published(0)); err != nil {
		return err
	}
	for i := range s.Pairs {
		c, err := s.onBridge(d.host, "client", i, clientAddr(i))
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(hostAddr(1), port(i))
		w.Pairs = append(w.Pairs, Pair{Client: c, Server: d.host, ClientNode: c, Device: inside, Listen: at, Dial: at})
	}
	return nil
}

// hostToContainer is 004's fifth cell: the host reaches a container by the
// container's own address.
func hostToContainer(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, server *lab.Node) (Pair, error) {
		return Pair{Client: d.host, ClientNode: d.host, Device: containerBridge, Dial: netip.AddrPortFrom(serverAddr(i), port(i))}, nil
	})
}

// natOut is container → outside by masquerade.
func natOut(s *site, w *Wired) error {
	d, err := s.newDocker(false)
	if err != nil {
		return err
	}
	if err := rules(d.host, published(0)); err != nil {
		return err
	}
	for i := range s.Pairs {
		c, err := s.onBridge(d.host, "client", i, clientAddr(i))
		if err != nil {
			return err
		}
		at := netip.AddrPortFrom(hostAddr(2), port(i))
		w.Pairs = append(w.Pairs, Pair{Client: c, Server: d.outside, ClientNode: c, Device: inside, Listen: at, Dial: at})
	}
	return nil
}

// publish makes one container a pair that publishes its port on the host, and
// asks for the client's side.
func (s *site) publish(w *Wired, client func(d docker, i int, server *lab.Node) (Pair, error)) error {
	d, err := s.newDocker(false)
	if err != nil {
		return err
	}
	if err := rules(d.host, published(s.Pairs)); err != nil {
		return err
	}
	for i := range s.Pairs {
		server, err := s.onBridge(d.host, "server", i, serverAddr(i))
		if err != nil {
			return err
		}
		p, err := client(d, i, server)
		if err != nil {
			return err
		}
		p.Server = server
		p.Listen = netip.AddrPortFrom(everywhere, port(i))
		w.Pairs = append(w.Pairs, p)
	}
	return nil
}

// publishedLoopbackProxy is Docker's default: connections to 127.0.0.1 are
// taken by a proxy program on the host, which copies to the container.
func publishedLoopbackProxy(s *site, w *Wired) error {
	w.Notes = append(w.Notes, "a proxy program copies the data, as Docker's userland proxy does")
	return s.publish(w, func(d docker, i int, _ *lab.Node) (Pair, error) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port(i))
		to := netip.AddrPortFrom(serverAddr(i), port(i))
		proxy := lab.Command{Args: []string{lab.Self, "traffic", "proxy", "--listen", at.String(), "--to", to.String()}}
		if err := s.start(d.host, proxy); err != nil {
			return Pair{}, err
		}
		return Pair{Client: d.host, ClientNode: d.host, Device: "lo", Dial: at}, nil
	})
}

// publishedLoopbackNAT is the same without the proxy (dockerd
// --userland-proxy=false): destination NAT of packets from 127.0.0.1, for which
// the host must allow loopback addresses to be routed.
func publishedLoopbackNAT(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, _ *lab.Node) (Pair, error) {
		if err := d.host.Sysctl("net/ipv4/conf/"+containerBridge+"/route_localnet", "1"); err != nil {
			return Pair{}, err
		}
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port(i))
		return Pair{Client: d.host, ClientNode: d.host, Device: "lo", Dial: at}, nil
	})
}

func publishedHost(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, _ *lab.Node) (Pair, error) {
		return Pair{Client: d.host, ClientNode: d.host, Device: "lo", Dial: onHost(i)}, nil
	})
}

func publishedContainer(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, _ *lab.Node) (Pair, error) {
		c, err := s.onBridge(d.host, "client", i, clientAddr(i))
		return Pair{Client: c, ClientNode: c, Device: inside, Dial: onHost(i)}, err
	})
}

// publishedHairpin is a container that reaches its own published port: the
// bridge must send frames back out of the port they came in by.
func publishedHairpin(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, server *lab.Node) (Pair, error) {
		l, err := link.Find(d.host.NS, tag("server", i))
		if err != nil {
			return Pair{}, err
		}
		return Pair{Client: server, ClientNode: server, Device: inside, Dial: onHost(i)}, l.SetPort(link.BridgePort{Hairpin: true})
	})
}

func publishedOutside(s *site, w *Wired) error {
	return s.publish(w, func(d docker, i int, _ *lab.Node) (Pair, error) {
		return Pair{Client: d.outside, ClientNode: d.outside, Device: uplink, Dial: onHost(i)}, nil
	})
}

// onHost is the published address of pair i's server.
func onHost(i int) netip.AddrPort { return netip.AddrPortFrom(hostAddr(1), port(i)) }

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
