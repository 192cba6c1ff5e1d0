package usernet

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// startSequenceAt makes the next outbound connection's initial sequence number equal to
// start. It sets a policy, which also redirects to the loopback.
func startSequenceAt(r **rig, start uint32) func(*Config) {
	return func(cfg *Config) {
		cfg.Policy = judgeFunc(func(f Flow) Verdict {
			t := (*r).s.tcp.flows[keyOf(f.Source, f.Destination)]
			t.sndStart, t.sndUna, t.sndNxt = start, start, start
			return toLoopback(f)
		})
	}
}

func TestSequenceNumbersWrap(t *testing.T) {
	for _, start := range []uint32{0xffffffff, 0xfffffffe, 0xfffffff0, 0x7ffffff0, 0} {
		t.Run(fmt.Sprintf("%#x", start), func(t *testing.T) {
			var r *rig
			r = newStack(t, startSequenceAt(&r, start))
			r.run()
			c, host := r.open(func(c *guesttest.Conn) { c.Window = 30 })
			if c.PeerStart != start {
				t.Fatalf("initial sequence number %#x, want %#x", c.PeerStart, start)
			}
			go func() { _, _ = io.WriteString(host, text(400)) }()
			if got := c.Expect(400); string(got) != text(400) {
				t.Errorf("the guest reads %q", got)
			}
			host.Close()
			c.ExpectFIN()
			c.Send(packet.ACK|packet.FIN, nil)
			r.g.Only(c.Acks())
			r.gone()
		})
	}
}

func TestRetransmitAfterTimeout(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		r.write(host, "lost")
		r.g.Await(c.Carries(packet.ACK, []byte("lost")))
		wait := minRTO
		for range 4 {
			r.advance(wait)
			r.g.Only(c.Carries(packet.ACK, []byte("lost")))
			wait *= 2
		}
		r.advance(wait / 2)
		r.g.Silent()
		c.Ack += 4
		c.Send(packet.ACK, nil)
		r.advance(time.Minute)
		r.g.Silent()
		if n := r.stack.Stats().Retransmits; n != 4 {
			t.Errorf("%d retransmits are counted, want 4", n)
		}
	})
}

func TestRetransmitCarriesNewestACK(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	r.write(host, "lost")
	r.g.Await(c.Carries(packet.ACK, []byte("lost")))
	c.Send(packet.ACK, []byte("meanwhile"))
	r.g.Settle()
	r.advance(minRTO)
	p := r.last(r.g.Settle(), c.Carries(packet.ACK, []byte("lost")))
	if p.TCP.Ack != c.Seq {
		t.Errorf("the retransmission acknowledges %d, want %d", p.TCP.Ack, c.Seq)
	}
}

func TestGiveUpWithoutACK(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	r.write(host, "lost")
	r.g.Await(c.Carries(packet.ACK, []byte("lost")))
	for range maxTimeouts {
		r.advance(maxRTO)
		r.g.Only(c.Carries(packet.ACK, []byte("lost")))
	}
	r.advance(maxRTO)
	p := r.g.Only(c.From(packet.RST | packet.ACK))
	if p.TCP.Seq != c.Ack+4 {
		t.Errorf("RST at %d, want at %d, after all that was sent", p.TCP.Seq, c.Ack+4)
	}
	r.isReset(host)
	r.gone()
}

// outstanding sends pieces from the host, one segment each, which the guest receives but
// does not acknowledge.
func (r *rig) outstanding(c *guesttest.Conn, host io.Writer, pieces ...string) {
	r.Helper()
	before := c.Ack
	for _, s := range pieces {
		r.write(host, s)
		r.g.Await(c.Carries(packet.ACK, []byte(s)))
		c.Ack += uint32(len(s))
	}
	c.Ack = before
}

