package report

import (
	"strings"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// versusResults returns a run with a subject: two networks without root, and loopback.
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
		t.Fatal("no comparison of an experiment with a subject")
	}
	text := table(t, in, 80)
	for _, want := range []string{"Throughput, TCP: Gbit/s", "× loopback", "× best rival", "[0.4", "Unavailable here:", "gvproxy"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not contain %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "NETWORK") {
		t.Error("the table of all numbers is there too")
	}
	elements, page := parse(t, render(t, in))
	for _, want := range []string{"cleat and its rivals", "× best rival"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
	if n := elementsNamed(elements, "tr"); n < 4 {
		t.Errorf("%d rows", n)
	}
}

func TestNoComparisonWithoutSubject(t *testing.T) {
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

// attachResults returns a run of attachers, and of a network.
func attachResults() summary.Results {
	var samples []cell.Sample
	for block := 1; block <= 10; block++ {
		for network, ms := range map[string]float64{"cleat-attach": 8, "cni-plugins": 32} {
			for _, endpoints := range []string{"1", "500"} {
				c := cell.Cell{Network: network, Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: "between",
					Pairs: 1, Streams: 1, Engine: "cleat", Factors: map[string]string{"link": "bridge", "endpoints": endpoints}}
				took := (ms + 0.01*float64(block)) * 1e6
				samples = append(samples, cell.Sample{Cell: c, Work: "attach", Block: block,
					Values: map[cell.Metric]float64{cell.AttachTime: took, cell.DetachTime: took, cell.AttachCPU: took}})
			}
		}
		c := cell.Cell{Network: "veth", Runtime: cell.Native, Topology: "local", Factors: map[string]string{"phase": "make"}}
		samples = append(samples, cell.Sample{Cell: c, Work: "setup", Block: block, Values: map[cell.Metric]float64{cell.SetupTime: 3e6 + float64(block)}})
	}
	docker := cell.Cell{Network: "docker-connect", Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: "between", Pairs: 1, Streams: 1, Engine: "cleat", Factors: map[string]string{"link": "bridge", "endpoints": "1"}}
	r := summary.New(samples, []cell.Absent{{Cell: docker, Work: "attach", Reason: "the program dockerd is not installed", Remedy: "apt-get install docker.io"}})
	r.Environment = map[string]any{"title": "wire", "experiment": map[string]any{"subject": "cleat-attach"}}
	return r
}

// TestOtherRolesBesideAComparison checks that networks of other roles than the
// subject's have a table of their own.
func TestOtherRolesBesideAComparison(t *testing.T) {
	in := FromResults(attachResults())
	text := table(t, in, 80)
	for _, want := range []string{"Exec to usable address, 500 endpoints: ms, n=10", "cni-plugins", "0.25", "NETWORK", "veth", "3.00", "→ apt-get install"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not contain %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "To measure what is missing") {
		t.Errorf("advice about attachers:\n%s", text)
	}
	_, page := parse(t, render(t, in))
	for _, want := range []string{"cleat-attach and its rivals", "Exec to usable address", "3.98 ×", "how many times the number of cleat-attach", "10 samples"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
}
