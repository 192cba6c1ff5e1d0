package cell

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Metric names what a number measures. A metric's unit is fixed; see Unit.
type Metric string

// The metrics. Latency percentiles come from merged histograms, never from averages.
const (
	Throughput  Metric = "throughput"       // bit/s, as received
	Loss        Metric = "loss"             // fraction of the datagrams sent, 0…1
	LatencyP50  Metric = "latency_p50"      // ns, from the time at which the schedule wants the request to be sent
	LatencyP99  Metric = "latency_p99"      // ns
	LatencyP999 Metric = "latency_p999"     // ns
	ClosedP50   Metric = "closed_p50"       // ns, of a closed loop: each request follows the last response
	ClosedP99   Metric = "closed_p99"       // ns
	Connections Metric = "connections"      // 1/s, connect, request, response and close
	Packets     Metric = "packets"          // 1/s, small packets as received
	SetupTime   Metric = "setup_time"       // ns, until traffic can pass
	Fairness    Metric = "fairness"         // Jain's index of the streams' shares, 1/n…1
	FirstByte   Metric = "first_byte"       // ns, from exec until a response arrives inside
	MemoryIdle  Metric = "memory_idle"      // bytes that the network's programs hold without traffic
	MemoryAnon  Metric = "memory_anonymous" // the part of MemoryIdle that no file backs, bytes
	MemoryFlows Metric = "memory_flows"     // additional bytes per 1,000 flows
	MemoryShare Metric = "memory_share"     // bytes that the network's programs hold without traffic; a page that processes share counts in part for each
	AttachTime  Metric = "attach_time"      // ns, from exec of the attaching program until the container's address is usable
	DetachTime  Metric = "detach_time"      // ns, from exec to exit of the detaching program
	AttachCPU   Metric = "attach_cpu"       // ns of user and system time of the attaching command and its children
	EventTime   Metric = "event_time"       // ns, from an event until all hosts of a network are as they should be
	AttachRate  Metric = "attach_rate"      // 1/s, containers attached at the same time, until the last address is usable

	// Metrics of networks over several links.
	Ideal         Metric = "ideal"           // bit/s of payload that the links have room for: computed, not measured
	OfIdeal       Metric = "of_ideal"        // throughput as a fraction of Ideal
	EarlyOfIdeal  Metric = "early_of_ideal"  // the same for the first 2 s
	SteadyOfIdeal Metric = "steady_of_ideal" // the same for the rest
	Outage        Metric = "outage"          // ns, the longest time without any arrival
	LatencyAdded  Metric = "latency_added"   // ns, median round trip beside a stream minus the one without it
	LostPackets   Metric = "lost_packets"    // datagrams that never arrived
	Steady        Metric = "steady"          // bit/s after the first 2 s, or after Work.Steady

	// Metrics of cases of the zoo.
	LatencyP95  Metric = "latency_p95"  // ns
	OwnLatency  Metric = "own_latency"  // ns, round trip of the slowest link that carried traffic, if it were empty: computed
	PolicedLoss Metric = "policed_loss" // of the worst policer, the share of bytes that it dropped after 5 s
	Competitor  Metric = "competitor"   // share of its link that a competing stream had
	RelayLate   Metric = "relay_late"   // ns, p99 by which the relay of the links was late

	// ProcessorTime is the processor time per data moved, in cores per Gbit/s. Comparisons and
	// recommendations treat it as a metric; in summary.json it is a field of Throughput.
	ProcessorTime Metric = "cores_per_gbit"
)

// metric declares what measures a Metric, and how files, tables and figures show it. Nothing else has to know a
// metric but the code that measures it.
type metric struct {
	name   Metric
	works  string // kinds of work that always have it, separated by blanks; those that only may have it are not named
	loop   Loop   // of these, those whose requests are sent like this
	unit   string // in files
	scale  Scale  // for people
	title  string // "" for the name with blanks
	over   string // first line of a narrow column's head; "": the title
	under  string // second line; "": the unit
	higher bool   // a larger number is better
	spread bool   // a narrow table has a column for the interval
	mean   bool   // mean ± standard error is shown beside the median
	rank   Rank
	about  string // what the metric is, if the title does not explain it

	percentile float64 // of merged histograms, in percent; 0: no percentile
	drawing    Drawing
}

// Loop is how a measurement sends its requests.
type Loop int

