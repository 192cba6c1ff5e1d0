package wiring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// Names of links.
const (
	uplink = "eth0" // of a host, toward the other host
	inside = "eth0" // of a container
)

var (
	localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	anyAddr   = netip.IPv4Unspecified()
	gateway   = netip.AddrFrom4([4]byte{198, 18, 0, 1}) // the host on its container bridge
)

// prefixBits is the prefix length of all these addresses.
const prefixBits = 16

func clientAddr(pair int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, byte(pair + 1)}) }
func serverAddr(pair int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 2, byte(pair + 1)}) }

// hostAddr is the address of host 1 or 2 on its uplink.
func hostAddr(host int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 0, byte(host)}) }

// peerAddr returns the container address at the other end of a pair.
func peerAddr(a netip.Addr) netip.Addr {
	b := a.As4()
	b[2] = 3 - b[2] // clients are 198.18.1.x, servers 198.18.2.x
	return netip.AddrFrom4(b)
}

func withPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, prefixBits) }

func port(pair int) uint16 { return uint16(basePort + pair) }

// endpoint is the address and port of a pair's server.
func endpoint(a netip.Addr, pair int) netip.AddrPort { return netip.AddrPortFrom(a, port(pair)) }

// node makes a node that lives as long as the network.
func (nw *Network) node(name string) (*lab.Node, error) {
	began := time.Now()
	n, err := lab.NewNode(name)
	nw.nodeTime += time.Since(began)
	if err == nil {
		nw.nodes = append(nw.nodes, n)
	}
	return n, err
}

// container makes a node that stands for a container, without links.
func (nw *Network) container(role string, pair int) (*lab.Node, error) {
	n, err := nw.node(fmt.Sprintf("%s%d", role, pair))
	if err == nil {
		nw.containers = append(nw.containers, n)
	}
	return n, err
}

// hosts makes two hosts with addresses on their uplinks, joined by a cable or, in the
// switched topology and for a hairpin switch, by a switch. In the local topology the
// first has the containers, and the second is an outside node. A Side has one host, which
// is both.
func (nw *Network) hosts() (first, second *lab.Node, err error) {
	if nw.side != nil {
		return nw.side.Host, nw.side.Host, nil
	}
	began, before := time.Now(), nw.nodeTime
	defer func() { nw.nodeTime = before + time.Since(began) }()
	if first, err = nw.node("node1"); err != nil {
		return nil, nil, err
	}
	if second, err = nw.node("node2"); err != nil {
		return nil, nil, err
	}
	if nw.cfg.switched() || nw.cfg.Hairpin {
		err = nw.connectSwitched(first, second)
	} else {
		cable := lab.Cable{MTU: nw.cfg.MTU, RateBitsPerSec: nw.cfg.RateBitsPerSec}
		err = lab.Connect(lab.End{Node: first, Name: uplink}, lab.End{Node: second, Name: uplink}, cable)
	}
	for i, n := range []*lab.Node{first, second} {
		if err == nil {
			err = n.Address(uplink, withPrefix(hostAddr(i+1)))
		}
	}
	return first, second, err
}

func (nw *Network) connectSwitched(hosts ...*lab.Node) error {
	sw, err := lab.NewSwitch("switch", nw.cfg.MTU)
	if err != nil {
		return err
	}
	nw.nodes = append(nw.nodes, sw.Node)
	for _, h := range hosts {
		port, err := sw.Plug(lab.End{Node: h, Name: uplink}, nw.cfg.RateBitsPerSec)
		if err != nil {
			return err
		}
		if !nw.cfg.Hairpin {
			continue
		}
		if err := onLink(sw.Node, port, func(l *link.Link) error { return l.SetHairpin(true) }); err != nil {
			return err
		}
	}
	return nil
}

// parents makes the hosts whose uplinks are the parents of the containers' links. In
// the local topology one host has both clients and servers.
func (nw *Network) parents() (clients, servers *lab.Node, err error) {
	first, second, err := nw.hosts()
	if err != nil || nw.cfg.switched() {
		return first, second, err
	}
	return first, first, nil
}

// attachFunc gives a container of a pair its link, named inside, on a host.
type attachFunc func(pair int, host, container *lab.Node, addr netip.Addr) error

