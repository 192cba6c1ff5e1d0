package traffic

import (
	"context"
	"time"
)

const (
	searchTrials  = 12                     // a factor of 2^11 between first and last step
	shortestTrial = 100 * time.Millisecond // a few scheduler ticks and bursts
	searchEnough  = 1.01                   // the bounds are within one percent
)

// searcher finds the highest rate within a loss bound by bisection. It is deterministic.
type searcher struct {
	bound float64
	low   float64 // highest rate that passed
	high  float64 // lowest rate that failed; 0 if none
	asked int
}

// next returns the rate to try, in bit/s; 0 means as fast as possible. ok is false when
// the search is over.
func (s *searcher) next() (rate float64, ok bool) {
	switch {
	case s.asked == 0:
		return 0, true
	case s.asked >= searchTrials || s.high == 0:
		return 0, false
	case s.asked == 1: // rate received during the overload
		return s.low, true
	case s.low > 0 && s.high/s.low < searchEnough:
		return 0, false
	}
	return (s.low + s.high) / 2, true
}

// answer processes a trial: the rate sent, the rate received and the loss. It reports
// whether the trial passed.
func (s *searcher) answer(sent, received, loss float64) bool {
	s.asked++
	pass := loss <= s.bound && received > 0
	switch {
	case s.asked == 1 && !pass:
		// The rate received during an overload is a good first guess.
		s.high, s.low = sent, received
	case s.asked == 2 && pass:
		s.low = sent
		s.high = max(s.high, sent)
	case s.asked == 2:
		s.high, s.low = sent, 0
	case pass:
		s.low = max(s.low, sent)
	default:
		s.high = sent
	}
	return pass
}

// searchUDP makes trials within the configured duration. The result is that of the best
// trial.
func (c *client) searchUDP(ctx context.Context, flows []*flow, rtt time.Duration) error {
	s := searcher{bound: c.cfg.LossBound}
	each := max(c.cfg.Duration/searchTrials, shortestTrial)
	began := time.Now()
	c.result.LossBound = c.cfg.LossBound
	best := c.result
	for round := uint16(warmUp + 1); ; round++ {
		rate, ok := s.next()
		if !ok || ctx.Err() != nil || (round > warmUp+2 && time.Since(began)+each > c.cfg.Duration) {
			break
		}
		plan := blastPlan{
			round: round, size: c.cfg.MessageBytes, bitsPerSecond: rate, gso: c.cfg.GSO,
			duration: each, opened: c.startCPU,
		}
		if s.asked == 0 {
			plan.omit = c.cfg.Omit
		}
		near, far, err := c.round(ctx, flows, plan, rtt)
		if err != nil {
			return err
		}
		c.datagrams(near, far)
		r := c.result
		best.Trials = append(best.Trials, Trial{OfferedBitsPerSecond: rate, BitsPerSecond: r.BitsPerSecond, LossFraction: r.LossFraction})
		if s.answer(r.SentBitsPerSecond, r.BitsPerSecond, r.LossFraction) && r.BitsPerSecond > best.BitsPerSecond {
			trials := best.Trials
			best = r
			best.Trials, best.OfferedBitsPerSecond = trials, rate
		}
	}
	warnings := c.result.Warnings
	c.result = best
	c.result.Warnings = warnings
	if best.BitsPerSecond == 0 {
		c.warn("no trial stayed within a loss of %g", c.cfg.LossBound)
	}
	c.finish(ctx.Err() != nil)
	return nil
}