func TestFastRetransmit(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		r.outstanding(c, host, "one", "two", "three", "four")
		c.Send(packet.ACK, nil)
		c.Send(packet.ACK, nil)
		r.g.Silent()
		c.Send(packet.ACK, nil)
		r.g.Only(c.Carries(packet.ACK, []byte("one")))
		t.Run("further ones do nothing", func(t *testing.T) {
			r := r.within(t)
			for range 5 {
				c.Send(packet.ACK, nil)
			}
			r.g.Silent()
		})
		t.Run("a partial one causes the next retransmission", func(t *testing.T) {
			r := r.within(t)
			c.Ack += 3
			c.Send(packet.ACK, nil)
			r.g.Only(c.Carries(packet.ACK, []byte("two")))
		})
		t.Run("a full one ends it", func(t *testing.T) {
			r := r.within(t)
			c.Ack += 3 + 5 + 4
			c.Send(packet.ACK, nil)
			r.g.Silent()
		})
		r.write(host, "five")
		if got := c.Expect(4); string(got) != "five" {
			t.Errorf("the guest reads %q", got)
		}
	})
}

func TestNotDuplicateACK(t *testing.T) {
	tests := []struct {
		name string
		send func(c *guesttest.Conn)
	}{
		{"with data", func(c *guesttest.Conn) { c.Send(packet.ACK, []byte("x")) }},
		{"with another window", func(c *guesttest.Conn) { c.Window -= 10; c.Send(packet.ACK, nil) }},
		{"old", func(c *guesttest.Conn) { c.Ack--; c.Send(packet.ACK, nil); c.Ack++ }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			r.outstanding(c, host, "one", "two")
			for range 6 {
				tt.send(c)
				for _, p := range r.g.Settle() {
					if len(p.TCP.Payload) > 0 {
						t.Fatalf("got %v", p)
					}
				}
			}
		})
	}
	t.Run("nothing outstanding", func(t *testing.T) {
		r := newRig(t)
		c, _ := r.open()
		for range 6 {
			c.Send(packet.ACK, nil)
		}
		r.g.Silent()
	})
}

func TestACKOfUnsentData(t *testing.T) {
	for _, ahead := range []uint32{1, 1000, 1<<31 - 1} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			r.outstanding(c, host, "abc")
			c.Ack += 3 + ahead
			c.SendAt(0, packet.ACK, []byte("not to be taken"))
			r.g.Only(c.Acks())
			c.Ack -= ahead + 3
			r.advance(minRTO)
			r.g.Only(c.Carries(packet.ACK, []byte("abc")))
			c.Ack += 3
			c.Send(packet.ACK, []byte("on"))
			r.g.Only(c.Acks())
			r.reads(host, "on")
		})
	}
}

func TestOldACKWithNewData(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	r.write(host, "abc")
	c.Expect(3)
	c.Ack -= 3
	c.Window = 1
	c.Send(packet.ACK, []byte("late"))
	c.Ack += 3
	c.Window = 65535
	r.g.Only(c.Acks())
	r.reads(host, "late")
	r.write(host, text(100)) // the old window of 1 does not count
	if got := r.g.Receive(); len(got.TCP.Payload) != 100 {
		t.Errorf("got %v", got)
	}
}

func TestGuestWindowClosed(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open(func(c *guesttest.Conn) { c.Window = 0 })
		r.write(host, "patience")
		r.until("the Stack has seen the data", func() bool { return r.flow(c).readable })
		r.g.Silent()
		probe := guesttest.And(c.From(packet.ACK), func(p *guesttest.Packet) string {
			if len(p.TCP.Payload) > 0 || p.TCP.Seq != c.Ack-1 {
				return "want an empty segment at the byte before the next"
			}
			return ""
		})
		wait := minRTO
		for range 6 {
			r.advance(wait)
			r.g.Only(probe)
			c.Send(packet.ACK, nil) // still closed
			r.g.Silent()
			wait *= 2
		}
		r.advance(wait / 2)
		r.g.Silent() // the interval grows
		for range 3 * maxTimeouts {
			r.advance(maxRTO)
			r.g.Only(probe) // but the probes continue forever
			c.Send(packet.ACK, nil)
			r.g.Silent()
		}
		c.Window = 4 // 512 bytes
		c.Send(packet.ACK, nil)
		r.g.Only(c.Carries(packet.ACK, []byte("patience")))
		t.Run("a loss after that is repaired soon", func(t *testing.T) {
			r := r.within(t)
			r.advance(minRTO)
			r.g.Only(c.Carries(packet.ACK, []byte("patience")))
		})
		c.Ack += 8
		c.Send(packet.ACK, nil)
		r.advance(maxRTO)
		r.g.Silent()
	})
}

