package sched

import (
	"slices"
	"testing"
	"time"
)

// TestCoDel offers CoDel a queue of constant length every millisecond.
func TestCoDel(t *testing.T) {
	drops := func(c *CoDel, from, to, waited time.Duration, backlog int) (at []time.Duration) {
		for now := from; now < to; now += ms {
			if c.Drop(now, waited, backlog) {
				at = append(at, now)
			}
		}
		return at
	}
	const much = 1 << 20
	tests := []struct {
		name    string
		waited  time.Duration
		backlog int
		want    []time.Duration
	}{
		{"below the target", 2 * ms, much, nil},
		{"only two packets", 20 * ms, 2999, nil},
		// RFC 8289 section 4: the first drop after an interval, each further one interval
		// / √count later.
		{"above the target", 20 * ms, much, []time.Duration{50 * ms, 100 * ms, 136 * ms, 165 * ms, 190 * ms}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := drops(&CoDel{}, 0, 200*ms, tt.waited, tt.backlog); !slices.Equal(got, tt.want) {
				t.Errorf("drops at %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("resumes the drop rate", func(t *testing.T) {
		c := &CoDel{Target: 5 * ms, Interval: 100 * ms}
		first := drops(c, 0, 1000*ms, 20*ms, much)
		drops(c, 1000*ms, 1010*ms, 0, much)
		again := drops(c, 1010*ms, 1300*ms, 20*ms, much)
		if len(again) < 3 || again[0] != 1110*ms {
			t.Fatalf("drops at %v after a pause, want the first after one interval", again)
		}
		if gap, early := again[2]-again[1], first[2]-first[1]; gap >= early {
			t.Errorf("drops are %v apart, want less than the %v of a fresh start", gap, early)
		}
	})
}
