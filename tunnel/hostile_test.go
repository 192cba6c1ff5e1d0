package tunnel_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel"
	"cleat/tunnel/tunneltest"
	"cleat/tunnel/wire"
)

// packetsToTry is how many packets a hostile network invents: CLEAT_FUZZ_PACKETS, or what
// takes a second or two.
func packetsToTry(t testing.TB) int {
	t.Helper()
	s := os.Getenv("CLEAT_FUZZ_PACKETS")
	if s == "" {
		return 100_000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("CLEAT_FUZZ_PACKETS: %v", err)
	}
	return n
}

// forgedFrom is where the numbers of packets begin that no end has sent.
const forgedFrom = 1 << 40

// forger invents packets for a world. It is told what passes, if it is on the paths.
type forger struct {
	*rand.Rand
	w      *world
	onPath bool // it sees the packets, and may send them again and altered

	mu   sync.Mutex
	seen []seen // a ring
	n    int
}

// seen is a packet that has passed.
type seen struct {
	path int
	to   tunneltest.Side
	b    []byte
}

func newForger(w *world, seed uint64, onPath bool) *forger {
	f := &forger{Rand: rand.New(rand.NewPCG(seed, 0)), w: w, onPath: onPath}
	if !onPath {
		return f
	}
	f.seen = make([]seen, 1<<12)
	for i, p := range w.paths {
		p.SetTap(func(to tunneltest.Side, b []byte) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.seen[f.n%len(f.seen)] = seen{i, to, bytes.Clone(b)}
			f.n++
		})
	}
	return f
}

// some is a packet that has passed, an old one or a recent one; nil: none has.
func (f *forger) some() *seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(f.n, len(f.seen))
	if n == 0 {
		return nil
	}
	if f.IntN(2) == 0 {
		n = min(n, 16)
	}
	s := f.seen[(f.n-1-f.IntN(n))%len(f.seen)]
	return &seen{s.path, s.to, bytes.Clone(s.b)}
}

// bytes are n random bytes.
func (f *forger) bytes(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], f.Uint64())
		copy(b[i:], w[:])
	}
	return b
}

// inner is a packet of the inner network that no end has sent.
func (f *forger) inner() []byte { return datagram(forgedFrom+f.Uint64N(1<<20), f.IntN(1300)) }

// send sends one invented packet.
func (f *forger) send() {
	path, to := f.IntN(len(f.w.paths)), tunneltest.Side(f.IntN(2))
	b := f.invent()
	if f.onPath && f.IntN(3) > 0 {
		if s := f.some(); s != nil {
			path, to, b = s.path, s.to, f.alter(s.b)
			switch f.IntN(4) {
			case 0:
				path = f.IntN(len(f.w.paths))
			case 1:
				to = to.Other()
			}
		}
	}
	f.w.paths[path].Flood(to, b)
}

// invent makes a packet up.
func (f *forger) invent() []byte {
	switch f.IntN(10) {
	case 0:
		return f.bytes(f.IntN(1400))
	case 1: // the compat form, numbered or not
		var h [16]byte
		g := packet.GRE{Protocol: packet.EtherTypeIPv4, HasSeq: f.IntN(4) > 0, HasKey: f.IntN(4) == 0, Key: 7, Seq: f.Uint32()}
		return append(h[:g.Put(h[:])], f.inner()...)
	case 2: // MPT's keepalive
		return append([]byte{0, 0, 0x08, 0, 0xa1, 0, 0, 0}, f.bytes(40)...)
	case 3: // version 1
		return append([]byte{0x10, 0, 0x88, 0xb5}, f.bytes(16+f.IntN(200))...)
	case 4: // a greeting, of any version and kind
		b := wire.AppendHello(nil)
		if f.IntN(8) == 0 {
			b[4] = byte(f.IntN(256))
		}
		return append(append(b, byte(f.IntN(3))), f.bytes(f.IntN(300))...)
	case 5: // control messages
		b := f.header(wire.Control)
		for range f.IntN(20) {
			b = wire.Append(b, wire.Type(f.IntN(10)), f.bytes(f.IntN(30)))
		}
		return b
	}
	return append(f.header(wire.Kind(f.IntN(3))), f.inner()...)
}

// header is that of a session, whose tag has to be guessed.
func (f *forger) header(kind wire.Kind) []byte {
	s := wire.Shim{Tag: f.Uint32(), PathSeq: f.Uint32N(1 << 16), Path: uint8(f.IntN(4)), Kind: kind, Flags: uint8(f.IntN(4)), Seq: f.Uint32N(1 << 16), Before: uint16(f.IntN(4))}
	b := make([]byte, wire.HeaderBytes)
	s.Put(b)
	return b
}

