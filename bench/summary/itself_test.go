package summary

import (
	"flag"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"cleat/bench/cell"
	"cleat/bench/stats"
)

// itself names the runs of TestAgainstItself, for filepath.Glob.
var itself = flag.String("itself", "", "results of `cleat bench` runs of testdata/itself.yaml, e.g. '/tmp/itself/*'")

// TestAgainstItself compares a network with itself, under names that differ: two and two cells of each run. What it finds
// is not there. Then it makes one of the two 5 % worse, and counts how often this is found. It is a measurement, of a
// quiet machine:
//
//	for i in $(seq 10); do cleat bench bench/summary/testdata/itself.yaml --out /tmp/itself/$i; done
//	go test -count=1 -v -run TestAgainstItself ./bench/summary -itself '/tmp/itself/*'
func TestAgainstItself(t *testing.T) {
	if *itself == "" {
		t.Skip("a measurement, not a test: set -itself to its results")
	}
	dirs, err := filepath.Glob(*itself)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no results in %s: %v", *itself, err)
	}
	for _, m := range []cell.Metric{cell.Throughput, cell.LatencyP50, cell.Connections} {
		pairs, different, runs, wrong, planted := 0, 0, 0, 0, 0
		var spreads []float64
		for _, dir := range dirs {
			r, err := Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			same := slices.DeleteFunc(r.sets(), func(s set) bool { return s.Metric != m || len(s.points) == 0 })
			slices.SortFunc(same, func(a, b set) int { return portOf(a) - portOf(b) })
			var ps []float64
			for i := 0; i+1 < len(same); i += 2 {
				first, second := same[i], same[i+1]
				others := besides(same, first, second)
				ps = append(ps, stats.CompareBlocks(first.points, second.points, others).P)
				worse := slices.Clone(second.points)
				for k := range worse {
					worse[k].Value *= 0.95
				}
				if stats.CompareBlocks(first.points, worse, others).P < 1-stats.Confidence {
					planted++
				}
				spreads = append(spreads, stats.Spread(first.points, others))
			}
			if len(ps) == 0 {
				continue
			}
			runs, pairs = runs+1, pairs+len(ps)
			different += len(slices.DeleteFunc(slices.Clone(ps), func(p float64) bool { return p >= 1-stats.Confidence }))
			if slices.Min(stats.Holm(ps)) < 1-stats.Confidence {
				wrong++
			}
		}
		if runs == 0 {
			continue
		}
		spread, _ := stats.Median(spreads)
		t.Logf("%s: of %d comparisons %d differ; after correction %d of %d runs; 5 %% planted: found in %d; spread %.1f %%, for which 5 %% takes %d samples",
			m, pairs, different, wrong, runs, planted, 100*spread, stats.BlocksFor(0.95, spread, 1))
		// If one in twenty differs, 98 of 100 such measurements have fewer.
		if most := float64(pairs)*0.05 + 2*math.Sqrt(float64(pairs)*0.05*0.95); float64(different) > most {
			t.Errorf("%s: %d of %d comparisons of a network with itself differ", m, different, pairs)
		}
	}
}

// portOf returns what tells the cells apart.
func portOf(s set) int {
	n, err := strconv.Atoi(s.Factors["vxlan_port"])
	if err != nil {
		return 0
	}
	return n
}
