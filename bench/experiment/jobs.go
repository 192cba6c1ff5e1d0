package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
	"cleat/bench/multipath"
)

// Job is one cell and one kind of work.
type Job struct {
	Cell cell.Cell
	Work Work // with exactly one message size, if the work has one

	// Rate is the number of transactions per second of each pair on a schedule. It is 0 for a closed loop, for work
	// without transactions, and as long as a share of what networks carry is not known.
	Rate float64
}

// ID identifies the job within an experiment.
func (j Job) ID() string { return j.Work.Kind + "|" + j.Cell.Key() }

// Offered returns the rate at which a job of work "udp" sends, in bit/s for all streams of
// a pair together; 0 means as fast as it can. With search, the job searches for the
// highest rate whose loss is acceptable.
func (j Job) Offered() (bitsPerSecond float64, search bool) {
	r := Rate(j.Cell.Factors[offeredFactor])
	bitsPerSecond, _ = r.BitsPerSecond() // Validate has parsed it
	return bitsPerSecond, r == Search
}

// longestCalibration is the time in which a closed loop shows what a network carries: its median takes some hundred
// round trips.
const longestCalibration = 200 * time.Millisecond

// RateShare returns the share of what the slowest network carries that is a job's rate. ok is false if its rate is a
// number, or it has none.
func (j Job) RateShare() (share float64, ok bool) { return rateShare(j.Cell.Factors[rateFactor]) }

// Calibration returns the job with a closed loop, to see what its network carries.
func (j Job) Calibration() Job {
	j.Cell.Factors = maps.Clone(j.Cell.Factors)
	j.set(rateFactor, cell.ClosedRate)
	j.Rate = 0
	j.Work.Duration = min(j.Work.Duration, longestCalibration)
	return j
}

// Calibrations returns what is measured before the first block, to see what the networks carry.
func (e Experiment) Calibrations() []Job {
	var all []Job
	for _, j := range e.Jobs() {
		if _, ok := j.RateShare(); ok {
			all = append(all, j.Calibration())
		}
	}
	return all
}

// Jobs returns all combinations of every group's levels that are possible and match
// Only, each once, in the order of the file. The result is the same for equal
// experiments.
func (e Experiment) Jobs() []Job {
	jobs, _ := e.cross()
	return e.Only.filter(jobs)
}

// cross returns all possible jobs, and for each network the last reason why a
// combination with it is impossible.
func (e Experiment) cross() (jobs []Job, reasons map[string]string) {
	reasons = map[string]string{}
	seen := map[string]bool{}
	for _, g := range e.Groups {
		for _, j := range e.between(g.combinations(e.LinkRate)) {
			if why := whyImpossible(j); why != "" {
				reasons[j.Cell.Network] = why
				continue
			}
			if id := j.ID(); !seen[id] {
				seen[id] = true
				jobs = append(jobs, j)
			}
		}
	}
	return jobs, reasons
}

// between returns jobs × pairs of machines.
func (e Experiment) between(jobs []Job) []Job {
	if len(e.Between) == 0 {
		return jobs
	}
	return each(jobs, e.Between, func(j *Job, v string) { j.set(BetweenFactor, v) })
}

// combinations returns every combination of g's levels. Some may be impossible, some
// repeated.
func (g Group) combinations(linkRate Rate) []Job {
	var jobs []Job
	for _, network := range g.Networks {
		n, ok := catalog.Lookup(network)
		if !ok {
			continue // Validate rejects it
		}
		for _, w := range g.Work {
			base := Job{Work: w, Cell: cell.Cell{Network: network, Runtime: cell.Native, Pairs: 1, Streams: 1, Engine: "cleat"}}
			jobs = append(jobs, g.vary(base, n, linkRate)...)
		}
	}
	return jobs
}

// vary crosses all factors that have a meaning for the network and work of base.
func (g Group) vary(base Job, n catalog.Entry, linkRate Rate) []Job {
	k := kindOf(base.Work.Kind)
	jobs := []Job{base}
	if n.Role == catalog.Multipath {
		jobs = each(jobs, or(g.Links, 1), func(j *Job, v int) { j.Cell.Topology, j.Cell.Links = "links", v })
	} else {
		jobs = each(jobs, or(g.Topologies, "local"), func(j *Job, v string) {
			j.Cell.Topology = v
			if v == "switched" {
				j.Cell.Links = 1
			}
		})
	}
	jobs = each(jobs, g.directions(n), func(j *Job, v string) { j.Cell.Direction = v })
	if k.untimed {
		jobs = g.varyUntimed(jobs, k, n)
	} else {
		jobs = g.varyTraffic(jobs, k, n)
	}
	for _, f := range factors {
		levels := g.Factors[f.name]
		if f.name == zooFactor {
			levels = expandSeeds(levels)
		}
		if f.applies(k, n) && (len(levels) > 0 || f.level != "") {
			jobs = each(jobs, or(levels, f.level), func(j *Job, v string) { j.set(f.name, v) })
		}
	}
	for i := range jobs {
		jobs[i].dropMeaningless()
		if k.name == Loaded {
			jobs[i].set(workFactor, Loaded)
		}
		if linkRate != "" && jobs[i].Cell.Links > 0 && !k.untimed {
			jobs[i].set(linkRateFactor, string(linkRate))
		}
		jobs[i].applyZoo()
	}
	return jobs
}

