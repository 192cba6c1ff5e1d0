package tunnel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/packet"
	"cleat/tunnel/sched"
	"cleat/tunnel/wire"

	"golang.org/x/sys/unix"
)

// received is a packet that arrived over a path.
type received struct {
	data []byte
	tos  uint8
}

// receiveAll returns the packets that wait at the far end of a path.
func receiveAll(t testing.TB, p *path, box *sys.Inbox) []received {
	t.Helper()
	var all []received
	for {
		n, errno := box.RecvNow(p.fd)
		if errno == unix.EAGAIN {
			return all
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		for i := range n {
			data, meta := bytes.Clone(box.Data(i)), box.Meta(i)
			size := meta.Segment
			if size == 0 {
				size = max(len(data), 1)
			}
			for len(data) > 0 {
				k := min(size, len(data))
				all = append(all, received{data[:k:k], meta.TOS})
				data = data[k:]
			}
		}
	}
}

// expected is a packet as the splitter would send it over a path.
type expected struct {
	data    []byte
	tos     uint8
	partial bool
	udp     bool
	flow    uint16
}

func (s *superPacket) expected(t testing.TB, compat bool) []expected {
	t.Helper()
	var all []expected
	for _, w := range s.segments(t, true) {
		if compat {
			w = wirePacket{b: w.withChecksum()}
		}
		all = append(all, expected{data: w.b, tos: s.tos & 3, partial: !compat, udp: s.proto == packet.UDP, flow: s.flow})
	}
	return all
}

// oneLane makes all flows of the first end bulk flows, so that their packets wait in one lane.
func (e *ends) oneLane() {
	for i := range e.a.out.flows {
		e.a.out.flows[i].paths = 1
	}
}

// send sends what the first end's device provides.
func (e *ends) send(t testing.TB) {
	t.Helper()
	if err := e.a.out.read(e.a.now()); err != nil {
		t.Fatal(err)
	}
	for e.a.out.prepareRun(e.a.now()) {
		e.a.out.batch.send(e.a)
	}
}

func TestBatch(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, form := range []string{"native", "compat", "sealed"} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", form, v6), func(t *testing.T) {
				e := newEnds(t, Config{Mode: sched.Flow}, v6, 1)
				e.oneLane()
				switch form {
				case "compat":
					e.a.useCompat()
				case "sealed":
					e.seal(t)
				}
				r := rand.New(rand.NewPCG(5, 5))
				box := sys.NewInbox([][]byte{make([]byte, 1<<16)})
				c := &wireCheck{t: t, e: e, compat: form == "compat", last: map[uint16]uint32{}}
				for range 60 {
					var want []expected
					for range 1 + r.IntN(3) {
						s := randomSuperPacket(r)
						if s.payload = s.payload[:min(len(s.payload), 20000)]; s.size > 1300 || r.IntN(3) == 0 {
							s.size, s.payload = 0, s.payload[:min(len(s.payload), 1300)]
						}
						e.devA.provide(s.deviceRead())
						want = append(want, s.expected(t, c.compat)...)
					}
					e.send(t)
					got := receiveAll(t, e.b.paths[0], box)
					if len(got) != len(want) {
						t.Fatalf("%d packets arrived, want %d", len(got), len(want))
					}
					for i := range got {
						c.check(got[i], want[i])
					}
				}
				if n := e.a.stats.sendErrors.Load(); n > 0 {
					t.Errorf("%d messages could not be sent", n)
				}
			})
		}
	}
}

// wireCheck compares arriving packets with those of the splitter.
type wireCheck struct {
	t      *testing.T
	e      *ends
	compat bool
	seq    uint32
	last   map[uint16]uint32 // by flow, sequence number after its last packet
}

