package usernet

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// step is one segment of a script: bytes [from, to) of the stream, in the window or not,
// with or without a FIN after them.
type step struct {
	from, to int
	fin      bool
	ack      int // stream bytes that are acknowledged afterwards; the FIN counts 1
}

func TestSegmentsOutOfOrder(t *testing.T) {
	tests := []struct {
		name  string
		steps []step
		want  int // bytes that the host reads
		end   bool
	}{
		{"in order", []step{{0, 10, false, 10}, {10, 30, false, 30}}, 30, false},
		{"repeated", []step{{0, 10, false, 10}, {0, 10, false, 10}, {10, 20, false, 20}}, 20, false},
		{"repeated with more", []step{{0, 10, false, 10}, {0, 20, false, 20}}, 20, false},
		{"overlap at the front", []step{{0, 10, false, 10}, {5, 15, false, 15}}, 15, false},
		{"old", []step{{0, 20, false, 20}, {5, 10, false, 20}, {20, 21, false, 21}}, 21, false},
		{"too early, then the missing bytes", []step{{10, 20, false, 0}, {0, 10, false, 10}, {10, 20, false, 20}}, 20, false},
		{"too early, then everything", []step{{10, 20, false, 0}, {0, 20, false, 20}}, 20, false},
		{"too early, then more than the missing bytes", []step{{10, 20, false, 0}, {0, 15, false, 15}, {10, 20, false, 20}}, 20, false},
		{"backwards", []step{{20, 30, false, 0}, {10, 20, false, 0}, {0, 10, false, 10}, {10, 20, false, 20}, {20, 30, false, 30}}, 30, false},
		{"one byte at a time", []step{{0, 1, false, 1}, {1, 2, false, 2}, {2, 3, false, 3}}, 3, false},
		{"far beyond the window", []step{{1 << 30, 1<<30 + 10, false, 0}, {0, 10, false, 10}}, 10, false},
		{"half the sequence space ahead", []step{{1<<31 - 1, 1<<31 + 9, false, 0}, {0, 10, false, 10}}, 10, false},
		{"long past", []step{{0, 10, false, 10}, {-(1 << 20), -(1<<20 - 10), false, 10}, {10, 20, false, 20}}, 20, false},
		{"FIN with data", []step{{0, 10, true, 11}}, 10, true},
		{"FIN alone", []step{{0, 0, true, 1}}, 0, true},
		{"FIN repeated", []step{{0, 10, true, 11}, {0, 10, true, 11}, {10, 10, true, 11}}, 10, true},
		{"FIN on old data", []step{{0, 10, false, 10}, {5, 10, true, 11}}, 10, true},
		{"FIN too early", []step{{10, 20, true, 0}, {0, 10, false, 10}, {10, 20, true, 21}}, 20, true},
		{"FIN inside old data", []step{{0, 10, false, 10}, {0, 5, true, 10}, {10, 20, false, 20}}, 20, false},
		{"data after the FIN", []step{{0, 10, true, 11}, {11, 20, false, 11}}, 10, true},
		{"data over the FIN", []step{{0, 10, true, 11}, {5, 20, false, 11}}, 10, true},
	}
	for _, wrap := range []uint32{0, 1, 5, 11, 15} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, initial number %d", tt.name, wrap), func(t *testing.T) {
				r := newRig(t)
				c, host := r.open(func(c *guesttest.Conn) { c.Seq, c.Start = -wrap-1, -wrap-1 })
				all := text(100)
				for i, s := range tt.steps {
					payload, flags := make([]byte, s.to-s.from), uint8(packet.ACK)
					if s.from >= 0 && s.to <= len(all) {
						payload = []byte(all[s.from:s.to])
					}
					if s.fin {
						flags |= packet.FIN
					}
					c.SendAt(s.from, flags, payload)
					p := r.g.Only(c.From(packet.ACK))
					if got := int(int32(p.TCP.Ack - c.Seq)); got != s.ack {
						t.Fatalf("step %d: %d acknowledged, want %d", i, got, s.ack)
					}
				}
				if !tt.end {
					c.SendAt(tt.want, packet.ACK|packet.FIN, nil)
				}
				if got, err := io.ReadAll(host); err != nil || string(got) != all[:tt.want] {
					t.Errorf("the host reads %q, %v; want %q", got, err, all[:tt.want])
				}
			})
		}
	}
}

