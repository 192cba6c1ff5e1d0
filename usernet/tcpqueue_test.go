package usernet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// The queue toward the host is compared with plain bytes.
func TestOutQueueAgainstBytes(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			p := newTestPool(t, smallBytes, 64)
			var q outQueue
			var plain []byte
			for range 5000 {
				switch r.IntN(3) {
				case 0:
					data := make([]byte, 1+r.IntN(600))
					for i := range data {
						data[i] = byte(r.Uint32())
					}
					if !q.append(data) {
						b := p.get()
						if b == nil {
							continue
						}
						from := r.IntN(100)
						q.push(outChunk{buf: b, from: from, to: from + copy(b.mem[from:], data)})
					}
					plain = append(plain, data...)
				case 1:
					if q.bytes == 0 {
						continue
					}
					c := q.front()
					n := r.IntN(c.to - c.from + 1)
					if got := c.buf.mem[c.from : c.from+n]; !bytes.Equal(got, plain[:n]) {
						t.Fatal("the front has other bytes")
					}
					q.take(n)
					plain = plain[n:]
				case 2:
					if r.IntN(200) == 0 {
						q.clear()
						plain = nil
					}
				}
				if q.bytes != len(plain) {
					t.Fatalf("%d bytes queued, want %d", q.bytes, len(plain))
				}
				if q.bytes == 0 && p.used != 0 {
					t.Fatalf("an empty queue keeps %d buffers", p.used)
				}
			}
			q.clear()
			if p.used != 0 {
				t.Errorf("%d buffers were not freed", p.used)
			}
		})
	}
}

func TestOutQueueUrgentByte(t *testing.T) {
	p := newTestPool(t, smallBytes, 4)
	var q outQueue
	if q.append([]byte("x")) {
		t.Error("append succeeds on an empty queue")
	}
	b := p.get()
	q.push(outChunk{buf: b, to: copy(b.mem, "!"), urgent: true})
	if q.append([]byte("x")) {
		t.Error("a byte was appended to the urgent one")
	}
	q.clear()
}

// Frames on their way to the guest, with sequence numbers that wrap.
func TestSentQueueAcknowledge(t *testing.T) {
	for _, start := range []uint32{0, 1 << 31, ^uint32(500), ^uint32(0)} {
		t.Run(fmt.Sprintf("%#x", start), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(start), 0))
			p := newTestPool(t, smallBytes, 64)
			var q sentQueue
			una, next := start, start
			var ends []uint32
			for range 5000 {
				if r.IntN(2) == 0 {
					if b := p.get(); b != nil {
						n := 1 + r.IntN(1000)
						q.push(sentFrame{buf: b, seq: next, payload: n})
						next += uint32(n)
						ends = append(ends, next)
					}
				} else if next != una {
					una += uint32(r.IntN(int(next-una) + 1))
					q.acknowledge(una)
					for len(ends) > 0 && !before(una, ends[0]) {
						ends = ends[1:]
					}
				}
				if q.len() != len(ends) || p.used != len(ends) {
					t.Fatalf("%d frames, %d buffers, want %d", q.len(), p.used, len(ends))
				}
				if len(ends) > 0 {
					head := &q.frames[q.head]
					if head.seq+uint32(head.payload) != ends[0] {
						t.Fatalf("the oldest ends at %d, want %d", head.seq+uint32(head.payload), ends[0])
					}
				}
			}
			q.clear()
			if p.used != 0 || q.len() != 0 || q.bytes != 0 {
				t.Errorf("left at the end: %d buffers, %d frames, %d bytes", p.used, q.len(), q.bytes)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	b := &buffer{mem: make([]byte, 100)}
	other := make([]byte, 100)
	tests := []struct {
		name string
		b    *buffer
		data []byte
		from int
		ok   bool
	}{
		{"all", b, b.mem, 0, true},
		{"the middle", b, b.mem[10:20], 10, true},
		{"the end", b, b.mem[99:], 99, true},
		{"nothing", b, b.mem[10:10], 0, false},
		{"elsewhere", b, other[10:20], 0, false},
		{"a larger slice elsewhere", b, make([]byte, 200), 0, false},
		{"no buffer", nil, b.mem, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			from, ok := within(tt.b, tt.data)
			if ok != tt.ok || ok && from != tt.from {
				t.Errorf("got %d, %v, want %d, %v", from, ok, tt.from, tt.ok)
			}
		})
	}
}

func TestBeforeWraps(t *testing.T) {
	tests := []struct {
		a, b uint32
		want bool
	}{
		{0, 0, false}, {0, 1, true}, {1, 0, false},
		{^uint32(0), 0, true}, {0, ^uint32(0), false},
		{0, 1<<31 - 1, true}, {1<<31 - 1, 0, false},
		{1 << 31, 1<<31 + 5, true}, {^uint32(9), 5, true},
	}
	for _, tt := range tests {
		if got := before(tt.a, tt.b); got != tt.want {
			t.Errorf("before(%#x, %#x) = %v", tt.a, tt.b, got)
		}
	}
}
