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

// mptKeepalivePacket returns a keepalive as MPT sends it: GRE's header and 40 bytes.
func mptKeepalivePacket() []byte {
	b := append([]byte{0, 0, 0x08, 0, 0xa1, 0, 0, 0, 0, 4, 0, 0}, make([]byte, 32)...)
	copy(b[4+8+12:], []byte{192, 0, 2, 1})
	copy(b[4+24+12:], []byte{192, 0, 2, 2})
	return b
}

// readPath returns what end b's socket of a path has received.
func readPath(t *testing.T, e *ends, path int) (all [][]byte) {
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

// TestMPTIsAnswered checks that only keepalives are answered, each on its path.
func TestMPTIsAnswered(t *testing.T) {
	answer := mptKeepalivePacket()
	answer[4+4] = 2
	copy(answer[4+8+12:], []byte{192, 0, 2, 2})
	copy(answer[4+24+12:], []byte{192, 0, 2, 1})
	for _, tt := range []struct {
		name   string
		modify func(b []byte) []byte
		want   bool
	}{
		{"keepalive", func(b []byte) []byte { return b }, true},
		{"an answer", func([]byte) []byte { return answer }, false},
		{"another command", func(b []byte) []byte { b[4] = 0xa2; return b }, false},
		{"short", func(b []byte) []byte { return b[:43] }, false},
		{"nothing after the header", func(b []byte) []byte { return b[:4] }, false},
		{"numbered", func(b []byte) []byte { b[0] = 0x10; return b }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Form: Compat}, false, 2)
			e.a.fallBack(0)
			e.a.useCompat()
			e.a.in.handlePacket(time.Second, e.a.paths[1], tt.modify(mptKeepalivePacket()), 0, 0)
			if got := readPath(t, e, 0); len(got) > 0 {
				t.Errorf("answer on the other path: % x", got)
			}
			got := readPath(t, e, 1)
			if tt.want && (len(got) != 1 || !bytes.Equal(got[0], answer)) || !tt.want && len(got) > 0 {
				t.Errorf("answered with % x, want % x: %t", got, answer, tt.want)
			}
			if n := e.a.stats.invalid.Load() + uint64(e.a.in.buf.Stats().Waiting); tt.want && n != 0 {
				t.Errorf("%d packets are invalid", n)
			}
			if e.a.session.mpt != tt.want {
				t.Errorf("peer is MPT: %t, want %t", e.a.session.mpt, tt.want)
			}
		})
	}
}

// TestMPTIsNotAnswered checks that keepalives are not answered in another form or if a
// key is needed.
func TestMPTIsNotAnswered(t *testing.T) {
	for _, form := range []Form{Native, Auto} {
		e := newEnds(t, Config{Form: form}, false, 1)
		e.a.in.handlePacket(time.Second, e.a.paths[0], mptKeepalivePacket(), 0, 0)
		if got, n := readPath(t, e, 0), e.a.stats.invalid.Load(); len(got) > 0 || n != 1 {
			t.Errorf("form %q: answered with % x, %d invalid packets", form, got, n)
		}
	}
}

// TestMPTGetsNoHellos checks that MPT gets no hellos, which it would take for data out of
// order.
func TestMPTGetsNoHellos(t *testing.T) {
	for _, speaks := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 1)
		e.a.useCompat()
		if speaks {
			e.a.in.handlePacket(time.Second, e.a.paths[0], mptKeepalivePacket(), 0, 0)
			readPath(t, e, 0)
		}
		e.a.sendHellos(10 * time.Second)
		if got := len(readPath(t, e, 0)) > 0; got == speaks {
			t.Errorf("MPT: %t, got hellos: %t", speaks, got)
		}
	}
}

