package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// Job is one combination of factors and the work to be done with it.
type Job struct {
	Cell cell.Cell
	Work Work // with exactly one message size, except for "setup"
}

// Offered is the rate at which a udp job sends, in bit/s for all streams of a
// pair together; 0 means as fast as it can. With search, the highest rate is
// wanted whose loss stays within LossBound.
func (j Job) Offered() (bitsPerSecond float64, search bool) {
	r := Rate(j.Cell.Factors[offeredFactor])
	bitsPerSecond, _ = r.BitsPerSecond() // Validate has read it before
	return bitsPerSecond, r == Search
}

// The further factors, as they stand in a Cell.
const (
	offeredFactor   = "offered"    // Rate, Unlimited or Search
	rateFactor      = "rate"       // transactions per second on a schedule; "": each follows the last
	gsoFactor       = "gso"        // "on": UDP_SEGMENT and UDP_GRO
	checksumFactor  = "checksum"   // "off": the devices do not offload checksums
	vxlanPortFactor = "vxlan_port" // UDP destination port
	hairpinFactor   = "hairpin"    // "on": the switch reflects frames, as 802.1Qbg has it
	peerFactor      = "peer"       // where the other end of a rootless container's traffic is
	workFactor      = "work"       // "loaded": a cell of that work measures what one of tcp does, and more; results tell them apart by this name anyway
	linkRateFactor  = "link_rate"  // Rate of each link; Experiment.LinkRate goes before a group's
)

// Levels of the factor "peer".
const (
	peerOutside      = "outside"       // a node beyond the host; where a group does not mention it
	peerHostLoopback = "host-loopback" // the host: outbound by the address for its loopback, inbound from 127.0.0.1
	peerHostAddress  = "host-address"  // the host: inbound by its own address
)

// factor is a further factor that a group may vary.
type factor struct {
	name    string
	check   func(level string) *Error
	applies func(k kind, network catalog.Entry) bool
	level   string // where a group does not mention it; "" leaves it out
}

var factors = []factor{
	{offeredFactor, checkOffered, func(k kind, _ catalog.Entry) bool { return k.name == UDP }, string(Unlimited)},
	{rateFactor, checkTransactions, func(k kind, _ catalog.Entry) bool { return k.transactions }, ""},
	{gsoFactor, checkSwitch, func(k kind, _ catalog.Entry) bool { return k.name == UDP }, ""},
	{checksumFactor, checkSwitch, func(k kind, n catalog.Entry) bool { return !k.untimed && len(n.Kinds) > 0 }, ""},
	{hairpinFactor, checkSwitch, func(_ kind, n catalog.Entry) bool { return n.Name == "macvlan-vepa" }, ""},
	{peerFactor, checkPeer, func(_ kind, n catalog.Entry) bool { return n.Role == catalog.Rootless }, ""},
	{vxlanPortFactor, checkPort, func(_ kind, n catalog.Entry) bool { return slices.Contains(n.Kinds, "vxlan") }, ""},
	{linkRateFactor, checkLinkRate, isMultipath, ""},
	{variantFactor, checkWord("variant", multipath.Variants()), isMultipath, multipath.Plain},
	{lossFactor, checkLoss, isMultipath, ""},
	{outerFactor, checkWord("outer", outers), isMultipath, outers[0]},
	{schedulerFactor, checkWord("scheduler", schedulers), isTunnel, schedulers[0]},
	{cryptoFactor, checkSwitch, isTunnel, "off"},
	{settingsFactor, checkWord("settings", settings), isRival, settings[0]},
	{containedFactor, checkWord("contained", containeds), isTunnel, containeds[0]},
	{linkFactor, checkWord("link", attachedLinks), isAttach, attachedLinks[0]},
	{endpointsFactor, checkEndpoints, isAttach, "1"},
}

// FactorNames are the factors that a group may vary beside those with a key of
// their own.
func FactorNames() []string {
	names := make([]string, len(factors))
	for i, f := range factors {
		names[i] = f.name
	}
	return names
}

func checkOffered(level string) *Error {
	if _, err := Rate(level).BitsPerSecond(); err != nil || level == "" {
		return wrong("", "offered rate %q: want a number in bit/s such as 10G, %q or %q", level, Unlimited, Search)
	}
	return nil
}

func checkTransactions(level string) *Error {
	if n, err := strconv.ParseFloat(level, 64); err != nil || !(n > 0) || n > 1e7 {
		return wrong("", "rate %q: want transactions per second, e.g. 1000", level)
	}
	return nil
}

func checkSwitch(level string) *Error {
	if level != "on" && level != "off" {
		return unknown("", "level", level, []string{"on", "off"})
	}
	return nil
}

func checkPeer(level string) *Error {
	if !slices.Contains(peers, level) {
		return unknown("", "peer", level, peers)
	}
	return nil
}

