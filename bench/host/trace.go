package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	terminal "cleat/internal/columns"
	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Path is the way of packets from one network namespace to another.
type Path struct {
	From        string     `json:"from"`
	To          string     `json:"to"`
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	Complete    bool       `json:"complete"`  // the hops reach the destination
	MTU         int        `json:"mtu_bytes"` // the largest IP packet that fits every hop
	Hops        []Hop      `json:"hops"`
	Back        []string   `json:"back,omitempty"` // the links of the way back, "namespace/link"
	Symmetric   bool       `json:"symmetric"`      // the way back uses the same links
	Warnings    []string   `json:"warnings,omitempty"`
}

// Hop is one link that the packets pass.
type Hop struct {
	Namespace  string   `json:"namespace"`
	Link       string   `json:"link"`
	Kind       string   `json:"kind"`
	Way        string   `json:"way"` // "out" of the namespace's stack or bridge, "in", or "through" a bridge
	MTU        int      `json:"mtu_bytes"`
	Overhead   int      `json:"overhead_bytes,omitempty"` // of the tunnels that the packets are in at this hop
	Smallest   bool     `json:"smallest,omitempty"`       // this hop limits the path
	Up         bool     `json:"up"`
	Qdisc      string   `json:"qdisc,omitempty"`
	QdiscDrops uint32   `json:"qdisc_drops,omitempty"`
	Offloads   string   `json:"offloads,omitempty"`
	SpeedMbit  int      `json:"speed_mbit,omitempty"` // nominal
	Counters   Counters `json:"counters"`
	Detail     string   `json:"detail,omitempty"` // why the packet is here
	Filters    []Filter `json:"filters,omitempty"`

	id     linkID
	routed bool // an IP stack sent the packet here, and believes in this MTU
}

// ErrNoAddress says that the destination has no address to trace to.
var ErrNoAddress = errors.New("no address to reach it by")

// Trace finds the way from a to b: the route in a, the link it leaves by, where
// that link comes out, and so on, with the firewall rules on the way that could
// match. It reads only. A way that can't be followed to the end is no error:
// Path.Complete is false and Path.Warnings say where it ended. It needs the
// privilege to enter the namespaces.
func Trace(ctx context.Context, a, b *netns.NS) (Path, error) {
	spaces, done, err := known(a, b)
	if err != nil {
		return Path{}, err
	}
	defer done()
	if err := ctx.Err(); err != nil {
		return Path{}, err
	}
	from, to := spaces[0], spaces[0]
	if len(spaces) > 1 && !sameSpace(a, b) {
		to = spaces[1]
	}
	t, rules := &tracer{spaces: spaces}, mostRules
	for _, s := range spaces {
		s.rules.left = &rules
	}
	dst, err := t.reachable(from, to)
	if err != nil {
		return Path{}, err
	}
	p := t.path(from, to, dst)
	p.From, p.To = a.String(), b.String()
	for _, s := range spaces {
		if slices.ContainsFunc(p.Hops, func(h Hop) bool { return h.id.space == s.id }) {
			p.Warnings = append(p.Warnings, s.notes...)
		}
	}
	return p, nil
}

func sameSpace(a, b *netns.NS) bool {
	x, err1 := a.ID()
	y, err2 := b.ID()
	return err1 == nil && err2 == nil && x == y
}

// tracer walks over what was read.
type tracer struct {
	spaces []*space
	target *space
	seen   map[string]bool
	warn   []string
	visits int // of links, in vain or not
}

// mostVisits is how many links are visited on one way. Through bridges that are joined many
// times over there are more ways than can be tried, and namespaces are others' to wire.
const mostVisits = 5000 // a bridge has up to 1023 ports

// linkID names a link of the whole machine.
type linkID struct {
	space uint64
	index int
}

