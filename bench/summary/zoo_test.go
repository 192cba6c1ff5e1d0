package summary

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"
)

// zooSamples makes the results of three cases, of which the tunnel fails in the second and
// MPTCP carries nothing in the third.
func zooSamples() Results {
	var r Results
	add := func(network, seed, link string, steady, p95 float64) {
		f := map[string]string{"zoo": seed, "zoo_cap": "400M"}
		if link != "" {
			f["zoo_link"] = link
		}
		s := cell.Sample{Cell: cell.Cell{Network: network, Factors: f}, Work: "loaded", Block: 1}
		if steady == 0 {
			s.Error = "no route"
		} else {
			s.Values = map[cell.Metric]float64{cell.Throughput: steady, cell.Steady: steady, cell.SteadyOfIdeal: steady / 100e6, cell.LatencyP95: p95, cell.OwnLatency: 20e6}
		}
		r.Samples = append(r.Samples, s)
	}
	for _, seed := range []string{"1", "2", "3"} {
		add("single", seed, "1", 30e6, 25e6)
		add("single", seed, "4", 40e6, 25e6)
	}
	add("tunnel", "1", "", 80e6, 30e6)
	add("tunnel", "2", "", 0, 0)
	add("tunnel", "3", "", 20e6, 90e6)
	add("mptcp", "1", "", 60e6, 30e6)
	add("mptcp", "2", "", 60e6, 30e6)
	r.Summaries = Summarize(r.Samples, nil)
	return r
}

func TestZoo(t *testing.T) {
	z := ZooOf(zooSamples())
	if z == nil || len(z.Cases) != 3 || z.Networks[0] != "tunnel" || z.Cases[0].Best != 40e6 {
		t.Fatalf("zoo %+v", z)
	}
	d := z.Distribution("tunnel")
	if d.N != 3 || d.Failed != 1 || d.Below != 2 || d.OfBest != [3]float64{0, 0.5, 2} || d.OfIdeal[0] != 0.2 || d.BeyondMost != 70*time.Millisecond {
		t.Errorf("tunnel: %+v", d)
	}
	if d := z.Distribution("mptcp"); d.N != 2 || d.Failed != 0 || d.Below != 0 || d.OfBest[0] != 1.5 {
		t.Errorf("mptcp: %+v", d)
	}
	var b bytes.Buffer
	if err := z.Table(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"failed", "–", "2.00", "The worst of tunnel", "seed 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	if worst := text[strings.Index(text, "The worst"):]; strings.Index(worst, "seed 2,") > strings.Index(worst, "seed 3,") {
		t.Errorf("the worst case is not first:\n%s", worst)
	}
}

func TestNoZoo(t *testing.T) {
	if z := ZooOf(quick(t, 1).results()); z != nil {
		t.Errorf("another experiment is a zoo: %+v", z)
	}
}
