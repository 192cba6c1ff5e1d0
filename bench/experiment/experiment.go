package experiment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"cleat/bench/cell"
	"cleat/bench/multipath"
	"cleat/internal/rate"

	"github.com/goccy/go-yaml"
)

// Experiment says what to measure and how often. It is plain data: copy it freely, and
// change it with Override.
type Experiment struct {
	Name        string  `yaml:"name"`        // of the preset, or as the file says
	Title       string  `yaml:"title"`       // one line
	Description string  `yaml:"description"` // the question it answers; Markdown
	Repeat      int     `yaml:"repeat"`      // blocks that count; default 10
	Warmup      int     `yaml:"warmup"`      // blocks before them that don't count; default 1
	Seed        uint64  `yaml:"seed"`        // of the order; 0: a new one for each run
	LinkRate    Rate    `yaml:"link_rate"`   // of the links between nodes and switch; "": unshaped
	Subject     string  `yaml:"subject"`     // network that the report compares with baselines and rivals; "": none
	Groups      []Group `yaml:"groups"`
	Only        Only    `yaml:"only"` // restricts the cells; nil: all are measured

	// Between are pairs of machines, each of which all jobs are measured between; nil: this
	// machine has both ends.
	Between []string `yaml:"-"`
}

// Group is a set of factors that are crossed in full. An empty list stands for the
// default level.
type Group struct {
	Networks   []string `yaml:"networks"`   // names from package catalog
	Topologies []string `yaml:"topologies"` // "local", "switched"; default "local"
	Work       []Work   `yaml:"work"`
	Transports []string `yaml:"transports"` // "tcp", "mptcp", for work over TCP; default "tcp"
	Directions []string `yaml:"directions"` // "outbound", "inbound", for networks that have both; default "outbound"
	MTU        []int    `yaml:"mtu"`        // bytes; default 0: the kernel's default
	Pairs      []int    `yaml:"pairs"`      // client–server pairs at once, 1…128; default 1
	Streams    []int    `yaml:"streams"`    // sockets a pair, 1…1024; default 1
	Links      []int    `yaml:"links"`      // between the two hosts, 1…64, for networks over several links; default 1
	Placement  []string `yaml:"placement"`  // default "different-cores"
	Congestion []string `yaml:"congestion"` // reno is used where one is not permitted; default "cubic"
	Engine     []string `yaml:"engine"`     // default "cleat"
	Runtimes   []string `yaml:"runtimes"`   // where the ends run, see cell.Runtimes; default "native"

	// Factors are further factors by name, see FactorNames.
	Factors map[string][]string `yaml:"factors"`
}

// Work is one kind of measurement.
type Work struct {
	Kind         string        `yaml:"kind"`          // one of WorkKinds
	Duration     time.Duration `yaml:"duration"`      // of one measurement; 0 for work that ends by itself
	MessageBytes []int         `yaml:"message_bytes"` // of a write, datagram, request or response; exactly one in a Job
	Steady       time.Duration `yaml:"steady"`        // over several links: start of the part whose rate is reported as steady; 0: 2 s
}

// Rate is a rate in bit/s as package rate parses it ("100M", "2.5G"), or Unlimited or
// Search where they make sense. The zero Rate is "not given".
type Rate string

// Rates that are not numbers, for the factor "offered".
const (
	Unlimited Rate = "unlimited" // as fast as the sender can
	Search    Rate = "search"    // the highest rate whose loss stays within traffic.DefaultLossBound
)

// BitsPerSecond returns the rate as a number: 0 for "", Unlimited and Search. The error
// describes a valid rate.
func (r Rate) BitsPerSecond() (float64, error) {
	if r == "" || r == Unlimited || r == Search {
		return 0, nil
	}
	return rate.Parse(string(r))
}

// Override holds changes from the command line. A zero field changes nothing.
type Override struct {
	// Networks restricts every group to these networks. One that no group has is added
	// to all groups.
	Networks []string
	Repeat   int
	Duration time.Duration // of every measurement
	Pairs    []int
	Engine   []string
	Seed     uint64
	LinkRate Rate
	MTU      []int
	Work     []string            // restricts every group to these kinds of work
	Links    []int               // of networks over several links
	Factors  map[string][]string // levels of further factors, for every group
	Runtimes []string
	Only     Only // replaces the experiment's own
}

