package usernet

import (
	"context"
	"encoding/binary"
	"testing"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// byHand prepares a Stack that runs only in rounds.
func (r *rig) byHand() {
	r.Helper()
	r.s.ctx = context.Background()
	if _, err := r.s.loop.add(r.s.dev.fd, unix.EPOLLIN|edgeTriggered, &r.s.dev); err != nil {
		r.Fatal(err)
	}
	r.g.Fence = func() { r.rounds(8) }
	r.Cleanup(func() {
		r.s.shutdown()
		r.memoryReturned()
	})
}

func nothing() {}

// rounds runs the Stack step by step. It never waits.
func (r *rig) rounds(n int) {
	for range n {
		r.s.loop.post(nothing)
		if err := r.s.round(); err != nil {
			r.Fatal(err)
		}
	}
}

// byHandOpen returns an established connection of such a Stack, and the host's
// descriptor.
func (r *rig) byHandOpen() (*guesttest.Conn, int) {
	r.Helper()
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Options = append(guesttest.MSS(uint16(r.g.MTU()-packet.IPBytes(r.peer)-packet.TCPBytes)), guesttest.Scale(7)...)
	c.Send(packet.SYN, nil)
	for {
		if all := r.g.Settle(); len(all) > 0 {
			c.HandleSYN(all[0])
			break
		}
	}
	c.Send(packet.ACK, nil)
	r.g.Fence()
	host := r.accept(l)
	file, err := host.File()
	if err != nil {
		r.Fatal(err)
	}
	fd := int(file.Fd())
	r.Cleanup(func() { file.Close() })
	if err := unix.SetNonblock(fd, true); err != nil {
		r.Fatal(err)
	}
	return c, fd
}

// Offsets in a frame whose payload is changed in place.
func tcpAt(r *rig) int { return packet.VNetHdrBytes + packet.IPBytes(r.guest) }

func TestEstablishedAllocations(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, size := range []int{1, 1400, 60000} {
			name := map[bool]string{false: "IPv4, ", true: "IPv6, "}[v6] + map[int]string{1: "a byte", 1400: "a packet", 60000: "a super-packet"}[size]
			t.Run(name, func(t *testing.T) {
				r := newStack(t)
				if v6 {
					needIPv6(t)
					r.guest, r.peer = rigGuest6, rigPeer6
				}
				r.byHand()
				c, host := r.byHandOpen()
				t.Run("out", func(t *testing.T) { r.within(t).allocationsOut(c, host, size) })
				t.Run("in", func(t *testing.T) { r.within(t).allocationsIn(c, host, size) })
			})
		}
	}
}

func (r *rig) allocationsOut(c *guesttest.Conn, host, size int) {
	s := c.Segment(packet.ACK|packet.PSH, []byte(text(size)))
	if size > 1400 {
		s.GSOSize = 1400
	}
	frame, buf, got := s.Frame(), make([]byte, 1<<16), 0
	seq := frame[tcpAt(r)+4:]
	one := func() {
		binary.BigEndian.PutUint32(seq, c.Seq)
		r.g.SendFrame(frame)
		c.Seq += uint32(size)
		r.rounds(2)
		for n, _ := unix.Read(host, buf); n > 0; n, _ = unix.Read(host, buf) {
			got += n
		}
		r.g.Discard()
	}
	const warm, runs = 50, 200
	for range warm {
		one()
	}
	if n := testing.AllocsPerRun(runs, one); n != 0 && !raceDetector {
		r.Errorf("%v allocations a packet, want 0", n)
	}
	if want := (warm + runs + 1) * size; got != want {
		r.Errorf("%d bytes arrived, want %d", got, want)
	}
}

func (r *rig) allocationsIn(c *guesttest.Conn, host, size int) {
	frame := c.Segment(packet.ACK, nil).Frame()
	ack := frame[tcpAt(r)+8:]
	data, frames := []byte(text(size)), 0
	one := func() {
		if n, err := unix.Write(host, data); n != size || err != nil {
			r.Fatal(n, err)
		}
		c.Ack += uint32(size)
		r.rounds(2)
		frames += r.g.Discard()
		binary.BigEndian.PutUint32(ack, c.Ack)
		r.g.SendFrame(frame)
		r.rounds(2)
	}
	const warm, runs = 50, 200
	for range warm {
		one()
	}
	if n := testing.AllocsPerRun(runs, one); n != 0 && !raceDetector {
		r.Errorf("%v allocations a packet, want 0", n)
	}
	if frames < warm+runs+1 {
		r.Errorf("%d frames arrived, want %d", frames, warm+runs+1)
	}
	if una := r.flow(c).sndUna; una != c.Ack {
		r.Errorf("%d bytes are not acknowledged", c.Ack-una)
	}
}

// Buffers for what a full socket does not take are reused.
func TestStalledAllocations(t *testing.T) {
	r := newStack(t)
	r.byHand()
	c, host := r.byHandOpen()
	if err := unix.SetsockoptInt(r.flow(c).hostFD, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	const size = 20000
	s := c.Segment(packet.ACK|packet.PSH, []byte(text(size)))
	s.GSOSize = 1400
	frame, buf := s.Frame(), make([]byte, 1<<16)
	seq := frame[tcpAt(r)+4:]
	queued := 0
	one := func() {
		for range 5 {
			f := r.flow(c)
			if int(f.rcvEdge-c.Seq) < size {
				break
			}
			binary.BigEndian.PutUint32(seq, c.Seq)
			r.g.SendFrame(frame)
			c.Seq += size
			r.rounds(1)
			queued = max(queued, f.queue.bytes)
		}
		for r.flow(c).queue.bytes > 0 {
			_, _ = unix.Read(host, buf)
			r.rounds(1)
		}
		r.rounds(2)
		r.g.Discard()
	}
	for range 50 {
		one()
	}
	if n := testing.AllocsPerRun(50, one); n != 0 && !raceDetector {
		t.Errorf("%v allocations for five packets, want 0", n)
	}
	if queued == 0 {
		t.Error("nothing was queued: this test checks nothing")
	}
}
