package summary

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cleat/bench/cell"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// fake is a run with a known truth: blocks shift all cells, noise each sample.
type fake struct {
	blocks       int
	block, noise float64 // relative deviations
	transactions int     // of a sample of latency
	rand         *rand.Rand
	t            testing.TB
	samples      []cell.Sample
	absent       []cell.Absent
}

func newFake(t testing.TB, seed uint64) *fake {
	return &fake{blocks: 8, block: 0.05, noise: 0.02, transactions: 2000, rand: rand.New(rand.NewPCG(seed, 1)), t: t}
}

// cellOf is a cell with the factors of the preset "quick".
func cellOf(network, direction string) cell.Cell {
	return cell.Cell{Network: network, Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: direction,
		Pairs: 1, Streams: 1, Links: 1, MessageBytes: 131072, Congestion: "cubic", Placement: "different-cores", Engine: "cleat"}
}

// truth is what a cell really does.
type truth struct {
	cell.Cell
	gbit  float64       // throughput
	cores float64       // busy while it lasts
	rtt   time.Duration // median round trip
}

// run measures every cell in every block, warm-up first.
func (f *fake) run(cells ...truth) {
	for block := range f.blocks + 1 {
		effect := f.block * f.rand.NormFloat64()
		if block == 0 {
			effect = -1 // nobody may use the warm-up
		}
		for i, c := range cells {
			if c.gbit > 0 {
				f.tcp(c, block, i, effect)
			}
			if c.rtt > 0 {
				f.rr(c, block, i, effect)
			}
		}
	}
}

func (f *fake) sample(c cell.Cell, work string, block, order int) cell.Sample {
	at := time.Date(2026, 1, 2, 3, block, order, 0, time.UTC)
	return cell.Sample{Cell: c, Work: work, Block: block, Order: order, Attempt: 1, Started: at}
}

func (f *fake) tcp(c truth, block, order int, effect float64) {
	s := f.sample(c.Cell, "tcp", block, order)
	s.Values = map[cell.Metric]float64{cell.Throughput: math.Round(c.gbit * 1e9 * math.Exp(effect+f.noise*f.rand.NormFloat64()))}
	s.CPU = cell.CPU{User: 0.05 * c.cores, System: 0.30 * c.cores, SoftIRQ: 0.15 * c.cores, Idle: 1 - c.cores/2, Wall: 0.5}
	f.samples = append(f.samples, s)
}

func (f *fake) rr(c truth, block, order int, effect float64) {
	c.MessageBytes = 64
	s := f.sample(c.Cell, "rr", block, order)
	h := hdrhistogram.New(1, 1e10, 3)
	middle := float64(c.rtt) * math.Exp(-effect+f.noise*f.rand.NormFloat64())
	for range f.transactions {
		if err := h.RecordValue(int64(middle * math.Exp(0.2*math.Abs(f.rand.NormFloat64())-0.1))); err != nil {
			f.t.Fatal(err)
		}
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		f.t.Fatal(err)
	}
	s.Latency = string(encoded)
	s.Values = map[cell.Metric]float64{}
	for _, m := range cell.Percentiles(cell.OpenLoop) {
		p, _ := m.Percentile()
		s.Values[m] = float64(h.ValueAtPercentile(p))
	}
	s.CPU = cell.CPU{User: 0.1, System: 0.2, Idle: 0.7, Wall: 0.3}
	f.samples = append(f.samples, s)
}

// without records a cell that can't be measured, for both kinds of work.
func (f *fake) without(network, reason, remedy string, byDesign bool) {
	for _, work := range []string{"tcp", "rr"} {
		f.absent = append(f.absent, cell.Absent{Cell: cellOf(network, "between"), Work: work,
			Reason: reason, Remedy: remedy, NotApplicable: byDesign})
	}
}

func (f *fake) results() Results { return New(f.samples, f.absent) }

// quick is a run like that of the preset, in which macvlan-bridge is truly best,
// veth and bridge are equal, and bridge-nf is worse.
func quick(t testing.TB, seed uint64) *fake {
	f := newFake(t, seed)
	f.run(
		truth{cellOf("loopback", "local"), 55, 1.2, 20 * time.Microsecond},
		truth{cellOf("own-address", "local"), 54, 1.2, 20 * time.Microsecond},
		truth{cellOf("veth", "between"), 36, 1.5, 30 * time.Microsecond},
		truth{cellOf("bridge", "between"), 36, 1.6, 31 * time.Microsecond},
		truth{cellOf("bridge-nf", "between"), 29, 1.7, 36 * time.Microsecond},
		truth{cellOf("macvlan-bridge", "between"), 42, 1.4, 30 * time.Microsecond},
		truth{cellOf("nat-out", "outbound"), 31, 1.7, 35 * time.Microsecond},
		truth{cellOf("pasta", "outbound"), 12, 1.9, 95 * time.Microsecond},
	)
	f.without("ipvlan-l2", "the kernel has no ipvlan", "load the module ipvlan (CONFIG_IPVLAN)", false)
	f.without("macvlan-private", "private macvlan devices of one parent never reach each other", "", true)
	f.without("slirp4netns", "the program slirp4netns is not installed", "apt install slirp4netns", false)
	return f
}
