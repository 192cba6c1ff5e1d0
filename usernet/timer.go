package usernet

import "container/heap"

// timer calls fire once when its deadline has passed. fire must be set before use.
type timer struct {
	fire      func()
	deadline  int64 // nanoseconds on the loop's clock; 0: not set
	heapKey   int64 // its key in the heap, never later than deadline
	heapIndex int   // index in the heap plus 1; 0: not in the heap
}

// timerHeap moves its timers lazily. A timer whose deadline is put off, as a
// retransmission timer's is with each acknowledgement, keeps its place until its old
// deadline has passed, and is moved only then. So putting off a deadline costs nothing.
type timerHeap []*timer

// set sets the time before which t does not fire; 0 stops it.
func (h *timerHeap) set(t *timer, deadline int64) {
	t.deadline = deadline
	switch {
	case deadline == 0:
	case t.heapIndex == 0:
		t.heapKey = deadline
		heap.Push(h, t)
	case deadline < t.heapKey:
		t.heapKey = deadline
		heap.Fix(h, t.heapIndex-1)
	}
}

// drop removes t from the heap. It is for a timer whose owner ends.
func (h *timerHeap) drop(t *timer) {
	t.deadline = 0
	if t.heapIndex > 0 {
		heap.Remove(h, t.heapIndex-1)
	}
}

// run fires the timers that are due.
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

// next returns when run should be called again; 0: there is no timer.
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
