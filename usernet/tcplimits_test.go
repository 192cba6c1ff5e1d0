package usernet

import (
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

func TestLimitOfFlows(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		first, host := r.open()
		r.open()
		c := r.conn(first.Peer)
		for range 3 {
			c.SendAt(0, packet.SYN, nil)
			p := r.g.Only(c.From(packet.RST | packet.ACK))
			if p.TCP.Ack != c.Start+1 {
				t.Errorf("got %v", p)
			}
		}
		if s := r.stack.Stats(); s.OverLimit != 3 || s.Open != 2 {
			t.Errorf("%d over the limit, %d open", s.OverLimit, s.Open)
		}
		first.Send(packet.ACK, []byte("undisturbed"))
		r.g.Only(first.Acks())
		r.reads(host, "undisturbed")
		first.Send(packet.RST, nil)
		r.g.Silent()
		r.open() // there is room again
	}, func(cfg *Config) { cfg.Limits.Flows = 2 })
}

func TestFinishedConnectionsNotLimited(t *testing.T) {
	r := newRig(t, func(cfg *Config) { cfg.Limits.Flows = 1 })
	for range 5 {
		r.finished()
	}
}

// scarce is a configuration with the least packet memory: 15 large buffers.
func scarce(cfg *Config) {
	cfg.Limits.BufferBytes = 1 << 20
	cfg.MTU = 65520
}

// A guest that acknowledges nothing on many connections uses all memory there is. Other
// connections still move, and so do those once the guest acknowledges.
func TestGuestAcknowledgesNothing(t *testing.T) {
	r := newRig(t, scarce)
	large := func(c *guesttest.Conn) { c.Options = append(guesttest.MSS(65480), guesttest.Scale(14)...) }
	deaf, deafHost := r.open(large)
	other, otherHost := r.open(large)
	const size = 8 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(deafHost, text(size))
		sent <- err
	}()
	r.until("much is on its way", func() bool { return r.flow(deaf).sent.bytes > 128<<10 })
	r.until("no more can go", func() bool { return !r.s.tcp.busy() })

	t.Run("other connections receive", func(t *testing.T) {
		r := r.within(t)
		r.write(otherHost, "hello")
		if got := other.Expect(5); string(got) != "hello" {
			t.Errorf("the guest reads %q", got)
		}
	})
	t.Run("other connections send", func(t *testing.T) {
		r := r.within(t)
		other.Send(packet.ACK, []byte("hello"))
		r.g.Await(other.Acks())
		r.reads(otherHost, "hello")
	})
	t.Run("it recovers", func(t *testing.T) {
		r := r.within(t)
		want := text(size)
		for got := 0; got < size; {
			deaf.Send(packet.ACK, nil)
			for _, p := range r.g.Settle() {
				if p.From() != deaf.Peer || p.To() != deaf.Local || p.TCP.Seq != deaf.Ack {
					continue
				}
				n := len(p.TCP.Payload)
				if string(p.TCP.Payload) != want[got:got+n] {
					t.Fatalf("the stream was changed at %d", got)
				}
				got += n
				deaf.Ack += uint32(n)
			}
			r.advance(minRTO)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
}

// The last frame before memory runs out has PSH. Otherwise the receiver would delay its
// acknowledgement, waiting for data that does not come.
func TestPSHWhenMemoryIsScarce(t *testing.T) {
	r := newRig(t, scarce)
	c, host := r.open(func(c *guesttest.Conn) { c.Options = append(guesttest.MSS(65480), guesttest.Scale(14)...) })
	go func() { _, _ = io.WriteString(host, text(8<<20)) }()
	r.until("much is on its way", func() bool { return r.flow(c).sent.bytes > 128<<10 })
	r.until("no more can go", func() bool { return !r.s.tcp.busy() })
	full := 0
	var last *guesttest.Packet
	for _, p := range r.g.Settle() {
		if p.From() != c.Peer || len(p.TCP.Payload) == 0 {
			continue
		}
		if last = p; len(p.TCP.Payload) == r.flowFrame(c) && p.TCP.Flags&packet.PSH == 0 {
			full++
		}
	}
	if full == 0 || last == nil || last.TCP.Flags&packet.PSH == 0 {
		t.Errorf("%d full frames without PSH, the last is %v, want some, and PSH", full, last)
	}
	r.resetNow(host)
}

// In a crowd each connection has one frame a turn, and every frame has PSH.
func TestCrowdedConnectionsTakeTurns(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Options = append(guesttest.MSS(1460), guesttest.Scale(14)...) })
	r.do(func() { r.s.tcp.activeFlows, r.s.tcp.censusEnd = 1000, math.MaxInt64 })
	const size = 300_000
	r.write(host, text(size))
	r.until("the Stack has sent it", func() bool { return r.flow(c).sent.bytes == size })
	full := 0
	for _, p := range r.g.Settle() {
		if len(p.TCP.Payload) != r.flowFrame(c) {
			continue
		}
		if full++; p.TCP.Flags&packet.PSH == 0 {
			t.Errorf("%v: want PSH", p)
		}
	}
	if full == 0 {
		t.Error("no full frame received")
	}
	turn := 0
	r.do(func() {
		f := r.flow(c)
		f.readable = true
		r.s.tcp.ready = append(r.s.tcp.ready[:0], f)
		f.queued = true
		before := f.sndNxt
		_, _ = host.Write([]byte(text(4 * f.frameBytes)))
		r.s.tcp.pump()
		turn = int(f.sndNxt-before) / f.frameBytes
	})
	if turn > 1 {
		t.Errorf("a turn has %d frames, want 1", turn)
	}
}