// frame is a packet on its way, with the tunnels it is in.
type frame struct {
	src, dst netip.Addr
	mac      net.HardwareAddr // where the frame goes; nil: not known
	vlan     int
	outer    []tunnel // innermost first
}

// tunnel is one layer around a packet.
type tunnel struct {
	link     netlink.Link // the device that wrapped it
	inner    frame
	overhead int
}

func (f frame) overhead() int {
	n := 0
	for _, t := range f.outer {
		n += t.overhead
	}
	return n
}

// reachable picks the address of to that from would use: one on a link of its
// own before one behind a router, IPv4 before IPv6.
func (t *tracer) reachable(from, to *space) (netip.Addr, error) {
	var best netip.Addr
	bestCost := 100
	for ip := range to.addrs {
		if ip.IsLoopback() && from != to {
			continue
		}
		r, err := from.route(ip, netip.Addr{}, 0)
		if err != nil || from != to && r.Type == unix.RTN_LOCAL {
			continue
		}
		cost := 0
		if r.Gw != nil {
			cost += 4
		}
		if ip.Is6() {
			cost += 2
		}
		if ip.IsLoopback() {
			cost++
		}
		if cost < bestCost || cost == bestCost && ip.Less(best) {
			best, bestCost = ip, cost
		}
	}
	if !best.IsValid() {
		return best, fmt.Errorf("find the way from %s to %s: %w", from.label, to.label, ErrNoAddress)
	}
	return best, nil
}

// path walks there and back.
func (t *tracer) path(from, to *space, dst netip.Addr) Path {
	t.target, t.seen, t.warn, t.visits = to, map[string]bool{}, nil, 0
	p := Path{Destination: dst}
	if r, err := from.route(dst, netip.Addr{}, 0); err == nil {
		src, _ := netip.AddrFromSlice(r.Src)
		p.Source = src.Unmap()
	}
	p.Hops, p.Complete = t.originate(from, frame{src: p.Source, dst: dst})
	p.Warnings = t.warn
	p.mtu()
	p.Warnings = append(append(p.Warnings, silentDrops(p.Hops)...), blockers(p.Hops)...)
	if p.Complete && p.Source.IsValid() {
		t.back(&p, from, to)
	}
	return p
}

// back walks the other way and checks that answers arrive, and by the links
// that strict reverse path filters expect.
func (t *tracer) back(p *Path, from, to *space) {
	t.target, t.seen, t.warn, t.visits = from, map[string]bool{}, nil, 0
	hops, complete := t.originate(to, frame{src: p.Destination, dst: p.Source})
	for _, h := range hops {
		p.Back = append(p.Back, h.Namespace+"/"+h.Link)
	}
	p.Symmetric = complete && sameLinks(p.Hops, hops)
	switch {
	case !complete:
		p.Warnings = append(p.Warnings, fmt.Sprintf("answers from %s to %s do not arrive: %s", p.Destination, p.Source, strings.Join(t.warn, "; ")))
	case !p.Symmetric:
		p.Warnings = append(p.Warnings, "answers take other links: "+strings.Join(p.Back, ", "))
	}
}

func sameLinks(there, back []Hop) bool {
	set := func(hops []Hop) map[linkID]bool {
		m := map[linkID]bool{}
		for _, h := range hops {
			m[h.id] = true
		}
		return m
	}
	a, b := set(there), set(back)
	for id := range a {
		if !b[id] {
			return false
		}
	}
	return len(a) == len(b)
}

