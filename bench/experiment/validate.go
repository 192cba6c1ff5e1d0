package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// Kinds of work.
const (
	TCP     = "tcp"     // streams, as fast as possible
	UDP     = "udp"     // datagrams at an offered rate
	RR      = "rr"      // request and response over one connection
	UDPRR   = "udprr"   // request and response by datagrams
	CRR     = "crr"     // connect, request, response, close
	Packets = "packets" // small datagrams, as many as possible
	Setup   = "setup"   // build the network until traffic can pass, and remove it
	Start   = "start"   // start a command together with its network, until its first byte arrives
	Memory  = "memory"  // of the network's programs, idle and with flows
	Attach  = "attach"  // give a running container a link until its address can be used, and remove it
	Burst   = "burst"   // attach many containers at the same time
	Event   = "event"   // of a network that spans hosts: something changes or breaks, until all hosts are as they should be
	Loaded  = "loaded"  // a stream as fast as possible, and round trips of datagrams beside it
)

type kind struct {
	name         string
	datagrams    bool // runs over UDP
	transactions bool // requests and responses
	untimed      bool // it has no duration, and its ends run anywhere
	message      int  // default message_bytes
	minMessage   int  // 0: 1
	maxMessage   int
}

var kinds = []kind{
	{name: TCP, message: 128 << 10, maxMessage: 16 << 20},
	{name: UDP, datagrams: true, message: 1472, minMessage: minDatagram, maxMessage: maxDatagram}, // 1472 fills a packet of 1500 bytes
	{name: RR, transactions: true, message: 64, maxMessage: 1 << 20},
	{name: UDPRR, datagrams: true, transactions: true, message: 64, minMessage: minDatagram, maxMessage: maxDatagram},
	{name: CRR, transactions: true, message: 64, minMessage: minConnect, maxMessage: 1 << 20},
	{name: Packets, datagrams: true, message: minDatagram, minMessage: minDatagram, maxMessage: maxDatagram},
	{name: Setup, untimed: true},
	{name: Start, untimed: true},
	{name: Memory, untimed: true},
	{name: Attach, untimed: true},
	{name: Burst, untimed: true},
	{name: Event, untimed: true},
	{name: Loaded, message: 128 << 10, maxMessage: 16 << 20},
}

const (
	minDatagram = 32    // bytes; the generator's own header, which counts and times each datagram
	minConnect  = 24    // bytes; what the generator sends first on a connection
	maxDatagram = 65507 // bytes; an IPv4 packet without its headers (RFC 768, RFC 791)
	udpHeaders  = 28    // bytes of IPv4 and UDP
	minMTU      = 576   // bytes; some kinds of link refuse less
	maxMTU      = 65535 // bytes
	maxPairs    = 128
	maxStreams  = 1024 // of one client: traffic.MaxStreams
	maxRepeat   = 10000
	minDuration = 10 * time.Millisecond // a handshake and some traffic over the slowest path
	maxDuration = 24 * time.Hour
)

// WorkKinds returns the names of the kinds of work.
func WorkKinds() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// kindOf returns the kind of that name, which must exist.
func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

// Words that a group's lists may contain. The kernel decides which congestion controls
// exist.
var (
	topologies = []string{"local", "switched"}
	transports = []string{"tcp", "mptcp"}
	directions = []string{"outbound", "inbound"}
	placements = []string{"different-cores", "same-core", "free"}
	engines    = []string{"cleat", "iperf3", "iperf"}

	steadyKinds = []string{TCP, UDP, Loaded} // work whose rate over several links has a steady part
)

// NetworkNames returns the networks that an experiment may name.
func NetworkNames() []string {
	var names []string
	for _, e := range catalog.All() {
		names = append(names, e.Name)
	}
	return names
}

// Validate returns an *Error for the first mistake. Experiments from Load are valid; call
// Validate again after Override.
func (e Experiment) Validate() error { return e.validate(NetworkNames()) }

// ValidateExisting is Validate for an experiment that measures nothing but
// catalog.ExistingPath.
func (e Experiment) ValidateExisting() error { return e.validate([]string{catalog.ExistingPath}) }

func (e Experiment) validate(networks []string) error {
	if err := e.validateTop(); err != nil {
		return err
	}
	for i, g := range e.Groups {
		if err := g.validate(fmt.Sprintf("$.groups[%d]", i), networks); err != nil {
			return err
		}
	}
	return e.validateJobs()
}

func (e Experiment) validateTop() error {
	switch {
	case e.Name == "":
		return invalid("", "the experiment has no name")
	case e.Repeat < 1 || e.Repeat > maxRepeat:
		return invalid("$.repeat", "repeat %d: want 1…%d blocks", e.Repeat, maxRepeat)
	case e.Warmup < 0 || e.Warmup > maxRepeat:
		return invalid("$.warmup", "warmup %d: want 0…%d blocks", e.Warmup, maxRepeat)
	case len(e.Groups) == 0:
		return invalid("", "nothing to measure: the experiment has no groups, or none with these networks and this work")
	case e.Subject != "" && !slices.Contains(e.Networks(), e.Subject):
		return &Error{path: "$.subject", Problem: fmt.Sprintf("subject %q is not a network of this experiment", e.Subject), Word: e.Subject, Known: e.Networks()}
	case e.LinkRate == Unlimited || e.LinkRate == Search:
		return invalid("$.link_rate", "link rate %q: want a number in bit/s", e.LinkRate)
	}
	if _, err := e.LinkRate.BitsPerSecond(); err != nil {
		return invalid("$.link_rate", "link %v", err)
	}
	return nil
}

