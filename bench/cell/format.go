package cell

import (
	"math"
	"strconv"
	"strings"
)

// None stands for a number that there is not.
const None = "–"

// Scale is how a metric is shown to people: its value over Per, then Unit.
type Scale struct {
	Per  float64
	Unit string
}

// Scale is the same for all values of a metric, so that a column has one unit.
func (m Metric) Scale() Scale {
	switch m {
	case Throughput, Ideal:
		return Scale{1e9, "Gbit/s"}
	case Loss, OfIdeal, EarlyOfIdeal, SteadyOfIdeal:
		return Scale{0.01, "%"}
	case Connections:
		return Scale{1, "1/s"}
	case Packets:
		return Scale{1e3, "1000/s"}
	case LostPackets:
		return Scale{1, "datagrams"}
	case SetupTime, FirstByte, Outage, LatencyAdded, AttachTime, DetachTime, AttachCPU:
		return Scale{1e6, "ms"}
	case Fairness:
		return Scale{1, "of 1"}
	case MemoryIdle, MemoryAnon, MemoryFlows:
		return Scale{1 << 20, "MiB"}
	case LatencyP50, LatencyP99, LatencyP999:
		return Scale{1e3, "µs"}
	case ProcessorTime:
		return Scale{1, "cores per Gbit/s"}
	}
	return Scale{1, m.Unit()}
}

// Of writes x, without the unit.
func (s Scale) Of(x float64) string { return Digits(x / s.Per) }

// Interval writes the two ends of an interval, without the unit.
func (s Scale) Interval(lo, hi float64) string { return s.Of(lo) + "–" + s.Of(hi) }

// Title is the metric's name for people, in lower case.
func (m Metric) Title() string {
	switch m {
	case LatencyP999:
		return "latency p99.9"
	case Packets:
		return "small packets"
	case SetupTime:
		return "set-up time"
	case ProcessorTime:
		return "processor time"
	case AttachTime:
		return "exec to usable address"
	case DetachTime:
		return "time to detach"
	case AttachCPU:
		return "processor time to attach"
	case FirstByte:
		return "exec to first byte"
	case OfIdeal:
		return "throughput, of the ideal"
	case EarlyOfIdeal:
		return "first 2 s, of the ideal"
	case SteadyOfIdeal:
		return "steady, of the ideal"
	case LatencyAdded:
		return "latency added under load"
	case LostPackets:
		return "datagrams lost"
	case MemoryIdle:
		return "memory, idle"
	case MemoryAnon:
		return "anonymous memory, idle"
	case MemoryFlows:
		return "memory per 1,000 flows"
	}
	return strings.ReplaceAll(string(m), "_", " ")
}

// Digits writes x with three significant digits and never with an exponent,
// unless x is so small that it would be a row of zeros; None for what is no
// number.
func Digits(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return None
	}
	e := strconv.FormatFloat(x, 'e', 2, 64)
	exp, err := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	switch {
	case err != nil || x == 0:
		return "0"
	case exp < -6:
		return e
	case exp > 2: // round to three digits first, so that 12345 becomes 12300
		r, err := strconv.ParseFloat(e, 64)
		if err != nil {
			return None
		}
		return strconv.FormatFloat(r, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 2-exp, 64)
}

// Plural writes a count and its noun: "1 sample", "3 samples".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