// varyUntimed crosses the factors of work without a duration.
func (g Group) varyUntimed(jobs []Job, k kind, n catalog.Entry) []Job {
	for i := range jobs {
		jobs[i].Cell.Transport = "tcp"
	}
	if k.name == Setup || k.name == Attach || k.name == Burst || k.name == Event {
		return jobs
	}
	jobs = each(jobs, or(g.MTU, 0), func(j *Job, v int) { j.Cell.MTU = v })
	if k.name == Memory && n.Role == catalog.Rootless {
		jobs = each(jobs, or(g.Streams, memoryStreams), func(j *Job, v int) { j.Cell.Streams = v })
	}
	return jobs
}

const memoryStreams = 1000

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

// transports returns the group's transports for work over TCP, if the network has a
// choice.
func (g Group) transports(n catalog.Entry) []string {
	switch {
	case n.Name == "mptcp":
		return []string{"mptcp"}
	case n.Role == catalog.Multipath:
		return []string{"tcp"}
	}
	return or(g.Transports, "tcp")
}

// directions returns the group's directions, if the network has a choice.
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

// each returns jobs × levels.
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

// or returns levels, or the default level for an empty list.
func or[T any](levels []T, level T) []T { return orList(levels, []T{level}) }

// orList returns the first list, or the second if the first is empty.
func orList[T any](first, second []T) []T {
	if len(first) == 0 {
		return second
	}
	return first
}

func (j *Job) set(factor, level string) {
	if j.Cell.Factors == nil {
		j.Cell.Factors = map[string]string{}
	}
	j.Cell.Factors[factor] = level
}

// dropMeaningless drops the levels of factors where they have no meaning: the loss of links
// that lose nothing, the contents of containers where there are none, the ports of traffic
// that reaches none, the datapath of a tunnel that encrypts, and the share of the rate of new connections.
func (j *Job) dropMeaningless() {
	if j.Cell.Runtime == cell.Native {
		delete(j.Cell.Factors, containedFactor)
	}
	if n, _ := catalog.Lookup(j.Cell.Network); n.Role == catalog.Named && !kindOf(j.Work.Kind).untimed {
		switch j.Cell.Factors[peerFactor] {
		case peerHairpin:
		case peerMasquerade:
			j.Cell.Direction = "outbound"
			delete(j.Cell.Factors, portsFactor)
		case "", peerContainer:
			delete(j.Cell.Factors, portsFactor)
		default:
			j.Cell.Direction = "inbound"
		}
	}
	if j.Cell.Factors[cryptoFactor] == "on" {
		delete(j.Cell.Factors, datapathFactor)
	}
	if rate, err := strconv.ParseFloat(j.Cell.Factors[rateFactor], 64); err == nil {
		j.Rate = rate
	} else if j.Work.Kind == CRR { // it measures how many connections are possible
		delete(j.Cell.Factors, rateFactor)
	}
	switch f := j.Cell.Factors; {
	case f[variantFactor] != multipath.Loss:
		delete(f, lossFactor)
	case f[lossFactor] == "":
		j.set(lossFactor, defaultLoss)
	}
}

