package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/netns"
	"cleat/network/survey"

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
	Namespace  string          `json:"namespace"`
	Link       string          `json:"link"`
	Kind       string          `json:"kind"`
	Way        string          `json:"way"` // "out" of the namespace's stack or bridge, "in", or "through" a bridge
	MTU        int             `json:"mtu_bytes"`
	Overhead   int             `json:"overhead_bytes,omitempty"` // headers of the tunnels that the packets are in at this hop
	Smallest   bool            `json:"smallest,omitempty"`       // this hop limits the path
	Up         bool            `json:"up"`
	Qdisc      string          `json:"qdisc,omitempty"`
	QdiscDrops uint32          `json:"qdisc_drops,omitempty"`
	Offloads   string          `json:"offloads,omitempty"`
	SpeedMbit  int             `json:"speed_mbit,omitempty"` // nominal
	Counters   survey.Counters `json:"counters"`
	Detail     string          `json:"detail,omitempty"` // why the packet is here
	Filters    []Filter        `json:"filters,omitempty"`

	id     linkID
	routed bool // an IP stack sent the packet here, and believes in this MTU
}

// Trace follows packets from a to b: the route in a, the link they leave by, where that link
// comes out, and so on, with the firewall rules on the way that could match. A path that can't
// be followed to its end is no error: Path.Complete is false, and Path.Warnings say where and
// why it ends. It is an error if a or b could not be read, or if b has no address that a has a
// route to.
func (o *Observation) Trace(a, b *netns.NS) (Path, error) {
	to, err := o.find(b)
	if err != nil {
		return Path{}, err
	}
	from, err := o.find(a) // last, so that a's label counts when both are the same
	if err != nil {
		return Path{}, err
	}
	dst, ok := destination(from, to)
	if !ok {
		return Path{}, fmt.Errorf("trace packets from %s to %s: %[2]s has no address that %[1]s has a route to", a, b)
	}
	p := o.path(from, to, dst)
	p.From, p.To = a.String(), b.String()
	o.describe(p.Hops)
	return p, nil
}

// destination picks the address of to that from would use: one on a link of its own before one
// behind a router, IPv4 before IPv6.
func destination(from, to *namespace) (best netip.Addr, ok bool) {
	const gateway, ip6, loopback = 4, 2, 1 // what each costs
	least := 0
	for ip := range to.addresses {
		if ip.IsLoopback() && from != to {
			continue
		}
		r, err := from.route(ip, netip.Addr{}, 0)
		if err != nil || from != to && r.Type == unix.RTN_LOCAL {
			continue
		}
		cost := 0
		if r.Gw != nil {
			cost += gateway
		}
		if ip.Is6() {
			cost += ip6
		}
		if ip.IsLoopback() {
			cost += loopback
		}
		if !best.IsValid() || cost < least || cost == least && ip.Less(best) {
			best, least = ip, cost
		}
	}
	return best, best.IsValid()
}

func (o *Observation) path(from, to *namespace, dst netip.Addr) Path {
	there := newWalk(o.namespaces, to)
	p := Path{Destination: dst, Source: source(from, dst)}
	p.Complete = there.originate(from, frame{src: p.Source, dst: dst})
	p.Hops = there.hops
	p.findMTU()
	p.Warnings = append(append(there.warnings, silentDrops(p.Hops)...), blockers(p.Hops)...)
	if p.Complete && p.Source.IsValid() {
		back := newWalk(o.namespaces, from)
		back.rules = there.rules
		p.back(back, back.originate(to, frame{src: dst, dst: p.Source}))
	}
	for _, n := range o.namespaces {
		if slices.ContainsFunc(p.Hops, func(h Hop) bool { return h.id.namespace == n.ID }) {
			for _, u := range n.unread {
				p.Warnings = append(p.Warnings, n.Label+": "+u)
			}
		}
	}
	return p
}