// originate sends a packet from a namespace's own stack.
func (t *tracer) originate(s *space, f frame) ([]Hop, bool) {
	r, err := s.route(f.dst, f.src, 0)
	if err != nil {
		return t.dead(nil, "%s has no route to %s: %v", s.label, f.dst, err)
	}
	if r.Type == unix.RTN_LOCAL {
		i := s.ifaces[r.LinkIndex]
		out := packet{src: f.src, dst: f.dst, out: i.Name, outIndex: i.Index}
		in := packet{src: f.src, dst: f.dst, in: i.Name, inIndex: i.Index}
		hop := s.hop(r.LinkIndex, "out", "the address is the namespace's own", f)
		hop.Filters = append(s.rules.filters(out, hookOutput, hookPostrouting), s.rules.filters(in, hookPrerouting, hookInput)...)
		if s == t.target && len(f.outer) == 0 {
			return []Hop{hop}, true
		}
		return t.then([]Hop{hop}, t.decapsulate(s, f))
	}
	return t.send(s, r, f, 0, hookOutput, hookPostrouting)
}

// send hands a routed packet to the link that the route names. in is the link
// it came by, 0 for the namespace's own packets.
func (t *tracer) send(s *space, r netlink.Route, f frame, in int, hooks ...hook) ([]Hop, bool) {
	next := f.dst
	why := "route to " + f.dst.String() + ": on the link"
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		next = gw.Unmap()
		why = "route to " + f.dst.String() + ": via " + next.String()
	}
	if r.MTU > 0 {
		why += fmt.Sprintf(" (route mtu %d)", r.MTU)
	}
	f.mac = s.neighbour(r.LinkIndex, next)
	if f.mac == nil {
		f.mac = t.macOf(next)
	}
	pkt := packet{src: f.src, dst: f.dst, in: s.ifaces[in].Name, inIndex: in, out: s.ifaces[r.LinkIndex].Name, outIndex: r.LinkIndex}
	hops, ok := t.transmit(s, r.LinkIndex, f, why, s.rules.filters(pkt, hooks...))
	if len(hops) > 0 {
		hops[0].routed = true
	}
	return hops, ok
}

// macOf looks for the link that has an address, among all namespaces.
func (t *tracer) macOf(ip netip.Addr) net.HardwareAddr {
	for _, s := range t.spaces {
		if index, ok := s.addrs[ip]; ok && !ip.IsLoopback() {
			return s.links[index].Attrs().HardwareAddr
		}
	}
	return nil
}

// transmit passes a frame down into a link and finds where it comes out.
func (t *tracer) transmit(s *space, index int, f frame, why string, filters []Filter) ([]Hop, bool) {
	l := s.links[index]
	if l == nil {
		return t.dead(nil, "%s: link %d is gone", s.label, index)
	}
	hop := s.hop(index, "out", why, f)
	hop.Filters = filters
	hops := []Hop{hop}
	if why := t.enter(s, index, "out", f); why != "" {
		return t.dead(hops, "%s/%s: %s", s.label, hop.Link, why)
	}
	if !hop.Up {
		t.note("%s/%s is down", s.label, hop.Link)
	}
	switch l := l.(type) {
	case *netlink.Veth, *netlink.Netkit:
		peer, ok := t.peer(s, l)
		if !ok {
			return t.dead(hops, "%s/%s: its peer is in a namespace that can't be seen from here", s.label, hop.Link)
		}
		return t.then(hops, func() ([]Hop, bool) { return t.receive(peer, l.Attrs().ParentIndex, f, "peer of "+hop.Link) })
	case *netlink.Bridge:
		return t.then(hops, func() ([]Hop, bool) { return t.bridge(s, index, 0, f) })
	case *netlink.Vlan:
		inner := f
		inner.vlan = l.VlanId
		return t.down(s, l, hops, inner, fmt.Sprintf("carries VLAN %d of %s", l.VlanId, hop.Link))
	case *netlink.Macvlan:
		return t.macvlan(s, l, hops, f)
	case *netlink.IPVlan:
		return t.ipvlan(s, l, hops, f)
	case *netlink.Tuntap:
		return t.dead(hops, "%s/%s: a program reads the packets here; the way goes on inside of it", s.label, hop.Link)
	case *netlink.Device:
		return t.dead(hops, "%s/%s: packets leave this machine here", s.label, hop.Link)
	}
	if ports := s.ports(index); l.Type() == "bond" && len(ports) > 0 {
		return t.then(hops, func() ([]Hop, bool) {
			return t.transmit(s, ports[0], f, fmt.Sprintf("one of %d links in %s", len(ports), hop.Link), nil)
		})
	}
	if remote, ok := t.remote(s, l, f); ok {
		return t.encapsulate(s, l, remote, hops, f)
	}
	return t.dead(hops, "%s/%s: links of kind %q can't be followed", s.label, hop.Link, l.Type())
}

