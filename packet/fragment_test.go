package packet

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// fragments splits a packet into fragments.
func fragments(t testing.TB, pkt []byte, id uint32, mtu int) [][]byte {
	t.Helper()
	var p IP
	if err := ParseIP(pkt, &p); err != nil {
		t.Fatal(err)
	}
	p.ID = id
	var f Fragmenter
	if err := f.Start(&p, p.Payload, mtu); err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	b := make([]byte, mtu+FragmentBytes)
	for n := f.Next(b); n > 0; n = f.Next(b) {
		if n > mtu {
			t.Fatalf("fragment of %d bytes, MTU %d", n, mtu)
		}
		all = append(all, slices.Clone(b[:n]))
	}
	return all
}

// add passes a fragment to r.
func add(t testing.TB, r *Reassembler, now time.Duration, b []byte) ([]byte, error) {
	t.Helper()
	var p IP
	if err := ParseIP(b, &p); err != nil {
		t.Fatal(err)
	}
	if !p.IsFragment() {
		t.Fatal("not a fragment")
	}
	return r.Add(now, &p)
}

func TestFragmentAndReassemble(t *testing.T) {
	orders := map[string]func([][]byte){
		"in order":   func([][]byte) {},
		"backwards":  slices.Reverse[[][]byte],
		"first last": func(f [][]byte) { f[0], f[len(f)-1] = f[len(f)-1], f[0] },
		"any order": func(f [][]byte) {
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(f), func(i, j int) { f[i], f[j] = f[j], f[i] })
		},
		"pairs turned": func(f [][]byte) {
			for i := 0; i+1 < len(f); i += 2 {
				f[i], f[i+1] = f[i+1], f[i]
			}
		},
	}
	for _, is4 := range []bool{true, false} {
		for _, size := range []int{1500, 4093, 65507} {
			for _, mtu := range []int{1280, 1500, 9000} {
				if size == 65507 && !is4 {
					size = 65527
				}
				pkt := udpPacket(is4, noise(size))
				if len(pkt) <= mtu {
					continue // one packet
				}
				for order, shuffle := range orders {
					t.Run(fmt.Sprintf("IPv4 %v, %d bytes by %d, %s", is4, size, mtu, order), func(t *testing.T) {
						pieces := fragments(t, pkt, 77, mtu)
						if len(pieces) < 2 {
							t.Fatalf("%d pieces", len(pieces))
						}
						shuffle(pieces)
						r := NewReassembler(1<<20, 0)
						for i, b := range pieces {
							whole, err := add(t, r, 0, b)
							if err != nil {
								t.Fatal(err)
							}
							if (whole != nil) != (i == len(pieces)-1) {
								t.Fatalf("after fragment %d of %d: whole %v", i+1, len(pieces), whole != nil)
							}
							if whole != nil {
								p := parse(t, whole)
								if !bytes.Equal(p.Payload, pkt[IPBytes(p.Src):]) || p.IsFragment() {
									t.Error("payload changed")
								}
							}
						}
						if r.Pending() != 0 || r.Bytes() != 0 {
							t.Errorf("%d datagrams, %d bytes stay behind", r.Pending(), r.Bytes())
						}
					})
				}
			}
		}
	}
}

// piece returns a fragment of n bytes of value fill.
func piece(is4 bool, id uint32, offset, n int, more bool, fill byte) []byte {
	src, dst := addresses(is4)
	p := IP{Src: src, Dst: dst, Protocol: UDP, TTL: 9, Offset: offset, More: more, ID: id}
	b := make([]byte, 100+n)
	at := p.Put(b, n)
	for i := range n {
		b[at+i] = fill
	}
	return b[:at+n]
}

