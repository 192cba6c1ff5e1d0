package traffic

import "time"

// Result is the result of one run, from both ends: the JSON that `cleat traffic … --json`
// prints.
type Result struct {
	Work    string `json:"work"`    // "tcp", "udp", "rr", "udprr", "crr" or "probe"
	Engine  string `json:"engine"`  // "cleat", "iperf3" or "iperf"
	Address string `json:"address"` // the address that was dialled

	DurationSeconds float64 `json:"duration_seconds"` // of the receiver's count
	Streams         int     `json:"streams"`
	MessageBytes    int     `json:"message_bytes"`
	Congestion      string  `json:"congestion,omitempty"` // as reported by the kernel
	MSSBytes        int     `json:"mss_bytes,omitempty"`
	Reverse         bool    `json:"reverse,omitempty"`        // the server sent
	MPTCP           bool    `json:"mptcp,omitempty"`          // requested
	MPTCPFallback   bool    `json:"mptcp_fallback,omitempty"` // the connection used plain TCP
	Subflows        int     `json:"subflows,omitempty"`       // of the first MPTCP connection

	// Streams and datagrams, counted where they arrive.
	BitsPerSecond     float64 `json:"bits_per_second"` // as received, payload only
	SentBitsPerSecond float64 `json:"sent_bits_per_second,omitempty"`
	BytesReceived     uint64  `json:"bytes_received"`
	Retransmits       uint64  `json:"retransmits,omitempty"` // TCP segments

	// Only with Config.Early, for all streams together.
	EarlySeconds        float64       `json:"early_seconds,omitempty"`          // Config.Early, or the whole of a shorter run
	EarlyBitsPerSecond  float64       `json:"early_bits_per_second,omitempty"`  // in that time
	SteadyBitsPerSecond float64       `json:"steady_bits_per_second,omitempty"` // after that; 0 if nothing arrived, or the run was shorter
	Outage              time.Duration `json:"outage_ns,omitempty"`              // longest pause

	// Only with several streams.
	StreamBytes []uint64 `json:"stream_bytes,omitempty"` // received, by stream
	Fairness    float64  `json:"fairness,omitempty"`     // of StreamBytes, see Fairness

	// Only for datagrams.
	OfferedBitsPerSecond float64       `json:"offered_bits_per_second,omitempty"`
	PacketsSent          uint64        `json:"packets_sent,omitempty"`
	PacketsReceived      uint64        `json:"packets_received,omitempty"`
	PacketsPerSecond     float64       `json:"packets_per_second,omitempty"` // as received
	Lost                 uint64        `json:"lost,omitempty"`
	Reordered            uint64        `json:"reordered,omitempty"`
	Duplicated           uint64        `json:"duplicated,omitempty"`
	LossFraction         float64       `json:"loss_fraction,omitempty"`
	Jitter               time.Duration `json:"jitter_ns,omitempty"` // RFC 3550 section 6.4.1
	GSO                  bool          `json:"gso,omitempty"`
	ReceiveBufferBytes   int           `json:"receive_buffer_bytes,omitempty"` // as granted by the kernel, including its bookkeeping
	LossBound            float64       `json:"loss_bound,omitempty"`           // of a search
	Trials               []Trial       `json:"trials,omitempty"`               // of a search, in order; the result is of a run after them

	// Request/response and connection rate.
	Transactions          uint64        `json:"transactions,omitempty"` // ended in time
	Late                  uint64        `json:"late,omitempty"`         // begun or due in time, ended later: part of the latency, not of the rate
	Unfinished            uint64        `json:"unfinished,omitempty"`   // not even ended 1 s later: the latency counts that they took at least so long
	Failures              uint64        `json:"failures,omitempty"`     // failed connections
	TransactionsPerSecond float64       `json:"transactions_per_second,omitempty"`
	Latency               string        `json:"latency,omitempty"` // HDR histogram of ns, V2 compressed, base64
	P50                   time.Duration `json:"latency_p50_ns,omitempty"`
	P99                   time.Duration `json:"latency_p99_ns,omitempty"`
	P999                  time.Duration `json:"latency_p999_ns,omitempty"`
	LagP99                time.Duration `json:"lag_p99_ns,omitempty"` // lag of the generator itself

	// Delay of the start after the time that Config.Gate returned.
	StartedLate time.Duration `json:"started_late_ns,omitempty"`

	// Probe: the largest packets that arrive.
	LinkMTU    int    `json:"link_mtu_bytes,omitempty"` // according to the sender's kernel
	PathMTU    int    `json:"path_mtu_bytes,omitempty"` // what arrived, IP headers included
	BlackHole  bool   `json:"black_hole,omitempty"`     // small packets arrive, full-size ones do not
	ProbeError string `json:"probe_error,omitempty"`

	// The whole machine during the count, and until the last late transaction has ended.
	CPU           *CPUTimes     `json:"cpu,omitempty"`
	CPUAccounting string        `json:"cpu_accounting,omitempty"` // see AccountingMode
	CoresPerGbit  *CoresPerGbit `json:"cores_per_gbit,omitempty"`

	Partial  bool     `json:"partial,omitempty"` // stopped early
	Warnings []string `json:"warnings,omitempty"`
}

// Trial is one step of a search for the highest rate.
type Trial struct {
	OfferedBitsPerSecond float64 `json:"offered_bits_per_second"` // 0 means as fast as possible
	BitsPerSecond        float64 `json:"bits_per_second"`         // as received
	LossFraction         float64 `json:"loss_fraction"`
}

// CoresPerGbit is the processor time of the whole machine per data moved: cores per
// Gbit/s, which equals seconds per gigabit.
type CoresPerGbit struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	SoftIRQ float64 `json:"softirq"`
}

// Fairness returns Jain's index of shares: 1 if all are equal, 1/n if one of n has
// everything. It returns 0 if there are no shares or all are 0.
func Fairness(shares []uint64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// setCost computes CoresPerGbit if the work consists of moving data.
func (r *Result) setCost() {
	gbit := 8 * float64(r.BytesReceived) / 1e9
	if r.CPU == nil || gbit == 0 || (r.Work != string(TCP) && r.Work != string(UDP)) {
		return
	}
	r.CoresPerGbit = &CoresPerGbit{User: r.CPU.User / gbit, System: r.CPU.System / gbit, SoftIRQ: r.CPU.SoftIRQ / gbit}
}