func TestUnansweredWindowProbes(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Window = 0 })
	r.write(host, "patience")
	r.until("the Stack has seen the data", func() bool { return r.flow(c).readable })
	for range maxTimeouts {
		r.advance(maxRTO)
		r.g.Only(c.From(packet.ACK))
	}
	r.advance(maxRTO)
	r.g.Only(c.Resets())
	r.isReset(host)
	r.gone()
}

func TestWindowOpensWithData(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Window = 0 })
	r.write(host, "answer")
	r.until("the Stack has seen the data", func() bool { return r.flow(c).readable })
	c.Window = 100
	c.Send(packet.ACK, []byte("question"))
	p := r.last(r.g.Settle(), c.Carries(packet.ACK, []byte("answer")))
	if p.TCP.Ack != c.Seq {
		t.Errorf("got %v, want ack %d", p, c.Seq)
	}
	r.reads(host, "question")
}

func TestGuestWindowNotExceeded(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Options, c.Window = guesttest.MSS(1000), 3500 })
	go func() { _, _ = io.WriteString(host, text(20000)) }()
	got := 0
	r.until("the window is full", func() bool {
		return r.flow(c).sndNxt-c.Ack > 2500 && !r.s.tcp.busy()
	})
	for _, p := range r.g.Settle() {
		got += len(p.TCP.Payload)
	}
	if got > 3500 {
		t.Fatalf("%d bytes arrived, the window was 3500", got)
	}
	c.Ack += uint32(got)
	c.Send(packet.ACK, nil)
	rest := c.Expect(20000 - got)
	if string(rest) != text(20000)[got:] {
		t.Error("the stream was changed")
	}
}

func TestGuestShrinksWindow(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Options, c.Window = guesttest.MSS(1000), 5000 })
	r.outstanding(c, host, text(1000), text(1000), text(1000))
	c.Ack += 1000
	c.Window = 500 // 2000 are in flight
	c.Send(packet.ACK, nil)
	r.write(host, "behind")
	r.until("the Stack has seen the data", func() bool { return r.flow(c).readable })
	r.g.Silent()
	c.Window = 0
	for range 3 * maxTimeouts {
		c.Send(packet.ACK, nil) // the guest answers, but has no room
		r.g.Silent()
		r.advance(maxRTO)
		r.g.Only(c.Carries(packet.ACK, []byte(text(1000))))
	}
	c.Ack += 2000
	c.Window = 5000
	c.Send(packet.ACK, nil)
	r.last(r.g.Settle(), c.Carries(packet.ACK, []byte("behind")))
}

func TestTinyWindows(t *testing.T) {
	r := newRig(t)
	c, host := r.open(func(c *guesttest.Conn) { c.Options, c.Window = guesttest.MSS(1460), 7 })
	go func() { _, _ = io.WriteString(host, text(500)) }()
	if got := c.Expect(500); string(got) != text(500) {
		t.Errorf("the guest reads %q", got)
	}
}

