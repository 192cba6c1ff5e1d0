package summary

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPowerHolds plants a difference of 5 % between one of five networks and the others. With as many samples as the
// advice says, about nine runs in ten find it. With half of them, clearly fewer do.
func TestPowerHolds(t *testing.T) {
	const noise, runs = 0.03, 60
	run := func(seed uint64, blocks int) Advice {
		f := newFake(t, seed)
		f.blocks, f.noise = blocks, noise
		var cells []truth
		for _, network := range []string{"veth", "bridge", "macvlan-bridge", "bridge-nf", "ipvlan-l2"} {
			cells = append(cells, truth{Cell: cellOf(network, "between"), gbit: 20})
		}
		cells[1].gbit = 19
		f.run(cells...)
		return Recommend(f.results(), ForThroughput)[0]
	}
	said := regexp.MustCompile(`differences of ([0-9.]+) % and more are found in 9 of 10 runs like this; 5 % takes about ([0-9]+) samples each`)
	text := strings.Join(run(1, 8).Trust, "\n")
	got := said.FindStringSubmatch(text)
	if got == nil {
		t.Fatalf("8 samples: %s", text)
	}
	if percent, _ := strconv.ParseFloat(got[1], 64); percent < 5 || percent > 12 {
		t.Errorf("8 samples find differences of %s %%", got[1])
	}
	// 14 by the true spread; that of one run of 8 samples is uncertain.
	if n, _ := strconv.Atoi(got[2]); n < 7 || n > 28 {
		t.Errorf("5 %% takes %d samples", n)
	}
	found := func(blocks int) float64 {
		n := 0
		for seed := range uint64(runs) {
			for _, s := range run(100+seed, blocks).Worse {
				if s.Network == "bridge" {
					n++
				}
			}
		}
		return float64(n) / runs
	}
	if share := found(14); share < 0.82 {
		t.Errorf("14 samples find it in %.2f of all runs", share)
	}
	if share := found(7); share > 0.7 {
		t.Errorf("7 samples find it in %.2f of all runs", share)
	}
	if text := strings.Join(run(1, 60).Trust, "\n"); !regexp.MustCompile(`differences of [1-4][0-9.]* % and more are found in 9 of 10 runs like this($|\n)`).MatchString(text) {
		t.Errorf("60 samples: %s", text)
	}
	if text := strings.Join(run(1, 3).Trust, "\n"); !strings.Contains(text, "to find a difference of 5 % takes about") {
		t.Errorf("3 samples: %s", text)
	}
}
