package bench

import "cleat/bench/cell"

// cpusOf returns the processors for the ends of a pair; nil means any. With different
// cores, pairs go round the processors and swap roles each time round, so that as many
// pairs as processors put one client and one server on each. On a single processor both
// ends share it.
func cpusOf(placement string, pair int, cpus []int) (client, server []int) {
	at := func(i int) []int { return []int{cpus[i%len(cpus)]} }
	switch placement {
	case "same-core":
		return at(pair), at(pair)
	case "different-cores":
		round := 0 // with an odd number, roles swap by themselves
		if len(cpus)%2 == 0 {
			round = 2 * pair / len(cpus)
		}
		return at(2*pair + round), at(2*pair + 1 + round)
	}
	return nil, nil
}

// placementWarnings returns what a reader must know if the placement is not what its name says.
func placementWarnings(placement string, cpus int) []cell.Warning {
	if placement != "different-cores" || cpus > 1 {
		return nil
	}
	return []cell.Warning{{Code: "one-processor", Text: "there is one processor: both ends share it, although the placement is different-cores"}}
}
