package bench

import (
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
)

// Warm-up builds the networks and is slower than the rest. The remaining time follows the
// schedule until a block that counts is done, and then the time that these blocks took,
// weighted by the length of their measurements.
func TestProgressTimeLeft(t *testing.T) {
	slow := time.Now().Add(-10 * time.Minute)
	for _, tt := range []struct {
		name string
		p    progress
		want string
	}{
		{"at the beginning", progress{toDo: 100 * time.Second}, "1m40s left"},
		{"in the first block", progress{block: 1, toDo: 86 * time.Second, countedFrom: slow, countedPlan: 10 * time.Second}, "1m26s left"},
		{"in the second block, which takes four times as long", progress{block: 2, toDo: 80 * time.Second,
			countedFrom: time.Now().Add(-40 * time.Second), countedPlan: 10 * time.Second}, "5m20s left"},
		{"nothing to do", progress{}, "0s left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := strings.TrimSpace(tt.p.remaining()); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestProgressPlan checks that the time since the first block that counts is the sum of
// its estimates, without the current job.
func TestProgressPlan(t *testing.T) {
	p := progress{quiet: true}
	job := func(d time.Duration) experiment.Job {
		return experiment.Job{Work: experiment.Work{Kind: experiment.TCP, Duration: d}, Cell: cell.Cell{Runtime: cell.Native, Pairs: 1}}
	}
	p.Next(1, 0, job(time.Hour), 0)
	p.Next(2, 1, job(45*time.Second), 0)
	p.Next(3, 1, job(5*time.Second), 0)
	p.Next(5, 2, job(time.Second), 7*time.Second)
	if want := job(45*time.Second).Estimate() + job(5*time.Second).Estimate(); p.countedPlan != want || p.toDo != 7*time.Second {
		t.Errorf("%v done, %v to do; want %v, 7s", p.countedPlan, p.toDo, want)
	}
}

// TestProgressSaysOnce checks that a reason for many cells is printed once.
func TestProgressSaysOnce(t *testing.T) {
	var b strings.Builder
	p := progress{w: &b, said: map[string]bool{}}
	for links := range 3 {
		for _, network := range []string{"tunnel", "mptcp"} {
			p.Absent(cell.Absent{Cell: cell.Cell{Network: network, Runtime: "apptainer", Links: links}, Reason: "apptainer: it is not there"})
		}
		p.Absent(cell.Absent{Cell: cell.Cell{Network: "tunnel", Runtime: "docker", Links: links}, Reason: "no traffic passes"})
	}
	if want := "everything in apptainer: unavailable: it is not there\ntunnel in docker: unavailable: no traffic passes\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestAnnounce(t *testing.T) {
	for estimate, want := range map[time.Duration]string{
		10 * time.Minute:                "",
		65*time.Minute + 20*time.Second: "this run takes about 1h5m; --repeat, --duration, --networks and --only make it shorter\n",
	} {
		var b strings.Builder
		if announce(&b, estimate); b.String() != want {
			t.Errorf("%v: %q, want %q", estimate, b.String(), want)
		}
	}
}