// addContainerPairs makes the two containers of each pair, and attaches them to their
// hosts.
func (nw *Network) addContainerPairs(clients, servers *lab.Node, attach attachFunc) error {
	if nw.side != nil {
		return nw.addSide(attach)
	}
	return nw.addPairs(func(pair int, client, server *lab.Node) error {
		if err := attach(pair, clients, client, clientAddr(pair)); err != nil {
			return err
		}
		return attach(pair, servers, server, serverAddr(pair))
	})
}

// addPairs makes the two containers of each pair, and lets join connect them.
func (nw *Network) addPairs(join func(pair int, client, server *lab.Node) error) error {
	for i := range nw.cfg.Pairs {
		client, err := nw.container("client", i)
		if err != nil {
			return err
		}
		server, err := nw.container("server", i)
		if err != nil {
			return err
		}
		if err := join(i, client, server); err != nil {
			return err
		}
		nw.addPair(client, inside, server, endpoint(anyAddr, i), endpoint(serverAddr(i), i))
	}
	return nil
}

// addPairsTo adds all pairs between two nodes. The servers have one address.
func (nw *Network) addPairsTo(server *lab.Node, addr netip.Addr, client *lab.Node, device string) {
	for i := range nw.cfg.Pairs {
		nw.addPair(client, device, server, endpoint(addr, i), endpoint(addr, i))
	}
}

// addPair adds a pair whose client sends through a device of its node.
func (nw *Network) addPair(client *lab.Node, device string, server lab.Runner, listen, dial netip.AddrPort) {
	nw.Pairs = append(nw.Pairs, Pair{Client: client, ClientNode: client, Device: device, Server: server, Listen: listen, Dial: dial})
}

// createInside creates a link on a host, moves it into a container and gives it its
// address there.
func createInside(host, container *lab.Node, spec link.Spec, addr netip.Addr) error {
	if _, err := link.Create(host.NS, spec, link.Target{NS: container.NS}); err != nil {
		return err
	}
	return container.Address(inside, withPrefix(addr))
}

// onLink calls f with the named link of a node.
func onLink(n *lab.Node, name string, f func(*link.Link) error) error {
	l, err := link.Find(n.NS, name)
	if err != nil {
		return err
	}
	return f(l)
}

// addRoute adds a route. The zero prefix is the default route, an empty device leaves
// that to the kernel.
func addRoute(n *lab.Node, to netip.Prefix, via netip.Addr, device string) error {
	r := &netlink.Route{Gw: via.AsSlice()}
	if to.IsValid() {
		r.Dst = ipNet(to)
	}
	if device != "" {
		l, err := link.Find(n.NS, device)
		if err != nil {
			return err
		}
		r.LinkIndex = l.Index()
	}
	h, err := link.Handle(n.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteAdd(r); err != nil {
		return fmt.Errorf("add route to %s on %s: %w", to, n, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// disableChecksumOffload makes the containers' links compute checksums in software. A
// link that leaves checksums to its parent on the host (macvlan, ipvlan, vlan) follows
// the parent, which is switched too.
func (nw *Network) disableChecksumOffload() error {
	for _, n := range nw.nodes {
		names := []string{inside}
		for _, port := range nw.ovsPorts {
			if port.NS() == n.NS {
				names = append(names, port.Name())
			}
		}
		for _, name := range names {
			l, err := link.Find(n.NS, name)
			if err != nil {
				continue // a node without such a link
			}
			var fixed *link.ParamError // the link can't be switched by itself
			if err := l.SetOffload("tx", false); err != nil && !errors.As(err, &fixed) {
				return err
			}
		}
	}
	return nil
}

func listenIn(ctx context.Context, ns *netns.NS, at netip.AddrPort) (l net.Listener, err error) {
	err = ns.Do(func() error {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
		return err
	})
	return l, err
}

// dialIn makes a TCP connection from a namespace, and closes it.
func dialIn(ctx context.Context, ns *netns.NS, to netip.AddrPort, timeout time.Duration) error {
	return ns.Do(func() error { // all on the thread that has entered the namespace
		c, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		return c.Close()
	})
}
