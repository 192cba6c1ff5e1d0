package tunnel

import (
	"math/bits"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// What a path has lost is sent again, once for each time that it was sent: a packet that
// is queued to be sent again is marked, and reports repeat themselves. Its next copy is
// numbered anew, so a peer that reported everything missing could have everything sent
// again without end. Repairs bounds that.

// repairs is how many packets may still be sent again because the peer says that they are
// missing. Each packet that is sent for the first time earns half of one.
type repairs struct{ halves int }

// repairMost may be sent again at once: 8 MB on their way on each of two paths, which are
// interrupted for a moment.
const repairMost = 1 << 14

func newRepairs() repairs { return repairs{2 * repairMost} }

func (r *repairs) earn(packets int) { r.halves = min(r.halves+packets, 2*repairMost) }

// spend takes up to n packets off what may be sent again.
func (r *repairs) spend(n int) int {
	n = min(n, r.halves/2)
	r.halves -= 2 * n
	return n
}

// lookMost bounds how many pieces the missing packets of one report are looked for in
// without finding any.
const lookMost = 1 << 10

// repair queues packets to be sent again that a path has lost. look is how many pieces may
// still be looked at in vain. The lock is held.
func (t *Tunnel) repair(m wire.Missing, look *int) {
	if int(m.Path) >= MaxPaths || t.paths[m.Path] == nil {
		return
	}
	p := t.paths[m.Path]
	p.sizes.doubt(t.now())
	q, limit := &p.kept, t.limit()
	for i := q.find(m.First); i != q.to && *look > 0; i++ {
		pc := q.at(i)
		from, to := max(int32(m.First-pc.path), 0), min(int32(m.First+uint32(m.Count)-pc.path), int32(pc.n))
		if from >= to {
			return
		}
		// A packet cut for a larger MTU would be lost, and reported, again and again.
		if pc.e.split.MaxBytes() > limit || !t.requeue(pc, ones(int(to))&^ones(int(from))) {
			*look--
		}
	}
}

// requeue queues those of a piece's packets to be sent again that a set has, that are not
// queued yet, and that may be. It reports whether there are any. The lock is held.
func (t *Tunnel) requeue(pc *piece, set uint64) bool {
	some := false
	for set &^= pc.queued; set != 0; {
		i := bits.TrailingZeros64(set)
		n := t.repairs.spend(bits.TrailingZeros64(^(set >> i)))
		if n == 0 {
			return some
		}
		t.queueAgain(pc, i, n)
		set &^= pc.queued
		some = true
	}
	return some
}

// queueAgain queues n of a piece's packets, from the i-th on.
func (t *Tunnel) queueAgain(pc *piece, i, n int) {
	pc.queued |= ones(i+n) &^ ones(i)
	pc.e.refs++
	t.again.add(pc.part(i, n))
}

// ones has the lowest n bits set.
func ones(n int) uint64 { return ^uint64(0) >> (64 - n) }

// lose sends again what the dead had not delivered. The lock is held.
func (t *Tunnel) lose(died uint64) {
	for _, id := range sched.Ones(died) {
		p := t.paths[id]
		if p.kept.len() > 0 {
			t.lost = t.now()
		}
		for ; p.kept.len() > 0; p.kept.from++ {
			pc := p.kept.at(p.kept.from)
			for left := ones(pc.n) &^ pc.queued; left != 0; left &^= pc.queued {
				i := bits.TrailingZeros64(left)
				t.queueAgain(pc, i, bits.TrailingZeros64(^(left >> i)))
			}
			t.arena.release(pc.e)
		}
	}
}

// nudge has the outbound thread look when there is something to be sent again. The
// lock is held.
func (t *Tunnel) nudge() {
	if t.again.len() > 0 {
		wake(t.wakeOut)
	}
}
