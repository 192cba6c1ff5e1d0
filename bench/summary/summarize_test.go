package summary

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"

	"github.com/google/go-cmp/cmp"
)

// tcp returns samples of one cell with the given throughputs in blocks 1, 2, ….
func tcp(c cell.Cell, bits ...float64) []cell.Sample {
	f := fake{}
	var samples []cell.Sample
	for i, b := range bits {
		s := f.sample(c, "tcp", i+1, 0)
		s.Values = map[cell.Metric]float64{cell.Throughput: b}
		s.CPU = cell.CPU{User: 0.1, System: 0.2, SoftIRQ: 0.3, Idle: 0.4, Wall: 0.5}
		samples = append(samples, s)
	}
	return samples
}

// only returns the single summary of the samples.
func only(t *testing.T, samples []cell.Sample, absent ...cell.Absent) cell.Summary {
	t.Helper()
	all := Summarize(samples, absent)
	if len(all) != 1 {
		t.Fatalf("%d summaries, want 1: %+v", len(all), all)
	}
	return all[0]
}

func TestSummarizeKnown(t *testing.T) {
	samples := tcp(cellOf("veth", "between"), 8e9, 1e9, 7e9, 2e9, 6e9, 3e9, 5e9, 4e9)
	warm := samples[0]
	warm.Block, warm.Values = 0, map[cell.Metric]float64{cell.Throughput: 100e9}
	samples = append(samples, warm)
	got := only(t, samples)
	want := cell.Summary{
		Cell: cellOf("veth", "between"), Metric: cell.Throughput, Unit: "bit/s", N: 8,
		Median: 4.5e9, CILow: 1e9, CIHigh: 8e9, CILevel: 1 - 2.0/256,
		Mean: 4.5e9, StdErr: math.Sqrt(42.0/7/8) * 1e9,
		// 8 × 0.1 s over 36 Gbit/s × 0.5 s.
		CoresPerGbit: cell.CoresPerGbit{User: 0.8 / 18, System: 1.6 / 18, SoftIRQ: 2.4 / 18},
		Warnings:     []cell.Warning{}, Available: true,
	}
	want.Factors = map[string]string{}
	closeEnough := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) })
	if d := cmp.Diff(want, got, closeEnough); d != "" {
		t.Error(d)
	}
}

func TestSummarizeWarnings(t *testing.T) {
	eight := []float64{36, 36.4, 35.7, 36.1, 36.2, 36.3, 36.5, 35.9}
	tests := []struct {
		name   string
		bits   []float64
		change func([]cell.Sample) []cell.Sample
		want   []string // prefixes of the warnings
		bad, n int
	}{
		{"none", eight, nil, nil, 0, 8},
		{"few", eight[:4], nil, []string{"4 samples: the interval is their range and covers 88 %; 95 % needs 6"}, 0, 4},
		{"one", eight[:1], nil, []string{"1 sample: its spread is unknown"}, 0, 1},
		{"bimodal", []float64{11.2, 36.1, 11.9, 35.2, 34.8, 11.4, 36.5, 11}, nil,
			[]string{"bimodal: 4 samples near "}, 0, 8},
		{"bad", eight, func(s []cell.Sample) []cell.Sample {
			s[2].Bad = cell.Note("late generator")
			return s
		}, []string{"measured in 7 of 8 blocks", "1 sample: late generator (disturbed)"}, 1, 7},
		{"bad and repeated", eight, func(s []cell.Sample) []cell.Sample {
			again := s[2]
			again.Bad, again.Attempt, s[2].Attempt = cell.Note("foreign load"), 1, 2
			return append(s, again)
		}, []string{"1 sample: foreign load (disturbed)"}, 1, 8},
		{"failed", eight, func(s []cell.Sample) []cell.Sample {
			s[0].Error = "connect 192.0.2.1:5201: connection refused"
			return s
		}, []string{"measured in 7", "1 sample: connect 192.0.2.1:5201: connection refused (failed)"}, 1, 7},
		{"bad warm-up", eight, func(s []cell.Sample) []cell.Sample {
			warm := s[0]
			warm.Block, warm.Bad = 0, cell.Note("late generator")
			return append(s, warm)
		}, nil, 0, 8},
		{"warnings of samples", eight, func(s []cell.Sample) []cell.Sample {
			s[1].Warnings = []cell.Warning{cell.Note("never segmented over veth")}
			s[5].Warnings = s[1].Warnings
			return s
		}, []string{"2 samples: never segmented over veth"}, 0, 8},
		{"steal", eight, func(s []cell.Sample) []cell.Sample {
			for i := range s {
				s[i].CPU.Steal = 0.1
			}
			return s
		}, []string{"the hypervisor took away 9 % of the processor time"}, 0, 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			samples := tcp(cellOf("veth", "between"), tt.bits...)
			if tt.change != nil {
				samples = tt.change(samples)
			}
			s := only(t, samples)
			if s.N != tt.n || s.BadSamples != tt.bad {
				t.Errorf("n = %d with %d bad, want %d with %d", s.N, s.BadSamples, tt.n, tt.bad)
			}
			if len(s.Warnings) != len(tt.want) {
				t.Fatalf("warnings %q, want %q", s.Warnings, tt.want)
			}
			for i, w := range tt.want {
				if got := s.Warnings[i].String(); !strings.HasPrefix(got, w) {
					t.Errorf("warning %q, want %q…", got, w)
				}
			}
		})
	}
}

