package summary

import (
	"cmp"
	"slices"

	"cleat/bench/cell"
)

// alike picks one set of each network so that all were measured under the same
// conditions: those that most networks have, or among equals the plainest. It
// returns a cell with these conditions, and the networks without such a set. The
// sets are of one role, direction and metric; the result keeps their order.
func alike(sets []set) (chosen []set, conditions cell.Cell, others []Exclusion) {
	most := 0
	var cells []cell.Cell
	for _, s := range sets {
		cells = append(cells, s.Cell)
		if n := len(matching(s.Cell, sets)); n > most || n == most && plainer(s.Cell, conditions) < 0 {
			most, conditions = n, s.Cell
		}
	}
	chosen = matching(conditions, sets)
	differing := slices.DeleteFunc(cell.Factors(cells), func(f cell.Factor) bool {
		return !slices.ContainsFunc(cells, func(c cell.Cell) bool { return f.Of(c) != f.Of(cells[0]) })
	})
	for _, s := range sets {
		if !slices.ContainsFunc(chosen, func(x set) bool { return x.Network == s.Network }) &&
			!slices.ContainsFunc(others, func(x Exclusion) bool { return x.Network == s.Network }) {
			others = append(others, Exclusion{Network: s.Network, Reason: "measured only with " + cell.Describe(differing, s.Cell)})
		}
	}
	return chosen, conditions, others
}

// matching returns for each network the set with the conditions of c, the plainest
// of several.
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

// sameFactors reports whether two cells differ in nothing but the network. A
// factor of the experiment's own that only one of them has (a VXLAN port) means
// nothing to the other and is ignored.
func sameFactors(a, b cell.Cell) bool {
	for k, v := range a.Factors {
		if w, both := b.Factors[k]; both && v != w {
			return false
		}
	}
	a.Network, a.Factors, b.Network, b.Factors = "", nil, "", nil
	return a.Key() == b.Key()
}

// isReference reports whether a baseline was measured as c was. Direction, MTU,
// topology and links are fixed on a loopback; the rest must match.
func isReference(c, baseline cell.Cell) bool {
	baseline.Direction, baseline.MTU, baseline.Topology, baseline.Links = c.Direction, c.MTU, c.Topology, c.Links
	return sameFactors(c, baseline)
}

// plainer orders cells by how ordinary their conditions are: TCP, one pair, one
// stream, the kernel's MTU, one node, our own generator. Cells with more factors
// of the experiment's own come first, since they are described more exactly.
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

// describeConditions describes the conditions that all compared cells share.
// What goes without saying is left out.
func describeConditions(c cell.Cell) string {
	fs := cell.Factors([]cell.Cell{c})
	return cell.Describe(slices.DeleteFunc(fs, func(f cell.Factor) bool {
		switch f.Name {
		case "direction":
			return true
		case "mtu", "links", "engine", "runtime":
			return f.Ordinary(f.Of(c))
		}
		return false
	}), c)
}
