package tunnel

import (
	"testing"

	"cleat/packet"
	"cleat/tunnel/wire"
)

// receiveControl makes an end process control messages as if the peer had sent them on
// its first path.
func receiveControl(end *Tunnel, b []byte) {
	end.in.handleControl(end.now(), end.paths[0], &wire.Shim{Kind: wire.Control}, b)
}

// countResends returns how many packets are queued for resending, and how often the most
// frequent one is.
func countResends(end *Tunnel) (packets, most int) {
	times := map[uint32]int{}
	for _, pc := range end.resends.q[end.resends.head:] {
		for i := range pc.n {
			packets++
			times[pc.seq+uint32(i)]++
			most = max(most, times[pc.seq+uint32(i)])
		}
	}
	return packets, most
}

// sendMany sends packets of a flow from the first end, and returns the path that keeps
// them.
func (e *ends) sendMany(t *testing.T, packets int) *path {
	t.Helper()
	s := superPacket{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1000, payload: make([]byte, 1000*packets)}
	e.devA.provide(s.deviceRead())
	e.send(t)
	for _, p := range e.a.paths {
		if p != nil && p.unacked.len() > 0 {
			return p
		}
	}
	t.Fatal("no packets are kept")
	return nil
}

// TestRepairOnce requests packets again and again, in one report and in several: each
// must be sent again once.
func TestRepairOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asked []wire.Missing
		want  int
	}{
		{"all", []wire.Missing{{First: 0, Count: 65535}}, 30},
		{"one", []wire.Missing{{First: 7, Count: 1}}, 1},
		{"the first and the last", []wire.Missing{{First: 0, Count: 1}, {First: 29, Count: 1}}, 2},
		{"overlapping ranges", []wire.Missing{{First: 3, Count: 5}, {First: 5, Count: 5}, {First: 1, Count: 20}}, 20},
		{"from before the first", []wire.Missing{{First: ^uint32(4), Count: 10}}, 5},
		{"never sent", []wire.Missing{{First: 30, Count: 100}, {First: 1 << 31, Count: 100}}, 0},
		{"nothing", []wire.Missing{{First: 5, Count: 0}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnds(t, Config{Mode: "flow"}, false, 2)
			p := e.sendMany(t, 30)
			var b []byte
			for len(b) < maxReportBytes {
				for _, m := range tt.asked {
					m.Path = uint8(p.id)
					b = wire.AppendMissing(b, m)
				}
			}
			for range 100 {
				receiveControl(e.a, b)
			}
			if n, most := countResends(e.a); n != tt.want || most > 1 {
				t.Errorf("%d packets are sent again, one of them %d times; want %d, once each", n, most, tt.want)
			}
			// If the path dies then, only the rest is sent again.
			e.a.resendUnacked(1 << p.id)
			if n, most := countResends(e.a); n != 30 || most > 1 {
				t.Errorf("after the path's death %d packets are sent again, one of them %d times", n, most)
			}
		})
	}
}

// TestRepairIsBounded has a peer report everything missing: what is sent again must stay
// in proportion to what is sent.
func TestRepairIsBounded(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 2)
	request := func() {
		for id := range 2 {
			for _, from := range []uint32{0, 1 << 16, 1 << 17} {
				receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(id), First: from, Count: 65535}))
			}
		}
	}
	const rounds = 4 * maxResendBurst / 30
	for i := range rounds {
		e.sendMany(t, 30)
		request()
		for id := range 2 { // resent packets are requested again, but the sockets must not fill up
			discardPath(e.b, id)
			if i%10 == 9 {
				e.a.handleReport(e.a.now(), &wire.Report{Path: uint8(id)})
			}
		}
	}
	sent, again := e.a.stats.sent.Load(), e.a.stats.resent.Load()
	fresh := sent - again
	if most := fresh/2 + maxResendBurst + 100; again > most {
		t.Errorf("%d new packets and %d resent ones, want at most %d", fresh, again, most)
	}
	if again < maxResendBurst/2 {
		t.Errorf("only %d packets were sent again: the test proves nothing", again)
	}
}

// discardPath drops what waits at a path.
func discardPath(end *Tunnel, id int) {
	for {
		if _, errno := end.in.box.RecvNow(end.paths[id].fd); errno != 0 {
			return
		}
	}
}

// TestRepairLookups checks that packets that are already queued for resending are not
// looked up at length.
func TestRepairLookups(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 2)
	p := e.sendMany(t, 1)
	first := *p.unacked.at(p.unacked.from)
	for i := range uint32(maxPieces) {
		pc := first
		pc.pathSeq, pc.resendQueued, pc.e = i, ^uint64(0), &entry{refs: 1, chunk: &chunk{refs: 1}}
		if _, full := p.unacked.add(pc); full {
			break
		}
	}
	look := maxRepairLookups
	for range 100 {
		e.a.repair(wire.Missing{Path: uint8(p.id), Count: 65535}, &look)
	}
	if look < 0 {
		t.Errorf("%d more pieces were looked up than allowed", -look)
	}
}

// TestOneAnswer sends packets with many echoes and with many messages.
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
		receiveControl(e.a, b)
		if n := len(drainPath(t, e.b)); n != 1 {
			t.Errorf("key %v: %d answers to one packet", key, n)
		}
		strange := e.a.stats.invalid.Load()
		receiveControl(e.a, make([]byte, 3*10_000)) // empty messages
		if e.a.stats.invalid.Load() != strange+1 {
			t.Errorf("key %v: a packet of 10,000 messages is processed to its end", key)
		}
	}
}

// TestCapacityIsBounded has the peer claim that its sockets hold more than any can.
func TestCapacityIsBounded(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for room, want := range map[uint32]int{0: minSocketCapacity, 1 << 20: 1 << 20, 1<<32 - 1: maxPeerCapacity} {
		receiveControl(e.a, wire.Append(nil, wire.TypeCapacity, []byte{byte(room >> 24), byte(room >> 16), byte(room >> 8), byte(room)}))
		if e.a.sender.MaxInFlightBytes != want {
			t.Errorf("capacity %d: %d bytes may be in flight, want %d", room, e.a.sender.MaxInFlightBytes, want)
		}
	}
}

// TestRepairTooBig requests packets that were segmented for a larger MTU than the only
// path has now. They would be lost again and again.
func TestRepairTooBig(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	p := e.sendMany(t, 30)
	e.a.resize(p, 700)
	receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), Count: 30}))
	if n, _ := countResends(e.a); n > 0 {
		t.Errorf("%d packets of 1,000 bytes and more are sent again on a path with an MTU of 700", n)
	}
	e.a.resize(p, 1500)
	receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), Count: 30}))
	if n, _ := countResends(e.a); n == 0 {
		t.Error("nothing is sent again on a path with an MTU of 1500")
	}
}

// TestResendsAreCounted checks the count of queued packets, which decides which paths carry
// them: after queueing, and after all have been sent.
func TestResendsAreCounted(t *testing.T) {
	e := newEnds(t, Config{Mode: "flow"}, false, 2)
	p := e.sendMany(t, 30)
	receiveControl(e.a, wire.AppendMissing(nil, wire.Missing{Path: uint8(p.id), First: 3, Count: 20}))
	if n := e.a.resends.packets; n != 20 {
		t.Fatalf("%d packets are counted, want 20", n)
	}
	e.send(t)
	if n, queued := e.a.resends.packets, e.a.resends.len(); n != 0 || queued != 0 || e.a.sender.ResendBytes == 0 {
		t.Errorf("%d packets are counted, %d pieces queued, %d bytes were announced", n, queued, e.a.sender.ResendBytes)
	}
}
