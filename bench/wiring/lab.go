package wiring

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"cleat/lab"
	"cleat/link"

	"github.com/vishvananda/netlink"
)

// node makes a node that lives as long as the site.
func (nw *Network) node(format string, args ...any) (*lab.Node, error) {
	defer nw.prepare(time.Now())
	n, err := lab.NewNode(fmt.Sprintf(format, args...))
	if err != nil {
		return nil, err
	}
	nw.nodes = append(nw.nodes, n)
	return n, nil
}

// containerNode makes a node that plays a container.
func (nw *Network) containerNode(role string, pair int) (*lab.Node, error) {
	n, err := nw.node("%s%d", role, pair)
	if err == nil {
		nw.containerNodes = append(nw.containerNodes, n)
	}
	return n, err
}

// prepare adds the time since began to what does not count as wiring.
func (nw *Network) prepare(began time.Time) { nw.preparing += time.Since(began) }

// offloads makes the containers' links compute checksums in software where the
// experiment asks for it. A link that leaves that to its parent on the host
// (macvlan, ipvlan, vlan) follows the parent.
func (nw *Network) offloads() error {
	if !nw.cfg.NoChecksum {
		return nil
	}
	for _, n := range nw.nodes {
		names := []string{inside}
		for _, port := range nw.ovsPorts {
			if port.NS() == n.NS {
				names = append(names, port.Name())
			}
		}
		for _, name := range names {
			if err := checksumInSoftware(n, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func checksumInSoftware(n *lab.Node, name string) error {
	l, err := link.Find(n.NS, name)
	if err != nil {
		return nil // a node without such a link
	}
	err = l.SetOffload("tx", false)
	var can *link.ParamError
	if errors.As(err, &can) {
		return nil // the link has no say of its own: its parent's is switched too
	}
	return err
}

// start runs a helper program that lives as long as the site. What it says is
// kept for complaint.
func (nw *Network) start(r lab.Runner, c lab.Command) error {
	_, err := nw.startProc(r, c)
	return err
}

// startProc is start for who asks how the program fares.
func (nw *Network) startProc(r lab.Runner, c lab.Command) (lab.Proc, error) {
	said, err := os.OpenFile(nw.saidFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep what a program says: %w", err)
	}
	defer said.Close()
	c.Stdout, c.Stderr = said, said
	p, err := r.Start(c)
	if err != nil {
		return nil, err
	}
	nw.procs = append(nw.procs, p)
	return p, nil
}

func (nw *Network) saidFile() string { return nw.dir + "/said" }

// complaint adds to err what the helper programs said.
func (nw *Network) complaint(err error) error {
	said, readErr := os.ReadFile(nw.saidFile())
	if err == nil || readErr != nil || len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w; the program said: %s", err, strings.Join(strings.Fields(string(said)), " "))
}

// stopPrograms ends the helper programs.
func (nw *Network) stopPrograms() error {
	var errs []error
	for _, p := range nw.procs {
		p.Kill()
		p.Wait() // it was killed: how it ended says nothing
	}
	for _, stop := range slices.Backward(nw.stops) {
		errs = append(errs, stop())
	}
	nw.procs, nw.stops = nil, nil
	return errors.Join(errs...)
}

// uplink is the name of a host's link to the world outside.
const uplink = "eth0"

// netmask of all addresses of a site.
const bits = 16

func clientAddr(pair int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 1, byte(pair + 1)}) }
func serverAddr(pair int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 2, byte(pair + 1)}) }

// gateway is the host's address on its container bridge.
var gateway = netip.AddrFrom4([4]byte{198, 18, 0, 1})

// hostAddr is the address of host number i on its uplink.
func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 19, 0, byte(i)}) }

// tunnelAddr are further host addresses, one a pair, for tunnels that must
// differ in their outer addresses.
func tunnelAddr(host, pair int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 19, byte(host), byte(pair + 1)})
}

func inNet(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, bits) }

func port(pair int) uint16 { return uint16(BasePort + pair) }

// localhost is 127.0.0.1.
var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// everywhere is the unspecified IPv4 address.
var everywhere = netip.IPv4Unspecified()

// between is the pair of two containers that reach each other directly.
func between(i int, client, server *lab.Node, device string) Pair {
	return Pair{
		Client: client, Server: server, ClientNode: client, Device: device,
		Listen: netip.AddrPortFrom(everywhere, port(i)),
		Dial:   netip.AddrPortFrom(serverAddr(i), port(i)),
	}
}

