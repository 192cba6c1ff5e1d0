package traffic

import (
	"cmp"
	"context"
	"time"
)

const (
	searchTrials  = 12                     // a factor of 2^11 between first and last step; bench/experiment estimates by it
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

// confirmer steps down from what a search has found, until a longer trial passes: the best of many short trials is
// often one that was lucky.
type confirmer struct {
	rate  float64 // to try next, in bit/s; 0: as fast as possible
	below float64 // what arrived in the best trial: below it the rate goes down
	asked int
	over  bool
}

const (
	confirmTrials = 4    // bench/experiment estimates by it
	confirmShare  = 3    // each takes this part of the duration
	stepDown      = 0.97 // from one to the next
)

// next returns the rate of the next trial; ok is false when one has passed, or there were enough.
func (c *confirmer) next() (rate float64, ok bool) {
	return c.rate, !c.over && c.asked < confirmTrials && c.below > 0
}

// answer processes a trial. After one that failed the rate is lower.
func (c *confirmer) answer(pass bool) {
	c.asked++
	if c.over = pass; !pass {
		c.rate = stepDown * cmp.Or(c.rate, c.below)
	}
}

// searchUDP searches for the rate by trials of a 12th of the duration, and confirms it by some of a third. Then it counts
// in a run of its own, for the whole duration. That run gives the result, whatever it loses: the best of several trials
// would be too good. The clients of a Gate start this run together.
func (c *client) searchUDP(ctx context.Context, flows []*flow, rtt time.Duration) error {
	gate := c.cfg.Gate
	c.cfg.Gate = nil
	s := searcher{bound: c.cfg.LossBound}
	r := &c.result
	r.LossBound = c.cfg.LossBound
	best := Trial{}
	plan := blastPlan{
		round: warmUp, size: c.cfg.MessageBytes, gso: c.cfg.GSO, omit: c.cfg.Omit,
		duration: max(c.cfg.Duration/searchTrials, shortestTrial), opened: c.startCPU,
	}
	try := func(rate float64) (Trial, error) {
		plan.round++
		plan.bitsPerSecond = rate
		err := c.trial(ctx, flows, plan, rtt)
		t := Trial{OfferedBitsPerSecond: rate, BitsPerSecond: r.BitsPerSecond, LossFraction: r.LossFraction}
		r.Trials = append(r.Trials, t)
		return t, err
	}
	for rate, ok := s.next(); ok && ctx.Err() == nil; rate, ok = s.next() {
		trial, err := try(rate)
		if err != nil {
			return err
		}
		plan.omit = 0
		if s.answer(r.SentBitsPerSecond, r.BitsPerSecond, r.LossFraction) && trial.BitsPerSecond > best.BitsPerSecond {
			best = trial
		}
	}
	confirmed := confirmer{rate: best.OfferedBitsPerSecond, below: best.BitsPerSecond}
	plan.duration = max(c.cfg.Duration/confirmShare, shortestTrial)
	for rate, ok := confirmed.next(); ok && ctx.Err() == nil; rate, ok = confirmed.next() {
		trial, err := try(rate)
		if err != nil {
			return err
		}
		confirmed.answer(trial.LossFraction <= c.cfg.LossBound && trial.BitsPerSecond > 0)
	}
	c.cfg.Gate = gate
	switch {
	case ctx.Err() != nil: // the best trial is all there is
		*r = r.withoutCount()
		r.BitsPerSecond, r.LossFraction, r.OfferedBitsPerSecond = best.BitsPerSecond, best.LossFraction, best.OfferedBitsPerSecond
	case best.BitsPerSecond == 0:
		*r = r.withoutCount()
		c.warn("no trial stayed within a loss of %g", c.cfg.LossBound)
		if err := c.awaitStart(ctx, c.far.gone); err != nil { // other clients wait for this one
			return err
		}
	default:
		plan.round++
		plan.bitsPerSecond, plan.duration = confirmed.rate, c.cfg.Duration
		if err := c.trial(ctx, flows, plan, rtt); err != nil {
			return err
		}
		if r.LossFraction > c.cfg.LossBound {
			c.warn("the rate that was found is not confirmed: %.3g %% lost", 100*r.LossFraction)
		}
	}
	c.finish(ctx.Err() != nil)
	return nil
}

// trial makes one round, and leaves its counts in the result.
func (c *client) trial(ctx context.Context, flows []*flow, plan blastPlan, rtt time.Duration) error {
	near, far, err := c.round(ctx, flows, plan, rtt)
	if err != nil {
		return err
	}
	c.datagrams(near, far)
	c.result.OfferedBitsPerSecond = plan.bitsPerSecond
	return nil
}

// withoutCount returns r without what a trial that does not count has left in it.
func (r Result) withoutCount() Result {
	return Result{
		Work: r.Work, Engine: r.Engine, Address: r.Address, Streams: r.Streams, MessageBytes: r.MessageBytes, GSO: r.GSO,
		LossBound: r.LossBound, Trials: r.Trials, Warnings: r.Warnings,
	}
}
