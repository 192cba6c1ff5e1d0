package dhcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cleat/link"
	"cleat/network/segment"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// stateMachine decides what to send and what answers mean. It has no clock and no network.
// Times count from its start.
type stateMachine interface {
	// tick returns the message to send now; nil if there is none.
	tick(now time.Duration) *dhcpv4.DHCPv4
	// next returns when tick has to be called again.
	next() time.Duration
	receive(now time.Duration, from link.MAC, m *dhcpv4.DHCPv4)
	done() bool
	observations() *Observations
}

type driver struct {
	operation, link string // for messages
	wire            wire
	sm              stateMachine
	start           time.Time
	beforeSend      func() error // may be nil
}

func (r *driver) now() time.Duration { return time.Since(r.start) }

func (r *driver) wrap(err error) error { return fmt.Errorf("%s on %s: %w", r.operation, r.link, err) }

// waitReady waits until the link is ready for DHCP, and sets its name for messages.
func (r *driver) waitReady(ctx context.Context, at segment.Link) (segment.Info, error) {
	info, err := segment.WaitReady(ctx, at)
	r.link = info.Name
	switch {
	case err != nil:
		return info, fmt.Errorf("%s: %w", r.operation, err)
	case info.NoARPReason != "":
		return info, r.wrap(fmt.Errorf("%w: %s", ErrNotApplicable, info.NoARPReason))
	case !info.Up:
		return info, r.wrap(segment.ErrDown)
	}
	return info, nil
}

// drive sends and receives messages until the state machine is done or ctx ends, which is an
// error.
func (r *driver) drive(ctx context.Context) error {
	for !r.sm.done() {
		if m := r.sm.tick(r.now()); m != nil {
			if r.beforeSend != nil {
				if err := r.beforeSend(); err != nil {
					return r.wrap(err)
				}
			}
			if err := r.wire.send(m.ToBytes()); err != nil {
				return r.wrap(err)
			}
		}
		b, from, err := r.wire.receive(ctx, r.start.Add(r.sm.next()))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
			continue
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return r.failure()
		case err != nil:
			return r.wrap(err)
		}
		m, err := dhcpv4.FromBytes(b)
		if err != nil {
			r.sm.observations().Malformed++
			continue
		}
		r.sm.receive(r.now(), from, m)
	}
	return nil
}

func (r *driver) failure() error {
	return &Error{Operation: r.operation, Link: r.link, Elapsed: r.now(), Observed: *r.sm.observations()}
}
