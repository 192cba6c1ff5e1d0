package tunnel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cleat/tunnel/sched"
)

// queued is a packet in a queue of its own.
type queued struct {
	queueInfo
	bytes, n int // n is its number within its flow
}

func (p *queued) bytesLeft() int { return p.bytes }

const bulkPaths = 0b1 // of a bulk flow

func addQueued(q *queue[*queued], flow uint32, paths uint64, bytes, n int) {
	q.add(&queued{queueInfo: queueInfo{flow: flow, paths: paths}, bytes: bytes, n: n})
}

// sendQueued sends the packet that is served next.
func sendQueued(q *queue[*queued]) *queued {
	for _, l := range q.lanes() {
		if !l.empty() {
			p := l.first()
			q.pop(l)
			q.sent(l, p.bytes)
			return p
		}
	}
	return nil
}

// TestQueuePing checks that a ping is sent before all packets of streams: of a bulk flow, and
// of a flow that sends too little to be one, but builds a queue.
func TestQueuePing(t *testing.T) {
	for _, paths := range []uint64{bulkPaths, 0} {
		q := &queue[*queued]{}
		for n := range 100 {
			addQueued(q, 1, paths, 1500, n)
		}
		for range 20 {
			sendQueued(q)
		}
		addQueued(q, 2, 0, 100, 0)
		if p := sendQueued(q); p.flow != 2 {
			t.Errorf("paths %b: a packet of flow %d is sent before a ping", paths, p.flow)
		}
	}
}

// TestQueueShare floods the queue with sparse flows of one packet each: they must get no more
// than half of the bytes while bulk packets wait, and all bytes while none do.
func TestQueueShare(t *testing.T) {
	for _, bytes := range []int{40, 700, 1500} {
		q := &queue[*queued]{}
		sent := map[bool]int{} // by whether the flow is bulk
		flow := uint32(1)
		run := func(bulk bool, packets int) {
			for range packets {
				for q.sparse.len() < 10 {
					flow++
					if flow%uint32(len(q.slots)) == 0 {
						flow++
					}
					addQueued(q, flow, 0, bytes, 0)
				}
				for bulk && q.bulk.len() < 10 {
					addQueued(q, 0, bulkPaths, 1500, 0)
				}
				p := sendQueued(q)
				sent[p.paths != 0] += p.bytes
			}
		}
		run(true, 20_000)
		if less := sent[false] - sent[true]; less > maxAhead+1500 || less < -maxAhead-1500 {
			t.Errorf("packets of %d bytes: sparse flows sent %d bytes, a bulk flow %d", bytes, sent[false], sent[true])
		}
		for !q.bulk.empty() {
			sendQueued(q)
		}
		clear(sent)
		before := q.ahead
		run(false, 1000)
		if q.ahead != before {
			t.Errorf("packets of %d bytes: what sparse flows sent alone counts %d", bytes, q.ahead-before)
		}
		if sent[false] != 1000*bytes {
			t.Errorf("packets of %d bytes: sparse flows sent %d bytes alone", bytes, sent[false])
		}
		clear(sent)
		run(true, 20_000)
		if more := sent[false] - sent[true]; more > 2*maxAhead+1500 {
			t.Errorf("packets of %d bytes, later: sparse flows sent %d bytes more than a bulk flow", bytes, more)
		}
	}
}

// TestQueueOrder adds packets of flows that turn from sparse to bulk and back, and sends them
// at random: those of a flow must keep their order, and the counts must stay right.
func TestQueueOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	q := &queue[*queued]{}
	const flows = 6
	var paths [flows]uint64
	var added, sent [flows]int
	moved := 0
	check := func() {
		total, counts := 0, map[*queueSlot]queueSlot{}
		for _, l := range []*lane[*queued]{&q.sparse, &q.bulk} {
			bytes := 0
			for _, p := range l.elements[l.head:] {
				s := q.slot(p.flow)
				c := counts[s]
				if l == &q.sparse {
					c.sparse++
					c.sparseBytes += p.bytes
				} else {
					c.bulk++
				}
				counts[s], bytes = c, bytes+p.bytes
			}
			if total += bytes; l.bytes != bytes {
				t.Fatalf("a lane counts %d bytes, %d wait", l.bytes, bytes)
			}
		}
		for i := range q.slots {
			if s := &q.slots[i]; *s != counts[s] || s.sparseBytes > maxSparseBytes {
				t.Fatalf("a slot counts %+v, want %+v", *s, counts[s])
			}
		}
		if q.bytes() != total {
			t.Fatalf("%d bytes wait, want %d", q.bytes(), total)
		}
	}
	for i := range 50_000 {
		if rng.IntN(10) == 0 {
			paths[rng.IntN(flows)] = uint64(rng.IntN(2)) * bulkPaths
		}
		if rng.IntN(100) < 45 || !q.waiting() {
			f := rng.IntN(flows)
			before := q.sparse.len()
			addQueued(q, uint32(f), paths[f], 40+rng.IntN(1460), added[f])
			added[f]++
			if q.sparse.len() < before {
				moved++
			}
		} else {
			l := &q.sparse
			if q.sparse.empty() || rng.IntN(2) == 0 && !q.bulk.empty() {
				l = &q.bulk
			}
			p := l.first()
			q.pop(l)
			if p.n != sent[p.flow] {
				t.Fatalf("packet %d of flow %d is sent, want %d", p.n, p.flow, sent[p.flow])
			}
			sent[p.flow]++
		}
		if i%500 == 0 {
			check()
		}
	}
	if check(); moved < 100 {
		t.Errorf("flows left the sparse lane %d times, too few for this test", moved)
	}
}