func TestSummarizeWithoutNumbers(t *testing.T) {
	c := cellOf("veth", "between")
	broken := tcp(c, 1, 2)
	broken[0].Error, broken[1].Error = "no route to host", "no route to host"
	warm := tcp(c, 1)
	warm[0].Block = 0
	tests := []struct {
		name    string
		samples []cell.Sample
		absent  []cell.Absent
		reason  string
		bad     int
	}{
		{"failed", broken, nil, "the measurement failed: no route to host", 2},
		{"only the warm-up", warm, nil, "not measured: interrupted", 0},
		{"absent", nil, []cell.Absent{{Cell: c, Work: "tcp", Reason: "the kernel has no veth"}}, "the kernel has no veth", 0},
		{"absent, twice", nil, []cell.Absent{{Cell: c, Work: "tcp", Reason: "b"}, {Cell: c, Work: "tcp", Reason: "a"}}, "a", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := only(t, tt.samples, tt.absent...)
			if s.Available || s.Reason != tt.reason || s.N != 0 || s.BadSamples != tt.bad || s.Metric != cell.Throughput {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestSummarizeDisturbedOnly checks that a machine that was never quiet gets the
// numbers of the last attempt of each block, with a warning.
func TestSummarizeDisturbedOnly(t *testing.T) {
	bad := tcp(cellOf("veth", "between"), 1, 5, 2)
	for i := range bad {
		bad[i].Bad = cell.Note("other programs used 1.00 processors")
		bad[i].Block, bad[i].Attempt = 1+i/2, 1+i%2
	}
	s := only(t, bad)
	if !s.Available || s.N != 2 || s.BadSamples != 3 || s.Mean != (bad[1].Values[cell.Throughput]+bad[2].Values[cell.Throughput])/2 {
		t.Errorf("%+v", s)
	}
	if !slices.ContainsFunc(s.Warnings, func(w cell.Warning) bool { return w.Code == codeDisturbed }) {
		t.Errorf("warnings %q", s.Warnings)
	}
}

// TestSummarizeMergesHistograms checks that the percentile is that of all
// transactions, and neither the median nor the mean of the blocks' percentiles.
func TestSummarizeMergesHistograms(t *testing.T) {
	f := newFake(t, 1)
	f.noise = 0
	f.block = 0
	f.run(truth{Cell: cellOf("veth", "between"), rtt: 30 * time.Microsecond})
	f.rr(truth{Cell: cellOf("veth", "between"), rtt: 3 * time.Millisecond}, 9, 0, 0)
	var p99 cell.Summary
	for _, s := range f.results().Summaries {
		if s.Metric == cell.LatencyP99 {
			p99 = s
		}
	}
	// A ninth of all transactions take 3 ms, so p99 of all lies there, while eight
	// of nine blocks have it at about 45 µs.
	if p99.Median < 3e6 || p99.Mean != p99.Median || p99.CILow > 60e3 {
		t.Errorf("%+v", p99)
	}
	if !slices.ContainsFunc(p99.Warnings, func(w cell.Warning) bool { return strings.Contains(w.Text, "few blocks") }) {
		t.Errorf("warnings %q", p99.Warnings)
	}

	f.samples[3].Latency = ""
	for _, s := range f.results().Summaries {
		if s.Metric == cell.LatencyP99 && (s.Median > 60e3 || !strings.Contains(s.Warnings[0].Text, "without a histogram")) {
			t.Errorf("without a histogram: %+v", s)
		}
	}
}

func TestSummarizeSeparatesWorks(t *testing.T) {
	c := cellOf("veth", "between")
	a, b := tcp(c, 1e9, 2e9), tcp(c, 3e9, 4e9)
	for i := range b {
		b[i].Work = "udp"
	}
	all := Summarize(append(a, b...), nil)
	if len(all) != 2 || all[0].Factors["work"] == all[1].Factors["work"] {
		t.Errorf("%+v", all)
	}
	if c.Factors != nil {
		t.Error("the caller's cell was changed")
	}
}

// TestOrderDoesNotMatter checks that permuted samples give the same bytes.
func TestOrderDoesNotMatter(t *testing.T) {
	output := func(samples []cell.Sample, absent []cell.Absent) string {
		r := New(samples, absent)
		var b bytes.Buffer
		for _, err := range []error{
			WriteJSON(&b, r.Summaries), WriteCSV(&b, r.Summaries),
			WriteAdvice(&b, Recommend(r), false),
			Compare(r, quick(t, 2).results(), CompareOptions{Threshold: DefaultThreshold}).Table(&b),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	f := quick(t, 1)
	want := output(f.samples, f.absent)
	r := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		samples, absent := slices.Clone(f.samples), slices.Clone(f.absent)
		r.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
		r.Shuffle(len(absent), func(i, j int) { absent[i], absent[j] = absent[j], absent[i] })
		if got := output(samples, absent); got != want {
			t.Fatal(cmp.Diff(want, got))
		}
	}
}

// TestSummarizeWithoutValue checks that a search that found no rate gives no
// number, not 0.
func TestSummarizeWithoutValue(t *testing.T) {
	udp := func(values ...float64) []cell.Sample {
		samples := tcp(cellOf("veth", "between"), values...)
		for i := range samples {
			samples[i].Work = "udp"
			samples[i].Values[cell.Loss] = 0.5
			samples[i].Warnings = []cell.Warning{cell.Note("no trial stayed within a loss of 0.01")}
			switch x := samples[i].Values[cell.Throughput]; {
			case x == 0:
				delete(samples[i].Values, cell.Throughput)
			case x < 0:
				samples[i].Values[cell.Throughput] = math.NaN()
			}
		}
		return samples
	}
	for _, c := range []struct {
		name    string
		samples []cell.Sample
		n       int
		reason  string
	}{
		{"missing", udp(0, 0, 0), 0, "no sample gave this number; no trial stayed within a loss of 0.01"},
		{"not a number", udp(-1, -1), 0, "no sample gave this number; no trial stayed within a loss of 0.01"},
		{"some missing", udp(10, 0, 10, -1), 2, ""},
	} {
		s := Summarize(c.samples, nil)[0]
		if s.Metric != cell.Throughput || s.N != c.n || s.Available != (c.n > 0) || s.Reason != c.reason {
			t.Errorf("%s: %+v", c.name, s)
		}
		if c.n > 0 && (s.Median != 10 || !slices.ContainsFunc(s.Warnings, func(w cell.Warning) bool { return w.Text == "measured in 2 of 4 blocks" })) {
			t.Errorf("%s: median %g, warnings %q", c.name, s.Median, s.Warnings)
		}
	}
}