// down passes a frame on to the link's parent.
func (t *tracer) down(s *space, l netlink.Link, hops []Hop, f frame, why string) ([]Hop, bool) {
	parent, ok := t.peer(s, l)
	if !ok {
		return t.dead(hops, "%s/%s: its parent is in a namespace that can't be seen from here", s.label, l.Attrs().Name)
	}
	return t.then(hops, func() ([]Hop, bool) { return t.transmit(parent, l.Attrs().ParentIndex, f, why, nil) })
}

// macvlan switches between the devices of one parent, or goes down to it.
func (t *tracer) macvlan(s *space, l *netlink.Macvlan, hops []Hop, f frame) ([]Hop, bool) {
	parent, ok := t.peer(s, l)
	if ok && l.Mode == netlink.MACVLAN_MODE_BRIDGE {
		for _, o := range t.children(parent, l.ParentIndex) {
			m, isMacvlan := o.link.(*netlink.Macvlan)
			if isMacvlan && m.Mode == netlink.MACVLAN_MODE_BRIDGE && sameMAC(m.HardwareAddr, f.mac) && o.id() != (linkID{s.id, l.Index}) {
				why := fmt.Sprintf("switched inside parent %s/%s", parent.label, parent.ifaces[l.ParentIndex].Name)
				return t.then(hops, func() ([]Hop, bool) { return t.receive(o.space, m.Index, f, why) })
			}
		}
	}
	return t.down(s, l, hops, f, "parent of "+l.Name)
}

// ipvlan delivers by IP address between the devices of one parent.
func (t *tracer) ipvlan(s *space, l *netlink.IPVlan, hops []Hop, f frame) ([]Hop, bool) {
	if parent, ok := t.peer(s, l); ok {
		for _, o := range t.children(parent, l.ParentIndex) {
			if _, isIPvlan := o.link.(*netlink.IPVlan); isIPvlan && o.space.addrs[f.dst] == o.link.Attrs().Index {
				why := fmt.Sprintf("found by its address inside parent %s/%s", parent.label, parent.ifaces[l.ParentIndex].Name)
				return t.then(hops, func() ([]Hop, bool) { return t.receive(o.space, o.link.Attrs().Index, f, why) })
			}
		}
	}
	return t.down(s, l, hops, f, "parent of "+l.Name)
}

// receive takes a frame that came out of a link.
func (t *tracer) receive(s *space, index int, f frame, why string) ([]Hop, bool) {
	l := s.links[index]
	if l == nil {
		return t.dead(nil, "%s: link %d is gone", s.label, index)
	}
	hops := []Hop{s.hop(index, "in", why, f)}
	if why := t.enter(s, index, "in", f); why != "" {
		return t.dead(hops, "%s/%s: %s", s.label, l.Attrs().Name, why)
	}
	if !hops[0].Up {
		t.note("%s/%s is down", s.label, l.Attrs().Name)
	}
	if m := s.links[l.Attrs().MasterIndex]; m != nil {
		switch m.Type() {
		case "bridge":
			return t.then(hops, func() ([]Hop, bool) { return t.bridge(s, m.Attrs().Index, index, f) })
		case "bond", "team":
			return t.then(hops, func() ([]Hop, bool) { return t.receive(s, m.Attrs().Index, f, "bonds "+l.Attrs().Name) })
		case "openvswitch":
			return t.dead(hops, "%s/%s: the flows of an Open vSwitch decide here (ovs-appctl ofproto/trace shows how)", s.label, l.Attrs().Name)
		}
	}
	for _, c := range t.children(s, index) {
		if c.takes(f) {
			inner := f
			inner.vlan = 0
			return t.then(hops, func() ([]Hop, bool) {
				return t.receive(c.space, c.link.Attrs().Index, inner, "sits on "+l.Attrs().Name)
			})
		}
	}
	if f.vlan != 0 {
		return t.dead(hops, "%s/%s: nothing here takes VLAN %d", s.label, l.Attrs().Name, f.vlan)
	}
	return t.stack(s, index, hops, f)
}