// TestQueueReturn checks that a flow is back in the sparse lane when its packets in the bulk
// lane have been sent.
func TestQueueReturn(t *testing.T) {
	q := &queue[*queued]{}
	for n := range 3 {
		addQueued(q, 1, 0, 1000, n)
	}
	if q.sparse.len() != 0 || q.bulk.len() != 3 {
		t.Fatalf("%d and %d packets wait, want none of a flow that builds a queue in the sparse lane", q.sparse.len(), q.bulk.len())
	}
	for n := range 3 {
		addQueued(q, 1, 0, 10, 3+n)
		sendQueued(q)
	}
	for q.waiting() {
		sendQueued(q)
	}
	if addQueued(q, 1, 0, 1000, 6); q.sparse.len() != 1 {
		t.Error("a flow does not return to the sparse lane")
	}
}

// TestQueueOldest checks which lane is dropped from while there is no peer.
func TestQueueOldest(t *testing.T) {
	q := &queue[*queued]{}
	if q.oldest() != nil {
		t.Error("an empty queue has an oldest packet")
	}
	add := func(at time.Duration, flow uint32, paths uint64) {
		q.add(&queued{queueInfo: queueInfo{readAt: at, flow: flow, paths: paths}, bytes: 10})
	}
	add(2, 1, 0)
	add(1, 2, bulkPaths)
	add(3, 2, bulkPaths)
	for _, want := range []time.Duration{1, 2, 3} {
		l := q.oldest()
		if got := l.first().readAt; got != want {
			t.Errorf("the oldest packet was read at %d, want %d", got, want)
		}
		q.pop(l)
	}
}

// TestQueueDrops checks that CoDel judges each lane by what waits in it: a ping that has waited
// is not dropped for the bulk lane's length, and a ping that has not waited does not end the
// time in which the bulk lane recovers from the loss of a path.
func TestQueueDrops(t *testing.T) {
	o := newOutbound(&Tunnel{})
	o.setCoDel()
	now := time.Minute
	sparse, bulk := &backlog{bytes: 100}, &backlog{bytes: 4 << 20}
	drops := func(b *backlog, waited time.Duration) (n int) {
		for range 2000 {
			now += time.Millisecond
			if o.shouldDrop(now, waited, b) {
				n++
			}
		}
		return n
	}
	if n, of := drops(sparse, time.Second), drops(bulk, time.Second); n > 0 || of == 0 {
		t.Errorf("%d pings are dropped, and %d packets of streams", n, of)
	}
	bulk.codel = sched.CoDel{}
	o.t.pathLostAt = now
	now += minRecovery + time.Millisecond
	if o.shouldDrop(now, 0, sparse) || o.shouldDrop(now, time.Second, bulk) {
		t.Error("a packet is dropped while the queue recovers from the loss of a path")
	}
	now += maxRecovery
	if drops(bulk, time.Second) == 0 {
		t.Error("nothing is dropped after the recovery")
	}
}

// TestQueueDescribe checks what outbound.describe sets for the head of each lane.
func TestQueueDescribe(t *testing.T) {
	o := newOutbound(&Tunnel{})
	add := func(flow uint32, paths uint64) {
		o.queue.add(&entry{queueInfo: queueInfo{readAt: time.Second, flow: flow, paths: paths}})
	}
	add(1, 0)
	s := &o.t.sender
	if o.describe(2*time.Second, &o.queue.sparse); s.BulkWaits || s.HeadWait != time.Second || s.FlowPaths != 0 {
		t.Errorf("a ping alone: bulk packets wait %v, waited %v, paths %b", s.BulkWaits, s.HeadWait, s.FlowPaths)
	}
	add(2, bulkPaths)
	if o.describe(2*time.Second, &o.queue.sparse); !s.BulkWaits || s.FlowPaths != 0 {
		t.Errorf("a ping beside a stream: bulk packets wait %v, paths %b", s.BulkWaits, s.FlowPaths)
	}
	if o.describe(2*time.Second, &o.queue.bulk); s.BulkWaits || s.FlowPaths != bulkPaths {
		t.Errorf("the stream: bulk packets wait %v, paths %b", s.BulkWaits, s.FlowPaths)
	}
}

// TestQueueSimulatedPing sends a ping beside streams over unlike links. It must take no longer
// than over the links alone, and what a path and a run of a stream add.
func TestQueueSimulatedPing(t *testing.T) {
	for _, streams := range []int{1, 8} {
		links := []*simLink{{rate: mbit(3), delay: time.Millisecond}, {rate: mbit(20), delay: 5 * time.Millisecond}, {rate: mbit(20), delay: 40 * time.Millisecond}}
		s := newSimPair(1, links...)
		s.run(time.Second)
		for i := range streams {
			newSimTCP(s.simClock, i, s.offer, s.reverse.offer).window = zooWindow
		}
		s.run(3 * time.Second)
		var trips []time.Duration
		for range 200 {
			sent := s.now
			s.offer(simPingFlow, 100, func() { trips = append(trips, s.now-sent) })
			s.run(zooPingEvery)
		}
		slices.Sort(trips)
		if len(trips) < 190 || trips[len(trips)*95/100] > 30*time.Millisecond {
			t.Errorf("%d streams: %d pings arrived; 95 %% took up to %v", streams, len(trips), trips[len(trips)*95/100])
		}
	}
}
