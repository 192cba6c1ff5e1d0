package report

import (
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// versusResults is a run with a subject: two networks without root, and loopback.
func versusResults(subject string) summary.Results {
	var samples []cell.Sample
	for block := 1; block <= 8; block++ {
		for network, gbit := range map[string]float64{"loopback": 60, "cleat": 27, "pasta": 5} {
			c := cell.Cell{Network: network, Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: "outbound",
				Pairs: 1, Streams: 1, MessageBytes: 131072, Congestion: "cubic", Placement: "different-cores", Engine: "cleat"}
			samples = append(samples, cell.Sample{Cell: c, Work: "tcp", Block: block,
				Values: map[cell.Metric]float64{cell.Throughput: (gbit + 0.1*float64(block)) * 1e9}})
		}
	}
	r := summary.New(samples, []cell.Absent{{Cell: cell.Cell{Network: "gvproxy", Transport: "tcp"}, Work: "tcp", Reason: "<not> installed"}})
	r.Environment = map[string]any{"title": "one against the others", "experiment": map[string]any{"subject": subject}}
	return r
}

func TestSubjectIsComparedWithItsRivals(t *testing.T) {
	in := FromResults(versusResults("cleat"))
	if in.Versus == nil {
		t.Fatal("the experiment has a subject, the report no comparison")
	}
	text := table(t, in, 80)
	for _, want := range []string{"Throughput, TCP: Gbit/s", "× loopback", "× best rival", "[0.4", "Unavailable here:", "gvproxy"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "NETWORK") {
		t.Error("the table of all numbers is there too")
	}
	elements, page := parse(t, render(t, in))
	for _, want := range []string{"cleat and its rivals", "× best rival"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if n := elementsNamed(elements, "tr"); n < 4 {
		t.Errorf("%d rows", n)
	}
}

func TestWithoutASubjectNothingIsCompared(t *testing.T) {
	for _, subject := range []string{"", "slirp4netns"} {
		in := FromResults(versusResults(subject))
		if in.Versus != nil || !strings.Contains(table(t, in, 80), "NETWORK") {
			t.Errorf("subject %q: %+v", subject, in.Versus)
		}
	}
}

func elementsNamed(elements []element, name string) int {
	n := 0
	for _, e := range elements {
		if e.name == name {
			n++
		}
	}
	return n
}
