package keep

import (
	"math"
	"time"

	"cleat/network/attach"
)

// How long it takes until something is tried or looked at again.
const (
	lookSoon   = 10 * time.Millisecond // for a container after an event; then
	lookNear   = 40 * time.Millisecond // as long as it may take to begin,
	nearLooks  = 25                    // so often; each time twice as long,
	lookEvery  = 2 * time.Second       // and so often at last, of engines that say nothing,
	lookSeldom = 10 * time.Second      // and so often of those that do
	failSoon   = time.Second           // after what could not be done; each time twice as long
	failSeldom = time.Minute           // at most
	atMost     = 30 * time.Second      // between two looks: timers sleep while the machine does
	tellAfter  = 2 * time.Second       // ANNOUNCE_INTERVAL (RFC 5227 section 1.1)
	tellYoung  = 10 * time.Second      // who found an attachment older than that tells nobody
	eventLooks = 10                    // because of events, at once; then one each eventEvery
	eventEvery = time.Second           // a container can have its link change as often as it likes
	lostWithin = 5 * time.Second       // after events were lost, which may have been about any link
	calm       = 5 * time.Minute       // after which a link that was removed once more counts as removed for the first time
)

// item is one attachment that is kept.
type item struct {
	a       *attach.Attachment
	index   int       // of its link; 0: it has none, or it was not looked at yet
	due     time.Time // when it is looked at next
	tell    time.Time // when its neighbours are told again; zero: they are not
	working bool
	again   bool // what is wanted of it changed while it was worked at
	woken   bool // something happened while it was worked at
	looks   int  // for its container, since something happened
	gone    bool // its container is not there
	idle    bool // there is nothing to be done about it, ever
	report  attach.KeeperReport
	removed int       // how often somebody removed its link, with less than calm in between
	remade  time.Time // when it was made again after that
	first   *first    // its container's first process; nil: none is known
	paid    time.Time // until when the looks because of events have been paid for, one each eventEvery
}

// wake makes the item due because of an event: at once, unless there were many of late.
func (it *item) wake(now time.Time) {
	it.looks, it.idle = 0, false
	if earliest := now.Add(-eventLooks * eventEvery); it.paid.Before(earliest) {
		it.paid = earliest
	}
	at := it.paid.Add(eventEvery)
	if at.Before(now) {
		at = now
	}
	if !it.due.After(at) {
		return // it is looked at before, which pays for this event, too
	}
	it.due, it.paid = at, it.paid.Add(eventEvery)
}

// work is what tend has to know of an item.
type work struct {
	a     *attach.Attachment
	tell  bool
	after time.Duration // until when a link that somebody removed stays so
}

func (it *item) work(now time.Time) work {
	w := work{a: it.a, tell: !it.tell.IsZero() && !now.Before(it.tell)}
	if it.removed > 1 {
		w.after = max(0, it.remade.Add(backoff(it.removed-1)).Sub(now))
	}
	return w
}

// next is when the item is to be worked at.
func (it *item) next() time.Time {
	if !it.tell.IsZero() && it.tell.Before(it.due) {
		return it.tell
	}
	return it.due
}

// backoff is failSoon after the first failure, and twice as long after each.
func backoff(failures int) time.Duration {
	return min(failSeldom, failSoon<<min(max(failures-1, 0), 16))
}

// untilLook is when to look for a container again.
func untilLook(looks int, heard bool) time.Duration {
	seldom := lookEvery
	if heard {
		seldom = lookSeldom
	}
	if looks < nearLooks {
		return min(lookSoon<<looks, lookNear)
	}
	return min(lookNear<<min(looks-nearLooks, 16), seldom)
}

// within is d, or atMost.
func within(d time.Duration) time.Duration { return min(max(d, 0), atMost) }

// worthSaying is true of the first, second, fourth, eighth … failure.
func worthSaying(failures int) bool {
	return math.Log2(float64(failures)) == math.Trunc(math.Log2(float64(failures)))
}
