package trace

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"cleat/internal/columns"
	"cleat/network/survey"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// walk follows one packet from link to link. Its methods report whether the packet reaches the
// target; where it does not, the last warning says why.
type walk struct {
	namespaces []*namespace
	target     *namespace
	hops       []Hop
	warnings   []string
	visited    map[passage]bool
	visits     int // of links, those of dead ends included
	rules      int // how many firewall rules may still be examined
}

func newWalk(namespaces []*namespace, target *namespace) *walk {
	return &walk{namespaces: namespaces, target: target, visited: map[passage]bool{}, rules: maxRules}
}

// maxVisits bounds the links that are visited on one walk. Through bridges that are joined many
// times over there are more ways than can be tried, and others wire their namespaces as they
// like.
const maxVisits = 5000 // a bridge has up to 1023 ports

const tooManyWays = "too many ways lead on from here to follow them all"

// linkID identifies a link of the machine.
type linkID struct {
	namespace uint64
	index     int
}

// passage is a packet's passing of a link. The same packet passes twice only in a loop.
type passage struct {
	link  linkID
	way   string
	depth int // of tunnels
	dst   netip.Addr
	vlan  int
}

// frame is a packet on its way, with the tunnels that it is in.
type frame struct {
	src, dst netip.Addr
	next     netip.Addr       // who takes the frame on the link: dst or a router
	mac      net.HardwareAddr // of next; nil if it is not known
	learned  bool             // mac is what the sender's kernel has for next, not our guess
	vlan     int
	outer    []tunnel // innermost first
}

// tunnel is one layer around a packet.
type tunnel struct {
	link     netlink.Link // the device that wrapped it
	inner    frame
	overhead int // bytes
}

func (f frame) overhead() int {
	n := 0
	for _, t := range f.outer {
		n += t.overhead
	}
	return n
}

// at returns the namespace that an end of a link is in, nil if it was not read.
func (w *walk) at(e *survey.End) *namespace {
	if e == nil {
		return nil
	}
	i := slices.IndexFunc(w.namespaces, func(n *namespace) bool { return n.ID == e.NamespaceID })
	if i < 0 {
		return nil
	}
	return w.namespaces[i]
}

// originate sends a packet from a namespace's own stack.
func (w *walk) originate(n *namespace, f frame) bool {
	r, err := n.route(f.dst, f.src, 0)
	if err != nil {
		return w.stop("%s has no route to %s: %v", n.Label, f.dst, err)
	}
	if r.Type != unix.RTN_LOCAL {
		return w.send(n, r, f, 0, hookOutput, hookPostrouting)
	}
	if !w.visit(n, r.LinkIndex, "out", "the address is the namespace's own", f) {
		return false
	}
	w.filter(n, n.packet(f, 0, r.LinkIndex), hookOutput, hookPostrouting)
	w.filter(n, n.packet(f, r.LinkIndex, 0), hookPrerouting, hookInput)
	return w.deliver(n, f)
}

// send hands a routed packet to the link that the route names. in is the link that it came by,
// 0 for the namespace's own packets.
func (w *walk) send(n *namespace, r netlink.Route, f frame, in int, hooks ...hook) bool {
	f.next = f.dst
	why := fmt.Sprintf("route to %s: on the link", f.dst)
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		f.next = gw.Unmap()
		why = fmt.Sprintf("route to %s: via %s", f.dst, f.next)
	}
	if r.MTU > 0 {
		why += fmt.Sprintf(" (route mtu %d)", r.MTU)
	}
	f.mac = n.neighbour(r.LinkIndex, f.next)
	f.learned = f.mac != nil
	if !f.learned {
		f.mac = w.macOf(f.next)
	}
	if !w.visit(n, r.LinkIndex, "out", why, f) {
		return false
	}
	w.hops[len(w.hops)-1].routed = true
	w.filter(n, n.packet(f, in, r.LinkIndex), hooks...)
	for _, c := range w.children(n, r.LinkIndex) {
		if c.takes(f) && (c.link.Kind == "macvlan" || c.link.Kind == "ipvlan" && f.next == f.dst) {
			return w.stop("%s", parentBarrier(n, n.link(r.LinkIndex), c.namespace, c.link))
		}
	}
	return w.forward(n, r.LinkIndex, f)
}

