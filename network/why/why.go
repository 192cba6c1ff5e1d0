package why

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"cleat/netns"
	"cleat/network/named"
)

// State is the result of a check.
type State string

// The results of checks.
const (
	OK      State = "ok"
	Bad     State = "bad"     // it keeps the source from the destination, or can disturb it
	Unknown State = "unknown" // it could not be checked, or has no clear result
)

// Check is one fact about the way from the source to the destination.
type Check struct {
	Name  string `json:"name"` // one of the names in Checks
	State State  `json:"state"`
	Text  string `json:"text"`
}

// The names of checks, in the order in which a packet and its name need them.
const (
	checkEnds      = "ends"
	checkHosts     = "hosts"
	checkName      = "name"
	checkPublished = "published"
	checkNetworks  = "networks"
	checkRules     = "rules"
	checkKernel    = "kernel"
	checkListener  = "listener"
	checkProbe     = "probe"
)

// Checks returns the names of all checks in order. An answer has several of some, and none of
// those that don't apply.
func Checks() []string {
	return []string{checkEnds, checkHosts, checkName, checkPublished, checkNetworks, checkRules, checkKernel, checkListener, checkProbe}
}

// Answer says whether the source reaches the destination, and if not, why.
type Answer struct {
	Host    string  `json:"host,omitempty"` // another one, which has tried, because the source is there
	From    string  `json:"from"`
	To      string  `json:"to"`
	Reached bool    `json:"reached"`
	Checks  []Check `json:"checks"` // in the order of Checks
	Cause   Cause   `json:"cause,omitempty"`
	Verdict string  `json:"verdict"`       // one sentence without a full stop
	Try     string  `json:"try,omitempty"` // what to type or to do; empty if Reached
}

// Ask finds out whether a container reaches a destination, by trying, and what is in the way.
// It takes up to some seconds, and changes nothing. It runs in the host's network namespace. The
// error is one of netns/find or network/named if the question has a mistake, such as an unknown
// container as the source.
func Ask(ctx context.Context, cfg named.Config, q Question) (*Answer, error) {
	v := &investigation{cfg: cfg, store: named.Store{Store: cfg.Attach.Store}, q: q, hostOf: map[*named.Endpoint]string{}}
	defer v.close()
	if err := v.read(); err != nil {
		return nil, err
	}
	if err := v.findSource(ctx); err != nil {
		return nil, err
	}
	if err := v.findDestination(ctx); err != nil {
		return nil, err
	}
	v.checkEnds()
	steps := []func(context.Context){v.checkName, v.routes, v.checkPublished, v.checkNetworks, v.checkRules, v.probe, v.checkKernel, v.checkListeners, v.checkOtherEnds}
	if v.from.ns == nil {
		steps = nil
	}
	for _, step := range steps {
		step(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return v.conclude(), nil
}

// investigation is a question on its way to an answer.
type investigation struct {
	cfg   named.Config
	store named.Store
	q     Question

	networks  []*named.Network
	endpoints []*named.Endpoint          // of all hosts
	hostOf    map[*named.Endpoint]string // those of other hosts
	host      *machine
	from      *machine
	to        []*machine // more than one if several containers have an alias
	name      string     // of the destination, if it is one that the source must resolve
	targets   []*target

	checks   []Check
	findings []finding
	opened   []*netns.NS
}

// read reads all networks, and opens the host's namespace.
func (v *investigation) read() (err error) {
	if v.networks, err = v.store.Networks(); err != nil {
		return err
	}
	for _, n := range v.networks {
		endpoints, err := v.store.Endpoints(n.Name)
		if err != nil {
			return err
		}
		v.endpoints = append(v.endpoints, endpoints...)
		if n.Span == nil {
			continue
		}
		elsewhere, err := v.store.Elsewhere(n.Name)
		if err != nil {
			return err
		}
		for _, e := range elsewhere {
			v.endpoints = append(v.endpoints, e.Endpoint)
			v.hostOf[e.Endpoint] = e.Host
		}
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	v.host = &machine{label: "the host", isHost: true}
	return v.open(v.host, ns, v.host.label)
}

func (v *investigation) close() {
	for _, ns := range v.opened {
		ns.Close()
	}
}

// network returns a network; nil if there is none of this name.
func (v *investigation) network(name string) *named.Network {
	i := slices.IndexFunc(v.networks, func(n *named.Network) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return v.networks[i]
}

func (v *investigation) add(check string, state State, format string, args ...any) {
	v.checks = append(v.checks, Check{check, state, fmt.Sprintf(format, args...)})
}

func (v *investigation) ok(check, format string, args ...any) { v.add(check, OK, format, args...) }

func (v *investigation) unknown(check, format string, args ...any) {
	v.add(check, Unknown, format, args...)
}

// bad adds a check whose text is the finding's.
func (v *investigation) bad(check string, f finding) {
	f.check = check
	v.add(check, Bad, "%s", cmp.Or(f.fact, f.because))
	v.findings = append(v.findings, f)
}
