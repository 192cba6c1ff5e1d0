package why

import (
	"fmt"
	"slices"
	"strings"

	"cleat/internal/columns"
)

// Cause says for programs what is in the way.
type Cause string

// The causes.
const (
	NotRunning     Cause = "not-running"     // the source or the destination does not run
	LinkDown       Cause = "link-down"       // a container's link to a network is down, removed or incomplete
	AddressMissing Cause = "address-missing" // the link has lost its address
	NotConnected   Cause = "not-connected"   // a container is on no network
	HostDown       Cause = "host-down"       // another host, on which an end is, is not alive
	NoWay          Cause = "no-way"          // this host has no way to the containers of another one
	OtherNetwork   Cause = "other-network"   // no common network, and no rule allows it
	Internal       Cause = "internal"        // the source's network has no way out
	RuleDenies     Cause = "rule"            // a rule or a default of a network denies it
	HostAccess     Cause = "host-access"     // the network does not let containers reach the host there
	NotPublished   Cause = "not-published"   // the port is published at another address of the host
	Drift          Cause = "drift"           // the kernel has not what networks want
	NoRoute        Cause = "no-route"        // the source has no route
	WrongRoute     Cause = "wrong-route"     // the source's route leads elsewhere
	Path           Cause = "path"            // packets don't get past a device or a namespace
	Firewall       Cause = "firewall"        // rules of another program drop the packets
	NoNeighbour    Cause = "no-neighbour"    // nobody answers for the next address
	Duplicate      Cause = "duplicate"       // several machines answer for the address
	Hairpin        Cause = "hairpin"         // a bridge does not send packets back to where they came from
	MTU            Cause = "mtu"             // full-size packets are lost
	NoListener     Cause = "no-listener"     // no program listens
	Loopback       Cause = "loopback-only"   // a program listens where only its own machine reaches it
	OtherAddress   Cause = "other-address"   // a program listens at another address
	ResolvConf     Cause = "resolv-conf"     // the source asks a name server that does not know the name
	HostsFile      Cause = "hosts-file"      // the source's hosts file has another address for the name
	NameServer     Cause = "name-server"     // the name server does not run or does not answer
	StaleName      Cause = "stale-name"      // the name server does not know what it should
	UnknownName    Cause = "unknown-name"    // nobody has the name
	Refused        Cause = "refused"         // a machine outside refuses it
	UnknownCause   Cause = "unknown"
)

// outcome is what a probe of an address experienced. It is a set if several are meant.
type outcome uint8

const (
	untried outcome = 1 << iota
	reached
	refused     // something answered that it is not accepted
	unreachable // the kernel or a router answered that there is no way
	silent      // no answer
	unclear     // a datagram had no answer, which it need not have
	shrunk      // small packets are answered, and full-size ones are not

	lost    = silent | unclear | unreachable
	failure = lost | refused | untried
)

// finding is something that can be in the way.
type finding struct {
	check   string
	cause   Cause
	because string // for the verdict: a sentence without a full stop
	fact    string // for the list of checks; default: because
	try     string
	// explains are the outcomes of probes that it explains. A finding that explains none is named
	// in the verdict only if there is no other.
	explains outcome
	about    *target  // whose probe it explains; nil: those of all targets
	of       *machine // to which these targets lead; nil: to any
	always   bool     // it is in the way even if the probe was successful
	weak     bool     // it may only be a symptom, or is not certain: any other finding comes first
}

// conclude returns the answer. It begins with the probe, which is the truth, and looks for the
// first finding that explains it.
func (v *investigation) conclude() *Answer {
	order := func(a, b string) int { return slices.Index(Checks(), a) - slices.Index(Checks(), b) }
	slices.SortStableFunc(v.checks, func(a, b Check) int { return order(a.Name, b.Name) })
	slices.SortStableFunc(v.findings, func(a, b finding) int { return order(a.check, b.check) })
	a := &Answer{From: v.from.label, To: v.q.To.String(), Checks: v.checks}
	failed := v.firstFailed()
	switch {
	case v.from.ns == nil || len(v.targets) == 0 || failed != nil:
		f := v.explanation(failed)
		a.Cause, a.Try = f.cause, f.try
		a.Verdict = fmt.Sprintf("%s does not reach %s: %s", a.From, a.To, f.because)
	case v.disturbance() != nil:
		f := v.disturbance()
		a.Cause, a.Try = f.cause, f.try
		a.Verdict = fmt.Sprintf("%s reaches %s, but %s", a.From, v.reachedText(), f.because)
		if f.check == checkName {
			a.Verdict = fmt.Sprintf("%s reaches %s, but not by the name %s: %s", a.From, strings.Join(v.reachedAddresses(), " and "), v.name, f.because)
		}
	default:
		a.Reached = true
		a.Verdict = fmt.Sprintf("%s reaches %s", a.From, v.reachedText())
	}
	return a
}

// disturbance returns the first finding that counts although the probe was successful.
func (v *investigation) disturbance() *finding {
	i := slices.IndexFunc(v.findings, func(f finding) bool { return f.always })
	if i < 0 {
		return nil
	}
	return &v.findings[i]
}

// firstFailed returns a target of the first machine of which no address is reached; nil if
// each has one that is.
func (v *investigation) firstFailed() *target {
	for _, m := range v.machinesOfTargets() {
		var failed *target
		for _, t := range v.targets {
			if t.at != m {
				continue
			}
			if t.outcome == reached || t.outcome == unclear && !v.explained(t) {
				failed = nil
				break
			}
			if failed == nil {
				failed = t
			}
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// machinesOfTargets returns the machines that have targets. Those outside are one.
func (v *investigation) machinesOfTargets() []*machine {
	var all []*machine
	for _, t := range v.targets {
		if !slices.Contains(all, t.at) {
			all = append(all, t.at)
		}
	}
	return all
}

// explained reports whether a finding explains the outcome of a target.
func (v *investigation) explained(t *target) bool {
	return slices.ContainsFunc(v.findings, func(f finding) bool { return f.explainsProbe(t) })
}

// explainsProbe reports whether the finding explains what the probe of a target experienced.
func (f finding) explainsProbe(t *target) bool {
	return f.explains&t.outcome != 0 && (f.about == nil || f.about == t) && (f.of == nil || f.of == t.machine())
}

// explanation returns the finding that explains why a target is not reached. t is nil if there
// is no target.
func (v *investigation) explanation(t *target) finding {
	for _, weak := range []bool{false, true} {
		for _, f := range v.findings {
			if f.weak == weak && (t == nil || f.explainsProbe(t)) {
				return f
			}
		}
	}
	for _, f := range v.findings {
		if f.explains == 0 && !f.always {
			return f
		}
	}
	f := finding{cause: UnknownCause, because: "nothing was found that explains it"}
	switch {
	case t == nil:
	case t.at == nil:
		f.try = "tcpdump -ni any host " + t.addr.String()
	case t.at.host != "":
		f.try = statusCommand
	default:
		f.try = "cleat doctor " + columns.Word(v.from.ref()) + " " + columns.Word(t.at.ref())
	}
	return f
}

// reachedText returns the destination with the addresses at which it is reached.
func (v *investigation) reachedText() string {
	if all := v.reachedAddresses(); all[0] != v.q.To.Name {
		return v.q.To.String() + " at " + strings.Join(all, " and ")
	}
	return v.q.To.String()
}

// reachedAddresses returns the addresses at which the destination is reached.
func (v *investigation) reachedAddresses() []string {
	var all []string
	for _, t := range v.targets {
		if t.outcome&(reached|unclear) != 0 {
			all = append(all, t.addr.String())
		}
	}
	return all
}