func TestSegmentWithoutACK(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	c.SendAt(0, 0, []byte("nothing"))
	c.SendAt(0, packet.FIN, []byte("nothing"))
	r.g.Silent()
	c.Send(packet.ACK, []byte("all"))
	r.g.Only(c.Acks())
	r.reads(host, "all")
}

func TestOneSuperPacket(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		s := c.Segment(packet.ACK|packet.PSH, []byte(text(60000)))
		s.GSOSize = 1460
		r.g.Send(s)
		c.Seq += 60000
		r.g.Await(c.Acks())
		r.reads(host, text(60000))
	})
}

func TestBatchAcknowledgedToLastSegment(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	var sent strings.Builder
	r.do(func() { // so that no segment is read before all are there
		for range 40 {
			c.Send(packet.ACK, []byte(text(500)))
			sent.WriteString(text(500))
		}
	})
	all := r.g.Settle()
	r.last(all, c.Acks())
	if len(all) > 3 { // one for each batch of 16
		t.Errorf("%d acknowledgements of 40 segments", len(all))
	}
	r.reads(host, sent.String())
}

// narrow gives a connection small buffers on the host's side, so that little fits in
// between.
func (r *rig) narrow() (*guesttest.Conn, *net.TCPConn) {
	r.Helper()
	l := r.listen()
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	}
	if err != nil {
		r.Fatal(err)
	}
	c := r.conn(r.toward(l))
	c.Open()
	host := r.accept(l)
	r.fence()
	r.do(func() { _ = unix.SetsockoptInt(r.flow(c).hostFD, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096) })
	return c, host
}

// fill sends until the window is closed and returns what was taken.
func (r *rig) fill(c *guesttest.Conn) string {
	r.Helper()
	var sent strings.Builder
	for chunk := text(30000); ; {
		var room int
		r.do(func() { room = int(r.flow(c).rcvEdge - c.Seq) })
		if room == 0 {
			return sent.String()
		}
		if sent.Len() > 2*maxWindow {
			r.Fatal("the window does not close")
		}
		part := chunk[:min(room, len(chunk))]
		c.Send(packet.ACK, []byte(part))
		sent.WriteString(part)
		r.last(r.g.Settle(), c.Acks())
	}
}

func TestWindowClosesWhenHostDoesNotRead(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.narrow()
		sent := r.fill(c)
		if c.PeerWindow != 0 {
			t.Fatalf("the window is %d, want 0", c.PeerWindow)
		}
		t.Run("data beyond the window is not taken", func(t *testing.T) {
			r := r.within(t)
			c.SendAt(0, packet.ACK, []byte("more"))
			r.g.Only(c.Acks())
			c.SendAt(0, packet.ACK|packet.FIN, []byte("more"))
			r.g.Only(c.Acks())
		})
		t.Run("a probe is answered", func(t *testing.T) {
			r := r.within(t)
			for range 3 {
				c.SendAt(-1, packet.ACK, nil)
				r.g.Only(c.Acks())
				if c.PeerWindow != 0 {
					t.Errorf("the window is %d, want 0", c.PeerWindow)
				}
			}
		})
		t.Run("the window opens again", func(t *testing.T) {
			r := r.within(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.CopyN(io.Discard, host, int64(len(sent))-1)
			}()
			r.g.Await(func(p *guesttest.Packet) string {
				if wrong := c.Acks()(p); wrong != "" || p.TCP.Window == 0 {
					return "want a window " + wrong
				}
				return ""
			})
			<-done
		})
		r.reads(host, sent[len(sent)-1:])
		c.Send(packet.ACK, []byte("on"))
		r.last(r.g.Settle(), c.Acks())
		r.reads(host, "on")
	})
}

func TestQueuedDataArrivesAfterFIN(t *testing.T) {
	r := newRig(t)
	c, host := r.narrow()
	sent := r.fill(c)
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Only(c.Acks())
	got, err := io.ReadAll(host)
	if err != nil || string(got) != sent {
		t.Errorf("the host reads %d bytes, %v; want %d", len(got), err, len(sent))
	}
}

