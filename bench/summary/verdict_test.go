package summary

import (
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// TestCompareLost checks that a cell which the new run tried and could not measure has
// regressed, and that one which the new run was not asked for or did not get to has not.
func TestCompareLost(t *testing.T) {
	veth, bridge := cellOf("veth", "between"), cellOf("bridge", "between")
	base := New(slices.Concat(tcp(veth, 35e9, 36e9), tcp(bridge, 30e9, 31e9)), nil)
	without := func(a ...cell.Absent) Results { return New(tcp(veth, 35e9, 36e9), a) }
	failing := tcp(bridge, 0, 0)
	for i := range failing {
		failing[i].Values, failing[i].Error = nil, "connect: no route to host"
	}
	warmup := tcp(bridge, 30e9)
	warmup[0].Block = 0
	summaries := without(cell.Absent{Cell: bridge, Work: "tcp", Reason: "the kernel has no bridge"})
	summaries.Samples, summaries.Absent = nil, nil
	for _, tt := range []struct {
		name string
		new  Results
		want Verdict
		text string // of the table
	}{
		{"absent with a reason", without(cell.Absent{Cell: bridge, Work: "tcp", Reason: "the kernel has no bridge"}), Regressed, "bridge: the kernel has no bridge"},
		{"absent, from summaries", summaries, Regressed, "bridge: the kernel has no bridge"},
		{"absent by design now", without(cell.Absent{Cell: bridge, Work: "tcp", Reason: "isolates", NotApplicable: true}), Regressed, "bridge: isolates"},
		{"fails", New(slices.Concat(tcp(veth, 35e9, 36e9), failing), nil), Regressed, "bridge: the measurement failed: connect: no route to host"},
		{"not asked for", without(), OnlyBase, "not measured"},
		{"interrupted", New(slices.Concat(tcp(veth, 35e9, 36e9), warmup), nil), OnlyBase, "not measured"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Compare(base, tt.new, CompareOptions{Threshold: DefaultThreshold})
			for _, r := range c.Rows {
				if r.Network == "bridge" && r.Verdict != tt.want {
					t.Errorf("%s: %s, want %s", r.Metric, r.Verdict, tt.want)
				}
			}
			if c.Regressed() != (tt.want == Regressed) {
				t.Errorf("regressed: %t", c.Regressed())
			}
			var b strings.Builder
			if err := c.Table(&b); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(b.String(), tt.text) {
				t.Errorf("no %q in\n%s", tt.text, b.String())
			}
		})
	}
}

// TestCompareLostProcessorTime checks that the processor time of a network that no longer
// works is lost with it, also if nothing else is compared.
func TestCompareLostProcessorTime(t *testing.T) {
	f := newFake(t, 1)
	f.run(truth{cellOf("veth", "between"), 30, 1.5, 0})
	gone := New(nil, []cell.Absent{{Cell: cellOf("veth", "between"), Work: "tcp", Reason: "no veth"}})
	for _, metrics := range [][]cell.Metric{nil, {cell.ProcessorTime}} {
		c := Compare(f.results(), gone, CompareOptions{Metrics: metrics})
		if len(c.Rows) == 0 || slices.ContainsFunc(c.Rows, func(r Row) bool { return r.Verdict != Regressed || r.New.Reason != "no veth" }) {
			t.Errorf("%+v", c.Rows)
		}
	}
}

// TestCompareAtTheThreshold checks that a network which really is worse by the threshold, and
// no more, is seldom called regressed, however certain it is that it is worse at all.
func TestCompareAtTheThreshold(t *testing.T) {
	const runs = 200
	run := func(seed uint64, gbit float64) Results {
		f := newFake(t, seed)
		f.block = 0
		f.run(truth{Cell: cellOf("veth", "between"), gbit: gbit})
		return f.results()
	}
	options := CompareOptions{Threshold: 0.10, Metrics: []cell.Metric{cell.Throughput}}
	regressed, worse := 0, 0
	for i := range uint64(runs) {
		switch Compare(run(2*i, 30), run(2*i+1, 27), options).Rows[0].Verdict {
		case Regressed:
			regressed++
		case Worse:
			worse++
		}
	}
	if regressed > runs*5/100 || worse < runs*90/100 {
		t.Errorf("regressed in %d and worse in %d of %d runs", regressed, worse, runs)
	}
}

