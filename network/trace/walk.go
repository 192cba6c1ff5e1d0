package trace

import (
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
	next     netip.Addr       // next hop on the link: dst or a router
	mac      net.HardwareAddr // of next; nil if it is not known
	learned  bool             // mac is what the sender's kernel has for next, not our guess
	vlan     int
	outer    []tunnel // innermost first
}

// tunnel is one layer around a packet.
type tunnel struct {
	device   device // that wrapped it
	inner    frame
	overhead int // bytes
}

// at returns the link that an end refers to. ok is false if its namespace was not read.
func (w *walk) at(e *survey.End) (d device, ok bool) {
	if e == nil {
		return d, false
	}
	i := slices.IndexFunc(w.namespaces, func(n *namespace) bool { return n.ID == e.NamespaceID })
	if i < 0 {
		return d, false
	}
	return w.namespaces[i].device(e.Index), true
}

// originate sends a packet from a namespace's own stack.
func (w *walk) originate(n *namespace, f frame) bool {
	r, err := n.route(f.dst, f.src, 0)
	if err != nil {
		return w.stop("%s has no route to %s: %v", n.Label, f.dst, err)
	}
	out := n.device(r.LinkIndex)
	if r.Type != unix.RTN_LOCAL {
		return w.send(r, f, n.device(0), out, hookOutput, hookPostrouting)
	}
	if !w.visit(out, "out", "the address is the namespace's own", f) {
		return false
	}
	w.filter(f, n.device(0), out, hookOutput, hookPostrouting)
	w.filter(f, out, n.device(0), hookPrerouting, hookInput)
	return w.deliver(n, f)
}

// send hands a routed packet to the link that the route names. in is the link that it came by.
func (w *walk) send(r netlink.Route, f frame, in, out device, hooks ...hook) bool {
	f.next = f.dst
	why := fmt.Sprintf("route to %s: on the link", f.dst)
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		f.next = gw.Unmap()
		why = fmt.Sprintf("route to %s: via %s", f.dst, f.next)
	}
	if r.MTU > 0 {
		why += fmt.Sprintf(" (route mtu %d)", r.MTU)
	}
	f.mac = out.namespace.neighbour(r.LinkIndex, f.next)
	f.learned = f.mac != nil
	if !f.learned {
		f.mac = w.macOf(f.next)
	}
	if !w.visit(out, "out", why, f) {
		return false
	}
	w.hops[len(w.hops)-1].routed = true
	w.filter(f, in, out, hooks...)
	for _, c := range w.children(out) {
		if c.takes(f) && (c.link.Kind == "macvlan" || c.link.Kind == "ipvlan" && f.next == f.dst) {
			return w.stop("%s", parentBarrier(out, c))
		}
	}
	return w.forward(out, f)
}

// parentBarrier says why packets between a link and a macvlan or ipvlan device on it get lost:
// what the parent's stack sends leaves by the wire, past its devices, and what a macvlan device
// sends to its parent's address does, too (macvlan_queue_xmit, drivers/net/macvlan.c). A switch
// does not send a frame back by the port that it came by.
func parentBarrier(parent, child device) string {
	text := fmt.Sprintf("%s and its %s device %s can't reach each other: what one sends to the other leaves by the wire", parent, child.link.Kind, child)
	if child.link.Kind == "macvlan" {
		text += " (`cleat attach --host-shim` gives the host a macvlan device of its own beside it)"
	}
	return text
}

// macOf returns the hardware address of the link that has an IP address, in any namespace.
func (w *walk) macOf(ip netip.Addr) net.HardwareAddr {
	for _, n := range w.namespaces {
		if index, ok := n.addresses[ip]; ok && !ip.IsLoopback() {
			return n.device(index).mac()
		}
	}
	return nil
}

func (w *walk) transmit(d device, f frame, why string) bool {
	return w.visit(d, "out", why, f) && w.forward(d, f)
}

