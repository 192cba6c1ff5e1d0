package usernet

import "container/heap"

// timer calls fire once when its time has come. The zero timer needs fire.
type timer struct {
	fire func()
	due  int64 // nanoseconds on the loop's clock; 0: not set
	at   int64 // its place in the heap, never later than due
	slot int   // index in the heap plus 1; 0: not in it
}

// timers is a heap that timers are moved in lazily: one that is put off, as a
// retransmission timer is with each acknowledgement, stays where it is until
// that time has come and is only then moved. So putting off costs nothing.
type timers []*timer

// set makes t fire at due at the earliest; 0 switches it off.
func (h *timers) set(t *timer, due int64) {
	t.due = due
	switch {
	case due == 0:
	case t.slot == 0:
		t.at = due
		heap.Push(h, t)
	case due < t.at:
		t.at = due
		heap.Fix(h, t.slot-1)
	}
}

// drop takes t out, for a timer whose owner goes.
func (h *timers) drop(t *timer) {
	t.due = 0
	if t.slot > 0 {
		heap.Remove(h, t.slot-1)
	}
}

// run fires what is due.
func (h *timers) run(now int64) {
	for len(*h) > 0 && (*h)[0].at <= now {
		t := (*h)[0]
		switch {
		case t.due == 0:
			heap.Pop(h)
		case t.due > now:
			t.at = t.due
			heap.Fix(h, 0)
		default:
			heap.Pop(h)
			t.due = 0
			t.fire()
		}
	}
}

// next is when run should be called again; 0: no need.
func (h timers) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].at
}

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i+1, j+1
}
func (h *timers) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.slot = len(*h)
}
func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.slot = 0
	return t
}