func TestSegmentTrimmedToWindow(t *testing.T) {
	r := newRig(t)
	c, host := r.narrow()
	var sent strings.Builder
	room := func() (n int) { r.do(func() { n = int(r.flow(c).rcvEdge - c.Seq) }); return n }
	for room() > 40000 {
		c.Send(packet.ACK, []byte(text(30000)))
		sent.WriteString(text(30000))
		r.last(r.g.Settle(), c.Acks())
	}
	n := room()
	tooMuch := text(n + 100)
	c.SendAt(0, packet.ACK|packet.FIN, []byte(tooMuch))
	c.Seq += uint32(n)
	r.last(r.g.Settle(), c.Acks()) // neither the rest nor the FIN
	sent.WriteString(tooMuch[:n])
	r.reads(host, sent.String())
	c.Send(packet.ACK|packet.FIN, []byte(tooMuch[n:]))
	r.last(r.g.Settle(), c.Acks())
	r.reads(host, tooMuch[n:])
	r.readsEOF(host)
}

func TestGuestProbesKeepalive(t *testing.T) {
	tests := []struct {
		name    string
		offset  int
		payload string
	}{
		{"empty", -1, ""},
		{"with a byte of garbage", -1, "\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			keepalive := func() (on int) {
				r.do(func() { on, _ = unix.GetsockoptInt(r.flow(c).hostFD, unix.SOL_SOCKET, unix.SO_KEEPALIVE) })
				return on
			}
			c.Send(packet.ACK, []byte("x"))
			r.g.Only(c.Acks())
			if keepalive() != 0 {
				t.Fatal("the host sends keepalives before the guest does")
			}
			c.SendAt(tt.offset, packet.ACK, []byte(tt.payload))
			r.g.Only(c.Acks())
			if keepalive() != 1 {
				t.Error("the guest sends keepalives, the host does not")
			}
			r.reads(host, "x")
		})
	}
}

// readUrgent returns the urgent byte of a host's connection.
func (r *rig) readUrgent(host *net.TCPConn) string {
	r.Helper()
	raw, err := host.SyscallConn()
	if err != nil {
		r.Fatal(err)
	}
	var b [1]byte
	end := time.Now().Add(testTimeout)
	for n := 0; n == 0 && time.Now().Before(end); {
		_ = raw.Control(func(fd uintptr) { n, _, _ = unix.Recvfrom(int(fd), b[:], unix.MSG_OOB|unix.MSG_DONTWAIT) })
		if n == 1 {
			return string(b[:])
		}
		n = 0
	}
	r.Fatal("no urgent byte")
	return ""
}

func TestGuestUrgentByte(t *testing.T) {
	tests := []struct {
		name     string
		segments []string
		pointer  uint16 // of the first segment
		plain    string // what the host reads apart from it
		urgent   string
	}{
		{"first", []string{"!bcd"}, 1, "bcd", "!"},
		{"middle", []string{"ab!d"}, 3, "abd", "!"},
		{"last", []string{"abc!"}, 4, "abc", "!"},
		{"alone", []string{"!"}, 1, "", "!"},
		{"in the next segment", []string{"abcd", "ef!h"}, 7, "abcdefh", "!"},
		{"first of the next segment", []string{"abcd", "!fgh"}, 5, "abcdfgh", "!"},
		{"no urgent pointer", []string{"abcd"}, 0, "abcd", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			for i, payload := range tt.segments {
				s := c.Segment(packet.ACK, []byte(payload))
				if i == 0 {
					s.Flags |= packet.URG
					s.Urgent = tt.pointer
				}
				r.g.Send(s)
				c.Seq += uint32(len(payload))
			}
			r.last(r.g.Settle(), c.Acks())
			if tt.urgent != "" {
				if got := r.readUrgent(host); got != tt.urgent {
					t.Errorf("the urgent byte is %q, want %q", got, tt.urgent)
				}
			}
			c.Send(packet.FIN|packet.ACK, nil)
			if got, err := io.ReadAll(host); err != nil || string(got) != tt.plain {
				t.Errorf("the host reads %q, %v; want %q", got, err, tt.plain)
			}
		})
	}
}

func TestUrgentByteFarAheadIsForgotten(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	s := c.Segment(packet.ACK|packet.URG, []byte("abcd"))
	s.Urgent = 65535
	r.g.Send(s)
	c.Seq += 4
	r.g.Only(c.Acks())
	r.reads(host, "abcd")
	c.Send(packet.ACK, []byte("efgh"))
	r.g.Only(c.Acks())
	r.reads(host, "efgh")
}