// The loops. The zero Loop is any of them.
const (
	AnyLoop    Loop = iota
	OpenLoop        // at the times of a schedule
	ClosedLoop      // each follows the last response
)

// The factor that says how requests are sent, and its level for a closed loop.
const (
	RateFactor = "rate"
	ClosedRate = "closed"
)

// Loop returns how a cell's requests are sent. Cells of earlier versions don't say it: they have the metrics of an open
// loop.
func (c Cell) Loop() Loop {
	if c.Factors[RateFactor] == ClosedRate {
		return ClosedLoop
	}
	return OpenLoop
}

// Drawing is how a report draws a metric.
type Drawing int

// The drawings.
const (
	DrawBars       Drawing = iota // a figure of its own
	DrawNothing                   // in tables only
	DrawPercentile                // a mark in the figure that its 50th percentile has
	DrawCost                      // a bar in parts: user, system, softirq
)

// Rank is the order in which a table that is too wide drops columns, the largest first.
type Rank int

// The ranks. The zero Rank is never dropped.
const (
	RankKept     Rank = iota
	RankResult        // the only result of its work
	RankDetail        // explains a result
	RankSamples       // the number of samples
	RankCost          // processor time
	RankInterval      // the interval of a throughput
	RankP99           // the tail percentiles
	RankP999
	RankSpread // other intervals
	RankBound  // computed, not measured
)

var (
	percent = Scale{0.01, "%"}
	millis  = Scale{1e6, "ms"}
	micros  = Scale{1e3, "µs"}
	mebi    = Scale{1 << 20, "MiB"}
	gigabit = Scale{1e9, "Gbit/s"}
)

