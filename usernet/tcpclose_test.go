package usernet

import (
	"io"
	"net"
	"testing"

	"cleat/packet"
	"cleat/usernet/guesttest"
)

func TestGuestClosesFirst(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		c.Send(packet.ACK|packet.FIN, []byte("the last"))
		r.g.Only(c.Acks())
		r.reads(host, "the last")
		r.readsEOF(host)
		for _, s := range []string{"still", "talking"} {
			r.write(host, s)
			if got := c.Expect(len(s)); string(got) != s {
				t.Fatalf("the guest reads %q, want %q", got, s)
			}
		}
		host.Close()
		c.ExpectFIN()
		r.gone()
		r.g.Silent()
	})
}

func TestHostClosesFirst(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		r.write(host, "the last")
		if err := host.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := c.Expect(8); string(got) != "the last" {
			t.Fatalf("the guest reads %q", got)
		}
		c.ExpectFIN()
		for _, s := range []string{"still", "talking"} {
			c.Send(packet.ACK, []byte(s))
			r.g.Only(c.Acks())
			r.reads(host, s)
		}
		c.Send(packet.ACK|packet.FIN, nil)
		r.g.Only(c.Acks())
		r.readsEOF(host)
		r.gone()
		r.g.Silent()
	})
}

func TestSimultaneousClose(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	if err := host.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.g.Await(c.Carries(packet.FIN|packet.ACK, nil))
	c.Send(packet.ACK|packet.FIN, nil) // crosses our FIN, so it does not acknowledge it
	r.g.Only(c.Acks())
	r.readsEOF(host)
	if n := r.live(); n != 1 {
		t.Fatalf("%d connections before our FIN is acknowledged, want 1", n)
	}
	c.Ack++
	c.Send(packet.ACK, nil)
	r.g.Silent()
	if n := r.live(); n != 0 {
		t.Errorf("%d connections, want none", n)
	}
}

func TestFINIsRepeated(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	if err := host.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.g.Await(c.Carries(packet.FIN|packet.ACK, nil))
	wait := minRTO
	for range 3 {
		r.advance(wait)
		r.g.Only(c.Carries(packet.FIN|packet.ACK, nil))
		wait *= 2
	}
	c.CountFIN()
	c.Send(packet.ACK, []byte("x"))
	r.g.Only(c.Acks())
	r.advance(maxRTO)
	r.g.Silent()
	r.reads(host, "x")
}

func TestFINWithDataIsRepeatedAlone(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	r.write(host, "bye")
	host.Close()
	seen := 0
	for seen < 4 { // 3 bytes and the FIN, in one segment or two
		p := r.g.Await(func(p *guesttest.Packet) string {
			if p.From() != c.Peer || p.TCP.Seq != c.Ack+uint32(seen) {
				return "want what is next"
			}
			return ""
		})
		seen += len(p.TCP.Payload) + int(p.TCP.Flags&packet.FIN)
	}
	c.Ack += 3 // the guest has not received the FIN
	c.Send(packet.ACK, nil)
	r.g.Silent()
	r.advance(minRTO)
	r.g.Only(c.Carries(packet.FIN|packet.ACK, nil))
	c.CountFIN()
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Only(c.Acks())
	r.gone()
}

// finished returns a connection that both sides have closed.
func (r *rig) finished() *guesttest.Conn {
	r.Helper()
	c, host := r.open()
	host.Close()
	c.ExpectFIN()
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Only(c.Acks())
	r.gone()
	return c
}

func TestGuestFINRepeatedAfterFinish(t *testing.T) {
	r := newRig(t)
	c := r.finished()
	c.SendAt(-1, packet.ACK|packet.FIN, nil)
	r.g.Only(c.Acks())
	c.SendAt(0, packet.ACK, nil)
	r.g.Silent()
	c.SendAt(0, packet.RST, nil)
	r.g.Silent()
	r.advance(finishedFor)
	c.SendAt(-1, packet.ACK|packet.FIN, nil)
	p := r.g.Only(c.From(packet.RST))
	if p.TCP.Seq != c.Ack {
		t.Errorf("got %v, want seq %d", p, c.Ack)
	}
}

func TestPortsReused(t *testing.T) {
	tests := []struct {
		name string
		off  uint32 // difference between the new connection's initial number and the old one's last
	}{{"with a later number", 1000}, {"with an earlier number", ^uint32(1000)}, {"with the same number", 0}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			l := r.listen()
			c := r.conn(r.toward(l))
			c.Open()
			host := r.accept(l)
			host.Close()
			c.ExpectFIN()
			c.Send(packet.ACK|packet.FIN, nil)
			r.g.Only(c.Acks())
			r.gone()
			old := c.PeerStart
			again := r.g.Conn(c.Local, c.Peer, c.Seq+tt.off)
			again.Open()
			if !before(old, again.PeerStart) {
				t.Errorf("our number was %d, now it is %d", old, again.PeerStart)
			}
			again.Send(packet.ACK, []byte("new"))
			r.g.Only(again.Acks())
			r.reads(r.accept(l), "new")
		})
	}
}