// TestSilentPaths runs two paths by a script of arrivals and checks which are in use.
func TestSilentPaths(t *testing.T) {
	const both, second = 0b11, 0b10
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for _, tt := range []struct {
		name  string
		keeps []float64 // keepalives on path 0; those of path 1 are always on time
		data  []float64 // data on path 0
		live  map[float64]uint64
	}{
		{"every second", []float64{1, 2, 3, 4, 5, 6}, nil, map[float64]uint64{3: both, 6.5: both}},
		{"silence", []float64{1, 2}, nil, map[float64]uint64{4.9: both, 5.1: second, 20: second}},
		{"data instead of keepalives", []float64{1, 2}, []float64{4, 6}, map[float64]uint64{5.1: both, 8.9: both, 9.1: second}},
		{"every 5 s", []float64{1, 6, 11}, nil, map[float64]uint64{21.9: both, 22.1: second}},
		{"back", []float64{1, 2, 10, 11}, nil, map[float64]uint64{9: second, 10.1: both, 13.9: both, 14.1: second}},
		{"one keepalive only", []float64{1}, nil, map[float64]uint64{60: both}},
		{"a burst", []float64{1, 1.01, 1.02}, nil, map[float64]uint64{3.9: both, 4.1: second}},
		{"new interval", []float64{1, 2, 12, 22, 32}, nil, map[float64]uint64{11: second, 21: second, 31: both, 52.9: both, 53.1: second}},
		{"no keepalives", nil, nil, map[float64]uint64{100: both}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var events []EventKind
			e := newEnds(t, Config{Form: Compat, OnEvent: func(v Event) { events = append(events, v.Kind) }}, false, 2)
			tun := e.a
			tun.useCompat()
			var last uint64 = both
			for s := 0.0; s <= 100; s += 0.01 {
				now := at(s)
				near := func(all []float64) bool {
					return slices.ContainsFunc(all, func(k float64) bool { return k-s < 0.005 && s-k <= 0.005 })
				}
				if near(tt.keeps) {
					tun.paths[0].compat.keepalive(now)
				}
				if near(tt.data) {
					tun.noteHeard(now, 1)
				}
				tun.noteHeard(now, 2)
				tun.checkCompatPaths(now)
				if live := tun.sender.LiveSet(); live != last {
					want := map[bool]EventKind{true: PathLive, false: PathDead}[live == both]
					if len(events) == 0 || events[len(events)-1] != want {
						t.Errorf("at %.2f s: events %q, want %q", s, events, want)
					}
					last = live
				}
				for when, want := range tt.live {
					if near([]float64{when}) && tun.sender.LiveSet() != want {
						t.Errorf("at %.2f s: paths %b are live, want %b", s, tun.sender.LiveSet(), want)
					}
				}
			}
		})
	}
}

// TestDataCounts checks that the path that delivered a packet is recorded at the end of
// the round.
func TestDataCounts(t *testing.T) {
	e := newEnds(t, Config{Form: Compat}, false, 2)
	e.a.useCompat()
	_, pkt := (&superPacket{proto: packet.UDP, flow: 7, payload: make([]byte, 100)}).build()
	e.a.in.handlePacket(time.Second, e.a.paths[1], append([]byte{0x10, 0, 0x08, 0, 0, 0, 0, 0}, pkt...), 0, 0)
	e.a.in.noteHeard(2 * time.Second)
	if a, b := e.a.paths[0].compat.heardAt, e.a.paths[1].compat.heardAt; a != 0 || b != 2*time.Second {
		t.Errorf("path 0 delivered a packet at %s, path 1 at %s", a, b)
	}
}

// TestLastPathStays checks that the last path stays in use although it is silent.
func TestLastPathStays(t *testing.T) {
	e := newEnds(t, Config{Form: Compat}, false, 1)
	e.a.useCompat()
	e.a.paths[0].compat = compatHealth{heardAt: time.Second, keepaliveAt: time.Second, interval: time.Second}
	e.a.checkCompatPaths(time.Hour)
	if e.a.sender.LiveSet() != 1 {
		t.Error("the last path is not in use")
	}
}

// TestCompatPathsReturn checks that a path that the kernel refused is tried again, and
// that a path that was disabled is used at once when enabled.
func TestCompatPathsReturn(t *testing.T) {
	e := newEnds(t, Config{Form: Compat, Mode: sched.Weighted}, false, 2)
	tun := e.a
	tun.useCompat()
	tun.sender.Kill(0) // as noteRefused does
	for _, tt := range []struct {
		at   time.Duration
		want uint64
	}{{time.Second, 0b10}, {1900 * time.Millisecond, 0b10}, {2100 * time.Millisecond, 0b11}} {
		if tun.checkCompatPaths(tt.at); tun.sender.LiveSet() != tt.want {
			t.Errorf("after %s paths %b are live, want %b", tt.at, tun.sender.LiveSet(), tt.want)
		}
	}
	tun.sender.SetUp(0, false)
	tun.sender.SetUp(0, true)
	if tun.sender.LiveSet() != 0b11 {
		t.Errorf("a path that was disabled and enabled is not in use: live paths %b", tun.sender.LiveSet())
	}
}

// TestListeners delivers packets to the listener of one of several paths with the same
// local address: the source address must identify the path.
func TestListeners(t *testing.T) {
	at := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	local := netip.MustParseAddr("192.0.2.1")
	first := &path{PathConfig: PathConfig{Local: local, Remote: at("198.51.100.1:4754")}, listeners: [2]int{1}}
	second := &path{PathConfig: PathConfig{Local: local, Remote: at("198.51.100.2:4754")}, listeners: [2]int{2}}
	elsewhere := &path{PathConfig: PathConfig{Local: netip.MustParseAddr("192.0.2.9"), Remote: at("198.51.100.3:4754")}, listeners: [2]int{3}}
	in := &inbound{pollPaths: []*path{first, first, second, second, elsewhere, elsewhere}, roles: []role{own, listener, own, listener, own, listener}}
	for from, want := range map[string]*path{"198.51.100.1": first, "198.51.100.2": second, "198.51.100.3": nil, "198.51.100.4": nil} {
		if got := in.pathFrom(first, netip.MustParseAddr(from)); got != want {
			t.Errorf("from %s: %+v", from, got)
		}
	}
}
