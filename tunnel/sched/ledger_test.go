package sched

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// TestCredible checks that counters in a report are believed only as far as they fit what
// was sent.
func TestCredible(t *testing.T) {
	for _, tt := range []struct {
		name           string
		packets, bytes uint32 // of the second report; the first has 10 and 10,000
		came, size     uint64 // believed of the second report
	}{
		{"as sent", 20, 20_000, 10, 10_000},
		{"some packets lost", 15, 15_000, 5, 5_000},
		{"counters restarted", 10, 10_000, 0, 0},
		{"counters restarted at zero", 0, 0, 0, 0},
		{"far too many", 1 << 30, 1 << 30, 10 + straySlackPackets, 10_000 + straySlackBytes},
		{"backwards", 5, 5_000, 0, 0},
	} {
		p := newSender(1).Path(0)
		p.Sent(0, 10, 10_000)
		p.Report(5*ms, Report{HighestSeq: 9, Packets: 10, Bytes: 10_000, Arrived: 5000})
		p.Sent(5*ms, 10, 10_000)
		p.Report(30*ms, Report{HighestSeq: 19, Packets: tt.packets, Bytes: tt.bytes, Arrived: 30_000})
		if came, size := p.ledger.deliveredPackets-10, p.ledger.deliveredBytes-10_000; came != tt.came || size != tt.size {
			t.Errorf("%s: counted %d packets and %d bytes, want %d and %d", tt.name, came, size, tt.came, tt.size)
		}
		if most := 1e9; p.pacer.rate > most || p.ledger.goodput.rate > most {
			t.Errorf("%s: rate is %v B/s, goodput %v B/s", tt.name, p.pacer.rate, p.ledger.goodput.rate)
		}
		// The next report counts as usual.
		before := p.ledger.deliveredPackets
		p.Sent(30*ms, 10, 10_000)
		p.Report(40*ms, Report{HighestSeq: 29, Packets: tt.packets + 10, Bytes: tt.bytes + 10_000, Arrived: 40_000})
		if p.ledger.deliveredPackets-before != 10 {
			t.Errorf("%s: next report counted %d packets, want 10", tt.name, p.ledger.deliveredPackets-before)
		}
	}
}

// TestLateAfterDeath checks that packets delivered after a path was declared dead are
// counted.
func TestLateAfterDeath(t *testing.T) {
	s := newSender(2)
	p := s.Path(0)
	p.Sent(0, 1, 1000)
	p.Report(5*ms, Report{HighestSeq: 0, Packets: 1, Bytes: 1000})
	p.Sent(5*ms, 1000, 1_000_000)
	s.Kill(0)
	p.Report(30*ms, Report{HighestSeq: 1000, Packets: 1001, Bytes: 1_001_000, Arrived: 30_000})
	if p.ledger.deliveredBytes != 1_001_000 || p.ledger.strayBytes != 0 {
		t.Errorf("%d bytes delivered, %d stray bytes left, want 1001000 and 0", p.ledger.deliveredBytes, p.ledger.strayBytes)
	}
	for range 100 {
		p.Sent(40*ms, 1, 1<<20)
		p.markDead(true)
	}
	if p.ledger.strayBytes != maxStrayBytes {
		t.Errorf("%d stray bytes, want at most %d", p.ledger.strayBytes, maxStrayBytes)
	}
}

// FuzzReport lets a hostile peer send any reports about paths in use.
func FuzzReport(f *testing.F) {
	f.Add([]byte{0, 10, 1, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 39, 16, 0, 0, 1, 0, 0, 0, 0, 5})
	f.Add([]byte{0, 255, 1, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 127, 255, 255, 255, 2, 90, 0, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		s := &Sender{MaxInFlightBytes: 1 << 20}
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
			case 1: // random
				w := take(24)
				word := func(i int) uint32 { return binary.BigEndian.Uint32(w[4*i:]) }
				p.Report(now, Report{HighestSeq: word(0), Packets: word(1), Bytes: word(2), Arrived: word(3), MinDelay: int32(word(4)), CheckedUntil: word(5)})
			case 2: // about what was sent, with random counters
				w := take(12)
				word := func(i int) uint32 { return binary.BigEndian.Uint32(w[4*i:]) }
				p.Report(now, Report{HighestSeq: uint32(p.NextSeq() - 1), Packets: word(0), Bytes: word(1), Arrived: uint32(now / time.Microsecond), MinDelay: int32(word(2))})
			case 3: // honest
				p.Report(now, Report{HighestSeq: uint32(p.NextSeq() - 1), Packets: uint32(p.NextSeq()), Bytes: uint32(p.NextSeq()) * 1500, Arrived: uint32(now / time.Microsecond), MinDelay: 1000})
			case 4:
				now += time.Duration(op[1]) * time.Millisecond
			case 5:
				s.Check(now)
			case 6:
				s.HeadWait = time.Duration(op[1]) * time.Millisecond
				s.Pick(now, 0, 1500)
				s.PickResend(now, 0, 1500)
			case 7:
				p.AddRTT(time.Duration(op[1]) * time.Millisecond)
			}
			for id, p := range s.Paths() {
				if math.IsNaN(p.pacer.rate) || p.pacer.rate < minRate || p.pacer.rate > 1e12 {
					t.Fatalf("path %d has a rate of %v B/s", id, p.pacer.rate)
				}
				if math.IsNaN(p.pacer.backlogBytes) || math.IsInf(p.pacer.backlogBytes, 0) || p.ledger.inFlightBytes < 0 || p.ledger.strayBytes < 0 || p.ledger.deliveredBytes > sent[id]+uint64(straySlackBytes)*uint64(p.NextSeq()+256) {
					t.Fatalf("path %d: backlog %v, %d bytes in flight, %d stray, %d of %d delivered", id, p.pacer.backlogBytes, p.ledger.inFlightBytes, p.ledger.strayBytes, p.ledger.deliveredBytes, sent[id])
				}
			}
			s.Rate()
			s.Spread()
			s.RoomAt(now, 1)
		}
	})
}
