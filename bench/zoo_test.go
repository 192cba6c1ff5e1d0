package bench

import (
	"encoding/json"
	"testing"
	"time"

	"cleat/bench/cell"
	"cleat/internal/linkzoo"
	"cleat/traffic"
)

// TestRelayReports checks what samples say of the links: counts between the two reports, and
// only of links that were used.
func TestRelayReports(t *testing.T) {
	c := linkzoo.Case{Links: []linkzoo.Link{
		{Rate: 100e6, BackRate: 100e6, Queue: time.Second, Delay: 10 * time.Millisecond},
		{Rate: 100e6, BackRate: 100e6, Delay: 20 * time.Millisecond}, // a policer
		{Rate: 1e6, BackRate: 1e6, Queue: time.Second, Delay: 300 * time.Millisecond},
	}}
	report := func(bytes, dropped [3]uint64, late time.Duration) []byte {
		r := traffic.ShapedReport{LateP99: late, Links: make([]traffic.ShapedLinkStats, 3)}
		for i := range r.Links {
			ab := &r.Links[i].AB
			ab.Bytes, ab.DroppedBytes, ab.OfferedBytes = bytes[i], dropped[i], bytes[i]+dropped[i]
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := report([3]uint64{1e6, 1e6, 5e6}, [3]uint64{0, 9e6, 0}, 0)
	for _, tt := range []struct {
		late           time.Duration
		bad, warns     bool
		policed, least float64
	}{
		{300 * time.Microsecond, false, false, 0.1, 40e6},
		{2 * time.Millisecond, false, true, 0.1, 40e6},
		{9 * time.Millisecond, true, false, 0.1, 40e6},
	} {
		s := cell.Sample{Values: map[cell.Metric]float64{}}
		last := report([3]uint64{9e6, 10e6, 5e6}, [3]uint64{1e6, 10e6, 0}, tt.late)
		if err := addRelayReports(&s, c, [][]byte{first, last}); err != nil {
			t.Fatal(err)
		}
		if got := s.Values[cell.PolicedLoss]; got != tt.policed {
			t.Errorf("policed loss %v, want %v", got, tt.policed)
		}
		if own := s.Values[cell.OwnLatency]; own < tt.least || own > 50e6 {
			t.Errorf("own latency %v: of the slowest used link it is 40 ms", own)
		}
		if (s.Bad.Text != "") != tt.bad || (len(s.Warnings) > 0) != tt.warns {
			t.Errorf("late by %v: bad %+v, warnings %+v", tt.late, s.Bad, s.Warnings)
		}
	}
	if err := addRelayReports(&cell.Sample{}, c, [][]byte{[]byte("{}")}); err == nil {
		t.Error("a report without links is accepted")
	}
}