// parentBarrier says why packets between a link and a macvlan or ipvlan device on it get lost:
// what the parent's stack sends leaves by the wire, past its devices, and what a macvlan device
// sends to its parent's address does, too (macvlan_queue_xmit, drivers/net/macvlan.c). A switch
// does not send a frame back by the port that it came by.
func parentBarrier(n *namespace, parent survey.Link, of *namespace, child survey.Link) string {
	text := fmt.Sprintf("%s/%s and its %s device %s/%s can't reach each other: what one sends to the other leaves by the wire",
		n.Label, parent.Name, child.Kind, of.Label, child.Name)
	if child.Kind == "macvlan" {
		text += " (`cleat attach --host-shim` gives the host a macvlan device of its own beside it)"
	}
	return text
}

// macOf returns the hardware address of the link that has an IP address, in any namespace.
func (w *walk) macOf(ip netip.Addr) net.HardwareAddr {
	for _, n := range w.namespaces {
		if index, ok := n.addresses[ip]; ok && !ip.IsLoopback() {
			return n.mac(index)
		}
	}
	return nil
}

// transmit passes a frame down into a link.
func (w *walk) transmit(n *namespace, index int, f frame, why string) bool {
	return w.visit(n, index, "out", why, f) && w.forward(n, index, f)
}

// forward finds where a frame that was passed down into a link comes out.
func (w *walk) forward(n *namespace, index int, f frame) bool {
	l := n.link(index)
	switch raw := n.raw[index].(type) {
	case *netlink.Veth, *netlink.Netkit:
		peer := w.at(l.Peer)
		if peer == nil {
			return w.stop("%s/%s: its peer is in a namespace that can't be seen from here", n.Label, l.Name)
		}
		return w.receive(peer, l.Peer.Index, f, "peer of "+l.Name)
	case *netlink.Bridge:
		return w.bridge(n, index, 0, f)
	case *netlink.Vlan:
		f.vlan = raw.VlanId
		return w.down(n, l, f, fmt.Sprintf("carries VLAN %d of %s", raw.VlanId, l.Name))
	case *netlink.Macvlan, *netlink.IPVlan:
		return w.stacked(n, l, f)
	case *netlink.Tuntap:
		return w.stop("%s/%s: a program reads the packets here, and the way goes on inside it", n.Label, l.Name)
	case *netlink.Device:
		return w.stop("%s/%s: packets leave this machine here", n.Label, l.Name)
	}
	if ports := n.ports(index); l.Kind == "bond" && len(ports) > 0 {
		return w.transmit(n, ports[0], f, fmt.Sprintf("one of %d links in %s", len(ports), l.Name))
	}
	if remote, ok := w.remote(n, index, f); ok {
		return w.encapsulate(n, l, remote, f)
	}
	return w.stop("%s/%s: links of kind %q can't be followed", n.Label, l.Name, l.Kind)
}

// down passes a frame on to the link's parent.
func (w *walk) down(n *namespace, l survey.Link, f frame, why string) bool {
	parent := w.at(l.Parent)
	if parent == nil {
		return w.stop("%s/%s: its parent is in a namespace that can't be seen from here", n.Label, l.Name)
	}
	return w.transmit(parent, l.Parent.Index, f, why)
}

// stacked switches a frame between the macvlan devices in mode bridge, or the ipvlan devices, of
// one parent. What is for none of them goes down to the parent.
func (w *walk) stacked(n *namespace, l survey.Link, f frame) bool {
	parent := w.at(l.Parent)
	if parent == nil {
		return w.down(n, l, f, "")
	}
	name := parent.Label + "/" + parent.link(l.Parent.Index).Name
	for _, c := range w.children(parent, l.Parent.Index) {
		switch {
		case c.link.Kind != l.Kind || c.id() == linkID{n.ID, l.Index}:
		case l.Kind == "ipvlan" && c.takes(f):
			return w.receive(c.namespace, c.link.Index, f, "found by its address inside parent "+name)
		case inBridgeMode(n.raw[l.Index]) && inBridgeMode(c.namespace.raw[c.link.Index]) && (c.takes(f) || c.claims(f)):
			return w.receive(c.namespace, c.link.Index, f, "switched inside parent "+name)
		}
	}
	if l.Kind == "macvlan" && sameMAC(parent.mac(l.Parent.Index), f.mac) {
		return w.stop("%s", parentBarrier(parent, parent.link(l.Parent.Index), n, l))
	}
	return w.down(n, l, f, "parent of "+l.Name)
}

func inBridgeMode(l netlink.Link) bool {
	m, ok := l.(*netlink.Macvlan)
	return ok && m.Mode == netlink.MACVLAN_MODE_BRIDGE
}