func TestFinishedConnectionsAreBounded(t *testing.T) {
	r := newRig(t)
	r.do(func() {
		for i := range maxFinished + 10 {
			costs, _ := r.s.admit(tcpFlowCost)
			f, _ := r.s.tcp.newFlow(netAddr(rigGuest4, 1024+i), netAddr(rigPeer4, 80), costs)
			f.state = stateEstablished
			f.finish()
		}
		if n := len(r.s.tcp.finished); n != maxFinished || len(r.s.tcp.flows) != n {
			t.Errorf("%d finished connections, %d in the table, want %d", n, len(r.s.tcp.flows), maxFinished)
		}
		if r.s.tcp.flows[keyOf(netAddr(rigGuest4, 1024), netAddr(rigPeer4, 80))] != nil {
			t.Error("the oldest is still there")
		}
	})
	r.advance(finishedFor)
	r.do(func() {
		if n, m := len(r.s.tcp.finished), len(r.s.tcp.flows); n != 0 || m != 0 {
			t.Errorf("%d finished connections, %d in the table after finishedFor", n, m)
		}
		if n := len(r.s.loop.timers); n != 0 {
			t.Errorf("%d timers are left", n)
		}
	})
}

func TestGuestRST(t *testing.T) {
	tests := []struct {
		name   string
		offset int
		ends   bool
		reply  bool
	}{
		{"exact", 0, true, false},
		{"inside the window", 1, false, true},
		{"at the window's end", 60000, false, true},
		{"just before", -1, false, false},
		{"long ago", -100000, false, false},
		{"far beyond", 1 << 30, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			c.Send(packet.ACK, []byte("x"))
			r.g.Only(c.Acks())
			r.reads(host, "x")
			c.SendAt(tt.offset, packet.RST, nil)
			if tt.reply {
				r.g.Only(c.Acks())
			} else {
				r.g.Silent()
			}
			if tt.ends {
				r.isReset(host)
				r.gone()
				return
			}
			c.Send(packet.ACK, []byte("y"))
			r.g.Only(c.Acks())
			r.reads(host, "y")
		})
	}
}

func TestSYNWhileEstablished(t *testing.T) {
	for name, off := range map[string]int{"its own": -1, "in the window": 100, "outside": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c, host := r.open()
			c.SendAt(off, packet.SYN, nil)
			r.g.Only(c.Acks())
			c.SendAt(off, packet.SYN|packet.ACK, nil)
			r.g.Only(c.Acks())
			c.Send(packet.ACK, []byte("x"))
			r.g.Only(c.Acks())
			r.reads(host, "x")
		})
	}
}

// resetNow closes a connection of the host with RST.
func (r *rig) resetNow(host *net.TCPConn) {
	r.Helper()
	if err := host.SetLinger(0); err != nil {
		r.Fatal(err)
	}
	host.Close()
}

func TestHostRST(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c, host := r.open()
		r.resetNow(host)
		r.g.Await(c.Resets())
		r.gone()
		c.Send(packet.ACK, []byte("x"))
		r.g.Only(c.Resets())
	})
}

func TestHostRSTAfterGuestFIN(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Only(c.Acks())
	r.resetNow(host)
	r.g.Await(c.Resets())
	r.gone()
}

func TestHostRSTBeforeGuestAnswers(t *testing.T) {
	r := newRig(t)
	l := r.listen()
	c := r.conn(r.toward(l))
	c.Send(packet.SYN, nil)
	c.HandleSYN(r.g.Await(c.From(packet.SYN | packet.ACK)))
	r.resetNow(r.accept(l))
	r.until("the Stack has seen the RST", func() bool { f := r.flow(c); return f == nil || f.readable })
	c.Send(packet.ACK, nil)
	r.g.Await(c.Resets())
	r.gone()
}

// Epoll reports data, end and RST at once; reading reports only the data and the end.
func TestHostRSTAfterItsFIN(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	c.Window = 0
	c.Send(packet.ACK, nil)
	r.g.Silent()
	r.write(host, "the last")
	if err := host.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.resetNow(host)
	r.until("the Stack has seen the RST", func() bool { return r.flow(c).hostError })
	r.g.Settle()
	c.Window = 1 << 15
	c.Send(packet.ACK, nil)
	if got := c.Expect(8); string(got) != "the last" {
		t.Fatalf("the guest reads %q", got)
	}
	r.g.Await(c.Resets())
	r.gone()
}

func TestGuestSendsToClosedHost(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	host.Close()
	c.ExpectFIN()
	c.Send(packet.ACK, []byte("anyone?")) // the host's kernel answers with RST
	r.g.Await(c.Resets())
	r.gone()
}

func TestRunEndResetsHost(t *testing.T) {
	r := newRig(t)
	_, host := r.open()
	r.stop()
	r.isReset(host)
}

func TestDeviceRemoved(t *testing.T) {
	r := newStack(t)
	ended := make(chan error, 1)
	r.g.Remove()
	go func() { ended <- r.stack.Run(t.Context()) }()
	if err := <-ended; err != nil {
		t.Errorf("run: %v, want nil", err)
	}
	r.memoryReturned()
}

func TestHalfOpenConnectionIsReset(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	c.Send(packet.ACK, []byte("x"))
	r.g.Only(c.Acks())
	// The guest has forgotten the connection and reuses the port. We acknowledge the SYN,
	// and the RST that this causes ends the old connection (RFC 9293 figure 9).
	anew := r.g.Conn(c.Local, c.Peer, c.Start+1<<20)
	anew.Send(packet.SYN, nil)
	p := r.g.Only(c.Acks())
	r.g.Send(guesttest.Segment{From: c.Local, To: c.Peer, Seq: p.TCP.Ack, Flags: packet.RST})
	r.g.Silent()
	r.reads(host, "x")
	r.isReset(host)
	r.gone()
	anew.Seq = anew.Start
	anew.Open()
}

func TestReadAfterHostClosedKeepsOrder(t *testing.T) {
	r := newRig(t)
	c, host := r.open()
	go func() {
		_, _ = io.WriteString(host, text(200000))
		host.Close()
	}()
	if got := c.Expect(200000); string(got) != text(200000) {
		t.Error("the stream arrives changed")
	}
	c.ExpectFIN()
}
