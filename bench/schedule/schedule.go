// Package schedule orders measurements into randomised complete blocks.
//
// # Theory of operation
//
// A block runs every job once. Drift of the machine (temperature, frequency, other
// guests of a hypervisor) then affects all jobs alike, and comparing jobs within a
// block removes what differs between blocks. The order within a block is shuffled
// afresh, so that no job always follows the same other one. Blocks numbered 0 warm up
// and do not count.
//
// The order of block number n depends only on the seed and n. The permuted
// congruential generator PCG-DXSM with 128 bits of state (math/rand/v2.PCG, a fixed
// algorithm) is seeded with (seed, n), and Durstenfeld's form of the Fisher–Yates
// shuffle draws bounded numbers from it by rejection. Both the bounding and the shuffle
// are implemented here, because Go may change those of math/rand/v2.Rand: a recorded
// seed must give the same order in later versions.
//
// If the networks of all jobs can't exist at once, Grouped keeps jobs of one network
// together within each block: first the networks are shuffled, then the jobs of each.
// Every block still holds every job once.
//
// # Limits
//
// Grouped restricts the randomisation, as a split plot does: jobs of one network run
// close together in time, so drift within a block affects differences between networks
// more than differences within one.
//
// Sources: M. O'Neill, PCG (HMC-CS-2014-0905); R. Durstenfeld, Algorithm 235
// (CACM 7, 1964); Box, Hunter and Hunter, Statistics for Experimenters, ch. 4.
package schedule

import "math/rand/v2"

// Block is one pass over all jobs, in the order to run them. Number is 0 for a
// warm-up; the blocks that count are numbered from 1.
type Block[J any] struct {
	Number int
	Jobs   []J
}

// Plan is the number of blocks and the seed of their order.
type Plan struct {
	Repeat int // blocks that count
	Warmup int // blocks before them that do not
	Seed   uint64
}

// Blocks returns p.Warmup + p.Repeat blocks, each with all jobs in an order of its
// own; warm-up blocks share one order. Equal arguments give equal blocks, in this and
// every later version.
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

// order returns the jobs of one block: the groups shuffled, and the jobs of each.
func order[J any, K comparable](jobs []J, seed uint64, block int, key func(J) K) []J {
	random := rand.NewPCG(seed, uint64(block))
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
func shuffle[T any](s []T, random *rand.PCG) {
	for i := len(s) - 1; i > 0; i-- {
		j := below(random, uint64(i+1))
		s[i], s[j] = s[j], s[i]
	}
}

// below returns a uniformly random number in [0, n), n > 0. Numbers of the incomplete
// run of n at one end of the range are drawn again.
func below(random *rand.PCG, n uint64) uint64 {
	reject := -n % n // 2^64 mod n
	for {
		if v := random.Uint64(); v >= reject {
			return v % n
		}
	}
}

// maxSeed is the largest seed: every JSON reader holds it exactly (2^53 − 1, RFC 8259
// section 6).
const maxSeed = 1<<53 - 1

// NewSeed returns a fresh seed, at least 1 and at most maxSeed.
func NewSeed() uint64 { return max(1, rand.Uint64()&maxSeed) }