// receive takes a frame that came out of a link.
func (w *walk) receive(n *namespace, index int, f frame, why string) bool {
	if !w.visit(n, index, "in", why, f) {
		return false
	}
	l := n.link(index)
	switch master := n.link(l.Master); master.Kind {
	case "bridge":
		return w.bridge(n, l.Master, index, f)
	case "bond", "team":
		return w.receive(n, l.Master, f, "bonds "+l.Name)
	case "openvswitch":
		return w.stop("%s/%s: the flows of Open vSwitch decide here (`ovs-appctl ofproto/trace` shows how)", n.Label, l.Name)
	}
	for _, c := range w.children(n, index) {
		if c.takes(f) {
			f.vlan = 0
			return w.receive(c.namespace, c.link.Index, f, "sits on "+l.Name)
		}
	}
	if f.vlan != 0 {
		return w.stop("%s/%s: nothing here takes VLAN %d", n.Label, l.Name, f.vlan)
	}
	return w.stack(n, index, f)
}

// stack takes a packet up into the namespace's IP stack.
func (w *walk) stack(n *namespace, index int, f frame) bool {
	w.checkReversePath(n, index, f)
	pkt := n.packet(f, index, 0)
	if _, local := n.addresses[f.dst]; local {
		w.filter(n, pkt, hookPrerouting, hookInput)
		return w.deliver(n, f)
	}
	w.filter(n, pkt, hookPrerouting)
	if !n.forwards(f.dst) {
		return w.stop("%s does not forward: sysctl net.ipv4.ip_forward (or net.ipv6.conf.all.forwarding) is 0", n.Label)
	}
	r, err := n.route(f.dst, f.src, index)
	if err != nil {
		return w.stop("%s has no route from %s to %s: %v", n.Label, f.src, f.dst, err)
	}
	return w.send(n, r, f, index, hookForward, hookPostrouting)
}

// deliver gives a packet to the namespace that has its destination address.
func (w *walk) deliver(n *namespace, f frame) bool {
	switch {
	case len(f.outer) > 0:
		return w.decapsulate(n, f)
	case n == w.target:
		return true
	}
	return w.stop("%s has the address %s too", n.Label, f.dst)
}

// checkReversePath warns if a reverse path filter drops the packet that came by a link: a strict
// one does when the answer would leave by another link (RFC 3704 section 2.2).
func (w *walk) checkReversePath(n *namespace, index int, f frame) {
	l := n.link(index)
	mode := max(n.sysctls[rpFilter(l.Name)], n.sysctls["net.ipv4.conf.all.rp_filter"]) // "0" < "1" < "2"
	if !f.src.Is4() || mode == "" || mode == "0" {
		return
	}
	r, err := n.route(f.src, netip.Addr{}, 0)
	switch {
	case err != nil:
		w.warn("%s/%s: reverse path filtering drops packets from %s: there is no route back", n.Label, l.Name, f.src)
	case mode == "1" && r.LinkIndex != index:
		w.warn("%s/%s: strict reverse path filtering drops packets from %s: the way back is %s (sysctl %s allows it)",
			n.Label, l.Name, f.src, n.link(r.LinkIndex).Name, columns.Word(rpFilter(l.Name)+"=2"))
	}
}

// bridge switches a frame. in is the port that it came by, 0 if the bridge's own namespace sends
// it. A frame whose port is not known is flooded: every port is tried.
func (w *walk) bridge(n *namespace, index, in int, f frame) bool {
	port, local := n.forwardingPort(index, f.mac)
	if in != 0 {
		why := ""
		if n.bridgeNetfilter(f.dst) {
			why = "bridge netfilter is on: rules for routed packets apply"
		}
		w.pass(n, index, "through", why, f)
		if local {
			w.filter(n, n.packet(f, in, 0), hookPrerouting.inBridge(), hookInput.inBridge())
			return w.stack(n, index, f)
		}
	}
	if port != 0 && port != in {
		return w.leave(n, index, in, port, f, "the bridge has learned this port")
	}
	if port == 0 {
		for _, p := range n.ports(index) {
			if p == in {
				continue
			}
			if w.visits > maxVisits {
				return w.stop("%s/%s: %s", n.Label, n.link(index).Name, tooManyWays)
			}
			visited, hops, warnings := maps.Clone(w.visited), len(w.hops), len(w.warnings)
			if w.leave(n, index, in, p, f, "not learned yet: flooded to every port") {
				return true
			}
			w.visited, w.hops, w.warnings = visited, w.hops[:hops], w.warnings[:warnings]
		}
	}
	return w.stop("%s/%s: no port leads to %s", n.Label, n.link(index).Name, f.dst)
}