func (g Group) validate(path string, networks []string) error {
	if len(g.Networks) == 0 {
		return invalid(path, "the group names no networks")
	}
	for _, l := range []struct {
		key, what    string
		words, valid []string
	}{
		{"networks", "network", g.Networks, networks},
		{"topologies", "topology", g.Topologies, topologies},
		{"transports", "transport", g.Transports, transports},
		{"directions", "direction", g.Directions, directions},
		{"placement", "placement", g.Placement, placements},
		{"engine", "engine", g.Engine, engines},
		{"runtimes", "runtime", g.Runtimes, cell.Runtimes()},
	} {
		if err := firstUnknown(path+"."+l.key, l.what, l.words, l.valid); err != nil {
			return err
		}
	}
	if err := g.validateNumbers(path); err != nil {
		return err
	}
	if err := g.validateWork(path); err != nil {
		return err
	}
	return g.validateFactors(path)
}

func (g Group) validateNumbers(path string) error {
	for i, m := range g.MTU {
		if m != 0 && (m < minMTU || m > maxMTU) {
			return invalid(fmt.Sprintf("%s.mtu[%d]", path, i), "mtu %d: want %d…%d bytes, or 0 for the kernel's default", m, minMTU, maxMTU)
		}
	}
	for _, l := range []struct {
		key    string
		values []int
		max    int
	}{{"pairs", g.Pairs, maxPairs}, {"streams", g.Streams, maxStreams}, {"links", g.Links, multipath.MaxLinks}} {
		for i, v := range l.values {
			if v < 1 || v > l.max {
				return invalid(fmt.Sprintf("%s.%s[%d]", path, l.key, i), "%s %d: want 1…%d", l.key, v, l.max)
			}
		}
	}
	if i := slices.Index(g.Congestion, ""); i >= 0 {
		return invalid(fmt.Sprintf("%s.congestion[%d]", path, i), "a congestion control needs a name, e.g. cubic")
	}
	return nil
}

func (g Group) validateWork(path string) error {
	if len(g.Work) == 0 {
		return invalid(path, "the group has no work")
	}
	for i, w := range g.Work {
		at := fmt.Sprintf("%s.work[%d]", path, i)
		if !slices.Contains(WorkKinds(), w.Kind) {
			return unknown(at+".kind", "kind of work", w.Kind, WorkKinds())
		}
		k := kindOf(w.Kind)
		switch {
		case k.untimed && w.Duration != 0:
			return invalid(at+".duration", "%s has no duration: it ends by itself", w.Kind)
		case !k.untimed && (w.Duration < minDuration || w.Duration > maxDuration):
			return invalid(at+".duration", "duration %v of %s: want %v…%v", w.Duration, w.Kind, minDuration, maxDuration)
		case w.Steady != 0 && !slices.Contains(steadyKinds, w.Kind):
			return invalid(at+".steady", "steady %v of %s: only %s have a steady part", w.Steady, w.Kind, strings.Join(steadyKinds, ", "))
		case w.Steady < 0 || w.Steady > 0 && w.Steady >= w.Duration:
			return invalid(at+".steady", "steady %v of %s: want less than its duration, %v", w.Steady, w.Kind, w.Duration)
		}
		for j, m := range w.MessageBytes {
			if low := max(1, k.minMessage); m < low || m > k.maxMessage {
				return invalid(fmt.Sprintf("%s.message_bytes[%d]", at, j), "message_bytes %d of %s: want %d…%d", m, w.Kind, low, k.maxMessage)
			}
		}
	}
	return nil
}

func (g Group) validateFactors(path string) error {
	for _, name := range slices.Sorted(maps.Keys(g.Factors)) {
		at := path + ".factors." + name
		i := slices.IndexFunc(factors, func(f factor) bool { return f.name == name })
		if i < 0 {
			return unknown(at, "factor", name, FactorNames())
		}
		if len(g.Factors[name]) == 0 {
			return invalid(at, "factor %q has no levels", name)
		}
		for j, v := range g.Factors[name] {
			if err := factors[i].check(v); err != nil {
				err.path = fmt.Sprintf("%s[%d]", at, j)
				return err
			}
		}
	}
	return nil
}

// validateJobs checks that each network is measured somewhere, that a link rate applies to
// something, and that Only matches something.
func (e Experiment) validateJobs() error {
	jobs, reasons := e.cross()
	measured, shaped := map[string]bool{}, false
	for _, j := range jobs {
		measured[j.Cell.Network] = true
		shaped = shaped || j.Cell.Factors[linkRateFactor] != ""
	}
	for i, g := range e.Groups {
		for j, n := range g.Networks {
			if !measured[n] {
				return invalid(fmt.Sprintf("$.groups[%d].networks[%d]", i, j), "network %q can't be measured in this experiment: %s", n, reasons[n])
			}
		}
	}
	if e.LinkRate != "" && !shaped {
		return invalid("$.link_rate", "link rate %s applies to nothing: no network here is measured over a switch or links", e.LinkRate)
	}
	return e.Only.validate(jobs)
}

// ValidateUse returns an *Error for numbers of links, and for factors, that no job of the
// overridden experiment e has.
func (o Override) ValidateUse(e Experiment) error {
	jobs := e.Jobs()
	if len(o.Links) > 0 && !slices.ContainsFunc(jobs, func(j Job) bool { return j.Cell.Links > 0 }) {
		return invalid("$.links", "links %s: none of the networks here is measured over several links", strings.Trim(fmt.Sprint(o.Links), "[]"))
	}
	for _, name := range slices.Sorted(maps.Keys(o.Factors)) {
		if !slices.ContainsFunc(jobs, func(j Job) bool { return j.Cell.Factors[name] != "" }) {
			return invalid("$.factors."+name, "factor %s: none of the networks here has it", name)
		}
	}
	return nil
}
