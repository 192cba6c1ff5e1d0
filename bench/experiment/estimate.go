package experiment

import (
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// What a measurement takes beside its duration, as seen on two virtual
// processors: processes, handshakes, the path MTU probe; more for each pair;
// and how often a search measures.
const (
	sampleOverhead    = 150 * time.Millisecond
	pairOverhead      = 10 * time.Millisecond
	containerOverhead = 500 * time.Millisecond // of each that is made for one measurement
	setupTakes        = 250 * time.Millisecond
	coldOverhead      = 400 * time.Millisecond // to make a network anew for each measurement
	searchSteps       = 10
	searchSettle      = 100 * time.Millisecond // after each, until the rest counts as lost
)

// Estimate is about how long one measurement takes, should its network and its
// runtime be there.
func (j Job) Estimate() time.Duration {
	if kindOf(j.Work.Kind).untimed {
		return setupTakes
	}
	d := j.Work.Duration + sampleOverhead + time.Duration(j.Cell.Pairs)*pairOverhead + time.Duration(j.containers())*containerOverhead
	if _, search := j.Offered(); search {
		d += searchSteps * searchSettle // its steps share the duration
	}
	if j.cold() {
		d += coldOverhead
	}
	return d
}

func (j Job) cold() bool {
	n, _ := catalog.Lookup(j.Cell.Network)
	return n.Cold
}

// containers is how many are made for one measurement: those of the clients, and
// what is to begin cold has new servers, too. A tunnel in containers has one at
// each end, whatever the number of pairs.
func (j Job) containers() int {
	switch {
	case j.Cell.Runtime == cell.Native:
		return 0
	case j.Cell.Factors[containedFactor] == containedProgram:
		return 2
	case j.cold():
		return 2 * j.Cell.Pairs
	}
	return j.Cell.Pairs
}

// Estimate is about how long the experiment takes: its jobs for which can is
// true, or all of them if can is nil, in all blocks.
func (e Experiment) Estimate(can func(Job) bool) time.Duration {
	var block time.Duration
	for _, j := range e.Jobs() {
		if can == nil || can(j) {
			block += j.Estimate()
		}
	}
	return block * time.Duration(e.Repeat+e.Warmup)
}
