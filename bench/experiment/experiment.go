package experiment

import (
	"maps"
	"slices"
	"time"

	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// Experiment is what to measure and how often. It is plain data: copy it
// freely, and change it with Override.
type Experiment struct {
	Name        string  `yaml:"name"`        // of the preset, or what the file calls itself
	Title       string  `yaml:"title"`       // one line
	Description string  `yaml:"description"` // what it answers; Markdown
	Repeat      int     `yaml:"repeat"`      // blocks that count; default 10
	Warmup      int     `yaml:"warmup"`      // blocks before them that do not; default 1
	Seed        uint64  `yaml:"seed"`        // of the order; 0: a fresh one each run
	LinkRate    Rate    `yaml:"link_rate"`   // of the links between nodes and switch; "": as fast as they are
	Subject     string  `yaml:"subject"`     // the network that the report compares with the baselines and with its rivals; "": none
	Groups      []Group `yaml:"groups"`
	Only        Only    `yaml:"only"` // the cells to measure; nil: all of them
}

// Group is a set of factors to be crossed in full. An empty list stands for
// the one level given below.
type Group struct {
	Networks   []string `yaml:"networks"`   // names from package catalog
	Topologies []string `yaml:"topologies"` // default "local"
	Work       []Work   `yaml:"work"`
	Transports []string `yaml:"transports"` // "tcp", "mptcp": for work over TCP; default "tcp"
	Directions []string `yaml:"directions"` // "outbound", "inbound": for networks that have both; default "outbound"
	MTU        []int    `yaml:"mtu"`        // bytes; default 0: the kernel's
	Pairs      []int    `yaml:"pairs"`      // client–server pairs at once, 1…128; default 1
	Streams    []int    `yaml:"streams"`    // sockets a pair, 1…1024; default 1
	Links      []int    `yaml:"links"`      // between the two hosts, 1…64: for networks over several links; default 1
	Placement  []string `yaml:"placement"`  // default "different-cores"
	Congestion []string `yaml:"congestion"` // a wish: what is not permitted becomes reno; default "cubic"
	Engine     []string `yaml:"engine"`     // default "cleat"
	Runtimes   []string `yaml:"runtimes"`   // what the ends run in, see cell.Runtimes; default "native"

	// Factors are the further ones, by name; see FactorNames.
	Factors map[string][]string `yaml:"factors"`
}

// Work is one kind of measurement.
type Work struct {
	Kind         string        `yaml:"kind"`          // see WorkKinds
	Duration     time.Duration `yaml:"duration"`      // of one measurement; none for "setup", "start", "memory" and "attach"
	MessageBytes []int         `yaml:"message_bytes"` // a write, datagram, request or response; in a Job exactly one
	Steady       time.Duration `yaml:"steady"`        // over several links: from when on the rate is told as the steady one; 0: 2 s
}

// Override holds what the command line changes. A zero field changes nothing.
type Override struct {
	// Networks limits every group to these networks. One that no group has is
	// added to all of them.
	Networks []string
	Repeat   int
	Duration time.Duration // of every measurement
	Pairs    []int
	Engine   []string
	Seed     uint64
	LinkRate Rate
	MTU      []int
	Work     []string            // limits every group to these kinds of work
	Links    []int               // of the networks that have several
	Factors  map[string][]string // levels of further factors, for every group
	Runtimes []string
	Only     Only // the cells to measure; replaces the experiment's own
}

// Given returns an *Error when the field of this name was given and is zero:
// no list and no number of it can mean that, and Override would take it for
// "unchanged". It also does for a kind of work that there is not, of which
// Override would leave nothing to complain about. The names are those of the command line's flags: "networks",
// "repeat", "duration", "pairs", "engine", "seed", "link-rate", "mtu", "links",
// "work", "runtime" and "only".
func (o Override) Given(name string) error {
	switch {
	case name == "networks" && len(o.Networks) == 0:
		return &Error{Problem: "networks: none is named", Known: NetworkNames()}
	case name == "engine" && len(o.Engine) == 0:
		return &Error{Problem: "engine: none is named", Known: engines}
	case name == "work" && len(o.Work) == 0:
		return &Error{Problem: "work: none is named", Known: WorkKinds()}
	case name == "work" && slices.ContainsFunc(o.Work, func(k string) bool { return !slices.Contains(WorkKinds(), k) }):
		i := slices.IndexFunc(o.Work, func(k string) bool { return !slices.Contains(WorkKinds(), k) })
		return unknown("", "kind of work", o.Work[i], WorkKinds())
	case name == "runtime" && len(o.Runtimes) == 0:
		return &Error{Problem: "runtime: none is named", Known: cell.Runtimes()}
	case name == "only" && len(o.Only) == 0:
		return wrong("", "only: nothing is named: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000")
	case name == "pairs" && len(o.Pairs) == 0:
		return wrong("", "pairs: no number is given: want 1…%d", maxPairs)
	case name == "links" && len(o.Links) == 0:
		return wrong("", "links: no number is given: want 1…%d", multipath.MaxLinks)
	case name == "mtu" && len(o.MTU) == 0:
		return wrong("", "mtu: no number is given: want %d…%d bytes, or 0 for the kernel's default", minMTU, maxMTU)
	case name == "repeat" && o.Repeat == 0:
		return wrong("", "repeat 0: want 1…%d blocks", maxRepeat)
	case name == "duration" && o.Duration == 0:
		return wrong("", "duration 0s: want %v…%v", minDuration, maxDuration)
	case name == "seed" && o.Seed == 0:
		return wrong("", "seed 0: want 1 or more, or none for a fresh one")
	case name == "link-rate" && o.LinkRate == "":
		return wrong("", "link rate: none is given: want a number in bit/s, with k, M, G or T if need be")
	}
	return nil
}

// Override returns a copy of e with the changes of o; e keeps its own.
func (e Experiment) Override(o Override) Experiment {
	if o.Repeat != 0 {
		e.Repeat = o.Repeat
	}
	if o.Seed != 0 {
		e.Seed = o.Seed
	}
	if o.LinkRate != "" {
		e.LinkRate = o.LinkRate
	}
	added := slices.DeleteFunc(slices.Clone(o.Networks), e.has)
	groups := e.Groups
	e.Groups = nil
	for _, g := range groups {
		if len(o.Networks) > 0 {
			g.Networks = slices.DeleteFunc(slices.Clone(g.Networks), func(n string) bool { return !slices.Contains(o.Networks, n) })
			g.Networks = append(g.Networks, added...)
		}
		if g = g.override(o); len(g.Networks) > 0 && len(g.Work) > 0 {
			e.Groups = append(e.Groups, g)
		}
	}
	if len(o.Only) > 0 {
		e.Only = o.Only
	}
	if !slices.Contains(e.Networks(), e.Subject) {
		e.Subject = ""
	}
	return e
}

// has tells whether any group names the network.
func (e Experiment) has(network string) bool {
	return slices.ContainsFunc(e.Groups, func(g Group) bool { return slices.Contains(g.Networks, network) })
}

// isOneLink tells whether g measures one of the links, as what the networks over
// several are compared with: other numbers of links are not for it. Where nothing
// else is asked for, they are, and Validate says that they can't be.
func (g Group) isOneLink(asked []string) bool {
	one := []string{"single"}
	return slices.Equal(g.Networks, one) && !slices.Equal(asked, one)
}

func (g Group) override(o Override) Group {
	if len(o.Pairs) > 0 {
		g.Pairs = o.Pairs
	}
	if len(o.Engine) > 0 {
		g.Engine = o.Engine
	}
	if len(o.MTU) > 0 {
		g.MTU = o.MTU
	}
	if len(o.Links) > 0 && !g.isOneLink(o.Networks) {
		g.Links = o.Links
	}
	if len(o.Factors) > 0 {
		g.Factors = maps.Clone(g.Factors)
		if g.Factors == nil {
			g.Factors = map[string][]string{}
		}
		maps.Copy(g.Factors, o.Factors)
	}
	if len(o.Runtimes) > 0 {
		g.Runtimes = o.Runtimes
	}
	g.Work = slices.Clone(g.Work)
	if len(o.Work) > 0 {
		g.Work = slices.DeleteFunc(g.Work, func(w Work) bool { return !slices.Contains(o.Work, w.Kind) })
	}
	for i := range g.Work {
		if o.Duration != 0 && !kindOf(g.Work[i].Kind).untimed {
			g.Work[i] = g.Work[i].lasting(o.Duration)
		}
	}
	return g
}

// lasting is w with another duration, of which the steady part keeps its share.
func (w Work) lasting(d time.Duration) Work {
	if w.Steady > 0 {
		w.Steady = time.Duration(float64(w.Steady) * (float64(d) / float64(w.Duration)))
	}
	w.Duration = d
	return w
}

// Networks are the names that the experiment measures, each once, in the order
// of its groups.
func (e Experiment) Networks() []string {
	var names []string
	if len(e.Only) > 0 {
		for _, j := range e.Jobs() {
			if !slices.Contains(names, j.Cell.Network) {
				names = append(names, j.Cell.Network)
			}
		}
		return names
	}
	for _, g := range e.Groups {
		for _, n := range g.Networks {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}