// TestCompareChangedMachine checks that a baseline that got slower is no regression of the
// networks that got slower with it, but that more than this is one.
func TestCompareChangedMachine(t *testing.T) {
	run := func(seed uint64, loopback, own, veth, bridge float64, rtt time.Duration) Results {
		f := newFake(t, seed)
		f.block = 0.01
		f.run(truth{cellOf("loopback", "local"), loopback, 0, rtt}, truth{cellOf("own-address", "local"), own, 0, 0},
			truth{cellOf("veth", "between"), veth, 0, rtt}, truth{cellOf("bridge", "between"), bridge, 0, rtt})
		return f.results()
	}
	const us = time.Microsecond
	base := run(1, 50, 50, 40, 30, 20*us)
	for _, tt := range []struct {
		name string
		new  Results
		want string // networks that regressed
	}{
		{"nothing changed", run(2, 50, 50, 40, 30, 20*us), ""},
		{"only the baselines", run(2, 40, 40, 40, 30, 20*us), ""},
		{"everything", run(2, 40, 40, 32, 24, 25*us), ""},
		{"everything, one more", run(2, 40, 40, 24, 24, 25*us), "veth"},
		{"one of two baselines", run(2, 40, 50, 32, 30, 20*us), "veth"},
		{"a faster machine hides nothing", run(2, 60, 60, 32, 36, 20*us), "veth"},
	} {
		c := Compare(base, tt.new, CompareOptions{Threshold: DefaultThreshold})
		var got []string
		for _, r := range c.Rows {
			if r.Verdict == Regressed && !slices.Contains(got, r.Network) {
				got = append(got, r.Network)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q regressed, want %q", tt.name, got, tt.want)
		}
		if lines := len(c.Warnings); lines > 1 {
			t.Errorf("%s: %d warnings: %q", tt.name, lines, c.Warnings)
		}
	}
}

// TestCompareOtherWorks checks that a cell is found again in a run that measured one of its
// metrics by another kind of work as well.
func TestCompareOtherWorks(t *testing.T) {
	veth := cellOf("veth", "between")
	alone := tcp(veth, 35e9, 36e9)
	loaded := tcp(veth, 20e9, 21e9)
	for i := range loaded {
		loaded[i].Work = "loaded"
	}
	for _, c := range []Comparison{
		Compare(New(alone, nil), New(slices.Concat(alone, loaded), nil), CompareOptions{}),
		Compare(New(slices.Concat(alone, loaded), nil), New(alone, nil), CompareOptions{}),
	} {
		compared := 0
		for _, r := range c.Rows {
			if r.Base.N > 0 && r.New.N > 0 {
				compared++
				if r.Base.Median != r.New.Median {
					t.Errorf("compared with another work: %+v", r)
				}
			}
		}
		if err := c.Comparable(); err != nil || compared != 2 { // throughput and processor time
			t.Errorf("%v, %d rows compared", err, compared)
		}
	}
}

// TestRecommendNeedsSamples checks that samples too few for any difference, or disturbed ones,
// give no recommendation but what it takes.
func TestRecommendNeedsSamples(t *testing.T) {
	veth, bridge, vlan := cellOf("veth", "between"), cellOf("bridge", "between"), cellOf("vlan", "between")
	eight := func(gbit float64) (xs []float64) {
		for i := range 8 {
			xs = append(xs, (gbit+0.1*float64(i))*1e9)
		}
		return xs
	}
	disturbed := func(samples []cell.Sample) []cell.Sample {
		for i := range samples {
			samples[i].Bad = cell.Note("other programs used 0.31 processors")
		}
		return samples
	}
	for _, tt := range []struct {
		name    string
		samples []cell.Sample
		want    string
	}{
		{"one of one", tcp(veth, 30e9),
			"No recommendation: 1 sample each, too few to see any difference. Measure again with `--repeat 6` or more. The best number so far: veth, 30.0 Gbit/s."},
		{"one of each", slices.Concat(tcp(veth, 30e9), tcp(bridge, 20e9)),
			"No recommendation: 1 sample each, too few to see any difference. Measure again with `--repeat 6` or more. The best number so far: veth, 30.0 Gbit/s."},
		{"the best has one", slices.Concat(tcp(veth, 30e9), tcp(bridge, eight(20)...)),
			"No recommendation: 1 to 8 samples each, too few to see any difference. Measure again with `--repeat 6` or more. The best number so far: veth, 30.0 Gbit/s."},
		{"four of three", slices.Concat(tcp(veth, eight(30)[:4]...), tcp(bridge, eight(20)[:4]...), tcp(vlan, eight(20)[:4]...)),
			"No recommendation: 4 samples each, too few to see any difference. Measure again with `--repeat 6` or more. The best number so far: veth, 30.1 Gbit/s."},
		{"four of two", slices.Concat(tcp(veth, eight(30)[:4]...), tcp(bridge, eight(20)[:4]...)),
			"Use veth: 30.1 Gbit/s, better than the other one measured here."},
		{"the best is disturbed", slices.Concat(disturbed(tcp(veth, eight(30)...)), tcp(bridge, eight(20)...)),
			"No recommendation: no sample of veth was undisturbed. Measure again with `--repeat 6` or more, and nothing else running. The best number so far: veth, 30.4 Gbit/s."},
		{"one that ties is disturbed", slices.Concat(disturbed(tcp(veth, eight(30)...)), tcp(bridge, eight(30.05)...)),
			"No recommendation: no sample of veth was undisturbed. Measure again with `--repeat 6` or more, and nothing else running. The best number so far: bridge, 30.4 Gbit/s."},
		{"a worse one is disturbed", slices.Concat(tcp(veth, eight(30)...), disturbed(tcp(bridge, eight(20)...))),
			"Use veth: 30.4 Gbit/s, better than the other one measured here. No sample of bridge was undisturbed: it may be better than it seems."},
	} {
		a := ask(t, New(tt.samples, nil), catalog.Container, ForThroughput)
		if a.Sentence != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, a.Sentence, tt.want)
		}
		if (a.Insufficient != "") != strings.HasPrefix(tt.want, "No recommendation") {
			t.Errorf("%s: insufficient: %q", tt.name, a.Insufficient)
		}
	}
}

