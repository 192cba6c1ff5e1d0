package tunnel

import (
	"time"

	"cleat/tunnel/sched"
)

// queue holds packets that wait for a path, in two lanes. The sparse lane is served first, so
// a ping does not wait behind a stream. A packet waits in it if its flow is sparse (flowTable)
// and if no more than maxSparseBytes of the flow wait: on slow paths, a stream sends too little
// to be a bulk flow, but it builds a queue. All other packets wait in the bulk lane.
//
// Sparse flows together must not starve the others: while packets wait in both lanes, the
// sparse lane gets about half of the bytes (see ahead).
//
// The packets of a flow keep their order. When a flow leaves the sparse lane, those of its
// packets that wait there move to the end of the bulk lane. It returns when none of its packets
// wait in the bulk lane. Flows are told apart by their hashes, as in flowTable: two flows with
// the same slot share a lane.
//
// A queue is not safe for concurrent use.
type queue[T queueable] struct {
	sparse, bulk lane[T]
	// ahead is how many more bytes the sparse lane has sent than the bulk lane. It stays
	// between -maxAhead and maxAhead, and what the sparse lane sends while the bulk lane is
	// empty does not count. From 0 on, the bulk lane is served first.
	ahead int
	slots [1 << 12]queueSlot
}

const (
	// maxAhead bounds what the sparse lane may send in one go, after it has sent little, and
	// how long it then comes second: 11 full packets, or 130 ms at 1 Mbit/s.
	maxAhead = 16 << 10
	// maxSparseBytes is a full packet and some small ones. A stream that a path holds up has
	// two full packets waiting at least.
	maxSparseBytes = 2 << 10
)

// queueable is what waits in a queue: a packet, or a super-packet.
type queueable interface {
	info() *queueInfo
	bytesLeft() int // inner bytes that have not been sent
}

// queueInfo is what a queue knows about a packet.
type queueInfo struct {
	readAt time.Duration // when it was read from the device
	flow   uint32        // hash
	paths  uint64        // that its flow fills first, one bit per ID; 0: the flow is sparse

	addedBytes int // inner bytes when it was added
}

func (i *queueInfo) info() *queueInfo { return i }

// queueSlot counts what waits of the flows that share a slot.
type queueSlot struct {
	sparse, bulk int32 // elements in each lane
	sparseBytes  int   // of the elements in the sparse lane, when they were added
}

// lane is one part of a queue, in the order in which packets were added.
type lane[T queueable] struct {
	backlog
	elements []T // from head on
	head     int
}

// backlog is what CoDel knows about a lane.
type backlog struct {
	bytes       int // waiting
	codel       sched.CoDel
	recoveredOf time.Duration // the Tunnel.pathLostAt from which the lane has recovered
}

func (l *lane[T]) len() int    { return len(l.elements) - l.head }
func (l *lane[T]) empty() bool { return l.head == len(l.elements) }

// first returns the element at the head. It is an error to call it on an empty lane.
func (l *lane[T]) first() T { return l.elements[l.head] }

func (l *lane[T]) push(e T) {
	if l.head > 1024 && l.head*2 > len(l.elements) {
		n := copy(l.elements, l.elements[l.head:])
		l.truncate(n)
		l.head = 0
	}
	l.elements = append(l.elements, e)
	l.bytes += e.bytesLeft()
}

func (l *lane[T]) pop() {
	l.bytes -= l.first().bytesLeft()
	clear(l.elements[l.head : l.head+1])
	if l.head++; l.empty() {
		l.elements, l.head = l.elements[:0], 0
	}
}

// truncate removes all elements from index n on.
func (l *lane[T]) truncate(n int) {
	clear(l.elements[n:])
	if l.elements = l.elements[:n]; l.empty() {
		l.elements, l.head = l.elements[:0], 0
	}
}

func (q *queue[T]) waiting() bool { return !q.sparse.empty() || !q.bulk.empty() }

// bytes returns how many bytes wait.
func (q *queue[T]) bytes() int { return q.sparse.bytes + q.bulk.bytes }

func (q *queue[T]) slot(flow uint32) *queueSlot { return &q.slots[flow%uint32(len(q.slots))] }

// add adds a packet.
func (q *queue[T]) add(e T) {
	i := e.info()
	i.addedBytes = e.bytesLeft()
	s := q.slot(i.flow)
	if s.bulk == 0 && i.paths == 0 && s.sparseBytes+i.addedBytes <= maxSparseBytes {
		s.sparse++
		s.sparseBytes += i.addedBytes
		q.sparse.push(e)
		return
	}
	if s.sparse > 0 {
		q.moveToBulk(s)
	}
	s.bulk++
	q.bulk.push(e)
}

// moveToBulk moves what waits of a slot from the sparse lane to the end of the bulk lane.
func (q *queue[T]) moveToBulk(s *queueSlot) {
	l := &q.sparse
	kept := l.head
	for _, e := range l.elements[l.head:] {
		if q.slot(e.info().flow) != s {
			l.elements[kept] = e
			kept++
			continue
		}
		l.bytes -= e.bytesLeft()
		q.bulk.push(e)
	}
	l.truncate(kept)
	*s = queueSlot{bulk: s.bulk + s.sparse}
}

// pop removes the first element of a lane.
func (q *queue[T]) pop(l *lane[T]) {
	i := l.first().info()
	if s := q.slot(i.flow); l == &q.sparse {
		s.sparse--
		s.sparseBytes -= i.addedBytes
	} else {
		s.bulk--
	}
	l.pop()
}

// lanes returns the lanes in the order in which they are served. The second one gets what
// the first one has no use for.
func (q *queue[T]) lanes() [2]*lane[T] {
	if q.ahead >= 0 {
		return [2]*lane[T]{&q.bulk, &q.sparse}
	}
	return [2]*lane[T]{&q.sparse, &q.bulk}
}

// oldest returns the lane whose first element was read first, or nil if nothing waits.
func (q *queue[T]) oldest() *lane[T] {
	switch {
	case !q.waiting():
		return nil
	case q.bulk.empty(), !q.sparse.empty() && q.sparse.first().info().readAt <= q.bulk.first().info().readAt:
		return &q.sparse
	}
	return &q.bulk
}

// sent records that bytes are sent of a lane. What sparse flows send while no bulk flow waits
// costs them nothing.
func (q *queue[T]) sent(l *lane[T], bytes int) {
	if l == &q.bulk {
		q.ahead = max(q.ahead-bytes, -maxAhead)
	} else if !q.bulk.empty() {
		q.ahead = min(q.ahead+bytes, maxAhead)
	}
}