// flowFrame returns the payload of a full frame.
func (r *rig) flowFrame(c *guesttest.Conn) (n int) {
	r.Helper()
	r.do(func() { n = r.flow(c).frameBytes })
	return n
}

// Hosts that read nothing, on more connections than there is memory for.
func TestHostsReadNothing(t *testing.T) {
	r := newRig(t, scarce)
	const flows = 24
	type pair struct {
		c    *guesttest.Conn
		host *net.TCPConn
		sent strings.Builder
	}
	var all []*pair
	for range flows {
		p := &pair{}
		p.c, p.host = r.narrow()
		all = append(all, p)
	}
	other, otherHost := r.open()
	chunk := text(40000)
	// push sends what the window allows and counts what is acknowledged.
	push := func(p *pair) {
		room := 0
		r.do(func() { room = int(r.flow(p.c).rcvEdge - p.c.Seq) })
		if room == 0 {
			return
		}
		part := chunk[:min(room, len(chunk))]
		p.c.SendAt(0, packet.ACK, []byte(part))
		for _, a := range r.g.Settle() {
			if a.From() != p.c.Peer || a.To() != p.c.Local {
				continue
			}
			n := int(int32(a.TCP.Ack - p.c.Seq))
			if n < 0 || n > len(part) {
				t.Fatalf("%v acknowledges %d bytes of %d", a, n, len(part))
			}
			p.c.Seq += uint32(n)
			p.sent.WriteString(part[:n])
			part = part[n:]
		}
	}
	for range 8 {
		for _, p := range all {
			push(p)
		}
	}
	r.do(func() {
		if !r.s.largePool.scarce() {
			t.Errorf("only %d of %d buffers in use: this test checks nothing", r.s.largePool.used, len(r.s.largePool.arena)/largeBytes)
		}
	})
	t.Run("others go on", func(t *testing.T) {
		r := r.within(t)
		other.Send(packet.ACK, []byte("question"))
		r.g.Await(other.Acks())
		r.reads(otherHost, "question")
		r.write(otherHost, "answer")
		if got := other.Expect(6); string(got) != "answer" {
			t.Errorf("the guest reads %q", got)
		}
	})
	t.Run("they recover", func(t *testing.T) {
		r := r.within(t)
		for _, p := range all {
			want := p.sent.String() + "end"
			got := make(chan string, 1)
			go func() {
				b, _ := io.ReadAll(p.host)
				got <- string(b)
			}()
			r.until("its window opens", func() bool {
				f := r.flow(p.c)
				return f.queue.bytes == 0 && f.rcvEdge-f.rcvNxt > 100
			})
			p.c.Send(packet.ACK|packet.FIN, []byte("end"))
			r.g.Await(p.c.Acks())
			select {
			case b := <-got:
				if b != want {
					t.Fatalf("the host reads %d bytes, want %d: the stream was changed", len(b), len(want))
				}
			case <-time.After(testTimeout):
				t.Fatal("the host does not read the end")
			}
		}
	})
}
