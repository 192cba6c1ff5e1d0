package usernet

import "container/heap"

// timer calls fire once when its time has come. The zero timer needs fire.
type timer struct {
	fire      func()
	deadline  int64 // nanoseconds on the loop's clock; 0: not set
	heapKey   int64 // its place in the heap, never later than due
	heapIndex int   // index in the heap plus 1; 0: not in it
}

// timers is a heap that timers are moved in lazily: one that is put off, as a
// retransmission timer is with each acknowledgement, stays where it is until
// that time has come and is only then moved. So putting off costs nothing.
type timerHeap []*timer

// set makes t fire at due at the earliest; 0 switches it off.
func (h *timerHeap) set(t *timer, due int64) {
	t.deadline = due
	switch {
	case due == 0:
	case t.heapIndex == 0:
		t.heapKey = due
		heap.Push(h, t)
	case due < t.heapKey:
		t.heapKey = due
		heap.Fix(h, t.heapIndex-1)
	}
}

// drop takes t out, for a timer whose owner goes.
func (h *timerHeap) drop(t *timer) {
	t.deadline = 0
	if t.heapIndex > 0 {
		heap.Remove(h, t.heapIndex-1)
	}
}

// run fires what is due.
func (h *timerHeap) run(now int64) {
	for len(*h) > 0 && (*h)[0].heapKey <= now {
		t := (*h)[0]
		switch {
		case t.deadline == 0:
			heap.Pop(h)
		case t.deadline > now:
			t.heapKey = t.deadline
			heap.Fix(h, 0)
		default:
			heap.Pop(h)
			t.deadline = 0
			t.fire()
		}
	}
}

// next is when run should be called again; 0: no need.
func (h timerHeap) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].heapKey
}

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].heapKey < h[j].heapKey }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i+1, j+1
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.heapIndex = len(*h)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.heapIndex = 0
	return t
}