// metrics declares all metrics in the order of files and tables.
var metrics = [...]metric{
	{name: Throughput, works: "tcp udp loaded", unit: "bit/s", scale: gigabit, higher: true, mean: true, spread: true},
	{name: Loss, works: "udp", unit: "1", scale: percent, spread: true},
	{name: LatencyP50, works: "rr udprr loaded", loop: OpenLoop, unit: "ns", scale: micros, over: "p50", percentile: 50, drawing: DrawPercentile},
	{name: LatencyP99, works: "rr udprr loaded", loop: OpenLoop, unit: "ns", scale: micros, over: "p99", rank: RankP99, percentile: 99, drawing: DrawPercentile},
	{name: LatencyP999, works: "rr udprr loaded", loop: OpenLoop, unit: "ns", scale: micros, title: "latency p99.9", over: "p99.9", rank: RankP999,
		percentile: 99.9, drawing: DrawPercentile},
	{name: ClosedP50, works: "rr udprr", loop: ClosedLoop, unit: "ns", scale: micros, title: "closed-loop latency p50", over: "closed", rank: RankDetail,
		about: "each request follows the last response, so what a slow one delays is not counted", percentile: 50, drawing: DrawPercentile},
	{name: ClosedP99, works: "rr udprr", loop: ClosedLoop, unit: "ns", scale: micros, title: "closed-loop latency p99", over: "cl. p99", rank: RankP99,
		percentile: 99, drawing: DrawPercentile},
	{name: Connections, works: "crr", unit: "1/s", scale: Scale{1, "1/s"}, over: "conn", under: "/s", higher: true, mean: true, spread: true, rank: RankResult},
	{name: Packets, works: "packets", unit: "1/s", scale: Scale{1e3, "1000/s"}, title: "small packets", over: "packets", higher: true, mean: true, spread: true, rank: RankResult},
	{name: SetupTime, works: "setup", unit: "ns", scale: millis, title: "set-up time", over: "set-up", rank: RankResult},
	{name: Ideal, unit: "bit/s", scale: gigabit, higher: true, rank: RankBound, drawing: DrawNothing},
	{name: OfIdeal, unit: "1", scale: percent, title: "throughput, of the ideal", over: "of ideal", higher: true,
		about: "the share of the payload rate that the links have room for"},
	{name: EarlyOfIdeal, unit: "1", scale: percent, title: "first 2 s, of the ideal", over: "first 2 s", higher: true, rank: RankDetail},
	{name: SteadyOfIdeal, unit: "1", scale: percent, title: "steady, of the ideal", over: "steady", higher: true, rank: RankDetail,
		about: "the share of the ideal after the first 2 s, or after the time that the experiment declares as steady"},
	{name: Outage, unit: "ns", scale: millis, rank: RankDetail, about: "the longest time in which nothing arrived"},
	{name: LatencyAdded, works: "loaded", unit: "ns", scale: millis, title: "latency added under load", over: "added", rank: RankDetail,
		about: "how much longer the median round trip is beside the stream"},
	{name: LostPackets, unit: "1", scale: Scale{1, "datagrams"}, title: "datagrams lost", over: "lost", under: "n", rank: RankDetail,
		about: "datagrams that never arrived"},
	{name: Steady, unit: "bit/s", scale: gigabit, title: "steady throughput", over: "steady", higher: true, rank: RankBound},
	{name: LatencyP95, unit: "ns", scale: micros, over: "p95", rank: RankP99},
	{name: OwnLatency, unit: "ns", scale: millis, title: "slowest used link's own round trip", over: "own", rank: RankBound},
	{name: PolicedLoss, unit: "1", scale: percent, title: "dropped by policers", over: "policed", rank: RankDetail,
		about: "of the worst policer, the share of bytes that it dropped after 5 s"},
	{name: Competitor, unit: "1", scale: percent, title: "competitor's share", over: "rival", higher: true, rank: RankDetail,
		about: "the share of its link that a competing stream had"},
	{name: RelayLate, unit: "ns", scale: micros, title: "lateness of the relay", over: "late", rank: RankBound},
	{name: Fairness, unit: "1", scale: Scale{1, "of 1"}, higher: true, about: "Jain's index of the streams' shares"},
	{name: FirstByte, works: "start", unit: "ns", scale: millis, title: "exec to first byte"},
	{name: MemoryIdle, works: "memory", unit: "B", scale: mebi, title: "memory, idle"},
	{name: MemoryAnon, works: "memory", unit: "B", scale: mebi, title: "anonymous memory, idle"},
	{name: MemoryFlows, works: "memory", unit: "B", scale: mebi, title: "memory per 1,000 flows"},
	{name: MemoryShare, unit: "B", scale: mebi, title: "proportional memory, idle", about: "Pss: a page that several processes share counts in part for each"},
	{name: AttachTime, works: "attach", unit: "ns", scale: millis, title: "exec to usable address", over: "attach"},
	{name: DetachTime, works: "attach", unit: "ns", scale: millis, title: "time to detach", over: "detach"},
	{name: AttachCPU, works: "attach", unit: "ns", scale: millis, title: "processor time to attach", over: "cpu"},
	{name: EventTime, works: "event", unit: "ns", scale: millis, title: "time until all hosts are as they should be", over: "settled", spread: true, rank: RankResult},
	{name: AttachRate, works: "burst", unit: "1/s", scale: Scale{1, "1/s"}, title: "attached at the same time", over: "attached", under: "/s", higher: true, spread: true, rank: RankResult},
	{name: ProcessorTime, unit: "cores/(Gbit/s)", scale: Scale{1, "cores per Gbit/s"}, title: "processor time", over: "cores", under: "/Gbit", rank: RankCost,
		about: "processors kept busy per Gbit/s, both ends together", drawing: DrawCost},
}

// Metrics returns all metrics in the order of files and tables, ProcessorTime last.
func Metrics() []Metric {
	names := make([]Metric, len(metrics))
	for i, m := range metrics {
		names[i] = m.name
	}
	return names
}

// MetricsOf returns what a kind of work always measures, in the order of Metrics; what it is run for comes first. loop is
// how it sends requests. Of a kind that is not known it returns Throughput.
func MetricsOf(work string, loop Loop) []Metric {
	var all []Metric
	for _, m := range metrics {
		if slices.Contains(strings.Fields(m.works), work) && (loop == AnyLoop || m.loop == AnyLoop || m.loop == loop) {
			all = append(all, m.name)
		}
	}
	if len(all) == 0 {
		return []Metric{Throughput}
	}
	return all
}

// Percentile returns which percentile of merged histograms m is, in percent.
func (m Metric) Percentile() (percent float64, ok bool) {
	p := m.declared().percentile
	return p, p > 0
}

// PercentileName returns the name of a percentile: "p99.9"; "" for another metric.
func (m Metric) PercentileName() string {
	percent, ok := m.Percentile()
	if !ok {
		return ""
	}
	return "p" + strconv.FormatFloat(percent, 'f', -1, 64)
}

