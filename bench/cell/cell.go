// Package cell holds the nouns of an experiment's results. A Cell is one
// combination of factors, a Sample is one measurement of a cell, and a Summary
// combines the samples of a cell for one metric. Metrics and factors
// declare here how files, tables and figures show them. The package does no
// I/O.
package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Cell is one combination of factors. Two samples belong together exactly when
// their Keys are equal.
type Cell struct {
	Network      string            `json:"network"`       // a name from package catalog
	Runtime      string            `json:"runtime"`       // where the ends run: see Runtimes
	Topology     string            `json:"topology"`      // "local", "switched", or "links": two hosts joined by several links
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

// Key returns a stable text that identifies the cell.
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

// Runtimes returns the names of what ends can run in.
func Runtimes() []string { return []string{Native, "docker", "podman", "apptainer"} }

// CPU is the processor time of the whole machine during a measurement, in
// seconds summed over the processors (/proc/stat).
type CPU struct {
	User    float64 `json:"user_s"` // user and nice
	System  float64 `json:"system_s"`
	SoftIRQ float64 `json:"softirq_s"` // softirq and irq
	Idle    float64 `json:"idle_s"`    // idle and iowait
	Steal   float64 `json:"steal_s"`   // taken by the hypervisor
	Foreign float64 `json:"foreign_s"` // used by processes outside the experiment, user and system time
	Wall    float64 `json:"wall_s"`

	ForeignUser float64 `json:"foreign_user_s,omitempty"` // the user time of Foreign
}

// WithoutForeign returns c without the time of processes outside the experiment. Results of older versions
// don't have ForeignUser: of these it takes system time first.
func (c CPU) WithoutForeign() CPU {
	user := min(c.ForeignUser, c.Foreign)
	system := min(c.Foreign-user, c.System)
	c.User = max(0, c.User-(c.Foreign-system))
	c.System -= system
	c.Foreign, c.ForeignUser = 0, 0
	return c
}

// Sample is one measurement: one line of samples.jsonl.
type Sample struct {
	Cell
	Work     string             `json:"work"`           // "tcp", "udp", "rr", "udprr", "crr", "packets", "loaded", "setup", "memory", "start", "attach", "burst" or "event"
	Rate     float64            `json:"rate,omitempty"` // transactions per second of each pair on a schedule; 0: none
	Block    int                `json:"block"`          // 0: the warm-up, which no statistic uses
	Order    int                `json:"order"`          // position within the block
	Attempt  int                `json:"attempt"`
	Started  time.Time          `json:"started"`
	Values   map[Metric]float64 `json:"values,omitempty"`
	Latency  string             `json:"latency,omitempty"` // HDR histogram of ns, V2 compressed, base64
	CPU      CPU                `json:"cpu"`
	Lag      time.Duration      `json:"lag_ns,omitempty"`    // the generator's own lateness, p99
	LossSeed uint64             `json:"loss_seed,omitempty"` // `cleat traffic relay --seed` of links that lose packets
	Bad      Warning            `json:"bad,omitzero"`        // why the sample does not count: it was disturbed
	Error    string             `json:"error,omitempty"`     // why the measurement failed
	Warnings []Warning          `json:"warnings,omitempty"`  // what a reader of the numbers must know
}

// Warmup reports whether the sample belongs to the block that no statistic uses.
func (s Sample) Warmup() bool { return s.Block == 0 }

// Absent is a cell that could not be measured. It is a line of samples.jsonl
// too; the key "absent" distinguishes it from a Sample.
type Absent struct {
	Cell
	Work          string `json:"work"`
	Reason        string `json:"absent"`         // why, as a sentence
	Remedy        string `json:"remedy"`         // what would supply it; "" if nothing can
	NotApplicable bool   `json:"not_applicable"` // the network can't carry this traffic by design
}

// MissingRuntime reports whether the cell's runtime is what is missing, which
// concerns every network. It returns the reason without the runtime's name.
func (a Absent) MissingRuntime() (reason string, ok bool) {
	if a.IsNative() {
		return "", false
	}
	return strings.CutPrefix(a.Reason, a.Runtime+": ")
}

// IsNative reports whether nothing of the cell runs in a container.
func (c Cell) IsNative() bool { return c.Runtime == "" || c.Runtime == Native }

// CoresPerGbit is processor time per data moved: seconds of processor time per
// gigabit, which is the same as cores per Gbit/s.
type CoresPerGbit struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	SoftIRQ float64 `json:"softirq"`
}

// Total returns the sum of the three parts.
func (c CoresPerGbit) Total() float64 { return c.User + c.System + c.SoftIRQ }

// Summary is one metric of one cell over all blocks: one element of summary.json.
type Summary struct {
	Cell
	Metric       Metric       `json:"metric"`
	Unit         string       `json:"unit"`
	N            int          `json:"n"`
	BadSamples   int          `json:"bad_samples"`
	Median       float64      `json:"median"`
	CILow        float64      `json:"ci_low"`
	CIHigh       float64      `json:"ci_high"`
	CILevel      float64      `json:"ci_level"` // what the interval really covers, e.g. 0.96
	Mean         float64      `json:"mean"`
	StdErr       float64      `json:"stderr"`
	CoresPerGbit CoresPerGbit `json:"cores_per_gbit"`
	Warnings     []Warning    `json:"warnings"`
	Available    bool         `json:"available"`
	Reason       string       `json:"reason"`
	Rate         float64      `json:"rate"` // of latencies: transactions per second of each pair on a schedule; 0: none, or several
}