// whyImpossible returns why a combination is impossible; "" if it is possible. The package
// comment lists the rules.
func whyImpossible(j Job) string {
	c, k := j.Cell, kindOf(j.Work.Kind)
	n, _ := catalog.Lookup(c.Network)
	peer := c.Factors[peerFactor]
	mtu := cmp.Or(c.MTU, 1500) // 0: the kernel's default, that of Ethernet or of the loopback device
	if c.MTU == 0 && n.Role == catalog.Baseline {
		mtu = maxMTU
	}
	why := ""
	switch n.Role {
	case catalog.Multipath:
		why = cmp.Or(whyImpossibleOverLinks(j, n, k), whyImpossibleInZoo(j))
	case catalog.Named:
		why = whyImpossibleNamed(j, k)
	case catalog.Overlay:
		why = whyImpossibleSpanned(j, n, k)
	}
	isNamed := n.Role == catalog.Named
	datapath := c.Factors[datapathFactor]
	switch {
	case why != "":
		return why
	case isTunnel(k, n) && (datapath == "nft" || datapath == "bpf"):
		return "datapath " + datapath + " does not apply: a tunnel has auto and " + ownDatapath
	case !isTunnel(k, n) && datapath == ownDatapath:
		return "datapath " + ownDatapath + " does not apply: only tunnels have it"
	case k.name == Memory && n.Role != catalog.Rootless && !isNamed:
		return "memory does not apply: no program of its own carries its traffic"
	case k.name == Start && n.Role != catalog.Rootless && n.Name != "loopback":
		return "start does not apply: it is not built together with a command"
	case (k.name == Memory || k.name == Start) && c.Direction == "inbound":
		return k.name + " is measured outbound only"
	case k.name == Attach && n.Role != catalog.Attacher && !isNamed && !n.Cluster:
		return "attach does not apply: it is a network, and no program that attaches containers to one"
	case k.name != Attach && n.Role == catalog.Attacher:
		return "only attach applies: it attaches containers, and carries no traffic"
	case k.name == Burst && !isNamed:
		return "burst is measured on named networks only"
	case k.name == Event && !n.Cluster:
		return "event does not apply: no programs on several hosts make it"
	case k.name == Attach && c.Network == dockerConnect && c.Factors[endpointsFactor] != "1":
		return "only the first endpoint is measured: each takes a container of Docker's"
	case !isNamed && (peer == peerContainer || peer == peerHairpin || peer == peerMasquerade):
		return "peer " + peer + " does not apply: its containers have no network of their own"
	case c.Topology == "switched" && n.OneHost:
		return "topology switched does not apply: it exists within one node"
	case c.Topology == "switched" && peer != "" && peer != peerOutside:
		return "topology switched does not apply: the peer is the host itself"
	case peer == peerHostAddress && c.Direction == "outbound":
		return "peer host-address does not apply outbound: the host is reached by the address for its loopback"
	case c.Engine != "cleat" && k.name != TCP && k.name != UDP:
		return fmt.Sprintf("%s does not measure %s", c.Engine, k.name)
	case c.Engine != "cleat" && c.Transport == "mptcp":
		return c.Engine + " does not support MPTCP"
	case c.Engine != "cleat" && c.Factors[gsoFactor] == "on":
		return c.Engine + " does not use UDP_SEGMENT"
	case c.Engine != "cleat" && c.Factors[offeredFactor] == string(Search):
		return c.Engine + " does not search for a rate"
	case c.Network == "host-loopback" && c.MTU != 0:
		return "the MTU of the host's own loopback is not changed"
	case c.Factors[gsoFactor] == "on" && c.MessageBytes+udpHeaders > mtu:
		return "UDP_SEGMENT needs datagrams that fit the MTU"
	}
	return ""
}

// whyImpossibleOverLinks is whyImpossible for a network over several links.
func whyImpossibleOverLinks(j Job, n catalog.Entry, k kind) string {
	c := j.Cell
	variant := c.Factors[variantFactor]
	_, search := j.Offered()
	switch {
	case k.untimed:
		return k.name + " is not measured over several links"
	case c.Network == "single" && c.Links > 1:
		return "it uses a single link"
	case c.Network == "mptcp" && k.datagrams:
		return "MPTCP carries TCP only"
	case variant == "": // a case of the zoo
	case c.Links < 2 && variant != multipath.Plain && variant != multipath.Loss:
		return "variant " + variant + " needs two links or more"
	case search && (variant == multipath.BlackHole || variant == multipath.Flap):
		return "variant " + variant + " happens at fixed times, which a search for a rate does not have"
	case isRival(k, n) && c.Factors[outerFactor] != outers[0]:
		return "other programs' tunnels run over IPv4 only"
	}
	return ""
}

// whyImpossibleNamed is whyImpossible for a named network.
func whyImpossibleNamed(j Job, k kind) string {
	c := j.Cell
	count := func(factor string) int { n, _ := strconv.Atoi(c.Factors[factor]); return n } // 0: it has no meaning
	endpoints := count(endpointsFactor)
	if k.name == Burst {
		endpoints += count(parallelFactor) - 1
	}
	ofDocker := 0 // containers that Docker starts
	switch c.Network {
	case dockerBridge:
		ofDocker = endpoints
	case cleatDocker, cleatDockerDirect: // the others are network namespaces
		ofDocker = count(parallelFactor)
	}
	switch {
	case k.name == Setup || k.name == Start:
		return k.name + " does not apply: attach measures how long a container takes to connect"
	case k.name == Memory && c.Network == "cni-bridge":
		return "memory does not apply: none of its programs keeps running"
	case k.name == Memory && count(portsFactor) > endpoints:
		return "there are as many ports as endpoints at most: each publishes one"
	case ofDocker > mostOfDocker:
		return fmt.Sprintf("at most %d endpoints are measured: each takes a container of Docker's", mostOfDocker)
	case c.Network == dockerBridge && count(portsFactor) > mostOfDocker:
		return fmt.Sprintf("at most %d ports are measured: each takes two proxies of Docker's", mostOfDocker)
	case endpoints > maxEndpoints:
		return fmt.Sprintf("a bridge has at most %d endpoints", maxEndpoints)
	case c.MTU != 0:
		return "its engine chooses the MTU"
	}
	return ""
}
