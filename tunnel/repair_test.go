package tunnel

import (
	"testing"

	"cleat/packet"
	"cleat/tunnel/wire"
)

// report has an end take control messages as if the peer had sent them on its first path.
func report(end *Tunnel, b []byte) {
	end.in.controls(end.now(), end.paths[0], &wire.Shim{Kind: wire.Control}, b)
}

// queued is how many packets wait to be sent again, and how often the one that waits most
// often does.
func queued(end *Tunnel) (packets, most int) {
	times := map[uint32]int{}
	for _, pc := range end.again.q[end.again.head:] {
		for i := range pc.n {
			packets++
			times[pc.seq+uint32(i)]++
			most = max(most, times[pc.seq+uint32(i)])
		}
	}
	return packets, most
}

// sendMany has the first end send packets of a flow, and returns the path that kept them.
func (e *ends) sendMany(t *testing.T, packets int) *path {
	t.Helper()
	s := super{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1000, payload: make([]byte, 1000*packets)}
	e.devA.hand(s.read())
	e.send(t)
	for _, p := range e.a.paths {
		if p != nil && p.kept.len() > 0 {
			return p
		}
	}
	t.Fatal("nothing is kept")
	return nil
}

// TestRepairOnce has packets be asked for again and again, in one report and in several:
// each is sent again once.
func TestRepairOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asked []wire.Missing
		want  int
	}{
		{"all", []wire.Missing{{First: 0, Count: 65535}}, 30},
		{"one", []wire.Missing{{First: 7, Count: 1}}, 1},
		{"the first and the last", []wire.Missing{{First: 0, Count: 1}, {First: 29, Count: 1}}, 2},
		{"parts that overlap", []wire.Missing{{First: 3, Count: 5}, {First: 5, Count: 5}, {First: 1, Count: 20}}, 20},
		{"from before the first on", []wire.Missing{{First: ^uint32(4), Count: 10}}, 5},
		{"what was not sent", []wire.Missing{{First: 30, Count: 100}, {First: 1 << 31, Count: 100}}, 0},
		{"nothing", []wire.Missing{{First: 5, Count: 0}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: "flow"}, false, 2)
			p := e.sendMany(t, 30)
			var b []byte
			for len(b) < mostReport {
				for _, m := range tt.asked {
					m.Path = uint8(p.id)
					b = wire.AppendMissing(b, m)
				}
			}
			for range 100 {
				report(e.a, b)
			}
			if n, most := queued(e.a); n != tt.want || most > 1 {
				t.Errorf("%d packets are sent again, one of them %d times; want %d, once", n, most, tt.want)
			}
			// A path that dies then has the rest sent again, and no more.
			e.a.lose(1 << p.id)
			if n, most := queued(e.a); n != 30 || most > 1 {
				t.Errorf("after its death %d packets are sent again, one of them %d times", n, most)
			}
		})
	}
}

// TestRepairIsBounded has a peer report everything missing, always: what is sent again
// stays in proportion to what is sent.
func TestRepairIsBounded(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 2)
	ask := func() {
		for id := range 2 {
			for _, from := range []uint32{0, 1 << 16, 1 << 17} {
				report(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(id), First: from, Count: 65535}))
			}
		}
	}
	const rounds = 4 * repairMost / 30
	for i := range rounds {
		e.sendMany(t, 30)
		ask()
		for id := range 2 { // what is sent again is asked for again, but the paths are not stuffed
			swallow(e.b, id)
			if i%10 == 9 {
				e.a.reported(e.a.now(), &wire.Report{Path: uint8(id)})
			}
		}
	}
	sent, again := e.a.stats.sent.Load(), e.a.stats.resent.Load()
	fresh := sent - again
	if most := fresh/2 + repairMost + 100; again > most {
		t.Errorf("%d packets were sent, and %d again, want %d at most", fresh, again, most)
	}
	if again < repairMost/2 {
		t.Errorf("only %d packets were sent again: the test proves nothing", again)
	}
}

// swallow drops what waits at a path.
func swallow(end *Tunnel, id int) {
	for {
		if _, errno := end.in.box.RecvNow(end.paths[id].fd); errno != 0 {
			return
		}
	}
}

// TestLookIsBounded has reports ask for what is sent again already: that is not looked for
// at length.
func TestLookIsBounded(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 2)
	p := e.sendMany(t, 1)
	first := *p.kept.at(p.kept.from)
	for i := range uint32(maxPieces) {
		pc := first
		pc.path, pc.queued, pc.e = i, ^uint64(0), &entry{refs: 1, chunk: &chunk{refs: 1}}
		if _, full := p.kept.add(pc); full {
			break
		}
	}
	look := lookMost
	for range 100 {
		e.a.repair(wire.Missing{Path: uint8(p.id), Count: 65535}, &look)
	}
	if look < 0 {
		t.Errorf("%d pieces more were looked at than may be", -look)
	}
}

// TestOneAnswer has a packet ask for many echoes, and have many messages.
func TestOneAnswer(t *testing.T) {
	for _, key := range []bool{false, true} {
		e := newEnds(t, Config{}, false, 1)
		if key {
			e.seal(t)
		}
		var b []byte
		for range 100 {
			b = wire.Append(b, wire.TypeEcho, make([]byte, wire.EchoBytes))
		}
		report(e.a, b)
		if n := len(letters(t, e.b)); n != 1 {
			t.Errorf("key %v: %d answers to one packet", key, n)
		}
		strange := e.a.stats.strange.Load()
		report(e.a, make([]byte, 3*10_000)) // messages of nothing
		if e.a.stats.strange.Load() != strange+1 {
			t.Errorf("key %v: a packet of 10,000 messages is read to its end", key)
		}
	}
}

// TestRoomIsBounded has the peer say that its sockets hold more than any does.
func TestRoomIsBounded(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for room, want := range map[uint32]int{0: leastRoom, 1 << 20: 1 << 20, 1<<32 - 1: roomMost} {
		report(e.a, wire.Append(nil, wire.TypeRoom, []byte{byte(room >> 24), byte(room >> 16), byte(room >> 8), byte(room)}))
		if e.a.send.Inflight != want {
			t.Errorf("room for %d bytes: %d may be on their way, want %d", room, e.a.send.Inflight, want)
		}
	}
}

// TestRepairTooBig has the peer ask for packets that were cut for a larger MTU than the
// only path has now. They would be lost, and asked for, again and again.
func TestRepairTooBig(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	p := e.sendMany(t, 30)
	e.a.resize(p, 700)
	report(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), Count: 30}))
	if n, _ := queued(e.a); n > 0 {
		t.Errorf("%d packets of 1,000 bytes and more are sent again on a path that carries 700", n)
	}
	e.a.resize(p, 1500)
	report(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), Count: 30}))
	if n, _ := queued(e.a); n == 0 {
		t.Error("nothing is sent again on a path that carries 1500 bytes")
	}
}