// leave sends a frame out of a bridge's port, through the rules of family bridge, and with
// bridge netfilter on also those for routed packets, which take the bridge for the device
// (net/bridge/br_netfilter_hooks.c).
func (w *walk) leave(n *namespace, bridge, in, port int, f frame, why string) bool {
	if !w.visit(n, port, "out", why, f) {
		return false
	}
	hooks := []hook{hookPrerouting, hookForward, hookPostrouting}
	if in == 0 {
		hooks = []hook{hookOutput, hookPostrouting}
	}
	for _, h := range hooks {
		w.filter(n, n.packet(f, in, port), h.inBridge())
	}
	if in != 0 && n.bridgeNetfilter(f.dst) {
		w.filter(n, n.packet(f, bridge, bridge), hooks...)
	}
	return w.forward(n, port, f)
}

// packet returns what rules can see of a frame that came by the link in and leaves by out, each
// 0 where there is none.
func (n *namespace) packet(f frame, in, out int) packet {
	return packet{src: f.src, dst: f.dst, mac: f.mac, in: n.link(in).Name, inIndex: in, out: n.link(out).Name, outIndex: out}
}

// filter adds the chains that a packet passes at the hooks to the last hop.
func (w *walk) filter(n *namespace, pkt packet, hooks ...hook) {
	last := &w.hops[len(w.hops)-1]
	last.Filters = append(last.Filters, n.rules.filters(pkt, &w.rules, hooks...)...)
}

// pass adds a link to the hops. It returns the link.
func (w *walk) pass(n *namespace, index int, way, why string, f frame) survey.Link {
	l := n.link(index)
	w.hops = append(w.hops, Hop{Namespace: n.Label, Link: l.Name, Kind: l.Kind, Way: way, MTU: l.MTU, Overhead: f.overhead(), Up: l.Up,
		Qdisc: l.Qdisc, QdiscDrops: l.QdiscDrops, Counters: l.Counters, Detail: why, id: linkID{n.ID, index}})
	return l
}

// visit adds a link to the hops, and reports whether the packet goes on from there.
func (w *walk) visit(n *namespace, index int, way, why string, f frame) bool {
	if n.ByIndex(index) == nil {
		return w.stop("%s: link %d is gone", n.Label, index)
	}
	l := w.pass(n, index, way, why, f)
	p := passage{linkID{n.ID, index}, way, len(f.outer), f.dst, f.vlan}
	w.visits++
	switch {
	case w.visited[p]:
		return w.stop("%s/%s: packets go round in a loop", n.Label, l.Name)
	case w.visits > maxVisits:
		return w.stop("%s/%s: %s", n.Label, l.Name, tooManyWays)
	}
	w.visited[p] = true
	if !l.Up {
		w.warn("%s/%s is down", n.Label, l.Name)
	}
	return true
}

// stop warns why the packet goes no further, and returns false.
func (w *walk) stop(format string, args ...any) bool {
	w.warn(format, args...)
	return false
}

func (w *walk) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.warnings, text) {
		w.warnings = append(w.warnings, text)
	}
}

func sameMAC(a, b net.HardwareAddr) bool { return len(a) > 0 && bytes.Equal(a, b) }

// child is a VLAN, macvlan or ipvlan device on another link, perhaps in another namespace.
type child struct {
	namespace *namespace
	link      survey.Link
}

func (c child) id() linkID { return linkID{c.namespace.ID, c.link.Index} }

// children returns the VLAN, macvlan and ipvlan devices on a link.
func (w *walk) children(parent *namespace, index int) []child {
	var out []child
	for _, n := range w.namespaces {
		for _, l := range n.Links {
			if l.Parent == nil || l.Parent.NamespaceID != parent.ID || l.Parent.Index != index {
				continue
			}
			switch l.Kind {
			case "vlan", "macvlan", "ipvlan":
				out = append(out, child{n, l})
			}
		}
	}
	return out
}

// takes reports whether the device takes a frame that its parent has received.
func (c child) takes(f frame) bool {
	switch raw := c.namespace.raw[c.link.Index].(type) {
	case *netlink.Vlan:
		return f.vlan == raw.VlanId
	case *netlink.Macvlan:
		return f.vlan == 0 && sameMAC(raw.HardwareAddr, f.mac)
	case *netlink.IPVlan:
		return f.vlan == 0 && c.namespace.addresses[f.dst] == raw.Index
	}
	return false
}

// claims reports whether the device's namespace would answer the sender's question for the
// frame's next hop: Linux answers ARP on any link for any of its addresses (arp_ignore 0,
// Documentation/networking/ip-sysctl.rst). So a host's macvlan device beside the containers'
// gets what is sent to the address of the host on the parent.
func (c child) claims(f frame) bool {
	_, has := c.namespace.addresses[f.next]
	return !f.learned && has
}