func TestUrgentByteWhileHostIsFull(t *testing.T) {
	r := newRig(t)
	c, host := r.narrow()
	var full bool
	var sent strings.Builder
	for !full {
		c.Send(packet.ACK, []byte(text(10000)))
		sent.WriteString(text(10000))
		r.last(r.g.Settle(), c.Acks())
		r.do(func() { full = r.flow(c).queue.bytes > 0 })
	}
	s := c.Segment(packet.ACK|packet.URG, []byte("ab!d"))
	s.Urgent = 3
	r.g.Send(s)
	c.Seq += 4
	r.last(r.g.Settle(), c.Acks())
	r.reads(host, sent.String())
	r.reads(host, "ab")
	if got := r.readUrgent(host); got != "!" {
		t.Errorf("the urgent byte is %q", got)
	}
	r.reads(host, "d")
}

func TestWindowEdge(t *testing.T) {
	r := newRig(t)
	c, _ := r.open()
	c.Send(packet.ACK, []byte("x"))
	r.g.Only(c.Acks())
	r.do(func() {
		f := r.flow(c)
		f.offerWindow()
		const unit = 1 << windowShift // the edge is a multiple of the unit ahead
		start := f.rcvEdge
		f.rcvNxt += 700
		f.offerWindow()
		if gain := int32(f.rcvEdge - start); gain < 0 || gain >= unit {
			t.Errorf("the edge moves by %d for 700 bytes, which is not worth a segment", gain)
		}
		f.rcvNxt += 900
		f.offerWindow()
		if gain := int32(f.rcvEdge - start); gain < 1600 || gain >= 1600+unit {
			t.Errorf("the edge moves by %d for 1600 bytes", gain)
		}
		var taken []*buffer
		for !r.s.largePool.scarce() {
			taken = append(taken, r.s.largePool.get())
		}
		start = f.rcvEdge
		f.rcvNxt += 3000
		f.offerWindow()
		if gain := int32(f.rcvEdge - start); gain < 0 || gain >= unit {
			t.Errorf("the edge moves by %d though memory is scarce", gain)
		}
		for int32(start-f.rcvNxt) > 0 {
			f.rcvNxt += 5000
			f.offerWindow()
		}
		if open := int(f.rcvEdge - f.rcvNxt); open < minWindow-1500 || open > minWindow+unit {
			t.Errorf("with scarce memory %d bytes are offered, want %d", open, minWindow)
		}
		for _, b := range taken {
			b.free()
		}
		f.reset()
	})
}

// The edge of a scaled window is rounded up, so that segments smaller than a unit push it
// on. The queue has a bound of its own.
func TestTinySegmentsWhileHostIsFull(t *testing.T) {
	r := newRig(t)
	c, host := r.narrow()
	var sent strings.Builder
	send := func(n int) {
		c.SendAt(0, packet.ACK, []byte(text(n)))
		all := r.g.Settle()
		taken := int(all[len(all)-1].TCP.Ack - c.Seq)
		if taken < 0 || taken > n {
			t.Fatalf("%d bytes of %d are acknowledged", taken, n)
		}
		sent.WriteString(text(n)[:taken])
		c.Seq += uint32(taken)
	}
	for queued := 0; queued == 0; {
		send(10000)
		r.do(func() { queued = r.flow(c).queue.bytes })
	}
	for range 4000 {
		send(100)
	}
	r.do(func() {
		f := r.flow(c)
		if n := f.queue.bytes; n > f.windowBytes+minWindow {
			t.Errorf("%d bytes wait, the window is %d", n, f.windowBytes)
		}
	})
	r.reads(host, sent.String())
	c.Send(packet.ACK|packet.FIN, []byte("end"))
	r.last(r.g.Settle(), c.Acks())
	r.reads(host, "end")
	r.readsEOF(host)
}

// If a connection's share has become small compared with its earlier window, the guest
// must get a window update when the queue is empty: it waits for nothing else.
func TestEmptyQueueOpensWindow(t *testing.T) {
	r := newRig(t)
	c, _ := r.open()
	r.do(func() {
		f := r.flow(c)
		for _, window := range []int{initialWindow, 1 << 20, maxWindow} {
			for _, share := range []int{minWindow, 700 << 10, maxWindow} {
				f.windowBytes, r.s.tcp.shareBytes, f.rcvEdge = window, share, f.rcvNxt
				if !f.windowUpdateDue() {
					t.Errorf("window %d, share %d: a closed window stays closed", window, share)
				}
				if f.rcvEdge += uint32(min(window, share)); f.windowUpdateDue() {
					t.Errorf("window %d, share %d: an open window is offered again", window, share)
				}
			}
		}
	})
	r.stop()
}
