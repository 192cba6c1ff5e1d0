package wiring_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"cleat/bench/wiring"
	"cleat/internal/linkzoo"
	"cleat/lab"
	"cleat/traffic"
)

// tbfLink is what linked's token buckets are, as a link of the zoo.
var tbfLink = linkzoo.Link{Rate: 100e6, BackRate: 100e6, Burst: 16 << 10, Queue: 50 * time.Millisecond}

// relayZoo does what `cleat traffic relay --zoo` does, with one link that is always tbfLink.
func relayZoo(ctx context.Context) error {
	r, err := traffic.NewShapedRelay([]traffic.ShapedLink{{A: 3, B: 4, Link: tbfLink}}, 1)
	if err != nil {
		return err
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if at, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				r.Begin(time.Unix(0, at))
				continue
			}
			json.NewEncoder(os.Stdout).Encode(r.Report())
		}
	}()
	return r.Run(ctx)
}

// steadyRate returns what one cubic stream carries after its first second, in bit/s.
func steadyRate(t *testing.T, w *wiring.Network) float64 {
	t.Helper()
	stop := serveTraffic(t, w.Pairs[0])
	defer stop()
	left, _ := ends(w)
	var r traffic.Result
	err := left.NS.Do(func() (err error) {
		r, err = traffic.Run(t.Context(), traffic.Config{Work: traffic.TCP, Address: w.Pairs[0].Dial.String(), Duration: 3 * time.Second, Early: time.Second, Congestion: "cubic"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.SteadyBitsPerSecond
}

// TestZooLink compares a link of the relay with the kernel's tbf, and checks that the relay
// begins the case and reports. On an idle machine the rates differ by less than 1 %.
func TestZooLink(t *testing.T) {
	lab.Need(t)
	tbf := steadyRate(t, linked(t, wiring.Spec{Network: "single", Links: 1}))
	w := linked(t, wiring.Spec{Network: "single", Links: 1, Zoo: 2, ZooLink: 1})
	ctx, end := context.WithCancel(t.Context())
	played := make(chan error, 1)
	go func() { played <- w.Play(ctx, time.Now(), time.Second) }()
	got := steadyRate(t, w)
	end()
	if err := <-played; err != nil {
		t.Fatal(err)
	}
	reports := w.RelayReports()
	var r traffic.ShapedReport
	if len(reports) != 1 {
		t.Fatalf("%d reports of a measurement that ended before it settled, want 1", len(reports))
	}
	if err := json.Unmarshal(reports[0], &r); err != nil || len(r.Links) != 1 || float64(r.Links[0].AB.Bytes) < got/8 {
		t.Errorf("report %s, %v", reports[0], err)
	}
	t.Logf("tbf %.2f Mbit/s, relay %.2f Mbit/s (%+.2f %%); %s", tbf/1e6, got/1e6, 100*(got/tbf-1), describe(r))
	if got < 0.9*tbf || got > 1.05*tbf {
		t.Errorf("tbf %.0f bit/s, the relay %.0f", tbf, got)
	}
}

func describe(r traffic.ShapedReport) string {
	return fmt.Sprintf("late p50 %v p99 %v p99.9 %v, noticed p99 %v, %v of processor time in %v, priority %s", r.LateP50, r.LateP99, r.LateP999, r.GapP99, r.CPU, r.Running, r.Priority)
}
