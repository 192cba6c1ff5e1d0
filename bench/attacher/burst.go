package attacher

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Burst attaches n containers at the same time, each by a command of its own, and detaches
// them. It returns how many a second were attached: n divided by the time from the start of
// the first command until all have ended and all addresses can be used. The containers are
// made before, and used again by the next Burst.
func (h *Host) Burst(ctx context.Context, n int) (perSecond float64, err error) {
	for len(h.burst) < n {
		e, err := h.newEndpoint(ctx)
		if err != nil {
			return 0, err
		}
		h.burst = append(h.burst, e)
	}
	all := h.burst[:n]
	began := time.Now()
	err = atOnce(all, func(e endpoint) error {
		_, err := h.driver.attach(ctx, e)
		if err == nil {
			_, err = awaitUsable(ctx, e)
		}
		return err
	})
	took := time.Since(began)
	detachErr := h.detachAll(ctx, all)
	if err = errors.Join(err, detachErr); err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), nil
}

// detachAll detaches the containers that have an address.
func (h *Host) detachAll(ctx context.Context, all []endpoint) error {
	return atOnce(all, func(e endpoint) error {
		if attached, err := usable(e); err != nil || !attached {
			return err
		}
		_, err := h.driver.detach(ctx, e)
		return err
	})
}

// atOnce calls f for all endpoints, which begin at the same instant. It returns the first
// error after all have ended.
func atOnce(all []endpoint, f func(endpoint) error) error {
	var ready sync.WaitGroup
	ready.Add(len(all))
	var group errgroup.Group
	for _, e := range all {
		group.Go(func() error {
			ready.Done()
			ready.Wait()
			return f(e)
		})
	}
	return group.Wait()
}