// Given checks the value of a flag that was given. Name is the flag's: "networks",
// "repeat", "duration", "pairs", "engine", "seed", "link-rate", "mtu", "links", "work",
// "runtime" or "only". Given returns an *Error for a zero value, which Override would
// take for "unchanged", and for an unknown kind of work, of which Override would leave
// nothing that Validate could reject.
func (o Override) Given(name string) error {
	flag := map[string]struct {
		zero    bool
		problem string
		valid   []string
	}{
		"networks":  {len(o.Networks) == 0, "networks: no name given", NetworkNames()},
		"engine":    {len(o.Engine) == 0, "engine: no name given", engines},
		"work":      {len(o.Work) == 0, "work: no name given", WorkKinds()},
		"runtime":   {len(o.Runtimes) == 0, "runtime: no name given", cell.Runtimes()},
		"only":      {len(o.Only) == 0, "only: no condition given: want AXIS=VALUE, e.g. network=veth or mtu=1500|9000", nil},
		"pairs":     {len(o.Pairs) == 0, fmt.Sprintf("pairs: no number given: want 1…%d", maxPairs), nil},
		"links":     {len(o.Links) == 0, fmt.Sprintf("links: no number given: want 1…%d", multipath.MaxLinks), nil},
		"mtu":       {len(o.MTU) == 0, fmt.Sprintf("mtu: no number given: want %d…%d bytes, or 0 for the kernel's default", minMTU, maxMTU), nil},
		"repeat":    {o.Repeat == 0, fmt.Sprintf("repeat 0: want 1…%d blocks", maxRepeat), nil},
		"duration":  {o.Duration == 0, fmt.Sprintf("duration 0s: want %v…%v", minDuration, maxDuration), nil},
		"seed":      {o.Seed == 0, "seed 0: want 1 or more, or leave it out for a new one", nil},
		"link-rate": {o.LinkRate == "", "link rate: no rate given: want a number in bit/s, optionally with k, M, G or T", nil},
	}[name]
	if flag.zero {
		return &Error{Problem: flag.problem, Known: flag.valid}
	}
	if name == "work" {
		return firstUnknown("", "kind of work", o.Work, WorkKinds())
	}
	return nil
}

// Override returns a copy of e with the changes of o.
func (e Experiment) Override(o Override) Experiment {
	e.Repeat = cmp.Or(o.Repeat, e.Repeat)
	e.Seed = cmp.Or(o.Seed, e.Seed)
	e.LinkRate = cmp.Or(o.LinkRate, e.LinkRate)
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

func (e Experiment) has(network string) bool {
	return slices.ContainsFunc(e.Groups, func(g Group) bool { return slices.Contains(g.Networks, network) })
}

// isSingleLinkBaseline reports whether g only measures one link alone, as the baseline of
// networks over several links. It keeps its one link, unless the user asks for nothing
// else: then Validate is to reject other numbers.
func (g Group) isSingleLinkBaseline(asked []string) bool {
	single := []string{"single"}
	return slices.Equal(g.Networks, single) && !slices.Equal(asked, single)
}

func (g Group) override(o Override) Group {
	g.Pairs = orList(o.Pairs, g.Pairs)
	g.Engine = orList(o.Engine, g.Engine)
	g.MTU = orList(o.MTU, g.MTU)
	g.Runtimes = orList(o.Runtimes, g.Runtimes)
	if !g.isSingleLinkBaseline(o.Networks) {
		g.Links = orList(o.Links, g.Links)
	}
	if len(o.Factors) > 0 {
		g.Factors = maps.Clone(g.Factors)
		if g.Factors == nil {
			g.Factors = map[string][]string{}
		}
		maps.Copy(g.Factors, o.Factors)
	}
	g.Work = slices.Clone(g.Work)
	if len(o.Work) > 0 {
		g.Work = slices.DeleteFunc(g.Work, func(w Work) bool { return !slices.Contains(o.Work, w.Kind) })
	}
	for i := range g.Work {
		if o.Duration != 0 && !kindOf(g.Work[i].Kind).untimed {
			g.Work[i] = g.Work[i].withDuration(o.Duration)
		}
	}
	return g
}

// withDuration returns w with another duration. The steady part keeps its share of it.
func (w Work) withDuration(d time.Duration) Work {
	if w.Steady > 0 {
		w.Steady = time.Duration(float64(w.Steady) * (float64(d) / float64(w.Duration)))
	}
	w.Duration = d
	return w
}

// Networks returns the names of the networks that the experiment measures, each once, in
// the order of its groups.
func (e Experiment) Networks() []string {
	var names []string
	add := func(n string) {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(e.Only) > 0 {
		for _, j := range e.Jobs() {
			add(j.Cell.Network)
		}
		return names
	}
	for _, g := range e.Groups {
		for _, n := range g.Networks {
			add(n)
		}
	}
	return names
}

// JSON returns the experiment under the keys of its YAML form, for the record of a run.
func (e Experiment) JSON() (json.RawMessage, error) {
	text, err := yaml.MarshalWithOptions(e, yaml.JSON())
	if err != nil {
		return nil, fmt.Errorf("encode the experiment: %w", err)
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("encode the experiment: not valid JSON: %s", text)
	}
	return json.RawMessage(text), nil
}
