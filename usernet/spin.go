package usernet

import (
	"time"

	"cleat/internal/sys"
)

// spinner decides how long to look for the next event before sleeping. A sleep
// and wake-up cost several microseconds on either side, which is most of a short
// request's round trip; looking costs the processor time that others could use.
// So it looks only for a moment, only while what went before was small, and only
// as long as looking has lately been worth it. After each look it lets others
// run that wait for this processor: one of them may be who is to answer.
type spinner struct {
	lastSmall bool // the last round moved little
	credit    int  // successes lately, less failures
}

// moved notes how many bytes a round has moved.
func (p *spinner) note(bytes uint64) {
	if bytes > 0 {
		p.lastSmall = bytes < spinMaxBytes
	}
}

const (
	spinMaxBytes  = 8 << 10
	spinDuration  = 40 * time.Microsecond // an answer over loopback takes 20 to 30 µs
	spinMaxCredit = 16
)

// worthwhile tells whether to look for the next event.
func (p *spinner) worthwhile() bool { return p.lastSmall && p.credit > 0 }

// rest waits for an event: for a moment awake, then asleep.
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
