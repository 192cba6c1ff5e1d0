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

// forgedPackets returns how many packets a hostile network forges: CLEAT_FUZZ_PACKETS, or
// what takes a second or two.
func forgedPackets(t testing.TB) int {
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

// forgedFrom is the first number of packets that no end has sent.
const forgedFrom = 1 << 40

// forger forges packets for a harness. If it is on the paths, it sees the packets that
// pass.
type forger struct {
	*rand.Rand
	w      *harness
	onPath bool // it sees the packets, and may replay and alter them

	mu   sync.Mutex
	seen []recordedPacket // ring
	n    int
}

// recordedPacket is a packet that has passed.
type recordedPacket struct {
	path int
	to   tunneltest.Side
	b    []byte
}

func newForger(w *harness, seed uint64, onPath bool) *forger {
	f := &forger{Rand: rand.New(rand.NewPCG(seed, 0)), w: w, onPath: onPath}
	if !onPath {
		return f
	}
	f.seen = make([]recordedPacket, 1<<12)
	for i, p := range w.paths {
		p.SetTap(func(to tunneltest.Side, b []byte) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.seen[f.n%len(f.seen)] = recordedPacket{i, to, bytes.Clone(b)}
			f.n++
		})
	}
	return f
}

// recorded returns a packet that has passed, a recent or an older one, or nil.
func (f *forger) recorded() *recordedPacket {
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
	return &recordedPacket{s.path, s.to, bytes.Clone(s.b)}
}

// bytes returns n random bytes.
func (f *forger) bytes(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], f.Uint64())
		copy(b[i:], w[:])
	}
	return b
}

// innerPacket returns an inner packet that no end has sent.
func (f *forger) innerPacket() []byte { return datagram(forgedFrom+f.Uint64N(1<<20), f.IntN(1300)) }

