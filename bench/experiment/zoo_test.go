package experiment

import (
	"slices"
	"testing"
)

func zooJobs(t *testing.T, seeds string, networks ...string) []Job {
	t.Helper()
	e, err := Load("zoo")
	if err != nil {
		t.Fatal(err)
	}
	e = e.Override(Override{Networks: networks, Factors: map[string][]string{"zoo": {seeds}}})
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	return e.Jobs()
}

// TestZooJobs checks that jobs have the links and the traffic of their cases.
func TestZooJobs(t *testing.T) {
	seen := map[string]bool{}
	for _, j := range zooJobs(t, "1..40", "single", "tunnel", "mptcp") {
		c, ok := j.Case()
		if !ok {
			t.Fatalf("%s has no case", j.ID())
		}
		f := j.Cell.Factors
		if f["variant"] != "" || f["zoo_candidate"] != "" || f["zoo_cap"] != "400M" {
			t.Errorf("%s: factors %v", j.ID(), f)
		}
		seen[j.Cell.Network] = true
		switch {
		case j.Cell.Network == "single":
			if j.Cell.Links != 1 || j.Cell.Streams != 1 || j.Cell.Congestion != "cubic" || f["zoo_link"] == "" || j.Datagrams() {
				t.Errorf("single: %+v", j.Cell)
			}
		case c.Traffic.Streams == 0:
			if j.Cell.Network == "mptcp" || !j.Datagrams() || j.Cell.MessageBytes != zooMessage {
				t.Errorf("datagrams: %+v", j.Cell)
			}
		default:
			if j.Cell.Links != len(c.Links) || j.Cell.Streams != c.Traffic.Streams || j.Cell.Congestion != c.Traffic.Congestion || j.Datagrams() {
				t.Errorf("%s: %+v", &c, j.Cell)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("measured %v", seen)
	}
	single := zooJobs(t, "7", "single")
	if len(single) != 2 || single[0].Cell.Factors["zoo_link"] == single[1].Cell.Factors["zoo_link"] {
		t.Errorf("the candidates of a case are %v", single)
	}
}

func TestZooSeeds(t *testing.T) {
	if got := expandSeeds([]string{"3", "7..9"}); !slices.Equal(got, []string{"3", "7", "8", "9"}) {
		t.Errorf("seeds %v", got)
	}
	for _, level := range []string{"", "0", "x", "-1", "2..1", "1..", "1..2000", "1..2..3"} {
		if checkZoo(level) == nil {
			t.Errorf("%q is accepted", level)
		}
	}
	for _, level := range []string{"", "0", "1M", "fast"} {
		if checkZooCap(level) == nil {
			t.Errorf("cap %q is accepted", level)
		}
	}
}

// TestNoZooElsewhere checks that other experiments' cells have no factors of the zoo.
func TestNoZooElsewhere(t *testing.T) {
	e, err := Load("multipath")
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range e.Jobs() {
		for name := range j.Cell.Factors {
			if len(name) >= 3 && name[:3] == "zoo" {
				t.Fatalf("%s has the factor %s", j.ID(), name)
			}
		}
	}
}
