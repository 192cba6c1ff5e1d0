package tunnel

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"cleat/packet"
	"cleat/tunnel/sched"

	"golang.org/x/sys/unix"
)

// mptSample is a keepalive as MPT sends it: GRE's header, and 40 bytes.
func mptSample() []byte {
	b := append([]byte{0, 0, 0x08, 0, 0xa1, 0, 0, 0, 0, 4, 0, 0}, make([]byte, 32)...)
	copy(b[4+8+12:], []byte{192, 0, 2, 1})
	copy(b[4+24+12:], []byte{192, 0, 2, 2})
	return b
}

// answers are what end b's socket of a path has got.
func answers(t *testing.T, e *ends, path int) (all [][]byte) {
	t.Helper()
	for {
		b := make([]byte, 2048)
		n, err := unix.Read(e.b.paths[path].fd, b)
		if errors.Is(err, unix.EAGAIN) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b[:n])
	}
}

// TestMPTIsAnswered, its keepalives only, and on the path that brought them.
func TestMPTIsAnswered(t *testing.T) {
	answer := mptSample()
	answer[4+4] = 2
	copy(answer[4+8+12:], []byte{192, 0, 2, 2})
	copy(answer[4+24+12:], []byte{192, 0, 2, 1})
	for _, tt := range []struct {
		name string
		mend func(b []byte) []byte
		want bool
	}{
		{"keepalive", func(b []byte) []byte { return b }, true},
		{"an answer", func([]byte) []byte { return answer }, false},
		{"another command", func(b []byte) []byte { b[4] = 0xa2; return b }, false},
		{"short", func(b []byte) []byte { return b[:43] }, false},
		{"nothing behind the header", func(b []byte) []byte { return b[:4] }, false},
		{"numbered", func(b []byte) []byte { b[0] = 0x10; return b }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Form: Compat}, false, 2)
			e.a.fallBack(0)
			e.a.speakCompat()
			e.a.in.packet(time.Second, e.a.paths[1], tt.mend(mptSample()), 0, 0)
			if got := answers(t, e, 0); len(got) > 0 {
				t.Errorf("on the other path: % x", got)
			}
			got := answers(t, e, 1)
			if tt.want && (len(got) != 1 || !bytes.Equal(got[0], answer)) || !tt.want && len(got) > 0 {
				t.Errorf("answered with % x, want % x: %t", got, answer, tt.want)
			}
			if n := e.a.stats.strange.Load() + uint64(e.a.in.buf.Stats().Waiting); tt.want && n != 0 {
				t.Errorf("%d packets count as strange", n)
			}
			if e.a.sess.mpt != tt.want {
				t.Errorf("the other end is MPT: %t, want %t", e.a.sess.mpt, tt.want)
			}
		})
	}
}

// TestMPTIsNotAnswered where the form is another, or a key is needed.
func TestMPTIsNotAnswered(t *testing.T) {
	for _, form := range []Form{Native, Auto} {
		e := newEnds(t, Config{Form: form}, false, 1)
		e.a.in.packet(time.Second, e.a.paths[0], mptSample(), 0, 0)
		if got, n := answers(t, e, 0), e.a.stats.strange.Load(); len(got) > 0 || n != 1 {
			t.Errorf("form %q: answered with % x, %d strange packets", form, got, n)
		}
	}
}

// TestMPTIsNotGreeted: greetings are data to it, and out of order.
func TestMPTIsNotGreeted(t *testing.T) {
	for _, speaks := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 1)
		e.a.speakCompat()
		if speaks {
			e.a.in.packet(time.Second, e.a.paths[0], mptSample(), 0, 0)
			answers(t, e, 0)
		}
		e.a.greet(10 * time.Second)
		if got := len(answers(t, e, 0)) > 0; got == speaks {
			t.Errorf("MPT speaks: %t, greeted: %t", speaks, got)
		}
	}
}

