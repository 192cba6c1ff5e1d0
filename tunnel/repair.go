package tunnel

import (
	"math/bits"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// A packet that a path has lost is sent again once for each time that it was sent:
// packets that are queued for resending are marked, because reports repeat themselves.
// Each copy gets a new path sequence number, so a peer that reports everything missing
// could have everything sent again forever. resendBudget bounds that, whatever the reason.
//
// The circuit breaker (sched/breaker.go) is for losses that are real. It trips where the budget
// does not suffice any more, and stops all repair, not only what exceeds the budget. A peer that
// lies about missing packets alone spends the budget; only its counts of what has arrived trip
// the breaker.

// resendBudget is how many packets may still be sent again because the peer reports them
// missing. Each packet that is sent for the first time earns half a packet.
type resendBudget struct{ halves int }

// maxResendBurst may be sent again at once: 8 MB in flight on each of two paths that are
// interrupted for a moment.
const maxResendBurst = 1 << 14

func (r *resendBudget) earn(packets int) { r.halves = min(r.halves+packets, 2*maxResendBurst) }

// spend takes up to n packets off the budget and returns how many.
func (r *resendBudget) spend(n int) int {
	n = min(n, r.halves/2)
	r.halves -= 2 * n
	return n
}

// maxRepairLookups bounds how many pieces are looked up for the missing packets of one
// report without queueing anything.
const maxRepairLookups = 1 << 10

// repair queues packets that a path has lost for resending. lookups is how many pieces
// may still be looked up without queueing anything. It is called with mu held.
func (t *Tunnel) repair(m wire.Missing, lookups *int) {
	if int(m.Path) >= MaxPaths || t.paths[m.Path] == nil {
		return
	}
	p := t.paths[m.Path]
	p.sizeSearch.doubt(t.now())
	if t.sender.RepairStopped(p.id) {
		return
	}
	q, limit := &p.unacked, t.innerMTU()
	for i := q.find(m.First); i != q.to && *lookups > 0; i++ {
		pc := q.at(i)
		from, to := max(int32(m.First-pc.pathSeq), 0), min(int32(m.First+uint32(m.Count)-pc.pathSeq), int32(pc.n))
		if from >= to {
			return
		}
		// Packets that were segmented for a larger MTU would be lost again.
		if pc.e.split.MaxBytes() > limit || !t.requeue(pc, lowBits(int(to))&^lowBits(int(from))) {
			*lookups--
		}
	}
}

// requeue queues those packets of a piece for resending that are in set, not queued yet,
// and within the budget. It reports whether there are any. It is called with mu held.
func (t *Tunnel) requeue(pc *piece, set uint64) bool {
	queued := false
	for set &^= pc.resendQueued; set != 0; {
		i := bits.TrailingZeros64(set)
		n := t.resendBudget.spend(bits.TrailingZeros64(^(set >> i)))
		if n == 0 {
			return queued
		}
		t.queueResend(pc, i, n)
		set &^= pc.resendQueued
		queued = true
	}
	return queued
}

// queueResend queues n packets of a piece for resending, from index i on.
func (t *Tunnel) queueResend(pc *piece, i, n int) {
	pc.resendQueued |= lowBits(i+n) &^ lowBits(i)
	pc.e.refs++
	again := pc.part(i, n)
	if again.resendBy == 0 {
		again.resendBy = t.resendBy()
	}
	t.resends.add(again)
}

func lowBits(n int) uint64 { return ^uint64(0) >> (64 - n) }

// resendUnacked queues all that the dead paths had not delivered. It is called with mu
// held.
func (t *Tunnel) resendUnacked(died uint64) {
	for _, id := range sched.PathIDs(died) {
		p := t.paths[id]
		if p.unacked.len() > 0 {
			t.pathLostAt = t.now()
		}
		stopped := t.sender.RepairStopped(id)
		for p.unacked.len() > 0 {
			pc := p.unacked.oldest()
			for unqueued := lowBits(pc.n) &^ pc.resendQueued; unqueued != 0 && !stopped; unqueued &^= pc.resendQueued {
				i := bits.TrailingZeros64(unqueued)
				t.queueResend(pc, i, bits.TrailingZeros64(^(unqueued >> i)))
			}
			t.dropOldest(p)
		}
	}
}