func TestReassemblyOfHostileFragments(t *testing.T) {
	type frag struct {
		offset, n int
		more      bool
		fill      byte
		err       error
		whole     bool
	}
	tests := []struct {
		name  string
		frags []frag
	}{
		{"an exact copy", []frag{{0, 16, true, 1, nil, false}, {0, 16, true, 1, nil, false}, {16, 3, false, 1, nil, true}}},
		{"an exact copy of the end", []frag{{16, 3, false, 1, nil, false}, {16, 3, false, 1, nil, false}, {0, 16, true, 1, nil, true}}},
		{"a copy with other bytes", []frag{{0, 16, true, 1, nil, false}, {0, 16, true, 2, ErrBad, false}, {16, 3, false, 1, ErrBad, false}}},
		{"an overlap at the end", []frag{{0, 16, true, 1, nil, false}, {8, 16, true, 1, ErrBad, false}, {24, 3, false, 1, ErrBad, false}}},
		{"an overlap at the front", []frag{{16, 16, true, 1, nil, false}, {8, 16, true, 1, ErrBad, false}}},
		{"one around another", []frag{{16, 8, true, 1, nil, false}, {0, 64, true, 1, ErrBad, false}}},
		{"one inside another", []frag{{0, 64, true, 1, nil, false}, {16, 8, true, 2, ErrBad, false}}},
		{"a second, nearer end", []frag{{32, 8, false, 1, nil, false}, {16, 8, false, 1, ErrBad, false}}},
		{"a second, farther end", []frag{{32, 8, false, 1, nil, false}, {40, 8, false, 1, ErrBad, false}}},
		{"an end before what is there", []frag{{32, 8, true, 1, nil, false}, {8, 8, false, 1, ErrBad, false}}},
		{"more behind the end", []frag{{8, 5, false, 1, nil, false}, {16, 8, true, 1, ErrBad, false}}},
		{"a long copy of a short end", []frag{{8, 5, false, 1, nil, false}, {8, 8, true, 1, ErrBad, false}}},
		{"an end that becomes a middle", []frag{{8, 8, false, 1, nil, false}, {8, 8, true, 1, ErrBad, false}}},
		{"a middle that becomes the end", []frag{{8, 8, true, 1, nil, false}, {8, 8, false, 1, ErrBad, false}}},
		{"odd length in the middle", []frag{{0, 12, true, 1, ErrBad, false}}},
		{"nothing", []frag{{8, 0, true, 1, ErrBad, false}}},
		{"beyond 65,535 bytes", []frag{{65528, 8, false, 1, ErrBad, false}}},
		{"exactly the tiny pieces", []frag{{0, 8, true, 1, nil, false}, {8, 8, true, 1, nil, false}, {16, 1, false, 1, nil, true}}},
	}
	for _, tt := range tests {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %v", tt.name, is4), func(t *testing.T) {
				r := NewReassembler(1<<20, 0)
				for i, f := range tt.frags {
					whole, err := add(t, r, 0, piece(is4, 5, f.offset, f.n, f.more, f.fill))
					if !errors.Is(err, f.err) || (whole != nil) != f.whole {
						t.Errorf("fragment %d: whole %v, error %v; want %v, %v", i, whole != nil, err, f.whole, f.err)
					}
				}
				r.Expire(reassemblyTime, nil)
				if r.Pending() != 0 || r.Bytes() != 0 {
					t.Errorf("%d datagrams, %d bytes stay behind", r.Pending(), r.Bytes())
				}
			})
		}
	}
}

func TestReassemblyKeepsDatagramsApart(t *testing.T) {
	r := NewReassembler(1<<20, 0)
	for id := range uint32(100) {
		if _, err := add(t, r, 0, piece(true, id, 0, 8, true, byte(id))); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint32(100) {
		whole, err := add(t, r, 0, piece(true, id, 8, 8, false, byte(id)))
		if err != nil || !bytes.Equal(whole[IPv4Bytes:], bytes.Repeat([]byte{byte(id)}, 16)) {
			t.Fatalf("datagram %d: % x, %v", id, whole, err)
		}
	}
}

func TestReassemblyExpires(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		r := NewReassembler(1<<20, 0)
		_, _ = add(t, r, 0, piece(is4, 1, 0, 16, true, 1))
		_, _ = add(t, r, 0, piece(is4, 1, 24, 8, true, 1))
		_, _ = add(t, r, time.Second, piece(is4, 2, 8, 16, true, 1))
		var reported [][]byte
		report := func(b []byte) { reported = append(reported, b) }
		r.Expire(reassemblyTime-1, report)
		if r.Pending() != 2 || len(reported) != 0 {
			t.Fatalf("too early: %d pending, %d reported", r.Pending(), len(reported))
		}
		r.Expire(reassemblyTime, report)
		if r.Pending() != 1 || len(reported) != 1 {
			t.Fatalf("in time: %d pending, %d reported", r.Pending(), len(reported))
		}
		p := parse(t, reported[0])
		if !p.More || p.Offset != 0 || !bytes.Equal(p.Payload, bytes.Repeat([]byte{1}, 16)) {
			t.Errorf("reported %+v", p)
		}
		r.Expire(reassemblyTime+time.Second, report)
		if r.Pending() != 0 || r.Bytes() != 0 || len(reported) != 1 {
			t.Errorf("in the end: %d pending, %d bytes, %d reported", r.Pending(), r.Bytes(), len(reported))
		}
		// A late fragment does not complete a datagram that was removed.
		if whole, err := add(t, r, 2*reassemblyTime, piece(is4, 1, 16, 8, true, 1)); whole != nil || err != nil {
			t.Errorf("late: %v, %v", whole, err)
		}
	}
}

