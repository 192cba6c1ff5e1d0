package tunnel

import (
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// copies are packets that go out on several paths.
type copies struct {
	pieces []piece
	to     uint64 // paths that have not had them
}

const copiesBytes = 64 << 10 // of packets that are copied at a time

// duplicate prepares one path's copy of a run. The lock is held; it tells whether there is
// one.
func (o *outbound) duplicate(now time.Duration) bool {
	t := o.t
	if o.gone(); o.copies.to == 0 && !o.copy(now) {
		return false
	}
	id := sched.Ones(o.copies.to)[0]
	o.copies.to &^= 1 << id
	if t.send.Path(id).Full { // others have room
		o.gone()
		return o.copies.to != 0 && o.duplicate(now)
	}
	o.run.begin(t, t.paths[id])
	room := 1 << 20
	for i := range o.copies.pieces {
		pc := o.copies.pieces[i]
		for pc.n > 0 && o.run.retake(t, &pc, &room) {
		}
	}
	o.run.commitCopy(t, t.send.Path(id), now)
	t.paths[id].data, t.paths[id].last, o.sent = true, now, now
	o.gone()
	return true
}

// gone takes paths that are not there any more off those that are to have copies, and lets
// go of the packets when all have had theirs. The lock is held.
func (o *outbound) gone() {
	for _, id := range sched.Ones(o.copies.to) {
		if p := o.t.paths[id]; p == nil || p.fd < 0 {
			o.copies.to &^= 1 << id
		}
	}
	if o.copies.to != 0 {
		return
	}
	for _, pc := range o.copies.pieces {
		o.t.arena.release(pc.e)
	}
	o.copies.pieces = o.copies.pieces[:0]
}

// copy takes packets off the queue for all paths that are to have them, when the fastest
// has room.
func (o *outbound) copy(now time.Duration) bool {
	t := o.t
	e := o.queue[o.head]
	var room int
	o.copies.to, room = t.send.Copies(now, e.split.Bytes(e.next)+wire.HeaderBytes, t.cfg.Copies == 2)
	if o.copies.to == 0 {
		return false
	}
	room = min(room, copiesBytes)
	for packets := 0; o.waiting() && room > 0 && packets < batchPackets; {
		e := o.queue[o.head]
		n := 0
		for size := 0; e.next+n < e.count && packets < batchPackets; n++ {
			if size = e.split.Bytes(e.next+n) + wire.HeaderBytes; size > room && packets > 0 {
				break
			}
			room -= size
			packets++
		}
		if n == 0 {
			break
		}
		seq, before := o.number(e, n)
		e.refs++
		o.copies.pieces = append(o.copies.pieces, piece{e: e, first: e.next, n: n, seq: seq, before: before})
		for range n {
			o.bytes -= e.split.Bytes(e.next)
			e.next++
		}
		if e.next == e.count {
			o.pop(e)
		}
	}
	return len(o.copies.pieces) > 0
}