// TestSilentPaths runs two paths by a script: what comes when, and which are in use then.
func TestSilentPaths(t *testing.T) {
	const both, second = 0b11, 0b10
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for _, tt := range []struct {
		name  string
		keeps []float64 // when path 0 brings a keepalive; path 1 always does in time
		data  []float64 // when it brings data
		live  map[float64]uint64
	}{
		{"every second", []float64{1, 2, 3, 4, 5, 6}, nil, map[float64]uint64{3: both, 6.5: both}},
		{"silence", []float64{1, 2}, nil, map[float64]uint64{4.9: both, 5.1: second, 20: second}},
		{"data is life", []float64{1, 2}, []float64{4, 6}, map[float64]uint64{5.1: both, 8.9: both, 9.1: second}},
		{"every 5 s", []float64{1, 6, 11}, nil, map[float64]uint64{21.9: both, 22.1: second}},
		{"back", []float64{1, 2, 10, 11}, nil, map[float64]uint64{9: second, 10.1: both, 13.9: both, 14.1: second}},
		{"one is not enough to know", []float64{1}, nil, map[float64]uint64{60: both}},
		{"a burst", []float64{1, 1.01, 1.02}, nil, map[float64]uint64{3.9: both, 4.1: second}},
		{"another habit", []float64{1, 2, 12, 22, 32}, nil, map[float64]uint64{11: second, 21: second, 31: both, 52.9: both, 53.1: second}},
		{"none at all", nil, nil, map[float64]uint64{100: both}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told []What
			e := newEnds(t, Config{Form: Compat, Changed: func(v Event) { told = append(told, v.What) }}, false, 2)
			tun := e.a
			tun.speakCompat()
			var last uint64 = both
			for s := 0.0; s <= 100; s += 0.01 {
				now := at(s)
				near := func(all []float64) bool {
					return slices.ContainsFunc(all, func(k float64) bool { return k-s < 0.005 && s-k <= 0.005 })
				}
				if near(tt.keeps) {
					tun.paths[0].vital.keepalive(now)
				}
				if near(tt.data) {
					tun.brought(now, 1)
				}
				tun.brought(now, 2)
				tun.tend(now)
				if live := tun.send.LiveSet(); live != last {
					want := map[bool]What{true: PathLive, false: PathDead}[live == both]
					if len(told) == 0 || told[len(told)-1] != want {
						t.Errorf("at %.2f s told %q, want %q", s, told, want)
					}
					last = live
				}
				for when, want := range tt.live {
					if near([]float64{when}) && tun.send.LiveSet() != want {
						t.Errorf("at %.2f s paths %b are live, want %b", s, tun.send.LiveSet(), want)
					}
				}
			}
		})
	}
}

// TestDataIsLife: the path that brought a packet is noted at the end of the round.
func TestDataIsLife(t *testing.T) {
	e := newEnds(t, Config{Form: Compat}, false, 2)
	e.a.speakCompat()
	_, pkt := (&super{proto: packet.UDP, flow: 7, payload: make([]byte, 100)}).build()
	e.a.in.packet(time.Second, e.a.paths[1], append([]byte{0x10, 0, 0x08, 0, 0, 0, 0, 0}, pkt...), 0, 0)
	e.a.in.alive(2 * time.Second)
	if a, b := e.a.paths[0].vital.heard, e.a.paths[1].vital.heard; a != 0 || b != 2*time.Second {
		t.Errorf("path 0 brought something at %s, path 1 at %s", a, b)
	}
}

// TestLastPathStays although it is silent.
func TestLastPathStays(t *testing.T) {
	e := newEnds(t, Config{Form: Compat}, false, 1)
	e.a.speakCompat()
	e.a.paths[0].vital = vital{heard: time.Second, kept: time.Second, every: time.Second}
	e.a.tend(time.Hour)
	if e.a.send.LiveSet() != 1 {
		t.Error("the last path is not used")
	}
}

// TestPathsComeBackUnreported: what the kernel has refused is tried again, and what was down
// is used at once.
func TestPathsComeBackUnreported(t *testing.T) {
	e := newEnds(t, Config{Form: Compat, Mode: sched.Weighted}, false, 2)
	tun := e.a
	tun.speakCompat()
	tun.send.Kill(0) // as refused does
	for _, tt := range []struct {
		at   time.Duration
		want uint64
	}{{time.Second, 0b10}, {1900 * time.Millisecond, 0b10}, {2100 * time.Millisecond, 0b11}} {
		if tun.tend(tt.at); tun.send.LiveSet() != tt.want {
			t.Errorf("after %s paths %b are live, want %b", tt.at, tun.send.LiveSet(), tt.want)
		}
	}
	tun.send.SetUp(0, false)
	tun.send.SetUp(0, true)
	if tun.send.LiveSet() != 0b11 {
		t.Errorf("a path that was down and up is not used: %b", tun.send.LiveSet())
	}
}

// TestSecondSockets has packets come to the second socket of one of several paths that begin
// at one address: the path is told by where they come from.
func TestSecondSockets(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	local := netip.MustParseAddr("192.0.2.1")
	first := &path{PathConfig: PathConfig{Local: local, Remote: at("198.51.100.1:4754")}, listen: 1}
	second := &path{PathConfig: PathConfig{Local: local, Remote: at("198.51.100.2:4754")}, listen: 2}
	elsewhere := &path{PathConfig: PathConfig{Local: netip.MustParseAddr("192.0.2.9"), Remote: at("198.51.100.3:4754")}, listen: 3}
	in := &inbound{socket: []*path{first, first, second, second, elsewhere, elsewhere}}
	for from, want := range map[string]*path{"198.51.100.1": first, "198.51.100.2": second, "198.51.100.3": nil, "198.51.100.4": nil} {
		if got := in.pathFrom(first, netip.MustParseAddr(from)); got != want {
			t.Errorf("from %s: %+v", from, got)
		}
	}
}
