package summary

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"

	"github.com/google/go-cmp/cmp"
)

// ask returns the advice for a role and goal.
func ask(t *testing.T, r Results, role catalog.Role, g Goal) Advice {
	t.Helper()
	for _, a := range Recommend(r, g) {
		if a.Role == role {
			return a
		}
	}
	t.Fatalf("no advice for role %s", role)
	return Advice{}
}

func TestAdviceText(t *testing.T) {
	r := quick(t, 1).results()
	r.Partial = true
	var b bytes.Buffer
	if err := WriteAdvice(&b, Recommend(r), true); err != nil {
		t.Fatal(err)
	}
	golden(t, "recommend-brief.txt", b.Bytes())
	for _, g := range Goals() {
		b.Reset()
		if err := WriteAdvice(&b, Recommend(r, g), false); err != nil {
			t.Fatal(err)
		}
		golden(t, "recommend-"+string(g)+".txt", b.Bytes())
	}
	b.Reset()
	if err := WriteAdvice(&b, Recommend(Results{}), true); err != nil || !strings.HasPrefix(b.String(), "Nothing to recommend") {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestRecommendKnownTruth(t *testing.T) {
	a := ask(t, quick(t, 1).results(), catalog.Container, ForThroughput)
	if a.Best.Network != "macvlan-bridge" || len(a.Ties) != 0 || !slices.Equal(networks(a.Worse), []string{"veth", "bridge", "bridge-nf"}) {
		t.Errorf("best %s, ties %v, worse %v", a.Best.Network, networks(a.Ties), networks(a.Worse))
	}
	if !slices.Equal(networks(a.Reference), []string{"loopback", "own-address"}) || a.Reference[0].Ratio < 0.70 || a.Reference[0].Ratio > 0.82 {
		t.Errorf("reference %+v", a.Reference)
	}
	if len(a.Best.Caveats) == 0 || a.Best.CoresPerGbit == 0 {
		t.Errorf("best without caveats or processor time: %+v", a.Best)
	}
	want := []Exclusion{{"ipvlan-l2", "the kernel has no ipvlan", "load the module ipvlan (CONFIG_IPVLAN)"}}
	if d := cmp.Diff(want, a.Unavailable); d != "" {
		t.Error(d)
	}
	if len(a.NotApplicable) != 1 || a.NotApplicable[0].Network != "macvlan-private" {
		t.Errorf("not applicable: %+v", a.NotApplicable)
	}
	for _, b := range []Advice{a, ask(t, quick(t, 1).results(), catalog.Rootless, ForCPU)} {
		if e, _ := catalog.Lookup(b.Best.Network); e.Role == catalog.Baseline {
			t.Errorf("recommended a baseline: %s", b.Sentence)
		}
	}
}

// TestRecommendSimulated checks that at most 7 % of the runs with equal networks
// call one worse than the best, and that a network better by 10 % is found among
// seven despite larger block effects.
func TestRecommendSimulated(t *testing.T) {
	const runs = 100
	networks := []string{"veth", "bridge", "bridge-nf", "macvlan-bridge", "ipvlan-l2", "ipvlan-l3", "vlan"}
	run := func(seed uint64, best float64) Advice {
		f := newFake(t, seed)
		f.block = 0.10
		var cells []truth
		for i, n := range networks {
			gbit := 36.0
			if i == 3 {
				gbit *= best
			}
			cells = append(cells, truth{Cell: cellOf(n, "between"), gbit: gbit})
		}
		f.run(cells...)
		return ask(t, f.results(), catalog.Container, ForThroughput)
	}
	alarms, found := 0, 0
	for i := range uint64(runs) {
		if len(run(i, 1).Worse) > 0 {
			alarms++
		}
		if a := run(1000+i, 1.1); a.Best.Network == "macvlan-bridge" && len(a.Ties) == 0 {
			found++
		}
	}
	t.Logf("equal networks ranked in %d of %d runs; the best found alone in %d", alarms, runs, found)
	if alarms > runs*7/100 || found < runs*90/100 {
		t.Errorf("equal networks ranked in %d of %d runs; the best found alone in %d", alarms, runs, found)
	}
}

func TestRecommendComparesLikeWithLike(t *testing.T) {
	f := newFake(t, 1)
	at := func(network string, mtu, pairs int, gbit float64) truth {
		c := cellOf(network, "between")
		c.MTU, c.Pairs = mtu, pairs
		return truth{Cell: c, gbit: gbit}
	}
	f.run(
		at("veth", 1500, 1, 30), at("veth", 9000, 1, 60), at("veth", 9000, 8, 90),
		at("bridge", 1500, 1, 28), at("bridge", 9000, 1, 58),
		at("macvlan-bridge", 1500, 1, 40),
		at("ipvlan-l2", 9000, 8, 200),
	)
	a := ask(t, f.results(), catalog.Container, ForThroughput)
	if a.Best.Network != "macvlan-bridge" || a.Best.Cell.MTU != 1500 {
		t.Errorf("%s", a.Sentence)
	}
	if !strings.Contains(a.Conditions, "MTU 1500, 1 pair") {
		t.Errorf("conditions %q", a.Conditions)
	}
	want := []Exclusion{{Network: "ipvlan-l2", Reason: "measured only with MTU 9000, 8 pairs"}}
	if d := cmp.Diff(want, a.NotCompared); d != "" {
		t.Error(d)
	}
}

// TestRecommendFactorsOfSomeNetworks checks that a VXLAN port, which means nothing
// to WireGuard, does not prevent comparing the two, and that two ports do not make
// two networks.
func TestRecommendFactorsOfSomeNetworks(t *testing.T) {
	f := newFake(t, 1)
	at := func(network, port string, gbit float64) truth {
		c := cellOf(network, "between")
		if port != "" {
			c.Factors = map[string]string{"vxlan_port": port}
		}
		return truth{Cell: c, gbit: gbit}
	}
	f.run(at("wireguard", "", 3), at("gre", "", 8), at("vxlan", "4789", 6), at("vxlan", "8472", 6.1),
		at("vxlan-fdb", "4789", 6), at("vxlan-fdb", "8472", 6.1))
	a := ask(t, f.results(), catalog.Overlay, ForThroughput)
	if a.Best.Network != "gre" || !slices.Equal(networks(a.Worse), []string{"vxlan", "vxlan-fdb", "wireguard"}) {
		t.Errorf("%s; worse %v", a.Sentence, networks(a.Worse))
	}
	for _, s := range a.Worse {
		if port := s.Cell.Factors["vxlan_port"]; strings.HasPrefix(s.Network, "vxlan") && port != "4789" {
			t.Errorf("%s compared at port %s", s.Network, port)
		}
	}
}

// TestInterrupted checks that cells of an interrupted run are not called
// unavailable.
func TestInterrupted(t *testing.T) {
	f := newFake(t, 1)
	f.blocks = 0 // the warm-up alone
	f.run(truth{Cell: cellOf("veth", "between"), gbit: 36}, truth{Cell: cellOf("bridge", "between"), gbit: 30})
	r := f.results()
	r.Partial = true
	r.Environment = map[string]any{"experiment": map[string]any{"groups": []any{map[string]any{"work": []any{map[string]any{"kind": "tcp"}, map[string]any{"kind": "rr"}}}}}}
	for _, goal := range []Goal{ForThroughput, ForLatency} { // the run did not get to the second
		if a := ask(t, r, catalog.Container, goal); a.Sentence != "No answer: not measured: interrupted." || a.Missing != "" || len(a.Unavailable) > 0 {
			t.Errorf("for %s: %q, missing %q", goal, a.Sentence, a.Missing)
		}
	}
	if s := f.results().Summaries[0]; s.Reason != "not measured: interrupted" {
		t.Errorf("reason %q", s.Reason)
	}
}

// TestRoles checks which roles offer a choice.
func TestRoles(t *testing.T) {
	f := newFake(t, 1)
	f.run(truth{cellOf("veth", "between"), 36, 1, 30 * time.Microsecond}, truth{cellOf("bridge", "between"), 30, 1, 0},
		truth{cellOf("nat-out", "outbound"), 20, 1, 0})
	f.absent = []cell.Absent{{Cell: cellOf("pasta", "outbound"), Work: "tcp", Reason: "not installed"}}
	got := map[string]string{}
	for _, r := range Roles(Recommend(f.results())) {
		got[r.Title] = r.Undecided()
	}
	want := map[string]string{"Container to container, one host": "", "Container and the world outside": "only nat-out, 19.5 Gbit/s",
		"Container and the world, without root": "none of them is available here"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestSameFactors(t *testing.T) {
	with := func(factors map[string]string) cell.Cell {
		c := cellOf("veth", "between")
		c.Factors = factors
		return c
	}
	jumbo := with(nil)
	jumbo.MTU = 9000
	other := with(nil)
	other.Network = "bridge"
	tests := []struct {
		name string
		a, b cell.Cell
		want bool
	}{
		{"another network", with(nil), other, true},
		{"another MTU", with(nil), jumbo, false},
		{"a factor of one only", with(map[string]string{"vxlan_port": "4789"}), with(nil), true},
		{"different levels", with(map[string]string{"gso": "on"}), with(map[string]string{"gso": "off"}), false},
		{"different factors", with(map[string]string{"gso": "on"}), with(map[string]string{"vxlan_port": "4789"}), true},
	}
	for _, tt := range tests {
		if got, back := sameFactors(tt.a, tt.b), sameFactors(tt.b, tt.a); got != tt.want || back != tt.want {
			t.Errorf("%s: %v and %v, want %v", tt.name, got, back, tt.want)
		}
	}
}

func TestRecommendSentences(t *testing.T) {
	one := func(network, direction string, gbit float64) truth {
		return truth{Cell: cellOf(network, direction), gbit: gbit}
	}
	tests := []struct {
		name   string
		blocks int
		cells  []truth
		absent []cell.Absent
		goal   Goal
		want   []string // the sentence of each question
	}{
		{"one", 8, []truth{one("veth", "between", 36)}, nil, ForThroughput,
			[]string{"Use veth: 35.8 Gbit/s; no other was measured here."}},
		{"two apart", 8, []truth{one("veth", "between", 36), one("bridge", "between", 20)}, nil, ForThroughput,
			[]string{"Use veth: 37.1 Gbit/s, better than the other one measured here."}},
		{"too few blocks to tell", 2, []truth{one("bridge", "between", 20), one("veth", "between", 36)}, nil, ForThroughput,
			[]string{"No recommendation: 2 samples each, too few to see any difference. Measure again with `--repeat 6` or more. The best number so far: veth, 35.8 Gbit/s."}},
		{"both directions", 8, []truth{one("pasta", "inbound", 5), one("pasta", "outbound", 12)}, nil, ForThroughput,
			[]string{"Use pasta: 12.1 Gbit/s; no other was measured here.", "Use pasta: 5.15 Gbit/s; no other was measured here."}},
		{"ways, not choices", 8, []truth{one("published-host", "inbound", 20), one("published-outside", "inbound", 10)}, nil, ForThroughput,
			[]string{"The best way is published-host: 20.6 Gbit/s, better than the other one measured here."}},
		{"work not run", 8, []truth{one("veth", "between", 36)}, nil, ForLatency,
			[]string{`No answer: the work "rr" was not run.`}},
		{"none available", 0, nil, []cell.Absent{{Cell: cellOf("pasta", "outbound"), Work: "tcp", Reason: "not installed"}}, ForThroughput,
			[]string{"No answer: none of them is available here."}},
		{"none applicable", 0, nil, []cell.Absent{{Cell: cellOf("macvlan-private", "between"), Work: "tcp", Reason: "isolates", NotApplicable: true}}, ForThroughput,
			[]string{"No answer: none of them can carry this traffic by design."}},
		{"only a baseline", 8, []truth{one("loopback", "local", 50)}, nil, ForThroughput, nil},
		{"a path of the user's own", 8, []truth{one("existing-path", "outbound", 50)}, nil, ForThroughput,
			[]string{"outbound: TCP 49.7 Gbit/s (45.8–54.1)."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, 1)
			f.blocks, f.absent = tt.blocks, tt.absent
			f.run(tt.cells...)
			var got []string
			for _, a := range Recommend(f.results(), tt.goal) {
				got = append(got, a.Sentence)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestRecommendTrust checks that an answer mentions two modes, bad samples and a
// partial run.
func TestRecommendTrust(t *testing.T) {
	samples := tcp(cellOf("veth", "between"), 11.2e9, 36.1e9, 11.9e9, 35.2e9, 34.8e9, 11.4e9, 36.5e9, 11e9)
	samples = append(samples, tcp(cellOf("bridge", "between"), 20e9, 21e9, 20e9, 22e9)...)
	bad := tcp(cellOf("bridge", "between"), 1)
	bad[0].Bad = cell.Note("late generator")
	r := New(append(samples, bad...), nil)
	r.Partial = true
	got := ask(t, r, catalog.Container, ForThroughput).Trust
	want := []string{"4 to 8 samples each; 1 sample bad", "only differences of more than a factor of 7.91 are found", "the run is partial", "veth: bimodal: 4 samples near 11.3 Gbit/s and 4 near 35.6 Gbit/s"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("%q, want %q…", got[i], want[i])
		}
	}
}

// TestRecommendFromDisturbedSamples checks that an answer from disturbed samples
// says so.
func TestRecommendFromDisturbedSamples(t *testing.T) {
	samples := tcp(cellOf("veth", "between"), 30e9, 31e9)
	for i := range samples {
		samples[i].Bad = cell.Note("other programs used 0.31 processors")
	}
	a := ask(t, New(samples, nil), catalog.Container, ForThroughput)
	if a.Best == nil || !slices.Contains(a.Trust, "veth: no sample was undisturbed: the numbers come from disturbed ones") {
		t.Errorf("%+v", a)
	}
}

func TestRecommendWithoutAnySampleThatCounts(t *testing.T) {
	samples := tcp(cellOf("veth", "between"), 30e9, 31e9)
	for i := range samples {
		samples[i].Error, samples[i].Values = "no route to host", nil
	}
	a := ask(t, New(samples, nil), catalog.Container, ForThroughput)
	if a.Sentence != "No answer: no sample counts, since all were disturbed or failed." || a.Missing != "" || len(a.Unavailable) != 1 {
		t.Errorf("%+v", a)
	}
}

// TestRecommendWithoutProcessorTime checks that samples of data moved without its processor
// time do not count as disturbed or not measured, although one is disturbed.
func TestRecommendWithoutProcessorTime(t *testing.T) {
	samples := tcp(cellOf("veth", "between"), 30e9, 31e9, 30.5e9)
	for i := range samples {
		samples[i].CPU = cell.CPU{}
	}
	samples[0].Bad = cell.Note("other programs used 0.31 processors")
	a := ask(t, New(samples, nil), catalog.Container, ForCPU)
	if a.Sentence != "No answer: the samples hold no processor time." || a.Missing != "" {
		t.Errorf("%+v", a)
	}
}

func TestRecommendFromSummariesOnly(t *testing.T) {
	r := quick(t, 1).results()
	r.Samples, r.Absent = nil, nil
	a := ask(t, r, catalog.Container, ForThroughput)
	if a.Best.Network != "macvlan-bridge" || len(a.NotApplicable) != 1 || len(a.Unavailable) != 1 {
		t.Errorf("%+v", a)
	}
	if cpu := ask(t, r, catalog.Container, ForCPU); len(cpu.Worse) != 0 {
		t.Errorf("ranked processor times without samples: %s", cpu.Sentence)
	}
	if r.Summaries = nil; len(Recommend(r)) != 0 {
		t.Error("advice from nothing")
	}
}

func TestRecommendLatencyIsLowerBetter(t *testing.T) {
	f := newFake(t, 1)
	f.run(truth{Cell: cellOf("veth", "between"), rtt: 30 * time.Microsecond}, truth{Cell: cellOf("bridge", "between"), rtt: 60 * time.Microsecond})
	if a := ask(t, f.results(), catalog.Container, ForLatency); a.Best.Network != "veth" || len(a.Worse) != 1 || a.Worse[0].Ratio < 1.8 || a.Best.P99 == 0 {
		t.Errorf("%+v", a)
	}
}
