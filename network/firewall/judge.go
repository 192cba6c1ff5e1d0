package firewall

import (
	"net/netip"
	"slices"
)

// judge decides about tracked connections as the table's rules decide about their first packets:
// see chains.
type judge struct {
	networks       []Network
	prefixes       map[netip.Prefix]int // index in networks
	lengths        []int                // of prefixes
	allow          []Pair
	hosts          map[netip.Addr]bool // other hosts themselves
	flows, inbound flowIndex
	ports          map[portKind][]changedPort
}

func newJudge(s State) *judge {
	j := &judge{networks: s.Networks, prefixes: map[netip.Prefix]int{}, allow: s.Allow}
	published := newSelection()
	published.add(Change{Add: State{Ports: s.Ports}})
	j.ports = published.ports
	for i, n := range s.Networks {
		for _, p := range n.Prefixes {
			j.prefixes[p.Masked()] = i
			if !slices.Contains(j.lengths, p.Bits()) {
				j.lengths = append(j.lengths, p.Bits())
			}
		}
	}
	j.hosts = map[netip.Addr]bool{}
	for _, r := range s.Remotes {
		for _, a := range r.Hosts {
			j.hosts[a] = true
		}
	}
	for i := range s.Flows {
		if s.Flows[i].Inbound {
			j.inbound.add(&s.Flows[i])
		} else {
			j.flows.add(&s.Flows[i])
		}
	}
	return j
}

// network returns the network of an address, or nil.
func (j *judge) network(a netip.Addr) *Network {
	for _, bits := range j.lengths {
		if p, err := a.Prefix(bits); err == nil {
			if i, ok := j.prefixes[p]; ok {
				return &j.networks[i]
			}
		}
	}
	return nil
}

// permits reports whether the rules permit a connection, or are not about it. local reports whether
// an address is the host's.
func (j *judge) permits(c connection, local func(netip.Addr) bool) bool {
	from, to := c.original.src, c.reply.src // after translation of the destination
	if c.status&expected != 0 || local(from) || staysOnLink(to) {
		return true
	}
	source, target := j.network(from), j.network(to)
	translated := c.status&ipsDstNAT != 0
	judged := translated && j.throughDoorway(c)
	switch {
	case source != nil && local(to):
		return source.permitsHost(to, c.reply)
	case source != nil && judged && source.Internal:
		return source.permitsHost(c.original.dst, c.original)
	case source != nil && !judged:
		return j.permitsFrom(source, target, c, translated)
	case target != nil:
		if f := j.inbound.find(from, to, c.reply); f != nil {
			return f.Accept
		}
		return translated
	}
	return true
}

// permitsFrom judges connections of endpoints that the host forwards.
func (j *judge) permitsFrom(source, target *Network, c connection, translated bool) bool {
	from, to := c.original.src, c.reply.src
	if j.hosts[from] && (target == source || j.allowed(from, to)) {
		return true
	}
	if f := j.flows.find(from, to, c.reply); f != nil {
		return f.Accept
	}
	switch {
	case target == source && target != nil, j.allowed(from, to):
		return true
	case source.Internal:
		return false
	}
	return translated || target == nil
}

func (j *judge) allowed(from, to netip.Addr) bool {
	return slices.ContainsFunc(j.allow, func(p Pair) bool { return p.From.Contains(from) && p.To.Contains(to) })
}

// throughDoorway reports whether a connection was to a published port that obeys the host's
// firewall. It then entered by a device that is no network's.
func (j *judge) throughDoorway(c connection) bool {
	return slices.ContainsFunc(j.ports[portKind{c.original.protocol, c.original.dport}], func(p changedPort) bool {
		return !p.bypasses() && p.To.Addr() == c.reply.src && (p.anywhere() || p.HostAddr == c.original.dst)
	})
}

// permitsHost reports whether endpoints reach an address and port of the host. answers is a
// direction of the connection that has the host's port as its source, or else as its destination.
func (n *Network) permitsHost(to netip.Addr, t tuple) bool {
	gateway := slices.Contains(n.Gateways, to)
	port := t.dport
	if t.src == to {
		port = t.sport
	}
	return n.HostAccess == HostAccessAll || gateway && (n.HostAccess == HostAccessGateway || port == dnsPort)
}

// staysOnLink reports whether an address is one of those that toNeighbours is about.
func staysOnLink(a netip.Addr) bool {
	if a.Is4() {
		return a.As4()[0] >= 0xe0
	}
	return a.IsMulticast() || a.IsLinkLocalUnicast()
}

// flowIndex finds the flow of a connection among many. Most are about one address at one of their
// ends at least.
type flowIndex struct {
	from, to map[netip.Addr][]*Flow
	others   []*Flow
}

func (x *flowIndex) add(f *Flow) {
	if x.from == nil {
		x.from, x.to = map[netip.Addr][]*Flow{}, map[netip.Addr][]*Flow{}
	}
	switch {
	case f.FromFirst == f.FromLast:
		x.from[f.FromFirst] = append(x.from[f.FromFirst], f)
	case f.ToFirst == f.ToLast:
		x.to[f.ToFirst] = append(x.to[f.ToFirst], f)
	default:
		x.others = append(x.others, f)
	}
}

// find returns the flow from one address to another, or nil. reply is the direction of replies.
func (x *flowIndex) find(from, to netip.Addr, reply tuple) *Flow {
	port := uint16(0)
	if hasPorts(reply.protocol) {
		port = reply.sport
	}
	for _, some := range [][]*Flow{x.from[from], x.to[to], x.others} {
		for _, f := range some {
			if f.covers(from, to, uint8(reply.protocol), port) {
				return f
			}
		}
	}
	return nil
}

func (w *Flow) covers(from, to netip.Addr, protocol uint8, port uint16) bool {
	return within(from, w.FromFirst, w.FromLast) && within(to, w.ToFirst, w.ToLast) &&
		w.FirstProtocol <= protocol && protocol <= w.LastProtocol && w.FirstPort <= port && port <= w.LastPort
}

func within(a, first, last netip.Addr) bool { return first.Compare(a) <= 0 && a.Compare(last) <= 0 }