// source returns the address that packets to dst have as their source, the zero Addr if there
// is no route.
func source(n *namespace, dst netip.Addr) netip.Addr {
	r, err := n.route(dst, netip.Addr{}, 0)
	if err != nil {
		return netip.Addr{}
	}
	src, _ := netip.AddrFromSlice(r.Src)
	return src.Unmap()
}

// back adds the way of the answers, and warns where they don't arrive or take other links.
func (p *Path) back(w *walk, complete bool) {
	links := map[linkID]bool{}
	for _, h := range p.Hops {
		links[h.id] = true
	}
	same, backLinks := true, map[linkID]bool{}
	for _, h := range w.hops {
		p.Back = append(p.Back, h.Namespace+"/"+h.Link)
		same, backLinks[h.id] = same && links[h.id], true
	}
	p.Symmetric = complete && same && len(links) == len(backLinks)
	switch {
	case !complete:
		p.Warnings = append(p.Warnings, fmt.Sprintf("answers from %s to %s do not arrive: %s", p.Destination, p.Source, strings.Join(w.warnings, "; ")))
	case !p.Symmetric:
		p.Warnings = append(p.Warnings, "answers take other links: "+strings.Join(p.Back, ", "))
	}
}

// room is the largest IP packet of the traced connection that fits the hop.
func (h Hop) room() int { return h.MTU - h.Overhead }

// limits reports whether the hop's MTU counts: a bridge checks the MTU of the port that a frame
// leaves by, not its own (is_skb_forwardable, net/core/dev.c).
func (h Hop) limits() bool { return h.Way != "through" }

// findMTU sets the path's MTU, and marks the hops that limit it unless all hops are alike.
func (p *Path) findMTU() {
	largest := 0
	for _, h := range p.Hops {
		if !h.limits() {
			continue
		}
		largest = max(largest, h.room())
		if p.MTU == 0 || h.room() < p.MTU {
			p.MTU = h.room()
		}
	}
	for i, h := range p.Hops {
		p.Hops[i].Smallest = h.limits() && p.MTU < largest && h.room() == p.MTU
	}
}

// silentDrops finds hops that are smaller than what the IP stack before them believes. A router
// answers a packet that is too large by ICMP. A link or a bridge drops it.
func silentDrops(hops []Hop) []string {
	var out []string
	senders := map[int]Hop{} // by the depth of tunnels: where the last IP stack sent the packet
	for i, h := range hops {
		sender, ok := senders[h.Overhead]
		switch {
		case h.routed && i > 0 && hops[i-1].Overhead < h.Overhead && h.room() < hops[i-1].room():
			out = append(out, fmt.Sprintf("packets of more than %d bytes from %s/%s do not fit into %s/%s with the tunnel's headers: they are fragmented or lost (ip link set dev %s mtu %d)",
				h.room(), hops[i-1].Namespace, hops[i-1].Link, h.Namespace, h.Link, columns.Word(hops[i-1].Link), h.room()))
			senders[h.Overhead] = h
		case h.routed || !ok:
			senders[h.Overhead] = h
		case h.limits() && h.MTU < sender.MTU:
			out = append(out, fmt.Sprintf("packets of more than %d bytes are dropped silently at %s/%s, but %s/%s sends up to %d: small packets pass, full-size ones do not",
				h.MTU, h.Namespace, h.Link, sender.Namespace, sender.Link, sender.MTU))
			senders[h.Overhead] = h
		}
	}
	return out
}

// blockers names the rules that drop every packet of the path that gets to them.
func blockers(hops []Hop) []string {
	var out []string
	for _, h := range hops {
		for _, f := range h.Filters {
			dropped := "the packets"
			for _, r := range f.Match {
				if r.Accepts && !r.Certain {
					dropped = "what no earlier rule accepts"
				}
				if r.Certain && r.Drops {
					out = append(out, fmt.Sprintf("a rule in %s drops %s: %s %s: %s (handle %d)", h.Namespace, dropped, f.Table, r.Chain, r.Text, r.Handle))
				}
			}
		}
	}
	return out
}