func TestReassemblyLeavesHeadroom(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		r := NewReassembler(1<<20, VNetHdrBytes)
		_, _ = add(t, r, 0, piece(is4, 1, 8, 1, false, 2))
		whole, err := add(t, r, 0, piece(is4, 1, 0, 8, true, 1))
		if err != nil || !bytes.Equal(whole[:VNetHdrBytes], make([]byte, VNetHdrBytes)) {
			t.Fatalf("% x, %v", whole, err)
		}
		if p := parseHeader(t, whole[VNetHdrBytes:]); !bytes.Equal(p.Payload, []byte{1, 1, 1, 1, 1, 1, 1, 1, 2}) {
			t.Errorf("payload % x", p.Payload)
		}
		_, _ = add(t, r, 0, piece(is4, 2, 0, 8, true, 1))
		r.Expire(reassemblyTime, func(first []byte) {
			if p := parseHeader(t, first[VNetHdrBytes:]); len(p.Payload) != 8 {
				t.Errorf("first fragment %+v", p)
			}
		})
	}
}

func TestReassemblyReusesID(t *testing.T) {
	r := NewReassembler(1<<20, 0)
	_, _ = add(t, r, 0, piece(true, 1, 0, 8, true, 1))
	if _, err := add(t, r, reassemblyTime, piece(true, 1, 0, 8, true, 2)); err != nil {
		t.Fatalf("a new datagram counts as part of one that is too old: %v", err)
	}
	whole, err := add(t, r, reassemblyTime, piece(true, 1, 8, 8, false, 2))
	if err != nil || whole == nil || whole[IPv4Bytes] != 2 {
		t.Errorf("% x, %v", whole, err)
	}
}

func TestReassemblyMemoryIsBounded(t *testing.T) {
	const limit = 200 << 10
	tests := []struct {
		name string
		next func(i int) []byte
	}{
		{"tiny beginnings", func(i int) []byte { return piece(true, uint32(i), 0, 8, true, 1) }},
		{"tiny ends of large datagrams", func(i int) []byte { return piece(false, uint32(i), 65520, 8, false, 1) }},
		{"large middles", func(i int) []byte { return piece(true, uint32(i), 1024, 32<<10, true, 1) }},
		{"contradictions", func(i int) []byte { return piece(true, uint32(i/2), i%2*8, 16, true, 1) }},
		{"old ones grow", func(i int) []byte { return piece(true, uint32(i%40), i/40*1024, 1024, true, 1) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReassembler(limit, 0)
			for i := range 2000 {
				_, _ = add(t, r, time.Duration(i), tt.next(i))
				if r.Bytes() > limit {
					t.Fatalf("%d bytes after %d fragments, limit %d", r.Bytes(), i+1, limit)
				}
				real := 0
				for _, d := range r.pending {
					real += datagramBytes + cap(d.data) + 8*len(d.have)
				}
				if real != r.Bytes() {
					t.Fatalf("counted %d bytes, there are %d", r.Bytes(), real)
				}
			}
		})
	}
}

func TestReassemblyWithoutRoom(t *testing.T) {
	r := NewReassembler(4096, 0)
	if _, err := add(t, r, 0, piece(true, 1, 8192, 8, false, 1)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("got %v, want ErrNoRoom", err)
	}
	if _, err := add(t, r, 0, piece(true, 2, 0, 8, true, 1)); err != nil {
		t.Errorf("a small one after that: %v", err)
	}
}

func TestReassemblyKeepsCongestionMarks(t *testing.T) {
	tests := []struct {
		name          string
		first, second uint8
		want          uint8
	}{
		{"none", 0xb8, 0xb8, 0xb8},
		{"on the first", 0xbb, 0xba, 0xbb},
		{"on the second", 0xba, 0xbb, 0xbb},
		{"different senders' marks are no congestion", 0xb9, 0xba, 0xb9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := NewReassembler(1<<20, 0)
			a, b := piece(false, 1, 0, 8, true, 1), piece(false, 1, 8, 8, false, 1)
			a[0], a[1] = 0x60|tt.first>>4, tt.first<<4
			b[0], b[1] = 0x60|tt.second>>4, tt.second<<4
			_, _ = add(t, r, 0, a)
			whole, err := add(t, r, 0, b)
			if err != nil {
				t.Fatal(err)
			}
			if p := parseHeader(t, whole); p.TOS != tt.want {
				t.Errorf("traffic class %#x, want %#x", p.TOS, tt.want)
			}
		})
	}
}