func checkPort(level string) *Error {
	if p, err := strconv.ParseUint(level, 10, 16); err != nil || p == 0 {
		return wrong("", "port %q: want 1…65535, e.g. 4789 (IANA) or 8472 (Linux of old)", level)
	}
	return nil
}

// Jobs is the full crossing of every group without what can't be, without
// repetitions and without what Only leaves out, in the order of the file. It is
// the same for equal experiments.
func (e Experiment) Jobs() []Job {
	jobs, _ := e.cross()
	return e.Only.choose(jobs)
}

// cross also says for each network why combinations with it were left out (the
// last reason met).
func (e Experiment) cross() ([]Job, map[string]string) {
	var jobs []Job
	seen, dropped := map[string]bool{}, map[string]string{}
	for _, g := range e.Groups {
		for _, j := range g.crossing(e.LinkRate) {
			if why := impossible(j); why != "" {
				dropped[j.Cell.Network] = why
				continue
			}
			id := j.Work.Kind + "|" + j.Cell.Key()
			if !seen[id] {
				seen[id] = true
				jobs = append(jobs, j)
			}
		}
	}
	return jobs, dropped
}

// crossing is every combination of g's levels, possible or not, some several
// times.
func (g Group) crossing(linkRate Rate) []Job {
	var jobs []Job
	for _, network := range g.Networks {
		n, ok := catalog.Lookup(network)
		if !ok {
			continue // Validate has complained
		}
		for _, w := range g.Work {
			start := Job{Work: w, Cell: cell.Cell{Network: network, Runtime: cell.Native, Pairs: 1, Streams: 1, Engine: "cleat"}}
			jobs = append(jobs, g.vary(start, n, linkRate)...)
		}
	}
	return jobs
}

// vary crosses all levels that mean something for the network and work of
// start.
func (g Group) vary(start Job, n catalog.Entry, linkRate Rate) []Job {
	k := kindOf(start.Work.Kind)
	jobs := []Job{start}
	jobs = each(jobs, g.topologies(n), func(j *Job, v string) {
		j.Cell.Topology = v
		if v == "switched" {
			j.Cell.Links = 1
		}
	})
	if n.Role == catalog.Multipath {
		jobs = each(jobs, or(g.Links, 1), func(j *Job, v int) { j.Cell.Links = v })
	}
	jobs = each(jobs, g.directions(n), func(j *Job, v string) { j.Cell.Direction = v })
	if k.untimed {
		jobs = g.varyUntimed(jobs, k)
	} else {
		jobs = g.varyTraffic(jobs, k, n)
	}
	for _, f := range factors {
		if levels := g.Factors[f.name]; f.applies(k, n) && (len(levels) > 0 || f.level != "") {
			jobs = each(jobs, or(levels, f.level), func(j *Job, v string) { j.set(f.name, v) })
		}
	}
	settleLinks(jobs)
	if k.name == Loaded {
		jobs = each(jobs, []string{Loaded}, func(j *Job, v string) { j.set(workFactor, v) })
	}
	for i := range jobs {
		if linkRate != "" && jobs[i].Cell.Links > 0 && !k.untimed {
			jobs[i].set(linkRateFactor, string(linkRate))
		}
	}
	return jobs
}

// varyUntimed crosses the factors of work that is not about the rate of traffic.
func (g Group) varyUntimed(jobs []Job, k kind) []Job {
	jobs = each(jobs, []string{"tcp"}, func(j *Job, v string) { j.Cell.Transport = v })
	if k.name == Setup || k.name == Attach {
		return jobs
	}
	jobs = each(jobs, or(g.MTU, 0), func(j *Job, v int) { j.Cell.MTU = v })
	if k.name == Memory {
		jobs = each(jobs, or(g.Streams, memoryStreams), func(j *Job, v int) { j.Cell.Streams = v })
	}
	return jobs
}

// memoryStreams is how many flows the work "memory" opens where a group does not
// say.
const memoryStreams = 1000

// topologies are those that the network can have; a group chooses only where
// there is a choice.
func (g Group) topologies(n catalog.Entry) []string {
	if n.Role == catalog.Multipath {
		return []string{linked}
	}
	return or(g.Topologies, "local")
}

// linked is the topology of two hosts that links join directly.
const linked = "links"

// transports are those of work over TCP that the network can have.
func (g Group) transports(n catalog.Entry) []string {
	switch {
	case n.Name == "mptcp":
		return []string{"mptcp"}
	case n.Role == catalog.Multipath:
		return []string{"tcp"}
	}
	return or(g.Transports, "tcp")
}

