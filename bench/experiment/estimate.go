package experiment

import (
	"strconv"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// Time of a measurement beside its duration, as seen on two virtual processors.
const (
	sampleOverhead    = 150 * time.Millisecond // processes, handshakes, the path MTU probe
	pairOverhead      = 10 * time.Millisecond
	containerOverhead = 500 * time.Millisecond  // of each container made for one measurement
	untimedEstimate   = 250 * time.Millisecond  // of work without a duration
	burstOverhead     = 450 * time.Millisecond  // to make, connect and disconnect one of several containers, by most programs
	endpointOverhead  = 100 * time.Millisecond  // to connect one container, by most programs
	portOverhead      = time.Millisecond        // to publish one of many ports
	coldOverhead      = 400 * time.Millisecond  // to build a network anew for each measurement
	zooOverhead       = 2500 * time.Millisecond // long round trips: to connect, to let a tunnel settle, to drain queues
	eventEstimate     = 4 * time.Second         // the longest by far: a host is cut off and comes back
	searchTrials      = 12                      // of a search, at most (package traffic): each takes a 12th of the duration
	shortestTrial     = 100 * time.Millisecond  // of package traffic
	searchSettle      = 100 * time.Millisecond  // after each trial, until missing datagrams count as lost
	confirmTrials     = 4                       // after a search, at most (package traffic)
	likelyTrials      = 1                       // of these
	confirmShare      = 3                       // the part of the duration that each takes
)

// Estimate returns about how long one measurement takes, once its network and its
// runtime exist.
func (j Job) Estimate() time.Duration {
	if j.Work.Kind == Event {
		return eventEstimate
	}
	if kindOf(j.Work.Kind).untimed {
		return untimedEstimate + time.Duration(j.count(parallelFactor))*burstOverhead
	}
	d := j.Work.Duration + sampleOverhead + time.Duration(j.Cell.Pairs)*pairOverhead + time.Duration(j.containers())*containerOverhead
	if _, search := j.Offered(); search {
		d += j.searchTime(likelyTrials)
	}
	if j.cold() {
		d += coldOverhead
	}
	if _, ok := j.Case(); ok {
		d += zooOverhead
	}
	return d
}

// SearchTime returns about how long the longest search for a rate takes, before the duration begins; 0 if the
// job has none.
func (j Job) SearchTime() time.Duration {
	if _, search := j.Offered(); !search {
		return 0
	}
	return j.searchTime(confirmTrials)
}

// searchTime returns about how long a search takes if so many trials confirm its rate.
func (j Job) searchTime(confirm int) time.Duration {
	return searchTrials*(max(j.Work.Duration/searchTrials, shortestTrial)+searchSettle) +
		time.Duration(confirm)*(max(j.Work.Duration/confirmShare, shortestTrial)+searchSettle)
}

// setup returns about how long it takes to make what is beside the measured containers, once.
func (j Job) setup() time.Duration {
	return time.Duration(j.count(endpointsFactor))*endpointOverhead + time.Duration(j.count(portsFactor))*portOverhead
}

// count returns the value of a factor that is a number; 0 if the job does not have it.
func (j Job) count(factor string) int {
	n, err := strconv.Atoi(j.Cell.Factors[factor])
	if err != nil {
		return 0
	}
	return n
}

// cold reports whether each measurement begins with a new network.
func (j Job) cold() bool {
	n, _ := catalog.Lookup(j.Cell.Network)
	return n.Cold
}

// containers returns how many containers are made for one measurement: those of the
// clients, and for a cold network those of the servers, too. A tunnel in containers has
// one at each end, whatever the number of pairs.
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

// Estimate returns about how long the experiment takes: what is made or measured once, and all blocks. Jobs
// for which possible returns false don't count; nil: all count.
func (e Experiment) Estimate(possible func(Job) bool) time.Duration {
	var setup, block time.Duration
	for _, j := range e.Jobs() {
		if possible == nil || possible(j) {
			setup += j.setup()
			block += j.Estimate()
		}
	}
	for _, j := range e.Calibrations() {
		if possible == nil || possible(j) {
			setup += j.Estimate()
		}
	}
	return setup + block*time.Duration(e.Repeat+e.Warmup)
}
