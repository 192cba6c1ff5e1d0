package tunnel

import (
	"time"

	"cleat/tunnel/sched"
	"cleat/tunnel/wire"
)

// copies are packets that are sent on several paths.
type copies struct {
	pieces  []piece
	pending uint64 // paths that still have to carry them
}

const maxCopyBytes = 64 << 10 // bytes of packets that are copied at a time

// prepareCopy prepares one path's copy of a run. If none is pending, it takes the next run
// off a lane, unless that is nil. It reports whether there is a copy. It is called with mu
// held.
func (o *outbound) prepareCopy(now time.Duration, l *lane[*entry]) bool {
	t := o.t
	if o.dropClosedCopies(); o.copies.pending == 0 && (l == nil || !o.startCopies(now, l)) {
		return false
	}
	id := sched.PathIDs(o.copies.pending)[0]
	o.copies.pending &^= 1 << id
	if t.sender.Path(id).SocketFull { // the other paths have room
		o.dropClosedCopies()
		return o.copies.pending != 0 && o.prepareCopy(now, nil)
	}
	o.batch.begin(t, t.paths[id])
	room := 1 << 20
	for i := range o.copies.pieces {
		pc := o.copies.pieces[i]
		for pc.n > 0 && o.batch.addResend(t, &pc, &room) {
		}
	}
	o.batch.record(t, t.sender.Path(id), now)
	o.batch.kept = false // other paths carry it too
	t.paths[id].carriedData, t.paths[id].lastDataAt, o.sentAt = true, now, now
	o.dropClosedCopies()
	return true
}

// dropClosedCopies removes paths without a socket from those that still have to carry the
// copies, and releases the packets when none are left. It is called with mu held.
func (o *outbound) dropClosedCopies() {
	for _, id := range sched.PathIDs(o.copies.pending) {
		if p := o.t.paths[id]; p == nil || p.fd < 0 {
			o.copies.pending &^= 1 << id
		}
	}
	if o.copies.pending != 0 {
		return
	}
	for _, pc := range o.copies.pieces {
		o.t.arena.release(pc.e)
	}
	o.copies.pieces = o.copies.pieces[:0]
}

// startCopies takes packets off a lane, which is not empty, for all paths that carry copies,
// if the best path has room. It is called with mu held.
func (o *outbound) startCopies(now time.Duration, l *lane[*entry]) bool {
	t := o.t
	e := l.first()
	var room int
	o.copies.pending, room = t.sender.CopyPaths(now, e.split.Bytes(e.next)+wire.HeaderBytes, t.cfg.Copies == 2)
	if o.copies.pending == 0 {
		return false
	}
	room = min(room, maxCopyBytes)
	for packets := 0; !l.empty() && room > 0 && packets < batchPackets; {
		e := l.first()
		n := 0
		for size := 0; e.next+n < e.count && packets < batchPackets; n++ {
			if size = e.split.Bytes(e.next+n) + wire.HeaderBytes; size > room && packets > 0 {
				break
			}
			room -= size
			o.queue.sent(l, size)
			packets++
		}
		if n == 0 {
			break
		}
		seq, flowDistance := o.assignSeqs(e, n)
		e.refs++
		o.copies.pieces = append(o.copies.pieces, piece{e: e, first: e.next, n: n, seq: seq, flowDistance: flowDistance})
		for range n {
			l.bytes -= e.split.Bytes(e.next)
			e.next++
		}
		if e.next == e.count {
			o.popEntry(l)
		}
	}
	return len(o.copies.pieces) > 0
}