// varyTraffic crosses the factors that only traffic has.
func (g Group) varyTraffic(jobs []Job, k kind, n catalog.Entry) []Job {
	transports := []string{"udp"}
	if !k.datagrams {
		transports = g.transports(n)
		jobs = each(jobs, or(g.Congestion, "cubic"), func(j *Job, v string) { j.Cell.Congestion = v })
	}
	jobs = each(jobs, transports, func(j *Job, v string) { j.Cell.Transport = v })
	jobs = each(jobs, or(g.MTU, 0), func(j *Job, v int) { j.Cell.MTU = v })
	jobs = each(jobs, or(g.Pairs, 1), func(j *Job, v int) { j.Cell.Pairs = v })
	jobs = each(jobs, or(g.Streams, 1), func(j *Job, v int) { j.Cell.Streams = v })
	jobs = each(jobs, or(g.Placement, placements[0]), func(j *Job, v string) { j.Cell.Placement = v })
	jobs = each(jobs, or(g.Engine, "cleat"), func(j *Job, v string) { j.Cell.Engine = v })
	jobs = each(jobs, or(g.Runtimes, cell.Native), func(j *Job, v string) { j.Cell.Runtime = v })
	return each(jobs, or(jobs[0].Work.MessageBytes, k.message), func(j *Job, v int) {
		j.Cell.MessageBytes, j.Work.MessageBytes = v, []int{v}
	})
}

// directions are those that the network has; a group chooses only where there
// is a choice.
func (g Group) directions(n catalog.Entry) []string {
	switch n.Role {
	case catalog.Baseline:
		return []string{"local"}
	case catalog.Rootless, catalog.Existing:
		return or(g.Directions, "outbound")
	}
	switch n.Name {
	case "container-to-host", "nat-out":
		return []string{"outbound"}
	case "host-to-container", "published-loopback", "published-loopback-nat", "published-host", "published-outside":
		return []string{"inbound"}
	}
	return []string{"between"}
}

// each is jobs × levels.
func each[T any](jobs []Job, levels []T, set func(*Job, T)) []Job {
	out := make([]Job, 0, len(jobs)*len(levels))
	for _, j := range jobs {
		for _, v := range levels {
			k := j
			k.Cell.Factors = maps.Clone(j.Cell.Factors)
			set(&k, v)
			out = append(out, k)
		}
	}
	return out
}

// or is levels, or the one level that stands for an empty list.
func or[T any](levels []T, level T) []T {
	if len(levels) == 0 {
		return []T{level}
	}
	return levels
}

func (j *Job) set(factor, level string) {
	if j.Cell.Factors == nil {
		j.Cell.Factors = map[string]string{}
	}
	j.Cell.Factors[factor] = level
}

// impossible says why a combination can't be; "" if it can. The package
// comment states the rules.
func impossible(j Job) string {
	c, k := j.Cell, kindOf(j.Work.Kind)
	role := catalog.RoleOf(c.Network)
	peer := c.Factors[peerFactor]
	switch {
	case k.name == Memory && role != catalog.Rootless:
		return "no program of its own carries its traffic: memory does not apply"
	case k.name == Start && role != catalog.Rootless && c.Network != "loopback":
		return "it is not made together with a command: start does not apply"
	case (k.name == Memory || k.name == Start) && c.Direction == "inbound":
		return k.name + " is measured outbound"
	case (k.name == Attach) != (role == catalog.Attacher):
		return impossibleAttach(k.name)
	case k.name == Attach && c.Network == dockerConnect && c.Factors[endpointsFactor] != "1":
		return "each endpoint takes a container of Docker's: only the first is measured"
	case role == catalog.Multipath && impossibleLinks(j) != "":
		return impossibleLinks(j)
	case c.Topology == "switched" && peer != "" && peer != peerOutside:
		return "the peer is the host itself: topology switched does not apply"
	case peer == peerHostAddress && c.Direction == "outbound":
		return "outbound the host is reached by the address for its loopback"
	case c.Topology == "switched" && oneNode(c.Network):
		return "it exists within one node: topology switched does not apply"
	case c.Engine != "cleat" && k.name != TCP && k.name != UDP:
		return fmt.Sprintf("%s does not measure %s", c.Engine, k.name)
	case c.Engine != "cleat" && c.Transport == "mptcp":
		return c.Engine + " does not speak MPTCP"
	case c.Engine != "cleat" && c.Factors[gsoFactor] == "on":
		return c.Engine + " does not use UDP_SEGMENT"
	case c.Engine != "cleat" && c.Factors[offeredFactor] == string(Search):
		return c.Engine + " does not search for a rate"
	case c.Network == "host-loopback" && c.MTU != 0:
		return "the host's own loopback keeps its MTU"
	case c.Factors[gsoFactor] == "on" && c.MessageBytes+udpHeaders > mtuOf(c):
		return "UDP_SEGMENT needs datagrams that fit the MTU"
	}
	return ""
}

// mtuOf is the MTU in bytes where the cell leaves it to the kernel: that of
// Ethernet, or of the loopback device.
func mtuOf(c cell.Cell) int {
	if c.MTU != 0 {
		return c.MTU
	}
	if n, _ := catalog.Lookup(c.Network); n.Role == catalog.Baseline {
		return maxMTU
	}
	return 1500
}

// oneNode tells whether a network can't join two nodes.
func oneNode(network string) bool {
	n, _ := catalog.Lookup(network)
	return n.OneHost
}
