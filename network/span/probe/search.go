package probe

import (
	"slices"
	"time"
)

// Times of a search. RFC 8899 section 5.1 has the names in parentheses.
const (
	// answerWithin is how long a datagram and its answer may take (PROBE_TIMER). The round trip between hosts that
	// share a network is far below it.
	answerWithin = 500 * time.Millisecond
	// tries is how often a size is sent before it counts as too large (MAX_PROBES).
	tries = 3
	// confirmOften is how often a size that passed is sent again with few peers. With many it is less often, but at least
	// every confirmUsed for a path that containers use, and every confirmIdle for others.
	confirmOften = 5 * time.Second
	confirmUsed  = 15 * time.Second
	confirmIdle  = 60 * time.Second
	// limitEvery and raiseEvery are how often the largest size is tried although a smaller one was the result, and how
	// often all larger ones are (PMTU_RAISE_TIMER).
	limitEvery = 60 * time.Second
	raiseEvery = 10 * time.Minute
	// retryEvery is how often a host that does not answer is asked.
	retryEvery = 30 * time.Second
)

// smallest is the size that is sent beside others: if it passes and they don't, the path is too small for them. All
// links pass it (RFC 791: 68 bytes; RFC 8200: 1280).
const smallest = 128

// common are sizes in bytes that paths usually have: those of links, and what tunnels leave of them. If 1501 does not
// pass, 1500 is the result without further steps.
var common = []int{
	576, 1006, 1280, 1300, 1320, 1340, 1350, 1360, 1372, 1380, 1390, 1400, 1410, 1412, 1420, 1422, 1428, 1430, 1432, 1438, 1440, 1442, 1446,
	1448, 1450, 1452, 1454, 1458, 1460, 1462, 1464, 1468, 1472, 1476, 1480, 1488, 1492, 1496, 1500, 1501, 2048, 2304, 4352, 4470, 8500, 8896, 8950, 9000, 9001, 9216,
}

// step is what a search does.
type step uint8

const (
	begin   step = iota // send the smallest size and the limit
	ladder              // send common sizes between low and high
	refine              // halve the distance between low and high
	confirm             // send low again, from time to time
)

// search finds the largest size that passes a path to another host: a state machine as in RFC 8899. It has no
// clock and sends nothing. Its methods get the time, and next returns what to send.
type search struct {
	limit  int // largest size that can be sent, in bytes
	result int // largest size that passes; 0: unknown

	step step
	low  int // largest size that has passed in this search
	high int // smallest size that is too large
	// asked are the sizes that were sent for the current step, and answered those that have passed.
	asked    []int
	answered []int
	sent     int       // how often they were sent
	at       time.Time // when the next thing happens
	started  time.Time // when the current step began
	limited  time.Time // when the limit was tried
	raised   time.Time // when all larger sizes were
}

// newSearch returns a search for a path of which nothing is known.
func newSearch(limit int) *search {
	s := &search{limit: limit}
	s.restart(time.Time{})
	return s
}

// setLimit changes the largest size that can be sent.
func (s *search) setLimit(limit int, now time.Time) {
	if limit == s.limit {
		return
	}
	s.limit = limit
	if s.result > limit {
		s.result = limit
	}
	s.restart(now)
}

// restart begins again. The result stays until a new one is known.
func (s *search) restart(now time.Time) { s.enter(begin, 0, s.limit+1, now) }

// enter begins a step.
func (s *search) enter(to step, low, high int, now time.Time) {
	s.step, s.low, s.high = to, low, high
	s.asked, s.answered, s.sent, s.at, s.started = nil, nil, 0, now, now
	switch to {
	case begin:
		s.asked = []int{smallest, s.limit}
	case ladder:
		for _, size := range common {
			if size > low && size < high {
				s.asked = append(s.asked, size)
			}
		}
	case refine:
		s.asked = []int{low + (high-low)/2}
	case confirm:
		s.asked = []int{smallest, low}
	}
}