func TestFragmenterRefusesTooLarge(t *testing.T) {
	var f Fragmenter
	if err := f.Start(&IP{Src: guest4, Dst: peer4}, make([]byte, 65516), 1500); !errors.Is(err, ErrBad) {
		t.Errorf("IPv4: %v", err)
	}
	if err := f.Start(&IP{Src: guest6, Dst: peer6}, make([]byte, 65536), 1500); !errors.Is(err, ErrBad) {
		t.Errorf("IPv6: %v", err)
	}
}

// slowReassembly is the simple twin of Reassembler: a byte array with a mark for each
// byte, checked as a whole each time. It holds one datagram.
type slowReassembly struct {
	data   [maxDatagram + 1]byte
	have   [maxDatagram + 1]bool
	frags  [][2]int // offset, end
	length int
	dead   bool
}

func (s *slowReassembly) add(limit, offset int, more bool, b []byte) (whole []byte, bad bool) {
	end := offset + len(b)
	if len(b) == 0 || end > limit || more && len(b)%8 != 0 {
		return nil, true
	}
	if s.dead {
		return nil, true
	}
	marked, same := 0, true
	for i := offset; i < end; i++ {
		if s.have[i] {
			marked++
			same = same && s.data[i] == b[i-offset]
		}
	}
	far := 0
	for _, f := range s.frags {
		far = max(far, f[1])
	}
	switch {
	case s.length > 0 && (end > s.length || !more && end != s.length || more && end == s.length), !more && end < far,
		marked > 0 && (marked < len(b) || !same || !more && s.length == 0):
		s.dead = true
		return nil, true
	case marked > 0:
		return nil, false
	}
	copy(s.data[offset:], b)
	for i := offset; i < end; i++ {
		s.have[i] = true
	}
	s.frags = append(s.frags, [2]int{offset, end})
	if !more {
		s.length = end
	}
	if s.length == 0 || slices.Contains(s.have[:s.length], false) {
		return nil, false
	}
	return s.data[:s.length], false
}

// FuzzReassembly reads triples of bytes as fragments of one datagram.
func FuzzReassembly(f *testing.F) {
	f.Add([]byte{0, 2, 1, 2, 2, 0})
	f.Add([]byte{1, 1, 4, 1, 1, 5, 0, 1, 1})
	f.Add([]byte{3, 1, 0, 1, 1, 1, 0, 3, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, is4 := range []bool{true, false} {
			limit := maxDatagram
			if is4 {
				limit -= IPv4Bytes
			}
			r, slow := NewReassembler(1<<20, 0), new(slowReassembly)
			for in := b; len(in) >= 3; in = in[3:] {
				// offset in blocks; length in bytes, a multiple of 8 unless odd; more and fill
				offset, n, more := int(in[0])*8, int(in[1])*8, in[2]&1 != 0
				if in[2]&2 != 0 {
					offset, n = 65536-8-offset, n-3
				}
				if n < 0 || offset == 0 && !more {
					continue
				}
				p := piece(is4, 1, offset, n, more, in[2]>>2)
				whole, err := add(t, r, 0, p)
				want, bad := slow.add(limit, offset, more, p[len(p)-n:])
				if (err != nil) != bad || (whole != nil) != (want != nil) {
					t.Fatalf("offset %d, %d bytes, more %v: whole %v, %v; the slow twin: %v, bad %v", offset, n, more, whole != nil, err, want != nil, bad)
				}
				if whole != nil {
					if ip := parseHeader(t, whole); !bytes.Equal(ip.Payload, want) {
						t.Fatal("put together differently from the slow twin")
					}
					slow = new(slowReassembly)
				}
			}
		}
	})
}

// parseHeader is parse without the transport checksum.
func parseHeader(t *testing.T, b []byte) IP {
	t.Helper()
	var p IP
	if err := ParseIP(b, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFragmenterAllocatesNothing(t *testing.T) {
	p := IP{Src: guest6, Dst: peer6, Protocol: UDP, TTL: 64, ID: 9}
	payload, b := noise(65000), make([]byte, 1500)
	allocs := testing.AllocsPerRun(10, func() {
		var f Fragmenter
		if err := f.Start(&p, payload, 1500); err != nil {
			t.Fatal(err)
		}
		for f.Next(b) > 0 {
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func BenchmarkReassemble(b *testing.B) {
	pieces := fragments(b, udpPacket(true, noise(65000)), 1, 1500)
	r := NewReassembler(1<<20, 0)
	b.SetBytes(65000)
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range pieces {
			if _, err := add(b, r, 0, f); err != nil {
				b.Fatal(err)
			}
		}
	}
}
