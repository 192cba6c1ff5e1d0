package report

import (
	"strings"
	"testing"

	"cleat/bench/cell"
)

// TestMethodCountsRepeats checks that a report says of no sample that it was repeated if it was not.
func TestMethodCountsRepeats(t *testing.T) {
	sample := func(block, attempt int, bad string) cell.Sample {
		return cell.Sample{Cell: cell.Cell{Network: "veth"}, Work: "tcp", Block: block, Attempt: attempt, Bad: cell.Note(bad), CPU: cell.CPU{Wall: 1}}
	}
	setup := cell.Sample{Cell: cell.Cell{Network: "veth"}, Work: "setup", Block: 1, Attempt: 1}
	for _, tt := range []struct {
		name    string
		samples []cell.Sample
		want    []string
		not     string
	}{
		{"calm", []cell.Sample{sample(0, 1, "warm-up"), sample(1, 1, "")}, []string{"No sample was disturbed"}, "not checked"},
		{"two of three repeated", []cell.Sample{sample(1, 1, "x"), sample(1, 2, "x"), sample(1, 3, ""), sample(2, 1, "x")},
			[]string{": 3, of which 2 were repeated"}, "not checked"},
		{"unchecked", []cell.Sample{setup}, []string{"not checked for disturbance: setup."}, ""},
	} {
		text := strings.Join(method(Input{Samples: tt.samples}, nil), " ")
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q lacks %q", tt.name, text, want)
			}
		}
		if tt.not != "" && strings.Contains(text, tt.not) {
			t.Errorf("%s: %q has %q", tt.name, text, tt.not)
		}
	}
}
