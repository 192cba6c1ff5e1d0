package trace

import (
	"fmt"
	"io"
	"strings"

	"cleat/internal/columns"
)

// WriteText prints the path for people, one hop after the other.
func (p Path) WriteText(w io.Writer) error {
	t := columns.NewPrinter(w)
	t.Item("path", fmt.Sprintf("%s (%s) to %s (%s)", p.From, p.Source, p.To, p.Destination))
	state := "reaches the destination"
	if !p.Complete {
		state = "does not reach the destination, or can't be followed to it"
	}
	t.Item("", fmt.Sprintf("%s; %s; the largest packet that fits is %d bytes", columns.Plural(len(p.Hops), "link"), state, p.MTU))
	for _, warning := range p.Warnings {
		t.Item("warning", warning)
	}
	for n, h := range p.Hops {
		t.Blank()
		h.write(t, n+1)
	}
	if len(p.Back) > 0 {
		t.Blank()
		back := "over the same links"
		if !p.Symmetric {
			back = strings.Join(p.Back, ", ")
		}
		t.Item("back", back)
	}
	return t.Flush()
}

func (h Hop) write(t *columns.Printer, n int) {
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
	way := h.Way
	if way == "through" {
		way = "thru"
	}
	t.Item(fmt.Sprintf("%2d %s", n, way), head)
	t.Item("", h.Detail)
	var facts []string
	if h.Qdisc != "" {
		facts = append(facts, "queue "+h.Qdisc)
	}
	switch {
	case h.SpeedMbit >= 1000:
		facts = append(facts, fmt.Sprintf("nominal %g Gbit/s", float64(h.SpeedMbit)/1000))
	case h.SpeedMbit > 0:
		facts = append(facts, fmt.Sprintf("nominal %d Mbit/s", h.SpeedMbit))
	}
	if h.Offloads != "" {
		facts = append(facts, "offloads "+h.Offloads)
	}
	t.Item("", strings.Join(facts, "; "))
	t.Item("", h.losses())
	for _, f := range h.Filters {
		f.write(t)
	}
}

// losses lists the link's counters of lost packets that are not zero.
func (h Hop) losses() string {
	c := h.Counters
	var parts []string
	for _, x := range []struct {
		packets uint64
		cause   string
	}{
		{c.RxDropped, "rx dropped"}, {c.TxDropped, "tx dropped"}, {c.RxErrors, "rx errors"}, {c.TxErrors, "tx errors"}, {uint64(h.QdiscDrops), "dropped in the queue"},
	} {
		if x.packets > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.packets, x.cause))
		}
	}
	if len(parts) == 0 {
		return "nothing lost"
	}
	return strings.Join(parts, ", ")
}

// maxShown is how many rules of a chain are printed. JSON has all of them.
const maxShown = 20

func (f Filter) write(t *columns.Printer) {
	own := 0 // rules of the chain itself, without those of chains that it jumps to
	for _, r := range f.Match {
		if r.Chain == f.Chain {
			own++
		}
	}
	head := fmt.Sprintf("%s: chain %s of table %s, %d of %s could match", f.Hook, f.Chain, f.Table, own, columns.Plural(f.Rules, "rule"))
	if f.Policy != "" {
		head += "; what no rule accepts is dropped"
	}
	t.Item("", head)
	if f.Cut {
		t.Hang("", "  ", fmt.Sprintf("the chains jump to each other too often to follow every way: only the first %d rules of all namespaces are examined", maxRules))
	}
	for n, r := range f.Match {
		if n == maxShown {
			t.Hang("", "  ", fmt.Sprintf("and %d more", len(f.Match)-n))
			return
		}
		verdict := "may match"
		switch {
		case r.Certain && r.Drops:
			verdict = "DROPS"
		case r.Certain:
			verdict = "matches"
		case r.Drops:
			verdict = "may drop"
		}
		text := fmt.Sprintf("%s (handle %d)", r.Text, r.Handle)
		if r.Chain != f.Chain {
			text = r.Chain + ": " + text
		}
		t.Hang("", fmt.Sprintf("  %-9s ", verdict), text)
	}
}
