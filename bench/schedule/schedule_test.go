package schedule

import (
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func letters(s string) []string { return strings.Split(s, "") }

func text(blocks []Block[string]) string {
	var b strings.Builder
	for _, k := range blocks {
		fmt.Fprintf(&b, "%d:%s ", k.Number, strings.Join(k.Jobs, ""))
	}
	return strings.TrimSpace(b.String())
}

// TestBlocksVectors checks that a recorded seed gives the same order in every later version.
// The vectors were computed by a second program, written from the package comment.
func TestBlocksVectors(t *testing.T) {
	for _, tt := range []struct {
		name string
		jobs string
		plan Plan
		want string
	}{
		{"seed 1", "abcdefgh", Plan{Repeat: 3, Warmup: 1, Seed: 1}, "0:bfeghcad 1:dhcfbega 2:dcbgehfa 3:gdbhaefc"},
		{"another seed", "abcdefgh", Plan{Repeat: 3, Warmup: 1, Seed: 42}, "0:fecbadgh 1:efhabgcd 2:bgefhdac 3:chdfaegb"},
		{"no warm-up", "abcdefgh", Plan{Repeat: 2, Seed: 1}, "1:dhcfbega 2:dcbgehfa"},
		{"two warm-ups", "abc", Plan{Repeat: 1, Warmup: 2, Seed: 7}, "0:cab 0:cab 1:bca"},
		{"one job", "a", Plan{Repeat: 2, Warmup: 1, Seed: 1}, "0:a 1:a 2:a"},
		{"nothing", "", Plan{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := text(Blocks(letters(tt.jobs), tt.plan)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestGroupedVector(t *testing.T) {
	// the digits are the networks
	jobs := []string{"a1", "b1", "c2", "d3", "e3", "f3"}
	got := text(Grouped(jobs, Plan{Repeat: 2, Warmup: 1, Seed: 1}, func(j string) byte { return j[1] }))
	if want := "0:c2e3d3f3b1a1 1:b1a1c2d3f3e3 2:c2b1a1e3d3f3"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEveryBlockIsComplete(t *testing.T) {
	jobs := letters("abcdefghijklmnop")
	for _, grouped := range []bool{false, true} {
		blocks := Blocks(jobs, Plan{Repeat: 50, Warmup: 1, Seed: 3})
		if grouped {
			blocks = Grouped(jobs, Plan{Repeat: 50, Warmup: 1, Seed: 3}, func(j string) byte { return j[0] % 3 })
		}
		orders := map[string]bool{}
		for _, b := range blocks {
			sorted := slices.Sorted(slices.Values(b.Jobs))
			if !slices.Equal(sorted, jobs) {
				t.Fatalf("block %d holds %v", b.Number, b.Jobs)
			}
			orders[strings.Join(b.Jobs, "")] = true
		}
		if len(orders) != len(blocks) {
			t.Errorf("grouped %v: %d blocks in only %d orders", grouped, len(blocks), len(orders))
		}
	}
	if got := strings.Join(jobs, ""); got != "abcdefghijklmnop" {
		t.Errorf("the caller's jobs were reordered: %s", got)
	}
}

func TestGroupedKeepsNetworksTogether(t *testing.T) {
	wiring := func(j string) byte { return j[0] % 4 }
	firsts := map[byte]bool{}
	for _, b := range Grouped(letters("abcdefghijkl"), Plan{Repeat: 40, Seed: 9}, wiring) {
		seen := map[byte]bool{}
		for i, j := range b.Jobs {
			k := wiring(j)
			if seen[k] && wiring(b.Jobs[i-1]) != k {
				t.Fatalf("block %d builds network %d twice: %v", b.Number, k, b.Jobs)
			}
			seen[k] = true
		}
		firsts[wiring(b.Jobs[0])] = true
	}
	if len(firsts) != 4 {
		t.Errorf("only networks %v ever come first", firsts)
	}
}

// TestShuffleIsUniform checks that each job comes about equally often at each position.
// The bound is 6 standard deviations of a binomial count.
func TestShuffleIsUniform(t *testing.T) {
	const n, blocks = 5, 5000
	var counts [n][n]int
	for _, b := range Blocks([]int{0, 1, 2, 3, 4}, Plan{Repeat: blocks, Seed: 11}) {
		for position, job := range b.Jobs {
			counts[job][position]++
		}
	}
	const mean, bound = blocks / n, 170 // 6 × sqrt(5000 × 0.2 × 0.8)
	for job := range counts {
		for position, c := range counts[job] {
			if c < mean-bound || c > mean+bound {
				t.Errorf("job %d was %d times at position %d, want about %d", job, c, position, mean)
			}
		}
	}
}

func TestBelow(t *testing.T) {
	random := mathrand.NewPCG(1, 2)
	for _, n := range []uint64{1, 2, 3, 1<<63 + 1} {
		for range 100 {
			if v := below(random, n); v >= n {
				t.Fatalf("below(%d) = %d", n, v)
			}
		}
	}
}

func TestNewSeed(t *testing.T) {
	a, b := NewSeed(), NewSeed()
	if a == b || a == 0 || b == 0 || a > maxSeed || b > maxSeed {
		t.Errorf("seeds %d and %d", a, b)
	}
}