// TestRecommendForLatencyUnderLoad checks that latency under load decides where it was measured
// of as many networks, whatever else of the cells is alike.
func TestRecommendForLatencyUnderLoad(t *testing.T) {
	rtt := func(network, work string, bytes int, us float64) (out []cell.Sample) {
		c := cellOf(network, "between")
		c.MessageBytes = bytes
		for i := range 8 {
			out = append(out, cell.Sample{Cell: c, Work: work, Block: i + 1, Values: map[cell.Metric]float64{cell.LatencyP50: 1000 * (us + float64(i))}})
			if work == "loaded" {
				out[i].Values[cell.LatencyAdded] = 500
			}
		}
		return out
	}
	for _, bytes := range []int{64, 131072} {
		plain := slices.Concat(rtt("veth", "rr", 64, 30), rtt("bridge", "rr", 64, 40))
		both := slices.Concat(plain, rtt("veth", "loaded", bytes, 900), rtt("bridge", "loaded", bytes, 200))
		for _, tt := range []struct {
			name    string
			samples []cell.Sample
			want    string
		}{
			{"both", both, "Use bridge: 204 µs median round trip under load, better than the other one measured here."},
			{"plain only", plain, "Use veth: 33.5 µs median round trip, better than the other one measured here."},
			{"one under load", slices.Concat(plain, rtt("bridge", "loaded", bytes, 20)), "Use veth: 33.5 µs median round trip, better than the other one measured here."},
		} {
			r := New(tt.samples, nil)
			if a := ask(t, r, catalog.Container, ForLatency); a.Sentence != tt.want {
				t.Errorf("%s, %d bytes: %q, want %q", tt.name, bytes, a.Sentence, tt.want)
			}
			r.Samples = nil
			if a := ask(t, r, catalog.Container, ForLatency); a.Best.Network != strings.TrimSuffix(strings.Fields(tt.want)[1], ":") {
				t.Errorf("%s, %d bytes, from summaries: %q", tt.name, bytes, a.Sentence)
			}
		}
	}
}

