package experiment

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cleat/bench/multipath"
	"cleat/internal/linkzoo"
	"cleat/internal/rate"
)

// Factors of the zoo: random links from seeds (package linkzoo).
const (
	zooFactor     = "zoo"      // seed of a case, or a range of seeds
	zooCapFactor  = "zoo_cap"  // Rate to which the sum of the case's rates is lowered
	zooLinkFactor = "zoo_link" // the only link of the case that is used, from 1

	// zooCandidateFactor is for the network "single": 1 is the link that is expected to carry
	// the most by itself, 2 the next. Cells have zooLinkFactor instead.
	zooCandidateFactor = "zoo_candidate"
)

const (
	defaultZooCap = "400M" // two processors carry it through a relay and any tunnel
	zooMessage    = 1400   // bytes of a datagram
	maxZooSeeds   = 1024   // of a range
	mostZooSeed   = 1e9

	zooSteady = 2 * time.Second // start of the steady part, if the work names none
)

// parseSeeds parses "7" and "1..40".
func parseSeeds(level string) (first, last uint64, ok bool) {
	from, to, isRange := strings.Cut(level, "..")
	if !isRange {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 64)
	last, err2 := strconv.ParseUint(to, 10, 64)
	return first, last, err1 == nil && err2 == nil && first >= 1 && first <= last && last <= mostZooSeed && last-first < maxZooSeeds
}

func checkZoo(level string) *Error {
	if _, _, ok := parseSeeds(level); !ok {
		return invalid("", "zoo %q: want a seed from 1, or a range of at most %d seeds, e.g. 1..40", level, maxZooSeeds)
	}
	return nil
}

// expandSeeds replaces ranges of seeds by the seeds.
func expandSeeds(levels []string) (seeds []string) {
	for _, level := range levels {
		first, last, ok := parseSeeds(level)
		for seed := first; ok && seed <= last; seed++ {
			seeds = append(seeds, strconv.FormatUint(seed, 10))
		}
	}
	return seeds
}

func checkZooCap(level string) *Error {
	if v, err := rate.Parse(level); err != nil || v < 12e6 {
		return invalid("", "zoo_cap %q: want a rate in bit/s of at least 12M such as %s", level, defaultZooCap)
	}
	return nil
}

func checkZooLink(level string) *Error {
	if n, err := strconv.Atoi(level); err != nil || n < 1 || n > 12 {
		return invalid("", "link of the zoo %q: want 1…12", level)
	}
	return nil
}

// Case returns the case of the zoo that the job's links are, all of them even if the job uses
// one; ok is false if they are none.
func (j Job) Case() (c linkzoo.Case, ok bool) {
	seed, _ := strconv.ParseUint(j.Cell.Factors[zooFactor], 10, 64)
	sum, _ := rate.Parse(j.Cell.Factors[zooCapFactor])
	return multipath.Spec{Zoo: seed, ZooCapBitsPerSec: sum}.Case()
}

// applyZoo gives a job whose links are a case of the zoo the links and the traffic of the
// case. The best link alone carries one cubic stream in every case.
func (j *Job) applyZoo() {
	f := j.Cell.Factors
	c, ok := j.Case()
	if !ok {
		for _, name := range []string{zooCapFactor, zooLinkFactor, zooCandidateFactor} {
			delete(f, name)
		}
		return
	}
	delete(f, variantFactor)
	delete(f, linkRateFactor)
	j.Cell.Links, j.Cell.Streams, j.Cell.Congestion = len(c.Links), c.Traffic.Streams, c.Traffic.Congestion
	if j.Cell.Network == "single" {
		j.Cell.Links, j.Cell.Streams, j.Cell.Congestion = 1, 1, "cubic"
		j.chooseLink(c)
		return
	}
	if c.Traffic.Streams == 0 {
		j.Cell.Streams, j.Cell.Transport = 1, "udp"
		j.Cell.MessageBytes, j.Work.MessageBytes = zooMessage, []int{zooMessage}
	}
}

// chooseLink replaces the candidate by the number of the link.
func (j *Job) chooseLink(c linkzoo.Case) {
	f := j.Cell.Factors
	candidate, _ := strconv.Atoi(f[zooCandidateFactor])
	delete(f, zooCandidateFactor)
	if f[zooLinkFactor] != "" {
		return
	}
	order := c.Promising(cmp.Or(j.Work.Steady, zooSteady), j.Work.Duration)
	i := order[min(max(candidate, 1), len(order))-1]
	f[zooLinkFactor] = strconv.Itoa(i + 1)
}

// whyImpossibleInZoo is whyImpossible for a job whose links are a case of the zoo.
func whyImpossibleInZoo(j Job) string {
	c, ok := j.Case()
	if !ok {
		return ""
	}
	link, _ := strconv.Atoi(j.Cell.Factors[zooLinkFactor])
	switch {
	case j.Cell.Network == "mptcp" && j.Cell.Transport == "udp":
		return "MPTCP carries TCP only"
	case link > len(c.Links):
		return fmt.Sprintf("the case has %d links", len(c.Links))
	case j.Cell.MTU > 1500:
		return "the links of the zoo have an MTU of at most 1500"
	}
	return ""
}

// Datagrams reports whether the job sends datagrams instead of streams.
func (j Job) Datagrams() bool { return j.Cell.Transport == "udp" || j.Work.Kind == UDP }
