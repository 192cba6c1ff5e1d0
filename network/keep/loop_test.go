package keep

import (
	"testing"
	"testing/synctest"
	"time"

	"cleat/network/attach"
)

// A container can change its link as often as it likes. It is looked at at once, and then no
// more often than once a second.
func TestEventsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		it := &item{a: &attach.Attachment{}, index: 7, due: time.Now().Add(atMost)}
		k := &keeper{woken: newWoken(), items: map[string]*item{"web": it}}
		looks := 0
		const events = 1000
		for range events { // for ten seconds
			k.woken.add(func(h *happenings) { h.links = map[int]bool{7: true} })
			k.happened()
			if !it.next().After(time.Now()) {
				looks++
				it.due = time.Now().Add(atMost) // it was looked at
			}
			time.Sleep(10 * time.Millisecond)
		}
		if looks < 2 || looks > eventLooks+15 {
			t.Errorf("%d looks for %d events in 10 s", looks, events)
		}
		time.Sleep(time.Minute)
		k.woken.add(func(h *happenings) { h.links = map[int]bool{7: true} })
		if k.happened(); it.next().After(time.Now()) {
			t.Errorf("after a minute it is looked at in %s", time.Until(it.next()))
		}
	})
}