// forward finds where a frame that was passed down into a link comes out.
func (w *walk) forward(d device, f frame) bool {
	switch raw := d.raw().(type) {
	case *netlink.Veth, *netlink.Netkit:
		peer, ok := w.at(d.link.Peer)
		if !ok {
			return w.stop("%s: its peer is in a namespace that can't be seen from here", d)
		}
		return w.receive(peer, f, "peer of "+d.link.Name)
	case *netlink.Bridge:
		return w.bridge(d, d.namespace.device(0), f)
	case *netlink.Vlan:
		f.vlan = raw.VlanId
		return w.down(d, f, fmt.Sprintf("carries VLAN %d of %s", raw.VlanId, d.link.Name))
	case *netlink.Macvlan, *netlink.IPVlan:
		return w.stacked(d, f)
	case *netlink.Tuntap:
		return w.stop("%s: a program reads the packets here, and the way goes on inside it", d)
	case *netlink.Device:
		return w.stop("%s: packets leave this machine here", d)
	}
	if ports := d.ports(); d.link.Kind == "bond" && len(ports) > 0 {
		return w.transmit(ports[0], f, fmt.Sprintf("one of %d links in %s", len(ports), d.link.Name))
	}
	if remote, ok := w.remote(d, f); ok {
		return w.encapsulate(d, remote, f)
	}
	return w.stop("%s: links of kind %q can't be followed", d, d.link.Kind)
}

func (w *walk) down(d device, f frame, why string) bool {
	parent, ok := w.at(d.link.Parent)
	if !ok {
		return w.stop("%s: its parent is in a namespace that can't be seen from here", d)
	}
	return w.transmit(parent, f, why)
}

// stacked switches a frame between the macvlan devices in mode bridge, or the ipvlan devices, of
// one parent. What is for none of them goes down to the parent.
func (w *walk) stacked(d device, f frame) bool {
	parent, _ := w.at(d.link.Parent)
	for _, c := range w.children(parent) {
		switch {
		case c.link.Kind != d.link.Kind || c.id() == d.id():
		case d.link.Kind == "ipvlan" && c.takes(f):
			return w.receive(c, f, "found by its address inside parent "+parent.String())
		case d.inBridgeMode() && c.inBridgeMode() && (c.takes(f) || c.claims(f)):
			return w.receive(c, f, "switched inside parent "+parent.String())
		}
	}
	if d.link.Kind == "macvlan" && sameMAC(parent.mac(), f.mac) {
		return w.stop("%s", parentBarrier(parent, d))
	}
	return w.down(d, f, "parent of "+d.link.Name)
}

// receive takes a frame that came out of a link.
func (w *walk) receive(d device, f frame, why string) bool {
	if !w.visit(d, "in", why, f) {
		return false
	}
	switch master := d.namespace.device(d.link.Master); master.link.Kind {
	case "bridge":
		return w.bridge(master, d, f)
	case "bond", "team":
		return w.receive(master, f, "bonds "+d.link.Name)
	case "openvswitch":
		return w.stop("%s: the flows of Open vSwitch decide here (`ovs-appctl ofproto/trace` shows how)", d)
	}
	for _, c := range w.children(d) {
		if c.takes(f) {
			f.vlan = 0
			return w.receive(c, f, "sits on "+d.link.Name)
		}
	}
	if f.vlan != 0 {
		return w.stop("%s: nothing here takes VLAN %d", d, f.vlan)
	}
	return w.stack(d, f)
}

