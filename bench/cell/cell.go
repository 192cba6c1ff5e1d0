// Package cell holds the nouns of an experiment's results: a Cell is one
// combination of factors, a Sample is one measurement of a cell, a Summary is
// what the samples of a cell say about one metric. No I/O except the encoding
// of samples as JSON lines.
package cell

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Metric names what a number measures. Units are fixed: see Unit.
type Metric string

// The metrics. Latencies are merged from histograms, never averaged.
const (
	Throughput  Metric = "throughput"       // bit/s, as received
	Loss        Metric = "loss"             // fraction 0…1 of what was sent
	LatencyP50  Metric = "latency_p50"      // ns, from the intended send time
	LatencyP99  Metric = "latency_p99"      // ns
	LatencyP999 Metric = "latency_p999"     // ns
	Connections Metric = "connections"      // 1/s, connect/request/response/close
	Packets     Metric = "packets"          // 1/s, small packets as received
	SetupTime   Metric = "setup_time"       // ns, until traffic can pass
	Fairness    Metric = "fairness"         // Jain's index of the streams' shares, 1/n…1
	FirstByte   Metric = "first_byte"       // ns, from exec until a response arrives inside
	MemoryIdle  Metric = "memory_idle"      // bytes that the network's programs hold without traffic
	MemoryAnon  Metric = "memory_anonymous" // bytes of that without a file behind them
	MemoryFlows Metric = "memory_flows"     // bytes more with traffic's flows, per 1,000 of them
	AttachTime  Metric = "attach_time"      // ns, from exec of what attaches until the container's address can be used
	DetachTime  Metric = "detach_time"      // ns, from exec to exit of what takes it away again
	AttachCPU   Metric = "attach_cpu"       // ns of processor time, user and system, of the command that attaches and its children

	// Of networks over several links.
	Ideal         Metric = "ideal"           // bit/s of payload that the links have room for: computed, not measured
	OfIdeal       Metric = "of_ideal"        // throughput as a part of that
	EarlyOfIdeal  Metric = "early_of_ideal"  // that of the first 2 s
	SteadyOfIdeal Metric = "steady_of_ideal" // that of the rest
	Outage        Metric = "outage"          // ns, the longest time in which nothing arrived
	LatencyAdded  Metric = "latency_added"   // ns, the median round trip beside a stream, less that without one
	LostPackets   Metric = "lost_packets"    // datagrams that never arrived
)

// ProcessorTime is the processor time per data moved as if it were a metric: in
// comparisons and recommendations, never in summary.json, where it is a field of
// its own. Its unit is cores per Gbit/s.
const ProcessorTime Metric = "cores_per_gbit"

// metrics is the order of metrics in files and tables.
var metrics = [...]Metric{Throughput, Loss, LatencyP50, LatencyP99, LatencyP999, Connections, Packets, SetupTime,
	Ideal, OfIdeal, EarlyOfIdeal, SteadyOfIdeal, Outage, LatencyAdded, LostPackets,
	Fairness, FirstByte, MemoryIdle, MemoryAnon, MemoryFlows, AttachTime, DetachTime, AttachCPU, ProcessorTime}

// Metrics lists all metrics in the order of files and tables, ProcessorTime last.
func Metrics() []Metric { return slices.Clone(metrics[:]) }

// CompareMetrics orders metrics as Metrics does; unknown ones come last, by name.
func CompareMetrics(a, b Metric) int {
	place := func(m Metric) int {
		if i := slices.Index(metrics[:], m); i >= 0 {
			return i
		}
		return len(metrics)
	}
	return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
}

// Unit is the unit of m as written in files: bit/s, ns, 1/s, B, cores/(Gbit/s),
// or 1 for a fraction.
func (m Metric) Unit() string {
	switch m {
	case Throughput, Ideal:
		return "bit/s"
	case Loss, Fairness, OfIdeal, EarlyOfIdeal, SteadyOfIdeal, LostPackets:
		return "1"
	case MemoryIdle, MemoryAnon, MemoryFlows:
		return "B"
	case Connections, Packets:
		return "1/s"
	case ProcessorTime:
		return "cores/(Gbit/s)"
	default:
		return "ns"
	}
}

// LowerIsBetter tells for which metrics a smaller number is the better one.
func (m Metric) LowerIsBetter() bool {
	switch m {
	case Throughput, Connections, Packets, Fairness, Ideal, OfIdeal, EarlyOfIdeal, SteadyOfIdeal:
		return false
	}
	return true
}

