package sched

import "time"

// acknowledge frees what was sent up to path sequence number highest, and tells
// when that was sent.
func (p *Path) acknowledge(highest uint32) (time.Duration, bool) {
	var at time.Duration
	some := false
	for {
		s := p.sends.first()
		if s == nil || int32(s.end-1-highest) > 0 {
			if s != nil && int32(s.begin()-highest) <= 0 { // a part of the run
				at, some = s.at, true
			}
			return at, some
		}
		at, some = s.at, true
		if p.sent == 0 {
			p.gap = 0
			p.sentFrom, p.sentFirst = s.at, s.bytes
		}
		p.gap = max(p.gap, s.at-p.sentTo)
		p.sent += s.bytes
		p.sentTo = s.at
		p.inflight -= p.sends.drop()
	}
}

// send is one run.
type send struct {
	end     uint32 // behind its last path sequence number
	packets uint32
	at      time.Duration
	bytes   int
}

func (s *send) begin() uint32 { return s.end - s.packets }

// sends is a queue of the runs that are not acknowledged.
type sends struct {
	ring     [2048]send
	from, to uint32
}

func (q *sends) full() bool { return q.to-q.from == uint32(len(q.ring)) }

func (q *sends) add(s send) {
	q.ring[q.to%uint32(len(q.ring))] = s
	q.to++
}

func (q *sends) first() *send {
	if q.from == q.to {
		return nil
	}
	return &q.ring[q.from%uint32(len(q.ring))]
}

// drop forgets the first and returns its bytes.
func (q *sends) drop() int {
	s := q.first()
	q.from++
	return s.bytes
}
