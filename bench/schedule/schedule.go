// Package schedule decides the order of measurements: randomised complete
// blocks.
//
// # Theory of operation
//
// A block runs every job once. Whatever drifts in a machine (temperature,
// frequency, other guests of a hypervisor) then falls on all jobs alike, and
// comparing jobs within a block removes what differs between blocks. The order
// within a block is shuffled afresh, so that no job always follows the same
// other one. Blocks numbered 0 warm up and do not count.
//
// The order of block number n depends on the seed and n only: the permuted
// congruential generator PCG-DXSM with 128 bits of state (math/rand/v2.PCG, a
// fixed algorithm) is seeded with (seed, n), and
// Durstenfeld's form of the Fisher–Yates shuffle draws bounded numbers from it
// by rejection. Both the bounding and the shuffle are spelled out here, because
// Go may change those of math/rand/v2.Rand: a recorded seed stays good.
//
// Where building the wiring of all jobs at once costs too much, Grouped keeps
// jobs of equal wiring together within each block: first the wirings are
// shuffled, then the jobs of each. Every block still holds every job once.
//
// # Limits
//
// Grouped restricts the randomisation, as a split plot does: jobs of one wiring
// share a stretch of time, so drift within a block touches differences between
// wirings more than differences within one.
//
// Sources: M. O'Neill, PCG (HMC-CS-2014-0905); R. Durstenfeld, Algorithm 235
// (CACM 7, 1964); Box, Hunter and Hunter, Statistics for Experimenters, ch. 4.
package schedule

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
)

// Block is one pass over all jobs, in the order to run them. A Number of 0
// marks a warm-up; the blocks that count are numbered from 1.
type Block[J any] struct {
	Number int
	Jobs   []J
}

// Plan says how many blocks there are and what shuffles them.
type Plan struct {
	Repeat int // blocks that count
	Warmup int // blocks before them that do not
	Seed   uint64
}

// Blocks returns p.Warmup + p.Repeat blocks, each with all jobs in an order of
// its own. Equal arguments give equal blocks, in this and every later version.
// With several warm-up blocks, each has the same order.
func Blocks[J any](jobs []J, p Plan) []Block[J] {
	return Grouped(jobs, p, func(J) struct{} { return struct{}{} })
}

// Grouped is like Blocks but keeps jobs with equal keys together within each
// block.
func Grouped[J any, K comparable](jobs []J, p Plan, key func(J) K) []Block[J] {
	blocks := make([]Block[J], 0, p.Warmup+p.Repeat)
	for i := range p.Warmup + p.Repeat {
		n := max(0, i-p.Warmup+1)
		blocks = append(blocks, Block[J]{Number: n, Jobs: order(jobs, p.Seed, n, key)})
	}
	return blocks
}

// order is the order of one block: groups shuffled, and the jobs of each.
func order[J any, K comparable](jobs []J, seed uint64, block int, key func(J) K) []J {
	random := mathrand.NewPCG(seed, uint64(block))
	var keys []K
	groups := map[K][]J{}
	for _, j := range jobs {
		k := key(j)
		if _, ok := groups[k]; !ok {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], j)
	}
	shuffle(keys, random)
	out := make([]J, 0, len(jobs))
	for _, k := range keys {
		shuffle(groups[k], random)
		out = append(out, groups[k]...)
	}
	return out
}

// shuffle puts s into a uniformly random order (Durstenfeld).
func shuffle[T any](s []T, random *mathrand.PCG) {
	for i := len(s) - 1; i > 0; i-- {
		j := below(random, uint64(i+1))
		s[i], s[j] = s[j], s[i]
	}
}

// below is uniform in [0, n), n > 0: numbers of the last, incomplete run of n
// are drawn again.
func below(random *mathrand.PCG, n uint64) uint64 {
	reject := -n % n // 2^64 mod n
	for {
		if v := random.Uint64(); v >= reject {
			return v % n
		}
	}
}

// maxSeed keeps seeds within what every JSON reader holds exactly (2^53 − 1,
// RFC 8259 section 6).
const maxSeed = 1<<53 - 1

// NewSeed returns a fresh seed, never 0, that survives every JSON reader.
func NewSeed() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw seed: %w", err)
	}
	return max(1, binary.LittleEndian.Uint64(b[:])&maxSeed), nil
}
