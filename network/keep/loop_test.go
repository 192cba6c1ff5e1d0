package keep

import (
	"testing"
	"testing/synctest"
	"time"

	"cleat/network/attach"
)

// A container can change its link as often as it likes. After a burst, the attachment is
// looked at once a second at most.
func TestEventsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		it := &item{attachment: &attach.Attachment{}, link: linkID{nsid: 3, index: 7}, due: time.Now().Add(maxSleep)}
		k := &keeper{events: newEventQueue(), items: map[string]*item{"web": it}}
		looks := 0
		const count = 1000
		for range count { // in ten seconds
			k.events.add(func(e *events) { e.links = map[linkID]bool{{3, 7}: true} })
			k.handleEvents()
			if !it.nextDue().After(time.Now()) {
				looks++
				it.due = time.Now().Add(maxSleep) // as after a look
			}
			time.Sleep(10 * time.Millisecond)
		}
		if looks < 2 || looks > eventBurst+15 {
			t.Errorf("%d looks for %d events in 10 s", looks, count)
		}
		time.Sleep(time.Minute)
		k.events.add(func(e *events) { e.links = map[linkID]bool{{3, 7}: true} })
		if k.handleEvents(); it.nextDue().After(time.Now()) {
			t.Errorf("after a minute of quiet the next look is in %s", time.Until(it.nextDue()))
		}
	})
}
