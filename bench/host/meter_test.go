package host

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"cleat/bench/cell"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestForeign(t *testing.T) {
	for _, tt := range []struct {
		name      string
		machine   cell.CPU
		own       ours
		user, all float64
	}{
		{name: "all ours", machine: cell.CPU{User: 0.2, System: 1}, own: ours{user: 0.2, system: 1}},
		{name: "our softirqs are in our system time only", machine: cell.CPU{User: 0.2, System: 1, SoftIRQ: 0.4}, own: ours{user: 0.2, system: 1.4}},
		{name: "our user time of this second counted as system time", machine: cell.CPU{User: 0.2, System: 1.05, SoftIRQ: 0.5}, own: ours{user: 0.05, system: 1.7}},
		{name: "a neighbour computes", machine: cell.CPU{User: 1.2, System: 1, SoftIRQ: 0.4}, own: ours{user: 0.2, system: 1.4}, user: 1, all: 1},
		{name: "a neighbour works in the kernel", machine: cell.CPU{User: 0.2, System: 1.5}, own: ours{user: 0.2, system: 1}, all: 0.5},
		{name: "both, but no more than is left", machine: cell.CPU{User: 1, System: 1}, own: ours{user: 0.5, system: 0.5, softIRQ: 0.5}, user: 0.25, all: 0.5},
		{name: "never negative", machine: cell.CPU{User: 1}, own: ours{user: 0.5, system: 9}},
		{name: "stolen time is not foreign", machine: cell.CPU{Steal: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if user, all := foreign(tt.machine, tt.own); !near(user, tt.user) || !near(all, tt.all) {
				t.Errorf("foreign = %v of user time and %v in all, want %v and %v", user, all, tt.user, tt.all)
			}
		})
	}
}

func TestParseProcess(t *testing.T) {
	for _, tt := range []struct {
		name, stat string
		want       process
		bad        bool
	}{
		{name: "plain", stat: "7 (iperf3) S 3 7 7 0 -1 4194560 1 2 3 4 150 250 50 25 20 0 1 0 99 1 1", want: process{3, cpuTime{2, 2.75}}},
		{name: "a name that looks like more", stat: "7 (a) b) S 9 (c) S 1 7 7 0 -1 4194560 1 2 3 4 100 0 0 0 20 0 1", want: process{1, cpuTime{1, 0}}},
		{name: "cut short", stat: "7 (x) S 1 2 3", bad: true},
		{name: "without a name", stat: "7 S 3 7 7 0 -1 4194560 1 2 3 4 150 250 50 25 20 0 1 0 99 1 1", bad: true},
		{name: "empty", bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseProcess([]byte(tt.stat))
			if ok == tt.bad || got != tt.want {
				t.Errorf("parseProcess = %v, %v; want %v", got, ok, tt.want)
			}
		})
	}
}

// TestTreeTimeKeepsEndedChildren checks that the time of a child that was waited for still
// counts.
func TestTreeTimeKeepsEndedChildren(t *testing.T) {
	before, err := treeTime()
	if err != nil {
		t.Fatal(err)
	}
	spin := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	if err := spin.Run(); err != nil {
		t.Fatal(err)
	}
	used := spin.ProcessState.UserTime().Seconds()
	after, err := treeTime()
	if err != nil {
		t.Fatal(err)
	}
	if got := after.user - before.user; got < used-0.02 {
		t.Errorf("the tree gained %.3f s of user time, the child alone used %.3f s", got, used)
	}
}

func TestDescends(t *testing.T) {
	cmd := exec.Command("cat") // waits for its input
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	self, child := os.Getpid(), cmd.Process.Pid
	if !descends(all, child, self) || !descends(all, self, self) || descends(all, self, child) {
		t.Errorf("child %d of %d: it descends %v, from itself %v, and back %v", child, self, descends(all, child, self), descends(all, self, self), descends(all, self, child))
	}
}

func TestWatchLoadEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := watchLoad(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}
