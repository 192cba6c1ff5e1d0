package report

import (
	"fmt"
	"strings"

	"cleat/bench/cell"
)

// natSentence says how much of the distance between veth and macvlan in the
// thesis' figures is address translation: the thesis' veth clients went through
// a published port, its macvlan clients did not. It compares the means at the
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
		name := s.Network
		if strings.HasPrefix(name, "published-") {
			name = "published"
		}
		by[s.MTU][name] = s
	}
	var parts []string
	for _, mtu := range mtus {
		published, bridge, macvlan := by[mtu]["published"], by[mtu]["bridge"], by[mtu]["macvlan-bridge"]
		if published.N == 0 || bridge.N == 0 || macvlan.N == 0 {
			continue
		}
		gap := macvlan.Mean - published.Mean
		if gap <= 2*(macvlan.StdErr+published.StdErr) {
			continue
		}
		nat := min(max((bridge.Mean-published.Mean)/gap, 0), 1)
		parts = append(parts, fmt.Sprintf("%.0f %% at MTU %d", nat*100, mtu))
	}
	if len(parts) == 0 {
		return ""
	}
	pairs := fmt.Sprintf("%d pairs", least)
	if least == 1 {
		pairs = "1 pair"
	}
	return fmt.Sprintf(" The thesis’ veth clients went through a published port: of the gap between that and macvlan, address translation is %s (means with %s).", strings.Join(parts, " and "), pairs)
}
