package summary

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"
	"cleat/internal/columns"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file of testdata and checks that it fits 80 columns.
func golden(t *testing.T, name string, text []byte) {
	t.Helper()
	for line := range strings.Lines(string(text)) {
		if n := columns.Of(strings.TrimRight(line, "\n")); n > 80 && !strings.Contains(line, "cleat bench ") {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
			t.Errorf("blanks at the end of %q", line)
		}
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(text)); d != "" {
		t.Error(d)
	}
}

// changed returns a run that differs from quick: veth lost 15 %, bridge won 15 %,
// pasta fails, tun is new, bridge-nf is gone.
func changed(t *testing.T) Results {
	f := newFake(t, 3)
	f.run(
		truth{cellOf("loopback", "local"), 55, 1.2, 20 * time.Microsecond},
		truth{cellOf("own-address", "local"), 54, 1.2, 20 * time.Microsecond},
		truth{cellOf("veth", "between"), 30.6, 1.5, 30 * time.Microsecond},
		truth{cellOf("bridge", "between"), 41.4, 1.6, 31 * time.Microsecond},
		truth{cellOf("macvlan-bridge", "between"), 42, 1.4, 30 * time.Microsecond},
		truth{cellOf("nat-out", "outbound"), 31, 1.7, 35 * time.Microsecond},
		truth{cellOf("tun", "between"), 24, 1.9, 60 * time.Microsecond},
	)
	for _, s := range tcp(cellOf("pasta", "outbound"), 0, 0) {
		s.Error = "run pasta: exit status 1"
		f.samples = append(f.samples, s)
	}
	return f.results()
}

// calm returns quick with small block effects, as on a calm machine.
func calm(t *testing.T, seed uint64) *fake {
	f := quick(t, seed)
	g := newFake(t, seed)
	g.absent, g.block = f.absent, 0.01
	return g
}