// stack takes a packet up into the namespace's IP stack.
func (t *tracer) stack(s *space, index int, hops []Hop, f frame) ([]Hop, bool) {
	last := &hops[len(hops)-1]
	pkt := packet{src: f.src, dst: f.dst, in: s.ifaces[index].Name, inIndex: index}
	t.reverse(s, index, f)
	if _, local := s.addrs[f.dst]; local {
		last.Filters = append(last.Filters, s.rules.filters(pkt, hookPrerouting, hookInput)...)
		switch {
		case len(f.outer) > 0:
			return t.then(hops, t.decapsulate(s, f))
		case s == t.target:
			return hops, true
		}
		return t.dead(hops, "%s has the address %s too", s.label, f.dst)
	}
	last.Filters = append(last.Filters, s.rules.filters(pkt, hookPrerouting)...)
	if !s.forwards(f.dst) {
		return t.dead(hops, "%s does not forward: sysctl net.ipv4.ip_forward (or net.ipv6.conf.all.forwarding) is 0", s.label)
	}
	r, err := s.route(f.dst, f.src, index)
	if err != nil {
		return t.dead(hops, "%s has no route from %s to %s: %v", s.label, f.src, f.dst, err)
	}
	return t.then(hops, func() ([]Hop, bool) { return t.send(s, r, f, index, hookForward, hookPostrouting) })
}

// reverse warns when the answer to a packet that came by a link would leave by
// another, and a strict filter is set there (RFC 3704 section 2.2).
func (t *tracer) reverse(s *space, index int, f frame) {
	i := s.ifaces[index]
	mode := max(i.RPFilter, s.sysctls["net.ipv4.conf.all.rp_filter"]) // "0" < "1" < "2"
	if !f.src.Is4() || mode == "" || mode == "0" {
		return
	}
	r, err := s.route(f.src, netip.Addr{}, 0)
	switch {
	case err != nil:
		t.note("%s/%s: reverse path filtering drops packets from %s: there is no route back", s.label, i.Name, f.src)
	case mode == "1" && r.LinkIndex != index:
		t.note("%s/%s: strict reverse path filtering drops packets from %s: the way back is %s (sysctl %s allows it)",
			s.label, i.Name, f.src, s.ifaces[r.LinkIndex].Name, terminal.Word("net.ipv4.conf."+i.Name+".rp_filter=2"))
	}
}