// Cell is one combination of factors. Two samples belong together exactly when
// their Keys are equal.
type Cell struct {
	Network      string            `json:"network"`       // a name from package catalog
	Runtime      string            `json:"runtime"`       // where the ends run: see Runtimes
	Topology     string            `json:"topology"`      // "local" or "switched", or "links" of two hosts that links join
	Transport    string            `json:"transport"`     // "tcp", "udp" or "mptcp"
	Direction    string            `json:"direction"`     // "outbound", "inbound", "between" containers, or "local" within one namespace
	MTU          int               `json:"mtu"`           // bytes; 0: the kernel's default
	Pairs        int               `json:"pairs"`         // client–server pairs at once
	Streams      int               `json:"streams"`       // sockets per pair
	Links        int               `json:"links"`         // links between the nodes
	MessageBytes int               `json:"message_bytes"` // bytes per write or datagram
	Congestion   string            `json:"congestion"`    // TCP congestion control, "" for UDP
	Placement    string            `json:"placement"`     // "same-core", "different-cores" or "free"
	Engine       string            `json:"engine"`        // "cleat", "iperf3" or "iperf"
	Factors      map[string]string `json:"factors"`       // whatever else the experiment varies
}

// Key is a stable text that identifies the cell.
func (c Cell) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s|%s|%s|%s|%s|%d|%d|%d|%d|%d|%s|%s|%s",
		c.Network, c.Runtime, c.Topology, c.Transport, c.Direction, c.MTU, c.Pairs,
		c.Streams, c.Links, c.MessageBytes, c.Congestion, c.Placement, c.Engine)
	for _, k := range slices.Sorted(maps.Keys(c.Factors)) {
		fmt.Fprintf(&b, "|%s=%s", k, c.Factors[k])
	}
	return b.String()
}

// Native is the runtime of ends that run in plain namespaces.
const Native = "native"

// Runtimes are the names of what ends can run in.
func Runtimes() []string { return []string{Native, "docker", "podman", "apptainer"} }

// CPU is the time the whole machine spent over a measurement, in seconds summed
// over processors (/proc/stat).
type CPU struct {
	User    float64 `json:"user_s"` // user and nice
	System  float64 `json:"system_s"`
	SoftIRQ float64 `json:"softirq_s"` // softirq and irq
	Idle    float64 `json:"idle_s"`    // idle and iowait
	Steal   float64 `json:"steal_s"`   // taken by the hypervisor
	Foreign float64 `json:"foreign_s"` // used by processes that are not part of the experiment
	Wall    float64 `json:"wall_s"`
}

// Sample is one measurement: one line of samples.jsonl.
type Sample struct {
	Cell
	Work     string             `json:"work"`  // "tcp", "udp", "rr", "udprr", "crr", "packets", "loaded", "setup", "memory", "start" or "attach"
	Block    int                `json:"block"` // 0 is the warm-up, which no statistic uses
	Order    int                `json:"order"` // position within the block
	Attempt  int                `json:"attempt"`
	Started  time.Time          `json:"started"`
	Values   map[Metric]float64 `json:"values,omitempty"`
	Latency  string             `json:"latency,omitempty"` // HDR histogram of ns, V2 compressed, base64
	CPU      CPU                `json:"cpu"`
	Lag      time.Duration      `json:"lag_ns,omitempty"`   // the generator's own lateness, p99
	Bad      string             `json:"bad,omitempty"`      // why the sample does not count; it was repeated
	Error    string             `json:"error,omitempty"`    // the measurement itself failed
	Warnings []string           `json:"warnings,omitempty"` // things a reader of the number must know
}

// Warmup tells whether the sample belongs to the block that no statistic uses.
func (s Sample) Warmup() bool { return s.Block == 0 }

// Absent is a cell that could not be measured: one line of samples.jsonl too,
// told apart by its reason.
type Absent struct {
	Cell
	Work          string `json:"work"`
	Reason        string `json:"absent"`         // why, as a sentence
	Remedy        string `json:"remedy"`         // what would supply it; empty for what can't be by design
	NotApplicable bool   `json:"not_applicable"` // it can't carry this traffic by design
}

// Runtimeless tells whether what could not be had is the cell's runtime, whatever
// the network; then it returns the reason without that name.
func (a Absent) Runtimeless() (reason string, ok bool) {
	if a.Runtime == "" || a.Runtime == Native {
		return "", false
	}
	return strings.CutPrefix(a.Reason, a.Runtime+": ")
}

// CoresPerGbit is processor time per data moved: seconds of processor time per
// gigabit, which is the same as cores per Gbit/s.
type CoresPerGbit struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	SoftIRQ float64 `json:"softirq"`
}

// Total is all of it together.
func (c CoresPerGbit) Total() float64 { return c.User + c.System + c.SoftIRQ }

// Summary is what all blocks say about one metric of one cell: one element of
// summary.json.
type Summary struct {
	Cell
	Metric       Metric       `json:"metric"`
	Unit         string       `json:"unit"`
	N            int          `json:"n"`
	BadSamples   int          `json:"bad_samples"`
	Median       float64      `json:"median"`
	CILow        float64      `json:"ci_low"`
	CIHigh       float64      `json:"ci_high"`
	CILevel      float64      `json:"ci_level"` // e.g. 0.95; what the interval really covers
	Mean         float64      `json:"mean"`
	StdErr       float64      `json:"stderr"`
	CoresPerGbit CoresPerGbit `json:"cores_per_gbit"`
	Warnings     []string     `json:"warnings"`
	Available    bool         `json:"available"`
	Reason       string       `json:"reason"`
}