// hosts makes the two ends' hosts with addresses on their uplinks. Local: one
// host, whose uplink is a cable to an outside node. Switched: two hosts on a
// switch. The second result is the other end in either case.
func (nw *Network) hosts() (node1, other *lab.Node, err error) {
	began, before := time.Now(), nw.preparing
	defer func() { nw.preparing = before + time.Since(began) }()
	if node1, err = nw.node("node1"); err != nil {
		return nil, nil, err
	}
	if other, err = nw.node("node2"); err != nil {
		return nil, nil, err
	}
	if nw.cfg.switched() || nw.cfg.Hairpin {
		sw, err := lab.NewSwitch("switch", nw.cfg.MTU)
		if err != nil {
			return nil, nil, err
		}
		nw.nodes = append(nw.nodes, sw.Node)
		for _, n := range []*lab.Node{node1, other} {
			port, err := sw.Plug(lab.End{Node: n, Name: uplink}, nw.cfg.RateBitsPerSec)
			if err != nil {
				return nil, nil, err
			}
			if err := nw.setHairpin(sw, port); err != nil {
				return nil, nil, err
			}
		}
	} else {
		cable := lab.Cable{MTU: nw.cfg.MTU, RateBitsPerSec: nw.cfg.RateBitsPerSec}
		if err := lab.Connect(lab.End{Node: node1, Name: uplink}, lab.End{Node: other, Name: uplink}, cable); err != nil {
			return nil, nil, err
		}
	}
	for i, n := range []*lab.Node{node1, other} {
		if err := n.Address(uplink, inNet(hostAddr(i+1))); err != nil {
			return nil, nil, err
		}
	}
	return node1, other, nil
}

// setHairpin makes the switch send frames back out of the port they came in by,
// where the experiment asks for it.
func (nw *Network) setHairpin(sw *lab.Switch, port string) error {
	if !nw.cfg.Hairpin {
		return nil
	}
	l, err := link.Find(sw.NS, port)
	if err != nil {
		return err
	}
	return l.SetPort(link.BridgePort{Hairpin: true})
}

// parents makes the hosts whose uplinks carry the containers' own links:
// the server's parent is the client's in the local topology.
func (nw *Network) parents() (clients, servers *lab.Node, err error) {
	node1, other, err := nw.hosts()
	if err != nil || nw.cfg.switched() {
		return node1, other, err
	}
	return node1, node1, nil
}

// containers makes the two containers of each pair and lets wire give each its
// link, named "eth0", on the host given.
func (nw *Network) containers(clients, servers *lab.Node, wire func(pair int, host, container *lab.Node, addr netip.Addr) error) error {
	for i := range nw.cfg.Pairs {
		client, err := nw.container(i, "client", clients, clientAddr(i), wire)
		if err != nil {
			return err
		}
		server, err := nw.container(i, "server", servers, serverAddr(i), wire)
		if err != nil {
			return err
		}
		nw.Pairs = append(nw.Pairs, between(i, client, server, inside))
	}
	return nil
}

// inside is the name of a container's link.
const inside = "eth0"

func (nw *Network) container(pair int, role string, host *lab.Node, addr netip.Addr, wire func(int, *lab.Node, *lab.Node, netip.Addr) error) (*lab.Node, error) {
	c, err := nw.containerNode(role, pair)
	if err != nil {
		return nil, err
	}
	return c, wire(pair, host, c, addr)
}

// place makes a link of a host directly inside a container, and gives it its
// address.
func place(host, container *lab.Node, spec link.Spec, addr netip.Addr) error {
	if _, err := link.Create(host.NS, spec, link.Target{NS: container.NS}); err != nil {
		return err
	}
	return container.Address(inside, inNet(addr))
}

// route adds a route on a node; an invalid prefix is the default route.
func route(n *lab.Node, to netip.Prefix, via netip.Addr, device string) error {
	h, err := link.Handle(n.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	r := &netlink.Route{}
	if to.IsValid() {
		r.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}
	}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	}
	if device != "" {
		l, err := h.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find link %q on %s: %w", device, n, err)
		}
		r.LinkIndex = l.Attrs().Index
	}
	if err := h.RouteAdd(r); err != nil {
		return fmt.Errorf("add route to %s on %s: %w", to, n, err)
	}
	return nil
}
