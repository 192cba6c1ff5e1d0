package usernet

import (
	"time"

	"cleat/internal/sys"
)

// spinner decides how long to poll for the next event before sleeping. A sleep and a
// wake-up cost several microseconds on either side, which is most of a short request's
// round trip. Polling costs processor time that others could use. So the loop polls only
// for a moment, only after a small round, and only as long as polling has paid off
// lately. After each poll it yields the processor: the process that is about to answer
// may be waiting for it.
type spinner struct {
	lastSmall bool // the last round that moved bytes moved few
	credit    int  // polling has paid off lately if it is positive: see waitForWork
}

const (
	spinMaxBytes  = 8 << 10
	spinDuration  = 40 * time.Microsecond // an answer over loopback takes 20 to 30 µs
	spinMaxCredit = 16
)

// worthwhile reports whether to poll before sleeping.
func (p *spinner) worthwhile() bool { return p.lastSmall && p.credit > 0 }

// waitForWork waits for an event: it polls for a moment if that is worthwhile, and then
// sleeps. A poll that finds an event adds 1 to the credit, and so does a sleep that was
// shorter than a poll. A poll without an event takes 2 off.
func (s *engine) waitForWork() error {
	if s.spin.worthwhile() {
		for until := s.loop.now + int64(spinDuration); s.loop.now < until; {
			found, err := s.loop.poll()
			if found || err != nil {
				s.spin.credit = min(s.spin.credit+1, spinMaxCredit)
				return err
			}
			sys.Yield()
		}
		s.spin.credit -= 2
		s.tcp.acknowledge(false)
	}
	slept := s.loop.now
	err := s.loop.wait()
	if s.spin.lastSmall && s.loop.now-slept < int64(spinDuration) {
		s.spin.credit = min(s.spin.credit+1, spinMaxCredit)
	}
	return err
}