// send sends one forged packet.
func (f *forger) send() {
	path, to := f.IntN(len(f.w.paths)), tunneltest.Side(f.IntN(2))
	b := f.invent()
	if f.onPath && f.IntN(3) > 0 {
		if s := f.recorded(); s != nil {
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

// invent makes up a packet.
func (f *forger) invent() []byte {
	switch f.IntN(10) {
	case 0:
		return f.bytes(f.IntN(1400))
	case 1: // compat form, with or without a sequence number
		var h [16]byte
		g := packet.GRE{Protocol: packet.EtherTypeIPv4, HasSeq: f.IntN(4) > 0, HasKey: f.IntN(4) == 0, Key: 7, Seq: f.Uint32()}
		return append(h[:g.Put(h[:])], f.innerPacket()...)
	case 2: // MPT's keepalive
		return append([]byte{0, 0, 0x08, 0, 0xa1, 0, 0, 0}, f.bytes(40)...)
	case 3: // version 1
		return append([]byte{0x10, 0, 0x88, 0xb5}, f.bytes(16+f.IntN(200))...)
	case 4: // a hello of any version and kind
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
	return append(f.header(wire.Kind(f.IntN(3))), f.innerPacket()...)
}

// header returns a session header with a guessed tag.
func (f *forger) header(kind wire.Kind) []byte {
	s := wire.Shim{Tag: f.Uint32(), PathSeq: f.Uint32N(1 << 16), Path: uint8(f.IntN(4)), Kind: kind, Flags: uint8(f.IntN(4)), Seq: f.Uint32N(1 << 16), FlowDistance: uint16(f.IntN(4))}
	b := make([]byte, wire.HeaderBytes)
	s.Put(b)
	return b
}

// alter returns a recorded packet, unchanged or altered.
func (f *forger) alter(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	switch f.IntN(8) {
	case 0, 1: // replay
	case 2:
		b = b[:f.IntN(len(b))]
	case 3:
		b = append(b, f.bytes(1+f.IntN(50))...)
	case 4: // header of one packet, rest of another
		if s := f.recorded(); s != nil && len(s.b) > wire.ClearBytes && len(b) > wire.ClearBytes {
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

// TestHostileNetwork attacks sessions of each form while they carry traffic: it forges
// packets, and replays, alters, truncates and redirects others. No packet may be
// delivered that the other end has not sent, no state may grow, and the sessions must
// survive. The first of these does not hold in the compat form, and without a key against
// an attacker on the paths.
func TestHostileNetwork(t *testing.T) {
	key := uint32(7)
	for _, tt := range []struct {
		name   string
		cfg    tunnel.Config
		keyed  bool
		onPath bool
		share  int // of the forged packets, in tenths
	}{
		{"with a key, on the paths", tunnel.Config{}, true, true, 5},
		{"without a key, off the paths", tunnel.Config{}, false, false, 3},
		{"without a key, on the paths", tunnel.Config{}, false, true, 1},
		{"compat", tunnel.Config{Form: tunnel.Compat, CompatKey: &key}, false, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newHarness(t, tt.cfg, 3)
			if tt.keyed {
				w.withKeys()
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			f := newForger(w, seed, tt.onPath)
			w.startBoth().passBothWays()
			h := newInvariants(t, w)
			trusted := tt.keyed || !tt.onPath
			for i := range forgedPackets(t) * tt.share / 10 {
				if f.send(); i%64 == 0 {
					w.sendOne(i / 64 % 2)
				}
			}
			w.settle(trusted)
			if w.waitTraffic(10 * time.Second); trusted {
				w.passBothWays()
				w.checkGenuine()
			}
			h.check(t, w, trusted)
		})
	}
}

// checkGenuine checks that no packet was delivered that no end has sent, or twice.
func (w *harness) checkGenuine() {
	w.t.Helper()
	for i, e := range w.ends {
		e.mu.Lock()
		for number, n := range e.got {
			if number >= w.next || n > 1 {
				w.t.Errorf("end %d received packet %d %d times; %d were sent", i, number, n, w.next)
			}
		}
		e.mu.Unlock()
	}
}

// settle waits until the forged packets have been read and, unless the attacker can fake
// reports, all paths are in use.
func (w *harness) settle(trusted bool) {
	w.t.Helper()
	for _, p := range w.paths {
		p.SetTap(func(tunneltest.Side, []byte) {})
	}
	w.wait("the paths to be in use", time.Minute, func() bool {
		for _, p := range w.paths {
			if p.InTransit() > 0 {
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

// invariants are what a hostile network must not change.
type invariants struct {
	files, routines int
	heap            uint64
	sessions        [2]uint64
	ids             [2]string
}

func newInvariants(t *testing.T, w *harness) invariants {
	t.Helper()
	h := invariants{files: descriptors(t), routines: runtime.NumGoroutine(), heap: heap()}
	for i, e := range w.ends {
		h.sessions[i], h.ids[i] = e.tunnel.SessionName(), e.tunnel.Status().KeyID
	}
	return h
}

// heap returns the memory in use, in bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// maxHeapGrowth allows for packets that wait to be put in order, and for the replay
// windows of every path that a header can name.
const maxHeapGrowth = 32 << 20

func (h invariants) check(t *testing.T, w *harness, trusted bool) {
	t.Helper()
	now := newInvariants(t, w)
	if now.files != h.files || now.routines > h.routines || now.heap > h.heap+maxHeapGrowth {
		t.Errorf("%d descriptors, %d goroutines and %d bytes became %d, %d and %d", h.files, h.routines, h.heap, now.files, now.routines, now.heap)
	}
	// A flood that leaves no room for genuine packets may cause new keys.
	if trusted && (now.sessions != h.sessions || now.ids[0] != now.ids[1]) {
		t.Errorf("sessions %x and keys %v became %x and %v", h.sessions, h.ids, now.sessions, now.ids)
	}
	for i, e := range w.ends {
		e.mu.Lock()
		for _, v := range e.events {
			if v.Kind == tunnel.Restarted || v.Kind == tunnel.Expired || trusted && v.Kind == tunnel.FellBack {
				t.Errorf("end %d: %v", i, v)
			}
		}
		e.mu.Unlock()
		s, other := e.tunnel.Status(), w.ends[1-i].tunnel.Status()
		if most := other.Read + other.Resent; trusted && s.Received > most {
			t.Errorf("end %d received %d packets, the other sent %d", i, s.Received, most)
		}
		if trusted && s.Invalid == 0 {
			t.Errorf("end %d saw no invalid packets: the test proves nothing", i)
		}
		if s.Order.WaitingBytes > 64<<20 || s.KeptBytes > 64<<20 {
			t.Errorf("end %d: %d bytes wait, %d are kept", i, s.Order.WaitingBytes, s.KeptBytes)
		}
	}
}