// Percentiles returns the metrics that are percentiles of the latencies of a loop.
func Percentiles(loop Loop) []Metric {
	var all []Metric
	for _, m := range metrics {
		if m.percentile > 0 && m.loop == loop {
			all = append(all, m.name)
		}
	}
	return all
}

// Drawing returns how a report draws m.
func (m Metric) Drawing() Drawing { return m.declared().drawing }

// Loop returns how the requests are sent that m is about.
func (m Metric) Loop() Loop { return m.declared().loop }

// position returns the index of m in metrics, or their number for an unknown metric.
func (m Metric) position() int {
	for i := range metrics {
		if metrics[i].name == m {
			return i
		}
	}
	return len(metrics)
}

// declared returns the declaration of m. An unknown metric, as from a newer program's file,
// counts as a time in nanoseconds.
func (m Metric) declared() metric {
	if i := m.position(); i < len(metrics) {
		return metrics[i]
	}
	return metric{name: m, unit: "ns", scale: Scale{1, "ns"}}
}

// CompareMetrics orders metrics as Metrics does; unknown ones come last, by name.
func CompareMetrics(a, b Metric) int {
	return cmp.Or(cmp.Compare(a.position(), b.position()), cmp.Compare(a, b))
}

// MetricsIn returns the metrics of summaries in their order, those of later versions of the program last.
func MetricsIn(sums []Summary) []Metric {
	var all []Metric
	for _, s := range sums {
		if !slices.Contains(all, s.Metric) {
			all = append(all, s.Metric)
		}
	}
	slices.SortFunc(all, CompareMetrics)
	return all
}

// Unit returns the unit of m in files: bit/s, ns, 1/s, B, cores/(Gbit/s), or 1 for a fraction
// or a count.
func (m Metric) Unit() string { return m.declared().unit }

// LowerIsBetter reports whether a smaller number is the better one.
func (m Metric) LowerIsBetter() bool { return !m.declared().higher }

// Title returns the metric's name for people, in lower case.
func (m Metric) Title() string {
	return cmp.Or(m.declared().title, strings.ReplaceAll(string(m), "_", " "))
}

// Head returns the two lines of a narrow column's head.
func (m Metric) Head() (over, under string) {
	d := m.declared()
	return cmp.Or(d.over, m.Title()), cmp.Or(d.under, d.scale.Unit)
}

// About returns what the metric is, if its title does not explain it; else "".
func (m Metric) About() string { return m.declared().about }

// Rank returns how early a table that is too wide drops the metric's column.
func (m Metric) Rank() Rank { return m.declared().rank }

// ShowsInterval reports whether a narrow table has a column for the metric's interval.
func (m Metric) ShowsInterval() bool { return m.declared().spread }

// ShowsMean reports whether mean ± standard error is shown beside the median.
func (m Metric) ShowsMean() bool { return m.declared().mean }

// IsLatency reports whether m is a percentile of the round-trip times.
func (m Metric) IsLatency() bool { return m.declared().percentile > 0 }

// Scale is how a metric is shown to people: the value divided by Per, then Unit.
type Scale struct {
	Per  float64
	Unit string
}

// Scale returns the scale of a column of m, the same for all values.
func (m Metric) Scale() Scale { return m.declared().scale }

// ScaleFor returns the scale for a value of about x that stands alone.
func (m Metric) ScaleFor(x float64) Scale {
	x = math.Abs(x)
	switch {
	case m.Unit() == "bit/s" && x < 1e8 && x > 0:
		return Scale{1e6, "Mbit/s"}
	case m == Packets:
		return Scale{1, "1/s"}
	case (m.IsLatency() || m == LatencyP95 || m == LatencyAdded) && x >= 1e6:
		return millis
	case (m == SetupTime || m == Outage || m == LatencyAdded) && x < 1e6:
		return micros
	}
	return m.Scale()
}

// Format returns a value of m for people: three digits and a unit.
func (m Metric) Format(x float64) string {
	s := m.ScaleFor(x)
	return s.Of(x) + " " + s.Unit
}

// Of returns x without the unit.
func (s Scale) Of(x float64) string { return Digits(x / s.Per) }

// Interval returns the two ends of an interval without the unit.
func (s Scale) Interval(lo, hi float64) string { return s.Of(lo) + "–" + s.Of(hi) }