// isSearching reports whether the largest size is not known yet.
func (s *search) isSearching() bool { return s.step != confirm }

// passed takes an answer: a datagram of a size has arrived.
func (s *search) passed(size int, now time.Time) {
	if !slices.Contains(s.asked, size) || slices.Contains(s.answered, size) || s.sent == 0 {
		return
	}
	s.answered = append(s.answered, size)
	s.low = max(s.low, size)
	if size == s.asked[len(s.asked)-1] {
		s.conclude(now)
	}
}

// next returns the sizes to send now. every is how often a size is confirmed.
func (s *search) next(now time.Time, every time.Duration) []int {
	if s.step == confirm && s.sent == 0 {
		s.at = earlier(s.at, s.started.Add(every))
	}
	if now.Before(s.at) {
		return nil
	}
	if s.sent >= tries || s.isConfirmed() {
		s.conclude(now)
		if now.Before(s.at) {
			return nil
		}
	}
	if s.step == confirm && s.sent == 0 && s.low < s.limit && now.Sub(s.limited) >= limitEvery {
		s.asked, s.limited = append(s.asked, s.limit), now
	}
	if s.step == ladder && s.sent > 0 && s.low > smallest && (s.result == 0 || s.result > s.low) {
		s.result = s.low // a safe one, until the rest is known
	}
	s.sent++
	s.at = now.Add(answerWithin)
	return s.unanswered()
}

// isConfirmed reports whether the size that passed before has passed again. Whether the limit passes as well is not
// waited for longer.
func (s *search) isConfirmed() bool {
	return s.step == confirm && s.sent > 0 && slices.Contains(s.answered, s.asked[1])
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// unanswered returns the sizes of a step that can still change its outcome.
func (s *search) unanswered() (sizes []int) {
	for _, size := range s.asked {
		if !slices.Contains(s.answered, size) && (s.step != ladder || size > s.low) {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// conclude ends a step: all its sizes were answered, or sent often enough.
func (s *search) conclude(now time.Time) {
	largest := 0
	if len(s.answered) > 0 {
		largest = slices.Max(s.answered)
	}
	switch s.step {
	case begin:
		switch largest {
		case 0: // nobody is there, or does not know these messages
			s.enter(begin, 0, s.limit+1, now)
			s.at = now.Add(retryEvery)
		case s.limit:
			s.settle(s.limit, now)
		default:
			s.enter(ladder, largest, s.limit, now)
		}
	case ladder, refine:
		s.narrow(now)
	case confirm:
		s.concludeConfirm(largest, now)
	}
}

// narrow continues between the largest size that passed and the next one that did not.
func (s *search) narrow(now time.Time) {
	low, high := s.low, s.high
	for _, size := range s.asked {
		if size > low {
			high = min(high, size)
		}
	}
	if s.step == ladder && low > smallest {
		s.result = low
	}
	if high-low <= 1 {
		s.settle(low, now)
		return
	}
	s.enter(refine, low, high, now)
}

// concludeConfirm ends the confirmation of a size.
func (s *search) concludeConfirm(largest int, now time.Time) {
	confirmed := s.asked[1]
	switch {
	case largest == 0: // the other host is not there: a smaller size would not help
		s.settle(confirmed, now)
	case largest < confirmed:
		s.enter(ladder, largest, confirmed, now)
	case largest == confirmed && confirmed < s.limit && now.Sub(s.raised) >= raiseEvery:
		s.enter(ladder, confirmed, s.limit, now)
	default:
		s.settle(largest, now)
	}
}

// settle makes a size the result, and plans its confirmation.
func (s *search) settle(size int, now time.Time) {
	if s.step != confirm {
		s.limited, s.raised = now, now
	}
	s.result = size
	s.enter(confirm, size, s.limit+1, now)
	s.at = now.Add(confirmIdle)
}