func TestCompareTable(t *testing.T) {
	c := Compare(quick(t, 1).results(), changed(t), CompareOptions{Threshold: DefaultThreshold})
	var b bytes.Buffer
	if err := c.Table(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", b.Bytes())

	b.Reset()
	f, g := newFake(t, 1), newFake(t, 2)
	for _, pairs := range []int{1, 2, 16} {
		c := cellOf("veth", "between")
		c.Pairs = pairs
		f.run(truth{c, 40 / float64(pairs), 1.5, 0})
		g.run(truth{c, 60 / float64(pairs), 1.5, 0})
	}
	if err := Compare(f.results(), g.results(), CompareOptions{Metrics: []cell.Metric{cell.Throughput}}).Table(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare-pairs.txt", b.Bytes())
}

// TestCompareTableOfFewSamples checks that no interval is shown of too few samples.
func TestCompareTableOfFewSamples(t *testing.T) {
	veth := cellOf("veth", "between")
	base, other := New(tcp(veth, 36e9, 35e9, 34e9), nil), New(tcp(veth, 20e9, 21e9), nil)
	var b bytes.Buffer
	if err := Compare(base, other, CompareOptions{Threshold: DefaultThreshold}).Table(&b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.ContainsAny(text, "±") || !strings.Contains(text, "a median needs 6") {
		t.Error(text)
	}
}

func TestCompareVerdicts(t *testing.T) {
	veth := cellOf("veth", "between")
	udp := veth
	udp.Transport = "udp"
	loss := func(xs ...float64) Results {
		samples := tcp(udp, xs...)
		for i, x := range xs {
			samples[i].Work, samples[i].Values = "udp", map[cell.Metric]float64{cell.Loss: x}
		}
		return New(samples, nil)
	}
	throughput := func(scale float64) Results {
		xs := []float64{35.7, 35.9, 36, 36.1, 36.2, 36.3, 36.4, 36.5}
		for i := range xs {
			xs[i] *= scale * 1e9
		}
		return New(tcp(veth, xs...), nil)
	}
	latency := func(scale float64) Results {
		samples := tcp(veth, 1, 2, 3, 4, 5, 6, 7, 8)
		for i := range samples {
			samples[i].Work = "rr"
			samples[i].Values = map[cell.Metric]float64{cell.LatencyP50: scale * (30000 + 10*float64(i))}
		}
		return New(samples, nil)
	}
	noLoss := []float64{0, 0, 0, 0, 0, 0, 0, 0}
	tests := []struct {
		name      string
		base, new Results
		threshold float64
		want      Verdict
	}{
		{"the same", throughput(1), throughput(1), 0.05, Unclear},
		{"faster", throughput(1), throughput(1.1), 0.05, Better},
		{"slower", throughput(1), throughput(0.9), 0.05, Regressed},
		{"slower, within the threshold", throughput(1), throughput(0.97), 0.05, Worse},
		{"slower, no threshold", throughput(1), throughput(0.97), 0, Regressed},
		{"more latency", latency(1), latency(1.1), 0.05, Regressed},
		{"less latency", latency(1), latency(0.9), 0.05, Better},
		{"loss from none", loss(noLoss...), loss(0.02, 0.021, 0.019, 0.02, 0.022, 0.02, 0.018, 0.02), 0.05, Regressed},
		{"loss to none", loss(0.02, 0.021, 0.019, 0.02, 0.022, 0.02, 0.018, 0.02), loss(noLoss...), 0.05, Better},
		{"loss from tiny to small", loss(1e-6, 2e-6, 1e-6, 2e-6, 1e-6, 2e-6, 1e-6, 2e-6), loss(3e-4, 4e-4, 3e-4, 4e-4, 3e-4, 4e-4, 3e-4, 4e-4), 0.05, Worse},
		{"too few samples", New(tcp(veth, 1, 1.1, 1.2), nil), New(tcp(veth, 5, 5.1, 5.2), nil), 0.05, Unclear},
		{"gone", throughput(1), New(nil, []cell.Absent{{Cell: veth, Work: "tcp", Reason: "no veth"}}), 0.05, Regressed},
		{"slower, perhaps within the threshold", throughput(1), throughput(0.945), 0.05, Worse},
		{"loss from none, perhaps within the floor", loss(noLoss...), loss(8e-4, 9e-4, 2e-3, 1e-3, 1.5e-3, 1.2e-3, 1.1e-3, 8.5e-4), 0.05, Worse},
		{"new", New(nil, nil), throughput(1), 0.05, OnlyNew},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Compare(tt.base, tt.new, CompareOptions{Threshold: tt.threshold})
			if len(c.Rows) == 0 || c.Rows[0].Verdict != tt.want {
				t.Fatalf("%+v, want %s", c.Rows, tt.want)
			}
			if c.Regressed() != (tt.want == Regressed) {
				t.Errorf("regressed: %v", c.Regressed())
			}
		})
	}
}

// TestCompareSummariesOnly checks that means are compared without samples, with a
// warning.
func TestCompareSummariesOnly(t *testing.T) {
	base, other := quick(t, 1).results(), changed(t)
	base.Samples, other.Samples = nil, nil
	c := Compare(base, other, CompareOptions{Threshold: DefaultThreshold, Metrics: []cell.Metric{cell.Throughput}})
	verdicts := map[string]Verdict{}
	for _, r := range c.Rows {
		verdicts[r.Network] = r.Verdict
	}
	if verdicts["veth"] != Regressed || verdicts["bridge"] != Better || verdicts["macvlan-bridge"] != Unclear {
		t.Errorf("%v", verdicts)
	}
	if !strings.Contains(strings.Join(c.Warnings, "\n"), "Welch") {
		t.Errorf("warnings %q", c.Warnings)
	}
}

// TestCompareSimulated checks that at least 93 % of the pairs of equal runs show no
// difference in any row, and that a difference of 10 % under noise of 2 % is found.
func TestCompareSimulated(t *testing.T) {
	const runs = 200
	networks := []string{"veth", "bridge", "macvlan-bridge", "nat-out", "tun", "loopback"}
	simulate := func(seed uint64, factor float64) Results {
		f := newFake(t, seed)
		f.block = 0
		for i, n := range networks {
			gbit := 10 * float64(i+1)
			if n == "veth" {
				gbit *= factor
			}
			f.run(truth{Cell: cellOf(n, "between"), gbit: gbit})
		}
		return f.results()
	}
	clean, found := 0, 0
	options := CompareOptions{Threshold: DefaultThreshold, Metrics: []cell.Metric{cell.Throughput}}
	for i := range uint64(runs) {
		base := simulate(2*i, 1)
		if !slices.ContainsFunc(Compare(base, simulate(2*i+1, 1), options).Rows, func(r Row) bool { return r.Verdict != Unclear }) {
			clean++
		}
		for _, r := range Compare(base, simulate(2*i+1, 0.9), options).Rows {
			if r.Network == "veth" && r.Verdict == Regressed {
				found++
			}
		}
	}
	t.Logf("no difference seen in %d of %d pairs of equal runs; 10 %% less found in %d", clean, runs, found)
	if clean < runs*93/100 || found < runs*99/100 {
		t.Errorf("no difference seen in %d of %d pairs of equal runs; 10 %% less found in %d", clean, runs, found)
	}
}

// TestCompareScaling checks that a smaller unit changes no ratio, p or verdict.
func TestCompareScaling(t *testing.T) {
	scaled := func(r Results, k float64) Results {
		var samples []cell.Sample
		for _, s := range r.Samples {
			if x, ok := s.Values[cell.Throughput]; ok {
				s.Values = map[cell.Metric]float64{cell.Throughput: k * x}
				samples = append(samples, s)
			}
		}
		return New(samples, nil)
	}
	base, other := quick(t, 1).results(), changed(t)
	options := CompareOptions{Threshold: DefaultThreshold}
	a := Compare(scaled(base, 1), scaled(other, 1), options)
	b := Compare(scaled(base, 8), scaled(other, 8), options)
	c := Compare(scaled(base, 1), scaled(other, 2), options)
	for i, r := range a.Rows {
		if r.Metric != cell.Throughput || r.Ratio == 0 {
			continue
		}
		if math.Abs(b.Rows[i].Ratio-r.Ratio) > 1e-12 || b.Rows[i].P != r.P || b.Rows[i].Verdict != r.Verdict {
			t.Errorf("in another unit: %+v, want %+v", b.Rows[i], r)
		}
		if math.Abs(c.Rows[i].Ratio-2*r.Ratio) > 1e-12 {
			t.Errorf("doubled: ratio %v, was %v", c.Rows[i].Ratio, r.Ratio)
		}
	}
}

func TestCompareEnvironments(t *testing.T) {
	host := func(release string, governor any) map[string]any {
		return map[string]any{"seed": 1.0, "host": map[string]any{
			"taken": release, "kernel": map[string]any{"release": release},
			"cpu":     map[string]any{"model": "Example 9000", "online": 2.0, "governors": governor},
			"sysctls": map[string]any{"net.ipv4.tcp_congestion_control": "cubic", "net.netfilter.nf_conntrack_count": release}}}
	}
	a, b := quick(t, 1).results(), quick(t, 1).results()
	a.Environment, b.Environment = host("6.1.0", []any{"performance"}), host("6.12.0", nil)
	got := Compare(a, b, CompareOptions{}).Warnings
	want := []string{"the environments differ: kernel: 6.1.0 → 6.12.0", "the environments differ: governor: performance → –"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	b.Environment = host("6.1.0", []any{"performance"})
	if got := Compare(a, b, CompareOptions{}).Warnings; len(got) != 0 {
		t.Errorf("equal environments: %q", got)
	}
	b.Environment = map[string]any{}
	if got := Compare(a, b, CompareOptions{}).Warnings; len(got) == 0 || !strings.Contains(got[0], "does not describe the host") {
		t.Errorf("no host: %q", got)
	}
}

// TestComparable checks that two runs without a common row are refused with the
// reason, and others are not.
func TestComparable(t *testing.T) {
	run := func(network, topology string) Results {
		c := cellOf(network, "between")
		c.Topology = topology
		return New(tcp(c, 36e9, 35e9), nil)
	}
	for _, tt := range []struct {
		name      string
		base, new Results
		want      string // "": comparable
	}{
		{"the same cell", run("veth", "local"), run("veth", "local"), ""},
		{"other conditions", run("vxlan", "local"), run("vxlan", "switched"), "vxlan was measured with local in base, with switched in new"},
		{"other networks", run("veth", "local"), run("gre", "switched"), "base measured veth, new measured gre"},
		{"an empty run", run("veth", "local"), Results{}, "rows of new have a number"},
	} {
		err := Compare(tt.base, tt.new, CompareOptions{}).Comparable()
		if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, ErrNothingInCommon) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestCompareWarnsOfBaselines(t *testing.T) {
	f := calm(t, 4)
	g := calm(t, 5)
	f.run(truth{cellOf("loopback", "local"), 55, 1.2, 0}, truth{cellOf("veth", "between"), 36, 1.5, 0})
	g.run(truth{cellOf("loopback", "local"), 44, 1.2, 0}, truth{cellOf("veth", "between"), 29, 1.5, 0})
	warnings := Compare(f.results(), g.results(), CompareOptions{Threshold: 0.05}).Warnings
	if !strings.Contains(strings.Join(warnings, "\n"), "the baseline loopback itself changed: throughput × 0.79") {
		t.Errorf("%q", warnings)
	}
}
