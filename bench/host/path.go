package host

import (
	"fmt"
	"io"
	"strings"

	"cleat/bench/cell"
	terminal "cleat/internal/columns"
)

// room is the largest IP packet from A to B that fits the hop.
func (h Hop) room() int { return h.MTU - h.Overhead }

// limits tells whether the hop's MTU counts: a bridge looks at the port a frame
// leaves by, not at its own MTU (is_skb_forwardable, net/core/dev.c).
func (h Hop) limits() bool { return h.Way != "through" }

// mtu finds the smallest room on the way and marks the hops that are to blame,
// unless all are alike.
func (p *Path) mtu() {
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
	for i := range p.Hops {
		h := &p.Hops[i]
		h.Smallest = h.limits() && p.MTU < largest && h.room() == p.MTU
	}
}

// silentDrops finds hops that are smaller than what the IP stack before them
// believes. Routers answer too large packets by ICMP; links and bridges don't.
func silentDrops(hops []Hop) []string {
	var out []string
	believed := map[int]Hop{} // by the depth of tunnels: what the last IP stack sent through
	for i, h := range hops {
		from, ok := believed[h.Overhead]
		switch {
		case h.routed && i > 0 && hops[i-1].Overhead < h.Overhead && h.room() < hops[i-1].room():
			out = append(out, fmt.Sprintf("packets of more than %d bytes from %s/%s do not fit into %s/%s with the tunnel's headers: they are fragmented or lost (ip link set dev %s mtu %d)",
				h.room(), hops[i-1].Namespace, hops[i-1].Link, h.Namespace, h.Link, terminal.Word(hops[i-1].Link), h.room()))
			believed[h.Overhead] = h
		case h.routed || !ok:
			believed[h.Overhead] = h
		case h.limits() && h.MTU < from.MTU:
			out = append(out, fmt.Sprintf("packets of more than %d bytes are dropped silently at %s/%s, but %s/%s sends up to %d: small packets pass, full-size ones do not",
				h.MTU, h.Namespace, h.Link, from.Namespace, from.Link, from.MTU))
			believed[h.Overhead] = h
		}
	}
	return out
}

// blockers names the rules that drop every packet of the path that gets to them.
func blockers(hops []Hop) []string {
	var out []string
	for _, h := range hops {
		for _, f := range h.Filters {
			what := "the packets"
			for _, r := range f.Match {
				if r.Accepts && !r.Certain {
					what = "what no earlier rule accepts"
				}
				if r.Certain && r.Drops {
					out = append(out, fmt.Sprintf("a rule in %s drops %s: %s %s: %s (handle %d)", h.Namespace, what, f.Table, r.Chain, r.Text, r.Handle))
				}
			}
		}
	}
	return out
}

// WriteText prints the path for people, one hop after the other.
func (p Path) WriteText(w io.Writer) error {
	t := newPrinter(w)
	t.item("path", fmt.Sprintf("%s (%s) to %s (%s)", p.From, p.Source, p.To, p.Destination))
	state := "reaches the destination"
	if !p.Complete {
		state = "does not reach the destination, or can't be followed to it"
	}
	t.item("", fmt.Sprintf("%s; %s; the largest packet that fits is %d bytes", cell.Plural(len(p.Hops), "link"), state, p.MTU))
	for _, warning := range p.Warnings {
		t.item("warning", warning)
	}
	for n, h := range p.Hops {
		t.blank()
		h.write(t, n+1)
	}
	if len(p.Back) > 0 {
		t.blank()
		back := "over the same links"
		if !p.Symmetric {
			back = strings.Join(p.Back, ", ")
		}
		t.item("back", back)
	}
	return t.flush()
}

func (h Hop) write(t *printer, n int) {
	head := fmt.Sprintf("%s/%s %s mtu %d", h.Namespace, h.Link, h.Kind, h.MTU)
	if h.Overhead > 0 {
		head += fmt.Sprintf(" (%d inside the tunnel)", h.room())
	}
	if h.Smallest {
		head += " <- smallest"
	}
	if !h.Up {
		head += " DOWN"
	}
	t.item(fmt.Sprintf("%2d %s", n, wayShort(h.Way)), head)
	t.item("", h.Detail)
	var facts []string
	if h.Qdisc != "" {
		facts = append(facts, "queue "+h.Qdisc)
	}
	if h.SpeedMbit > 0 {
		facts = append(facts, "nominal "+bitRate(h.SpeedMbit))
	}
	if h.Offloads != "" {
		facts = append(facts, "offloads "+h.Offloads)
	}
	t.item("", strings.Join(facts, "; "))
	t.item("", h.lost())
	for _, f := range h.Filters {
		f.write(t)
	}
}

func wayShort(way string) string {
	if way == "through" {
		return "thru"
	}
	return way
}

// lost says what the link's counters say was lost.
func (h Hop) lost() string {
	c := h.Counters
	var parts []string
	for _, x := range []struct {
		n    uint64
		what string
	}{
		{c.RxDropped, "rx dropped"}, {c.TxDropped, "tx dropped"}, {c.RxErrors, "rx errors"}, {c.TxErrors, "tx errors"}, {uint64(h.QdiscDrops), "dropped in the queue"},
	} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if len(parts) == 0 {
		return "nothing lost"
	}
	return strings.Join(parts, ", ")
}

// shownRules bounds what is printed of one chain; --json has all.
const shownRules = 20

func (f Filter) write(t *printer) {
	head := fmt.Sprintf("%s: chain %s of table %s, %d of %s could match", f.Hook, f.Chain, f.Table, matched(f), cell.Plural(f.Rules, "rule"))
	if f.Policy != "" {
		head += "; what no rule accepts is dropped"
	}
	t.item("", head)
	if f.Cut {
		t.item("", fmt.Sprintf("  there are too many ways through the chains: of all namespaces, the first %d rules are looked at", mostRules))
	}
	for n, r := range f.Match {
		if n == shownRules {
			t.item("", fmt.Sprintf("  and %d more", len(f.Match)-n))
			return
		}
		mark := "may match"
		switch {
		case r.Certain && r.Drops:
			mark = "DROPS"
		case r.Certain:
			mark = "matches"
		case r.Drops:
			mark = "may drop"
		}
		chain := ""
		if r.Chain != f.Chain {
			chain = r.Chain + ": "
		}
		for i, line := range wrap(fmt.Sprintf("%s%s (handle %d)", chain, r.Text, r.Handle), columns-label-12) {
			if i > 0 {
				mark = ""
			}
			t.line("", fmt.Sprintf("  %-9s %s", mark, line))
		}
	}
}

// matched counts the rules of the chain itself, without those it jumps to.
func matched(f Filter) int {
	n := 0
	for _, r := range f.Match {
		if r.Chain == f.Chain {
			n++
		}
	}
	return n
}