// alter leaves a packet that has passed as it is, or not.
func (f *forger) alter(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	switch f.IntN(8) {
	case 0, 1: // a replay
	case 2:
		b = b[:f.IntN(len(b))]
	case 3:
		b = append(b, f.bytes(1+f.IntN(50))...)
	case 4: // the header of one, the rest of another
		if s := f.some(); s != nil && len(s.b) > wire.ClearBytes && len(b) > wire.ClearBytes {
			b = append(b[:wire.ClearBytes:wire.ClearBytes], s.b[wire.ClearBytes:]...)
		}
	case 5: // another number, path or tag
		b[f.IntN(min(len(b), wire.ClearBytes))] ^= 1 << f.IntN(8)
	default:
		for range 1 + f.IntN(4) {
			b[f.IntN(len(b))] ^= byte(1 + f.IntN(255))
		}
	}
	return b
}

// TestHostileNetwork has a network invent packets, send others again, altered, cut and by
// other paths, on sessions of each form while they carry traffic. Nothing comes out that the
// other end has not sent, nothing grows, and the sessions go on as they were. In the compat
// form, and without a key for who is on the paths, the first of these is not promised.
func TestHostileNetwork(t *testing.T) {
	key := uint32(7)
	for _, tt := range []struct {
		name   string
		cfg    tunnel.Config
		keyed  bool
		onPath bool
		share  int // of the packets, in tenths
	}{
		{"with a key, on the paths", tunnel.Config{}, true, true, 5},
		{"without a key, off the paths", tunnel.Config{}, false, false, 3},
		{"without a key, on the paths", tunnel.Config{}, false, true, 1},
		{"compat", tunnel.Config{Form: tunnel.Compat, CompatKey: &key}, false, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.cfg, 3)
			if tt.keyed {
				w.keyed()
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			f := newForger(w, seed, tt.onPath)
			w.up().pass()
			h := newHealth(t, w)
			trusted := tt.keyed || !tt.onPath
			for i := range packetsToTry(t) * tt.share / 10 {
				if f.send(); i%64 == 0 {
					w.sendOne(i / 64 % 2)
				}
			}
			w.calm(trusted)
			if w.passes(10 * time.Second); trusted {
				w.pass()
				w.genuine()
			}
			h.check(t, w, trusted)
		})
	}
}

// genuine fails the test where a packet came that no end has sent, or twice.
func (w *world) genuine() {
	w.t.Helper()
	for i, e := range w.ends {
		e.mu.Lock()
		for number, n := range e.got {
			if number >= w.next || n > 1 {
				w.t.Errorf("end %d got packet %d %d times; %d were sent", i, number, n, w.next)
			}
		}
		e.mu.Unlock()
	}
}

// calm waits until what was invented has been read, and, where the paths can be trusted to
// say so, all of them are in use.
func (w *world) calm(trusted bool) {
	w.t.Helper()
	for _, p := range w.paths {
		p.SetTap(func(tunneltest.Side, []byte) {})
	}
	w.wait("the paths to be in use", time.Minute, func() bool {
		for _, p := range w.paths {
			if p.Waiting() > 0 {
				return false
			}
		}
		for _, e := range w.ends {
			for _, p := range e.tunnel.Status().Paths {
				if trusted && !p.Live {
					return false
				}
			}
		}
		return true
	})
}

// health is what must not change for a hostile network's sake.
type health struct {
	files, routines int
	heap            uint64
	lives           [2]uint64
	ids             [2]string
}

func newHealth(t *testing.T, w *world) health {
	t.Helper()
	h := health{files: descriptors(t), routines: runtime.NumGoroutine(), heap: heap()}
	for i, e := range w.ends {
		h.lives[i], h.ids[i] = e.tunnel.Life(), e.tunnel.Status().KeyID
	}
	return h
}

// heap is the memory in use, in bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// heapMost is by how much more may be in use: packets that wait to be put in order, and the
// replay windows of every path that a header can name.
const heapMost = 32 << 20

func (h health) check(t *testing.T, w *world, trusted bool) {
	t.Helper()
	now := newHealth(t, w)
	if now.files != h.files || now.routines > h.routines || now.heap > h.heap+heapMost {
		t.Errorf("%d descriptors, %d goroutines and %d bytes became %d, %d and %d", h.files, h.routines, h.heap, now.files, now.routines, now.heap)
	}
	// A flood that leaves no room for true packets for long may have the ends make new keys.
	if trusted && (now.lives != h.lives || now.ids[0] != now.ids[1]) {
		t.Errorf("lives %x and keys %v became %x and %v", h.lives, h.ids, now.lives, now.ids)
	}
	for i, e := range w.ends {
		e.mu.Lock()
		for _, v := range e.events {
			if v.What == tunnel.Restarted || v.What == tunnel.Expired || trusted && v.What == tunnel.FellBack {
				t.Errorf("end %d: %v", i, v)
			}
		}
		e.mu.Unlock()
		s, other := e.tunnel.Status(), w.ends[1-i].tunnel.Status()
		if most := other.Read + other.Resent; trusted && s.Received > most {
			t.Errorf("end %d took %d packets, the other sent %d", i, s.Received, most)
		}
		if trusted && s.Strange == 0 {
			t.Errorf("end %d saw nothing strange: the test proves nothing", i)
		}
		if s.Order.WaitBytes > 64<<20 || s.KeptBytes > 64<<20 {
			t.Errorf("end %d: %d bytes wait, %d are kept", i, s.Order.WaitBytes, s.KeptBytes)
		}
	}
}