// stack takes a packet up from a link into the namespace's IP stack.
func (w *walk) stack(d device, f frame) bool {
	n := d.namespace
	w.checkReversePath(d, f)
	if _, local := n.addresses[f.dst]; local {
		w.filter(f, d, n.device(0), hookPrerouting, hookInput)
		return w.deliver(n, f)
	}
	w.filter(f, d, n.device(0), hookPrerouting)
	if !n.on(f.dst, "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding") {
		return w.stop("%s does not forward: sysctl net.ipv4.ip_forward (or net.ipv6.conf.all.forwarding) is 0", n.Label)
	}
	r, err := n.route(f.dst, f.src, d.link.Index)
	if err != nil {
		return w.stop("%s has no route from %s to %s: %v", n.Label, f.src, f.dst, err)
	}
	return w.send(r, f, d, n.device(r.LinkIndex), hookForward, hookPostrouting)
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
func (w *walk) checkReversePath(d device, f frame) {
	n := d.namespace
	mode := max(n.sysctls[rpFilter(d.link.Name)], n.sysctls["net.ipv4.conf.all.rp_filter"]) // "0" < "1" < "2"
	if !f.src.Is4() || mode == "" || mode == "0" {
		return
	}
	r, err := n.route(f.src, netip.Addr{}, 0)
	switch {
	case err != nil:
		w.warn("%s: reverse path filtering drops packets from %s: there is no route back", d, f.src)
	case mode == "1" && r.LinkIndex != d.link.Index:
		w.warn("%s: strict reverse path filtering drops packets from %s: the way back is %s (sysctl %s allows it)",
			d, f.src, n.device(r.LinkIndex).link.Name, columns.Word(rpFilter(d.link.Name)+"=2"))
	}
}

// bridge switches a frame. in is the port that it came by, or no link if the bridge's own
// namespace sends it. A frame whose port is not known is flooded: every port is tried.
func (w *walk) bridge(d, in device, f frame) bool {
	port, local := d.forwardingPort(f.mac)
	if in.link.Index != 0 {
		why := ""
		if d.namespace.bridgeNetfilter(f.dst) {
			why = "bridge netfilter is on: rules for routed packets apply"
		}
		w.pass(d, "through", why, f)
		if local {
			w.filter(f, in, d.namespace.device(0), hookPrerouting.inBridge(), hookInput.inBridge())
			return w.stack(d, f)
		}
	}
	if port != 0 && port != in.link.Index {
		return w.leave(d, in, d.namespace.device(port), f, "the bridge has learned this port")
	}
	if port == 0 {
		for _, p := range d.ports() {
			if p.link.Index == in.link.Index {
				continue
			}
			if w.visits > maxVisits {
				return w.stop("%s: %s", d, tooManyWays)
			}
			visited, hops, warnings := maps.Clone(w.visited), len(w.hops), len(w.warnings)
			if w.leave(d, in, p, f, "not learned yet: flooded to every port") {
				return true
			}
			w.visited, w.hops, w.warnings = visited, w.hops[:hops], w.warnings[:warnings]
		}
	}
	return w.stop("%s: no port leads to %s", d, f.dst)
}

// leave sends a frame out of a bridge's port, through the rules of family bridge, and with
// bridge netfilter on also those for routed packets, which take the bridge for the device
// (net/bridge/br_netfilter_hooks.c).
func (w *walk) leave(bridge, in, port device, f frame, why string) bool {
	if !w.visit(port, "out", why, f) {
		return false
	}
	hooks := []hook{hookPrerouting, hookForward, hookPostrouting}
	if in.link.Index == 0 {
		hooks = []hook{hookOutput, hookPostrouting}
	}
	for _, h := range hooks {
		w.filter(f, in, port, h.inBridge())
	}
	if in.link.Index != 0 && bridge.namespace.bridgeNetfilter(f.dst) {
		w.filter(f, bridge, bridge, hooks...)
	}
	return w.forward(port, f)
}

// filter adds to the last hop the chains that a frame passes at the hooks. It comes by in and
// leaves by out, two links of one namespace. Either may be no link.
func (w *walk) filter(f frame, in, out device, hooks ...hook) {
	pkt := packet{src: f.src, dst: f.dst, mac: f.mac, in: in.link.Name, inIndex: in.link.Index, out: out.link.Name, outIndex: out.link.Index}
	last := &w.hops[len(w.hops)-1]
	last.Filters = append(last.Filters, in.namespace.rules.filters(pkt, &w.rules, hooks...)...)
}

func (w *walk) pass(d device, way, why string, f frame) {
	l := d.link
	h := Hop{Namespace: d.namespace.Label, Link: l.Name, Kind: l.Kind, Way: way, MTU: l.MTU, Up: l.Up,
		Qdisc: l.Qdisc, QdiscDrops: l.QdiscDrops, Counters: l.Counters, Detail: why, id: d.id()}
	for _, t := range f.outer {
		h.Overhead += t.overhead
	}
	w.hops = append(w.hops, h)
}

// visit adds a link to the hops, and reports whether the packet goes on from there.
func (w *walk) visit(d device, way, why string, f frame) bool {
	if d.link.Name == "" {
		return w.stop("%s: a link of the path is gone", d.namespace.Label)
	}
	w.pass(d, way, why, f)
	p := passage{d.id(), way, len(f.outer), f.dst, f.vlan}
	w.visits++
	switch {
	case w.visited[p]:
		return w.stop("%s: packets go round in a loop", d)
	case w.visits > maxVisits:
		return w.stop("%s: %s", d, tooManyWays)
	}
	w.visited[p] = true
	if !d.link.Up {
		w.warn("%s is down", d)
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

func (w *walk) children(parent device) []device {
	var out []device
	for _, n := range w.namespaces {
		for _, l := range n.Links {
			if l.Parent == nil || parent.namespace == nil || (linkID{l.Parent.NamespaceID, l.Parent.Index}) != parent.id() {
				continue
			}
			switch l.Kind {
			case "vlan", "macvlan", "ipvlan":
				out = append(out, device{n, l})
			}
		}
	}
	return out
}
