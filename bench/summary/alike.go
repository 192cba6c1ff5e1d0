package summary

import (
	"cmp"
	"slices"

	"cleat/bench/cell"
)

// alike picks one set of each network so that all were measured under the same
// factors: those that most networks have; among equals the plainest. It returns
// one cell with these factors, and the networks that have no such set. The sets
// are of one role, direction and metric; the result keeps their order.
func alike(sets []set) (chosen []set, likeness cell.Cell, left []Exclusion) {
	most := 0
	for _, s := range sets {
		n := len(matching(s.Cell, sets))
		if n > most || n == most && plainer(s.Cell, likeness) < 0 {
			most, likeness = n, s.Cell
		}
	}
	chosen = matching(likeness, sets)
	var cells []cell.Cell
	for _, s := range sets {
		cells = append(cells, s.Cell)
	}
	same := func(f cell.Factor) bool {
		return !slices.ContainsFunc(cells, func(c cell.Cell) bool { return f.Of(c) != f.Of(cells[0]) })
	}
	differ := slices.DeleteFunc(cell.Factors(cells), same)
	for _, s := range sets {
		in := func(x set) bool { return x.Network == s.Network }
		listed := func(x Exclusion) bool { return x.Network == s.Network }
		if !slices.ContainsFunc(chosen, in) && !slices.ContainsFunc(left, listed) {
			left = append(left, Exclusion{Network: s.Network, Reason: "measured with " + describe(differ, s.Cell) + " only"})
		}
	}
	return chosen, likeness, left
}

// matching returns for each network its set that has the factors of c, the
// plainest if several do.
func matching(c cell.Cell, sets []set) []set {
	var out []set
	for _, s := range sets {
		if !sameFactors(c, s.Cell) {
			continue
		}
		i := slices.IndexFunc(out, func(o set) bool { return o.Network == s.Network })
		switch {
		case i < 0:
			out = append(out, s)
		case plainer(s.Cell, out[i].Cell) < 0:
			out[i] = s
		}
	}
	return out
}

// sameFactors tells whether two cells differ in nothing but the network. A
// factor of the experiment's own that only one of them has (a VXLAN port) has no
// meaning for the other and does not count.
func sameFactors(a, b cell.Cell) bool {
	for k, v := range a.Factors {
		if w, both := b.Factors[k]; both && v != w {
			return false
		}
	}
	a.Network, a.Factors, b.Network, b.Factors = "", nil, "", nil
	return a.Key() == b.Key()
}

// reference tells whether a baseline was measured as c was: direction, MTU and
// topology are what they are on a loopback, the rest must match.
func reference(c, baseline cell.Cell) bool {
	baseline.Direction, baseline.MTU, baseline.Topology, baseline.Links = c.Direction, c.MTU, c.Topology, c.Links
	return sameFactors(c, baseline)
}

// plainer orders cells by how ordinary their factors are: TCP, one pair, one
// stream, the kernel's MTU, one node, our own generator. More factors of the
// experiment's own come first, since those cells say more exactly what they are.
func plainer(a, b cell.Cell) int {
	first := func(of func(cell.Cell) bool) int {
		switch x, y := of(a), of(b); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	}
	a.Network, b.Network = "", ""
	return cmp.Or(
		first(func(c cell.Cell) bool { return c.Transport == "tcp" }),
		first(func(c cell.Cell) bool { return c.Topology == "local" }),
		first(func(c cell.Cell) bool { return c.Engine == "cleat" }),
		first(func(c cell.Cell) bool { return c.Runtime == cell.Native }),
		first(func(c cell.Cell) bool { return c.Placement == "different-cores" }),
		cmp.Compare(a.Pairs, b.Pairs),
		cmp.Compare(a.Streams, b.Streams),
		cmp.Compare(a.Links, b.Links),
		cmp.Compare(a.MTU, b.MTU),
		-cmp.Compare(len(a.Factors), len(b.Factors)),
		cmp.Compare(a.Key(), b.Key()))
}

// conditions describes the factors that all compared cells share.
func conditions(c cell.Cell) string {
	all := cell.Factors([]cell.Cell{c})
	return describe(slices.DeleteFunc(all, func(f cell.Factor) bool {
		switch f.Name {
		case "direction":
			return true
		case "links", "engine", "runtime":
			return f.Of(c) == "1" || f.Of(c) == "cleat" || f.Of(c) == cell.Native
		}
		return false
	}), c)
}