// bridge switches a frame. in is the port it came by, 0 when the bridge's own
// namespace sends. A frame whose port is not known is flooded: every port is
// tried.
func (t *tracer) bridge(s *space, index, in int, f frame) ([]Hop, bool) {
	var hops []Hop
	port, local := s.forwardingPort(index, f.mac)
	if in != 0 {
		hop := s.hop(index, "through", "", f)
		if s.bridgeNetfilter(f.dst) {
			hop.Detail = "bridge netfilter is on: rules for routed packets apply"
		}
		hops = append(hops, hop)
		if local {
			last := &hops[len(hops)-1]
			last.Filters = s.rules.filters(packet{src: f.src, dst: f.dst, in: s.ifaces[in].Name, inIndex: in, mac: f.mac}, hookPrerouting.inBridge(), hookInput.inBridge())
			return t.stack(s, index, hops, f)
		}
	}
	candidates, why := []int{port}, "the bridge has learned this port"
	if port == 0 {
		candidates, why = s.ports(index), "not learned yet: flooded to every port"
	}
	for _, p := range candidates {
		if p == in {
			continue
		}
		if t.visits > mostVisits {
			return t.dead(hops, "%s/%s: %s", s.label, s.ifaces[index].Name, tooManyWays)
		}
		seen, warned := cloneSet(t.seen), len(t.warn)
		filters := s.bridgeFilters(index, in, p, f)
		rest, ok := t.transmit(s, p, f, why, filters)
		if ok || port != 0 {
			return append(hops, rest...), ok
		}
		t.seen, t.warn = seen, t.warn[:warned]
	}
	return t.dead(hops, "%s/%s: no port leads to %s", s.label, s.ifaces[index].Name, f.dst)
}

// bridgeFilters are the chains a frame passes between two ports: those of family
// bridge, and with bridge netfilter on also those for routed packets, which see
// the bridge as the device (net/bridge/br_netfilter_hooks.c).
func (s *space) bridgeFilters(bridge, in, out int, f frame) []Filter {
	pkt := packet{src: f.src, dst: f.dst, in: s.ifaces[in].Name, inIndex: in, out: s.ifaces[out].Name, outIndex: out, mac: f.mac}
	hooks := []hook{hookPrerouting, hookForward, hookPostrouting}
	if in == 0 {
		hooks = []hook{hookOutput, hookPostrouting}
	}
	var filters []Filter
	for _, h := range hooks {
		filters = append(filters, s.rules.filters(pkt, h.inBridge())...)
	}
	if in != 0 && s.bridgeNetfilter(f.dst) {
		pkt.in, pkt.inIndex = s.ifaces[bridge].Name, bridge
		pkt.out, pkt.outIndex = s.ifaces[bridge].Name, bridge
		for _, h := range hooks {
			filters = append(filters, s.rules.filters(pkt, h)...)
		}
	}
	return filters
}

// hop describes a link as a step of the way.
func (s *space) hop(index int, way, why string, f frame) Hop {
	i := s.ifaces[index]
	return Hop{Namespace: s.label, Link: i.Name, Kind: i.Kind, Way: way, MTU: i.MTU, Overhead: f.overhead(), Up: i.Up,
		Qdisc: i.Qdisc, QdiscDrops: s.drops[index], Offloads: i.offloadSummary(), SpeedMbit: i.SpeedMbit, Counters: i.Counters,
		Detail: why, id: linkID{s.id, index}}
}

// then appends what next finds.
func (t *tracer) then(hops []Hop, next func() ([]Hop, bool)) ([]Hop, bool) {
	rest, ok := next()
	return append(hops, rest...), ok
}

// dead ends the way, with the reason.
func (t *tracer) dead(hops []Hop, format string, args ...any) ([]Hop, bool) {
	t.note(format, args...)
	return hops, false
}

func (t *tracer) note(format string, args ...any) {
	if w := fmt.Sprintf(format, args...); !slices.Contains(t.warn, w) {
		t.warn = append(t.warn, w)
	}
}

// enter notes that a packet was here, and returns why it goes no further, "" if it does.
func (t *tracer) enter(s *space, index int, way string, f frame) string {
	key := fmt.Sprint(s.id, index, way, len(f.outer), f.dst, f.vlan)
	t.visits++
	switch {
	case t.seen[key]:
		return "packets go round in a loop"
	case t.visits > mostVisits:
		return tooManyWays
	}
	t.seen[key] = true
	return ""
}

const tooManyWays = "too many ways lead on from here to follow them all"

func cloneSet(m map[string]bool) map[string]bool {
	out := make(map[string]bool, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func sameMAC(a, b net.HardwareAddr) bool { return len(a) > 0 && a.String() == b.String() }