// twice is a run with n samples of three networks without root, and of loopback.
func twice(n int) Results {
	var samples []cell.Sample
	for i, network := range []string{"loopback", "cleat", "pasta", "slirp4netns"} {
		c := cellOf(network, "outbound")
		if network == "loopback" {
			c.Direction = "local"
		}
		var xs []float64
		for k := range n {
			xs = append(xs, 1e9*(60-15*float64(i)+float64(k)))
		}
		samples = append(samples, tcp(c, xs...)...)
	}
	return New(samples, nil)
}

// TestVersusLevels checks that no table claims 95 % for the range of two samples.
func TestVersusLevels(t *testing.T) {
	for _, tt := range []struct {
		n    int
		head string // of the intervals
		ci   bool   // ratios and Markdown have intervals
	}{{1, "", false}, {2, "[50 %]", false}, {5, "[93 %]", false}, {8, "[95 %]", true}} {
		v := Against(twice(tt.n), "cleat")
		m, l := find(t, v, cell.Throughput, "outbound", "cleat")
		if got := m.Heads()[2]; got != tt.head {
			t.Errorf("%d samples: head %q, want %q", tt.n, got, tt.head)
		}
		ratios := 0
		for _, text := range m.Cells(l)[3:] {
			if strings.Contains(text, "[") {
				ratios++
			}
		}
		if want := tt.n >= 5; (ratios == 2) != want { // 5 × 5 pairs have an interval of 96.8 %
			t.Errorf("%d samples: %q", tt.n, m.Cells(l))
		}
		var b strings.Builder
		if err := v.Markdown(&b); err != nil {
			t.Fatal(err)
		}
		row := strings.Split(strings.Split(b.String(), "\n")[2], "|")
		if got := strings.Contains(row[2], "["); got != tt.ci {
			t.Errorf("%d samples: %q", tt.n, row[2])
		}
		b.Reset()
		if err := v.Table(&b); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), "Intervals are not corrected") {
			t.Errorf("the legend does not explain intervals beside ~: %s", b.String())
		}
	}
}

// TestVersusCorrectsEachPairOnce checks that a pair of networks counts once for Holm's
// correction, also if its ratio stands in two lines: that of the subject to the best rival, and
// the subject's to each rival.
func TestVersusCorrectsEachPairOnce(t *testing.T) {
	r := twice(8)
	v := Against(r, "cleat")
	pairs := map[string]float64{} // p by pair, before the correction
	var sets []set
	for _, s := range r.sets() {
		if s.Metric == cell.Throughput || s.Metric == cell.ProcessorTime {
			sets = append(sets, s)
		}
	}
	least := 1.0
	for _, m := range v.Matches {
		for _, l := range m.Lines {
			if l.ToRival.Value > 0 && l.Network == "cleat" {
				rival, _ := m.line(m.BestRival)
				if l.ToRival.P != rival.OfSubject.P {
					t.Errorf("%s: p %g to the best rival, %g of it", m.Metric, l.ToRival.P, rival.OfSubject.P)
				}
				least = min(least, l.ToRival.P)
			}
		}
	}
	for i, a := range sets {
		for _, b := range sets[i+1:] {
			if a.Metric == b.Metric && (a.Network == "loopback" || a.Network == "cleat" || a.Network == "pasta") {
				pairs[a.id()+b.id()] = withinRun(a, b, nil).P
			}
		}
	}
	smallest := 1.0
	for _, p := range pairs {
		smallest = min(smallest, p)
	}
	// Each metric has 3 pairs with loopback, and 3 of the networks.
	if want := 12 * smallest; len(pairs) != 12 || least > want*1.0001 {
		t.Errorf("least p %g, want %g of %d pairs", least, want, len(pairs))
	}
}