func (c *wireCheck) check(got received, want expected) {
	c.t.Helper()
	if got.tos != want.tos {
		c.t.Fatalf("packet %d: TOS %d, want %d", c.seq, got.tos, want.tos)
	}
	body := got.data
	if c.compat {
		var g packet.GRE
		n, err := packet.ParseGRE(body, &g)
		proto := uint16(packet.EtherTypeIPv4)
		if want.data[0]>>4 == 6 {
			proto = packet.EtherTypeIPv6
		}
		if wantGRE := (packet.GRE{Protocol: proto, HasSeq: true, Seq: c.seq}); err != nil || g != wantGRE {
			c.t.Fatalf("header %+v, %v; want %+v", g, err, wantGRE)
		}
		body = body[n:]
	} else {
		body = c.native(body, want)
	}
	if !bytes.Equal(body, want.data) {
		c.t.Fatalf("packet %d is\n% x…, want\n% x…", c.seq, body[:min(len(body), 80)], want.data[:min(len(want.data), 80)])
	}
	c.seq++
}

// native checks the shim and returns the payload.
func (c *wireCheck) native(b []byte, want expected) []byte {
	c.t.Helper()
	var s wire.Shim
	body, ok := c.e.b.in.admit(c.e.b.now(), &s, b)
	if !ok {
		c.t.Fatalf("packet %d is refused: % x", c.seq, b[:wire.HeaderBytes])
	}
	flags := uint8(0)
	if want.partial {
		flags |= wire.Partial
	}
	if want.udp {
		flags |= wire.Datagram
	}
	exp := wire.Shim{Seq: c.seq, PathSeq: c.seq, Kind: wire.Data, Tag: c.e.a.session.tag, Flags: flags, Time: s.Time, FlowDistance: s.FlowDistance}
	if s != exp {
		c.t.Fatalf("shim is %+v, want %+v", s, exp)
	}
	if age := uint32(c.e.a.now()/time.Microsecond) - s.Time; age > 10e6 {
		c.t.Errorf("packet %d has a timestamp %d µs ago", c.seq, age)
	}
	if s.FlowDistance == 0 {
		if len(c.last) > 20 {
			c.t.Errorf("packet %d has no flow distance", c.seq)
		}
	} else if before := c.last[flowOf(want.data)]; s.Seq-uint32(s.FlowDistance)+1 != before {
		c.t.Fatalf("packet %d follows packet %d of its flow, want %d", c.seq, s.Seq-uint32(s.FlowDistance), before-1)
	}
	c.last[flowOf(want.data)] = s.Seq + 1
	return body
}

// flowOf distinguishes the flows of randomSuperPacket.
func flowOf(b []byte) uint16 {
	at, proto := packet.IPv4Bytes, b[9]
	if b[0]>>4 == 6 {
		at, proto = packet.IPv6Bytes, b[6]
	}
	return uint16(b[0]>>4)<<12 | uint16(proto)<<4 | uint16(b[at+1]&1)
}

// TestBatchOfManyMessages sends runs of packets that need a message each, followed by one
// that needs several.
func TestBatchOfManyMessages(t *testing.T) {
	for singles := 20; singles <= 70; singles++ {
		e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
		var want int
		for i := range singles {
			s := superPacket{proto: packet.UDP, flow: 7, ttl: 64, payload: make([]byte, 100+i)}
			e.devA.provide(s.deviceRead())
			want++
		}
		s := superPacket{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1200, payload: make([]byte, 65000)}
		e.devA.provide(s.deviceRead())
		want += len(s.segments(t, true))
		if err := e.a.out.read(e.a.now()); err != nil {
			t.Fatal(err)
		}
		got, box := 0, sys.NewInbox([][]byte{make([]byte, 1<<16)})
		for e.a.out.queue.waiting() {
			e.a.out.gather(e.a.now(), e.a.out.queue.oldest(), e.a.sender.Path(0), 1<<20)
			e.a.out.batch.send(e.a)
			got += len(receiveAll(t, e.b.paths[0], box))
		}
		if got != want {
			t.Errorf("%d packets arrived, want %d", got, want)
		}
	}
}

