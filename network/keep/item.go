package keep

import (
	"time"

	"cleat/network/attach"
)

// Intervals. A container that is missing is looked for after lookSoon, then every lookNear, and
// after nearLooks of these at intervals that double up to lookEvery, or to lookSeldom if its engine
// reports that containers start.
const (
	lookSoon   = 10 * time.Millisecond // after an event, which may come just before the container
	lookNear   = 40 * time.Millisecond
	nearLooks  = 25 // about as long as a container takes to start
	lookEvery  = 2 * time.Second
	lookSeldom = 10 * time.Second

	minRetry = time.Second // after the first failure; doubles with each
	maxRetry = time.Minute
	maxSleep = 30 * time.Second       // between two looks at an attachment: timers stop while the machine sleeps
	perItem  = 100 * time.Millisecond // maxSleep is longer with many attachments, so that no more are looked at a second
	// busyCheck is how often a keeper that has nothing to keep asks whether this process is still busy.
	busyCheck = time.Second
	maxQuiet  = 10 * time.Minute // the same if it has no lease, and all that can happen to it is an event

	announceAfter = 2 * time.Second  // ANNOUNCE_INTERVAL (RFC 5227 section 1.1)
	announceYoung = 10 * time.Second // attachments that are older when they are found are not announced

	eventBurst    = 10 // events that are handled at once, and then one every eventInterval:
	eventInterval = time.Second
	lostDelay     = 5 * time.Second // after link events were lost, which may have been about any link

	removalMemory = 5 * time.Minute // after which another removal of a link counts as the first
)

type item struct {
	attachment    *attach.Attachment
	link          linkID    // zero if it has none or was not looked at yet
	due           time.Time // when it is looked at next
	announceAt    time.Time // when its addresses are announced again; zero: never
	working       bool      // a task is running
	changed       bool      // the attachment changed while a task was running
	eventPending  bool      // an event came while a task was running
	looks         int       // for its container since the last event
	containerGone bool
	idle          bool // nothing can become due
	report        attach.KeeperReport
	removals      int          // of its link by others, each within removalMemory of the one before
	remadeAt      time.Time    // when it was recreated after the last one
	initProcess   *initProcess // nil if none is known
	namespace     attach.Sign  // of a container without a process, as of the last look
	slot          time.Time    // of the last event: slots are eventInterval apart
}

// wake makes the item due because of an event: at once, unless there were many recently.
func (it *item) wake(now time.Time) {
	it.looks, it.idle = 0, false
	if earliest := now.Add(-eventBurst * eventInterval); it.slot.Before(earliest) {
		it.slot = earliest
	}
	at := it.slot.Add(eventInterval)
	if at.Before(now) {
		at = now
	}
	if !it.due.After(at) {
		return // it is due before, and that look covers this event
	}
	it.due, it.slot = at, it.slot.Add(eventInterval)
}

// task is what tend needs to know of an item.
type task struct {
	attachment *attach.Attachment
	announce   bool
	holdOff    time.Duration // how long a removed link stays removed
	longest    time.Duration // until the next look
}

func (it *item) task(now time.Time) task {
	t := task{attachment: it.attachment, announce: !it.announceAt.IsZero() && !now.Before(it.announceAt)}
	if it.removals > 1 {
		t.holdOff = max(0, it.remadeAt.Add(backoff(it.removals-1)).Sub(now))
	}
	return t
}

func (it *item) nextDue() time.Time {
	if !it.announceAt.IsZero() && it.announceAt.Before(it.due) {
		return it.announceAt
	}
	return it.due
}

// backoff returns the pause after a number of failures.
func backoff(failures int) time.Duration {
	return min(maxRetry, minRetry<<min(max(failures-1, 0), 16))
}

// nextLook returns how long to wait before a container is looked for again. reported says that its
// engine reports starts.
func nextLook(looks int, reported bool) time.Duration {
	longest := lookEvery
	if reported {
		longest = lookSeldom
	}
	if looks < nearLooks {
		return min(lookSoon<<looks, lookNear)
	}
	return min(lookNear<<min(looks-nearLooks, 16), longest)
}

// worthLogging reports whether to log the n-th failure: the first, second, fourth, eighth, and so
// on.
func worthLogging(n int) bool { return n&(n-1) == 0 }
