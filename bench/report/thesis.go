package report

import (
	"fmt"
	"slices"
	"strings"

	"cleat/bench/cell"
)

// natSentence says what the distance between veth and macvlan in the thesis'
// figures is made of: the thesis' veth clients went through a published port,
// within one host by Docker's proxy program and between two by address
// translation; its macvlan clients did not. It compares the means at the
// smallest number of pairs, for each MTU, and says nothing where the distance is
// within two standard errors.
func natSentence(sums []cell.Summary) string {
	least := 0
	for _, s := range sums {
		if least == 0 || s.Pairs < least {
			least = s.Pairs
		}
	}
	by := map[int]map[string]cell.Summary{}
	var mtus []int
	for _, s := range sums {
		if s.Pairs != least {
			continue
		}
		if by[s.MTU] == nil {
			by[s.MTU] = map[string]cell.Summary{}
			mtus = append(mtus, s.MTU)
		}
		by[s.MTU][s.Network] = s
	}
	slices.Sort(mtus)
	var parts []string
	for _, mtu := range mtus {
		if shares := gapShares(by[mtu]); shares != "" {
			parts = append(parts, fmt.Sprintf("%s at MTU %d", shares, mtu))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf(" The thesis’ veth clients went through a published port. The gap between that and macvlan is made of: %s (means with %s).", strings.Join(parts, "; "), cell.Plural(least, "pair"))
}

// gapShares divides the distance between the published port as the thesis used
// it and macvlan into its steps, in percent; "" where there is none to speak of.
func gapShares(by map[string]cell.Summary) string {
	steps := []struct{ network, adds string }{
		{"published-container", ""}, {"published-container-nat", "the proxy program"},
		{"published-outside", ""}, {"bridge", "address translation"}, {"macvlan-bridge", "veth and bridge themselves"},
	}
	var first, last cell.Summary
	var shares []string
	gap := 0.0
	for _, step := range steps {
		s := by[step.network]
		switch {
		case s.N == 0:
			continue
		case first.N == 0:
			first, last = s, s
			m := by["macvlan-bridge"]
			gap = m.Mean - s.Mean
			if m.N == 0 || gap <= 2*(m.StdErr+s.StdErr) {
				return ""
			}
			continue
		}
		shares = append(shares, fmt.Sprintf("%s %.0f %%", step.adds, 100*(s.Mean-last.Mean)/gap))
		last = s
	}
	return strings.Join(shares, ", ")
}