// TestMessagesFitBursts checks that a super-packet is sent in messages that a shaper of
// the path's rate passes whole, and that are no shorter than necessary.
func TestMessagesFitBursts(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Flow}, false, 1)
	s := superPacket{proto: packet.TCP, flow: 7, ttl: 64, flags: packet.ACK, size: 1200, payload: make([]byte, 65000)}
	e.devA.provide(s.deviceRead())
	if err := e.a.out.read(e.a.now()); err != nil {
		t.Fatal(err)
	}
	most := e.a.sender.Path(0).MaxMessageBytes()
	box := sys.NewInbox([][]byte{make([]byte, 1<<16)})
	for e.a.out.queue.waiting() {
		e.a.out.gather(e.a.now(), e.a.out.queue.oldest(), e.a.sender.Path(0), 1<<20)
		e.a.out.batch.send(e.a)
	}
	var sizes []int
	for {
		n, errno := box.RecvNow(e.b.paths[0].fd)
		if errno == unix.EAGAIN {
			break
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		for i := range n {
			sizes = append(sizes, len(box.Data(i)))
		}
	}
	for i, size := range sizes {
		if size > most || i < len(sizes)-1 && size < most-1300 {
			t.Errorf("messages of %v bytes, want each to use the %d allowed", sizes, most)
			break
		}
	}
	if len(sizes) < 2 {
		t.Errorf("messages of %v bytes, want several of at most %d", sizes, most)
	}
}

// TestDuplicateOfManyMessages sends many packets of different sizes over all paths.
func TestDuplicateOfManyMessages(t *testing.T) {
	e := newEnds(t, Config{Mode: sched.Duplicate}, false, 2)
	e.oneLane()
	const packets = 200
	for i := range packets {
		s := superPacket{proto: packet.UDP, flow: 7, ttl: 64, payload: make([]byte, 100+i)}
		e.devA.provide(s.deviceRead())
		if err := e.a.out.read(e.a.now()); err != nil {
			t.Fatal(err)
		}
	}
	var got [2]int
	box := sys.NewInbox([][]byte{make([]byte, 1<<16)})
	o := e.a.out
	for l := &o.queue.bulk; !l.empty(); { // as many as fast paths would carry at once
		head := l.first()
		seq, before := o.assignSeqs(head, 1)
		o.copies.pieces = append(o.copies.pieces, piece{e: head, n: 1, seq: seq, flowDistance: before})
		head.refs++
		o.skipPacket(l)
	}
	for o.copies.pending = 1<<0 | 1<<1; o.prepareRun(e.a.now()); {
		o.batch.send(e.a)
		for i := range got {
			got[i] += len(receiveAll(t, e.b.paths[i], box))
		}
	}
	if want := [2]int{packets, packets}; got != want {
		t.Errorf("%d packets arrived, want %d", got, want)
	}
}

// TestNoPacketAllocates checks that moving packets from one device to the other does not
// allocate.
func TestNoPacketAllocates(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		for _, paths := range []int{1, 2} {
			t.Run(fmt.Sprintf("sealed %v, %d paths", sealed, paths), func(t *testing.T) {
				e := newEnds(t, Config{Mode: sched.Flow}, false, paths)
				if sealed {
					e.seal(t)
				}
				s := superPacket{proto: packet.TCP, flow: 1000, ttl: 64, flags: packet.ACK, size: 1300, payload: make([]byte, 30000)}
				read := s.deviceRead()
				var report wire.Report
				run := func() {
					e.devA.provide(read)
					e.send(t)
					for _, p := range e.b.paths[:paths] {
						e.b.in.drain(p, p.fd)
					}
					for i := range paths { // acknowledge what has arrived
						report.Path, report.HighestSeq = uint8(i), uint32(e.a.sender.Path(i).NextSeq()-1)
						if e.a.sender.Path(i).NextSeq() > 0 {
							e.a.handleReport(e.a.now(), &report)
						}
					}
					if n, _ := sys.ReadNow(e.devB.hostFD, e.devB.buf); n < len(s.payload) {
						t.Fatalf("the other device received %d bytes", n)
					}
				}
				for range 100 {
					run()
				}
				if n := testing.AllocsPerRun(200, run); n != 0 && !raceEnabled {
					t.Errorf("%v allocations per super-packet, want 0", n)
				}
				if e.a.arena.chunkCount > 1 {
					t.Errorf("%d chunks of memory for one packet at a time", e.a.arena.chunkCount)
				}
			})
		}
	}
}
