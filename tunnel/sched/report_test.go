package sched

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// TestCredible has the receiver's counters jump: what is believed stays within what was sent.
func TestCredible(t *testing.T) {
	for _, tt := range []struct {
		name           string
		packets, bytes uint32 // of the second report; the first had 10 and 10,000
		came, size     uint64 // believed of it
	}{
		{"as sent", 20, 20_000, 10, 10_000},
		{"some lost", 15, 15_000, 5, 5_000},
		{"the books began anew", 10, 10_000, 0, 0},
		{"the books began anew, at zero", 0, 0, 0, 0},
		{"far too much", 1 << 30, 1 << 30, 10 + strayPackets, 10_000 + strayBytes},
		{"backwards", 5, 5_000, 0, 0},
	} {
		p := sender(1).Path(0)
		p.Sent(0, 10, 10_000)
		p.Report(5*ms, Report{Highest: 9, Packets: 10, Bytes: 10_000, Arrived: 5000})
		p.Sent(5*ms, 10, 10_000)
		p.Report(30*ms, Report{Highest: 19, Packets: tt.packets, Bytes: tt.bytes, Arrived: 30_000})
		if came, size := p.delivered-10, p.deliveredBytes-10_000; came != tt.came || size != tt.size {
			t.Errorf("%s: %d packets and %d bytes came, want %d and %d", tt.name, came, size, tt.came, tt.size)
		}
		if most := 1e9; p.rate > most || p.goodput.rate > most {
			t.Errorf("%s: %v B/s may be sent, %v came", tt.name, p.rate, p.goodput.rate)
		}
		// The next report is like any other.
		before := p.delivered
		p.Sent(30*ms, 10, 10_000)
		p.Report(40*ms, Report{Highest: 29, Packets: tt.packets + 10, Bytes: tt.bytes + 10_000, Arrived: 40_000})
		if p.delivered-before != 10 {
			t.Errorf("%s: %d packets came next, want 10", tt.name, p.delivered-before)
		}
	}
}

// TestLateAfterDeath counts what a path delivers after it was taken for dead.
func TestLateAfterDeath(t *testing.T) {
	s := sender(2)
	p := s.Path(0)
	p.Sent(0, 1, 1000)
	p.Report(5*ms, Report{Highest: 0, Packets: 1, Bytes: 1000})
	p.Sent(5*ms, 1000, 1_000_000)
	s.Kill(0)
	p.Report(30*ms, Report{Highest: 1000, Packets: 1001, Bytes: 1_001_000, Arrived: 30_000})
	if p.deliveredBytes != 1_001_000 || p.stray != 0 {
		t.Errorf("%d bytes came, %d may still", p.deliveredBytes, p.stray)
	}
	for range 100 {
		p.Sent(40*ms, 1, 1<<20)
		s.bury(p, true)
	}
	if p.stray != strayMost {
		t.Errorf("%d bytes may still come, want %d at most", p.stray, strayMost)
	}
}

// FuzzReport has a peer report what it likes, of paths that are used meanwhile.
func FuzzReport(f *testing.F) {
	f.Add([]byte{0, 10, 1, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 39, 16, 0, 0, 1, 0, 0, 0, 0, 5})
	f.Add([]byte{0, 255, 1, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 127, 255, 255, 255, 2, 90, 0, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := &Sender{Inflight: 1 << 20}
		now := time.Second
		for id := range 2 {
			s.Add(now, id, 1, 0)
		}
		sent := [2]uint64{}
		take := func(n int) []byte {
			b := make([]byte, n)
			ops = ops[copy(b, ops):]
			return b
		}
		for len(ops) > 0 {
			op := take(2)
			id := int(op[0] >> 7)
			p := s.Path(id)
			switch op[0] & 7 {
			case 0:
				n := int(op[1]) + 1
				p.Sent(now, n, n*1500)
				sent[id] += uint64(n) * 1500
			case 1: // anything
				w := take(24)
				word := func(i int) uint32 { return binary.BigEndian.Uint32(w[4*i:]) }
				p.Report(now, Report{Highest: word(0), Packets: word(1), Bytes: word(2), Arrived: word(3), Delay: int32(word(4)), AsOf: word(5)})
			case 2: // of what was sent, with wild counters
				w := take(12)
				word := func(i int) uint32 { return binary.BigEndian.Uint32(w[4*i:]) }
				p.Report(now, Report{Highest: uint32(p.Seq() - 1), Packets: word(0), Bytes: word(1), Arrived: uint32(now / time.Microsecond), Delay: int32(word(2))})
			case 3: // the truth
				p.Report(now, Report{Highest: uint32(p.Seq() - 1), Packets: uint32(p.Seq()), Bytes: uint32(p.Seq()) * 1500, Arrived: uint32(now / time.Microsecond), Delay: 1000})
			case 4:
				now += time.Duration(op[1]) * time.Millisecond
			case 5:
				s.Check(now)
			case 6:
				s.Waited = time.Duration(op[1]) * time.Millisecond
				s.Pick(now, 0, 1500)
				s.PickAgain(now, 0, 1500)
			case 7:
				p.RTT(time.Duration(op[1]) * time.Millisecond)
			}
			for id, p := range s.Paths() {
				if math.IsNaN(p.rate) || p.rate < leastRate || p.rate > 1e12 {
					t.Fatalf("path %d may be sent %v B/s", id, p.rate)
				}
				if math.IsNaN(p.backlog) || math.IsInf(p.backlog, 0) || p.inflight < 0 || p.stray < 0 || p.deliveredBytes > sent[id]+uint64(strayBytes)*uint64(p.Seq()+256) {
					t.Fatalf("path %d: backlog %v, %d bytes in flight, %d may stray, %d of %d delivered", id, p.backlog, p.inflight, p.stray, p.deliveredBytes, sent[id])
				}
			}
			s.Rate()
			s.Spread()
			s.RoomAt(now)
		}
	})
}
