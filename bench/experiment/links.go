package experiment

import (
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// The further factors of networks over several links, as they stand in a Cell.
const (
	variantFactor   = "variant"   // multipath.Variants
	lossFactor      = "loss"      // share of the packets that the lossy link of the variant "loss" loses
	outerFactor     = "outer"     // "ipv4", "ipv6": of the links' addresses
	schedulerFactor = "scheduler" // of our tunnel
	cryptoFactor    = "crypto"    // "on": our tunnel has a key
	settingsFactor  = "settings"  // of rivals: "default", or "best", all that can be told them
	containedFactor = "contained" // what the runtime is for: the traffic's ends, or the program of our tunnel
)

// Levels, the one where a group does not mention the factor first.
var (
	outers     = []string{"ipv4", "ipv6"}
	schedulers = []string{"adaptive", "weighted", "flow", "duplicate"}
	settings   = []string{"default", "best"}
	containeds = []string{"ends", containedProgram}
)

// containedProgram is the level of containedFactor where the tunnel runs in the
// runtime, and the ends do not.
const containedProgram = "program"

// defaultLoss is multipath.DefaultLoss, in words.
const defaultLoss = "1%"

func isMultipath(_ kind, n catalog.Entry) bool { return n.Role == catalog.Multipath }
func isTunnel(_ kind, n catalog.Entry) bool    { return n.Name == "tunnel" }

// isRival tells whether a network is another program's tunnel.
func isRival(_ kind, n catalog.Entry) bool {
	return n.Role == catalog.Multipath && len(n.Programs) > 0
}

func checkWord(what string, known []string) func(string) *Error {
	return func(level string) *Error {
		if !slices.Contains(known, level) {
			return unknown("", what, level, known)
		}
		return nil
	}
}

func checkLinkRate(level string) *Error {
	if v, err := Rate(level).BitsPerSecond(); err != nil || v == 0 {
		return wrong("", "link rate %q: want a number in bit/s such as 100M", level)
	}
	return nil
}

func checkLoss(level string) *Error {
	if v, err := multipath.ParseShare(level); err != nil || v == 0 || v == 1 {
		return wrong("", "loss %q: want a share of the packets, e.g. 1%% or 0.01", level)
	}
	return nil
}

// settleLinks leaves two factors to the cells for which they mean something: what
// is lost to the variant of that name, and what a runtime is for to those that
// have one.
func settleLinks(jobs []Job) {
	for i := range jobs {
		if jobs[i].Cell.Runtime == cell.Native {
			delete(jobs[i].Cell.Factors, containedFactor)
		}
		switch f := jobs[i].Cell.Factors; {
		case f[variantFactor] != multipath.Loss:
			delete(f, lossFactor)
		case f[lossFactor] == "":
			jobs[i].set(lossFactor, defaultLoss)
		}
	}
}

// impossibleLinks says why a combination over several links can't be; "" if it
// can. The package comment states the rules.
func impossibleLinks(j Job) string {
	c, k := j.Cell, kindOf(j.Work.Kind)
	n, _ := catalog.Lookup(c.Network)
	variant := c.Factors[variantFactor]
	_, search := j.Offered()
	switch {
	case k.untimed:
		return k.name + " is not measured over several links"
	case c.Network == "single" && c.Links > 1:
		return "it uses one link: more change nothing"
	case c.Network == "mptcp" && k.datagrams:
		return "MPTCP carries TCP only"
	case c.Links < 2 && variant != multipath.Plain && variant != multipath.Loss:
		return "the variant " + variant + " needs two links or more"
	case search && (variant == multipath.BlackHole || variant == multipath.Flap):
		return "a search has no middle for the variant " + variant
	case isRival(k, n) && c.Factors[outerFactor] != outers[0]:
		return "other programs' tunnels are run over IPv4 only"
	}
	return ""
}