func TestLargeFrames(t *testing.T) {
	for _, mtu := range []int{576, 1280, 1500, 9000, 65520} {
		t.Run(fmt.Sprint("MTU ", mtu), func(t *testing.T) {
			family(t, func(t *testing.T, r *rig) {
				if r.peer.Is6() && mtu < 1280 {
					t.Skip("IPv6 needs an MTU of 1280")
				}
				mss := mtu - packet.IPBytes(r.peer) - packet.TCPBytes
				c, host := r.open(func(c *guesttest.Conn) {
					c.Options = append(guesttest.MSS(uint16(mss)), guesttest.Scale(7)...)
				})
				if int(c.PeerOptions.MSS) != mss {
					t.Errorf("the SYN-ACK offers MSS %d, want %d", c.PeerOptions.MSS, mss)
				}
				const size = 500000
				go func() { _, _ = io.WriteString(host, text(size)) }()
				var got strings.Builder
				large := 0
				for got.Len() < size {
					p := r.g.Receive()
					if len(p.TCP.Payload) == 0 || p.TCP.Seq != c.Ack {
						continue
					}
					large = max(large, len(p.TCP.Payload))
					if gso := int(p.VNet.GSOSize); gso != 0 && gso != mss {
						t.Fatalf("segments of %d bytes, want %d", gso, mss)
					}
					got.Write(p.TCP.Payload)
					c.Ack += uint32(len(p.TCP.Payload))
					c.Send(packet.ACK, nil)
				}
				if got.String() != text(size) {
					t.Error("the stream was changed")
				}
				if large < 60000 {
					t.Errorf("the largest frame had %d bytes", large)
				}
			}, func(cfg *Config) {
				cfg.MTU = mtu
				if mtu < 1280 {
					cfg.Guest6 = netip.Addr{}
				}
			})
		})
	}
}

// urgent sends one urgent byte from the host.
func (r *rig) urgent(host *net.TCPConn, b string) {
	r.Helper()
	raw, err := host.SyscallConn()
	if err != nil {
		r.Fatal(err)
	}
	if ctlErr := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte(b), unix.MSG_OOB, nil) }); ctlErr != nil || err != nil {
		r.Fatal(ctlErr, err)
	}
}

func TestHostUrgentByte(t *testing.T) {
	tests := []struct {
		name                  string
		before, urgent, after string
	}{
		{"alone", "", "!", ""},
		{"first", "", "!", "after"},
		{"middle", "before", "!", "after"},
		{"last", "before", "!", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			r.write(host, tt.before)
			r.urgent(host, tt.urgent)
			r.write(host, tt.after)
			host.Close()
			var got strings.Builder
			at := -1
			for closed := false; !closed; {
				p := r.g.Receive()
				if p.TCP.Seq != c.Ack {
					continue
				}
				if p.TCP.Flags&packet.URG != 0 {
					at = got.Len() + int(p.TCP.Urgent) - 1
				}
				got.Write(p.TCP.Payload)
				closed = p.TCP.Flags&packet.FIN != 0
				c.Ack += uint32(len(p.TCP.Payload)) + uint32(p.TCP.Flags&packet.FIN)
				c.Send(packet.ACK, nil)
			}
			if want := tt.before + tt.urgent + tt.after; got.String() != want {
				t.Errorf("the guest reads %q, want %q", got.String(), want)
			}
			if at != len(tt.before) {
				t.Errorf("the urgent byte is number %d, want %d", at, len(tt.before))
			}
		})
	}
}

// A guest whose processor is busy answers late, and gets more time.
func TestLongRoundTripRaisesTimeout(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	r.write(host, "first")
	r.g.Await(c.Carries(packet.ACK, []byte("first")))
	r.advance(minRTO * 3 / 4)
	r.g.Silent()
	c.Ack += 5
	c.Send(packet.ACK, nil)
	r.g.Silent()
	r.write(host, "second")
	r.g.Await(c.Carries(packet.ACK, []byte("second")))
	r.advance(minRTO)
	r.g.Silent()
	r.advance(3 * minRTO) // 150 ms and four times half of that
	r.g.Only(c.Carries(packet.ACK, []byte("second")))
	t.Run("a retransmission is not measured", func(t *testing.T) {
		r := r.within(t)
		var before time.Duration
		r.do(func() { before = r.flow(c).rtt.timeout() })
		r.advance(30 * time.Second)
		r.g.Settle()
		c.Ack += 6
		c.Send(packet.ACK, nil)
		r.g.Silent()
		r.do(func() {
			if now := r.flow(c).rtt.timeout(); now != before {
				t.Errorf("the timeout was %v, now it is %v", before, now)
			}
		})
	})
}
