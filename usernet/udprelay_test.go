package usernet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"cleat/packet"
	"cleat/usernet/guesttest"

	"golang.org/x/sys/unix"
)

// scriptedConn is a Conn whose other end is two channels.
type scriptedConn struct {
	net.Conn // nil: other methods are not called
	in       chan []byte
	out      chan string
	fail     error // returned by Read when in is closed
	once     sync.Once
	closed   chan struct{}
}

func newScriptedConn() *scriptedConn {
	return &scriptedConn{in: make(chan []byte, 8), out: make(chan string, 64), fail: io.EOF, closed: make(chan struct{})}
}

func (c *scriptedConn) Read(b []byte) (int, error) {
	select {
	case d, ok := <-c.in:
		if !ok {
			return 0, c.fail
		}
		if d == nil {
			return 0, &net.OpError{Op: "read", Err: unix.ECONNREFUSED}
		}
		return copy(b, d), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *scriptedConn) Write(b []byte) (int, error) {
	select {
	case c.out <- string(b):
		return len(b), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *scriptedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// takes waits for what the guest's side writes.
func (c *scriptedConn) takes(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-c.out:
		if got != want {
			t.Fatalf("the Conn gets %q, want %q", got, want)
		}
	case <-time.After(testTimeout):
		t.Fatal("the Conn gets nothing")
	}
}

// isClosed waits until the Stack has closed the Conn.
func (c *scriptedConn) isClosed(t *testing.T) {
	t.Helper()
	select {
	case <-c.closed:
	case <-time.After(testTimeout):
		t.Fatal("the Conn is not closed")
	}
}

func TestUDPOverConn(t *testing.T) {
	family(t, func(t *testing.T, r *rig) {
		c := newScriptedConn()
		r.do(func() {
			r.s.cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Use, Conn: c} })
		})
		peer := netip.AddrPortFrom(r.peer, 53)
		r.sendDatagram(5000, peer, "question")
		c.takes(t, "question")
		c.in <- []byte("answer")
		r.gets(peer, 5000, "answer")
		c.in <- nil // an error about a datagram does not end the flow
		r.g.SendFrame(datagramFrame(netip.AddrPortFrom(r.guest, 5000), peer, []byte("onetwo3"), 3))
		c.takes(t, "one")
		c.takes(t, "two")
		c.takes(t, "3")
		c.in <- []byte{}
		r.gets(peer, 5000, "")
		close(c.in) // io.EOF ends the flow
		c.isClosed(t)
		r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 })
	})
}

func TestUDPConnClosesWithFlow(t *testing.T) {
	tests := []struct {
		name string
		end  func(r *rig)
	}{
		{"by timeout", func(r *rig) { r.advance(31 * time.Second) }},
		{"by the end of the Stack", func(r *rig) { r.stop() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, c := newRig(t), newScriptedConn()
			r.do(func() {
				r.s.cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Use, Conn: c} })
			})
			r.sendDatagram(5000, netip.AddrPortFrom(r.peer, 53), "question")
			c.takes(t, "question")
			tt.end(r)
			c.isClosed(t)
		})
	}
}

func TestUDPSlowConnDoesNotBlock(t *testing.T) {
	r, c := newRig(t), newScriptedConn()
	c.out = make(chan string) // nothing takes them
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(f Flow) Verdict {
			if f.Destination.Port() == 53 {
				return Verdict{Action: Use, Conn: c}
			}
			return toLoopback(f)
		})
	})
	for range relayQueue + 10 {
		r.sendDatagram(5000, netip.AddrPortFrom(r.peer, 53), "question")
	}
	host, peer := r.udpServer()
	r.sendDatagram(5000, peer, "hello")
	r.readsDatagram(host, "hello")
	r.do(func() {
		if n := r.s.stats.OverLimit; n < 9 || n > 10 { // the writer may have taken one
			t.Errorf("%d dropped, want 9 or 10", n)
		}
	})
}

func TestUDPUseWithoutConn(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Use} })
	})
	r.sendDatagram(5000, netip.AddrPortFrom(r.peer, 53), "question")
	r.g.Only(guesttest.Unreachable(packet.ErrorProhibited, r.guest, r.peer))
}

func TestUDPHook(t *testing.T) {
	answers, asked := make(chan Verdict), make(chan Flow, 1)
	r := newRig(t, func(c *Config) {
		c.Hook = func(ctx context.Context, f Flow) Verdict {
			asked <- f
			select {
			case v := <-answers:
				return v
			case <-ctx.Done():
				return Verdict{}
			}
		}
	})
	host, peer := r.udpServer()
	for i := range maxPending + 3 {
		r.sendDatagram(5000, peer, text(i+1))
	}
	if f := <-asked; f.Destination != peer || f.Source != netip.AddrPortFrom(r.guest, 5000) {
		t.Errorf("the hook was called for %+v", f)
	}
	r.fence()
	answers <- Verdict{} // as the policy decides
	for i := range maxPending {
		r.readsDatagram(host, text(i+1))
	}
	r.sendDatagram(5000, peer, "later")
	r.readsDatagram(host, "later")
	if s := r.stack.Stats(); s.OverLimit != 3 || s.UDPFlows != 1 {
		t.Errorf("%+v", s)
	}
	// A flow that ends while the hook runs drops the datagrams that wait.
	r.sendDatagram(5001, peer, "never mind")
	<-asked
	r.advance(31 * time.Second)
	r.until("the flow has ended", func() bool { return r.s.runningHooks == 0 })
	// So does the Stack.
	r.sendDatagram(5002, peer, "never mind")
	<-asked
}

func TestUDPHookRefuses(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Hook = func(context.Context, Flow) Verdict { return Verdict{Action: Refuse} }
	})
	r.sendDatagram(5000, netip.AddrPortFrom(r.peer, 9), "hello")
	r.g.Await(guesttest.Unreachable(packet.ErrorProhibited, r.guest, r.peer))
}

func TestUDPOverRealConn(t *testing.T) {
	r := newRig(t)
	host, _ := r.udpServer()
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict {
			c, err := net.Dial("udp", host.LocalAddr().String())
			if err != nil {
				return Verdict{Action: Refuse}
			}
			return Verdict{Action: Use, Conn: c}
		})
	})
	peer := netip.AddrPortFrom(r.peer, 53)
	r.sendDatagram(5000, peer, "question")
	r.answer(host, r.readsDatagram(host, "question"), "answer")
	r.gets(peer, 5000, "answer")
	if errors.Is(host.Close(), net.ErrClosed) {
		t.Fatal("closed before")
	}
	r.sendDatagram(5000, peer, "question")
	r.fence()
	if n := r.udpFlows(); n != 1 {
		t.Errorf("%d flows after a refused datagram, want 1", n)
	}
}

// pushingConn delivers its datagrams through WriteTo.
type pushingConn struct{ *scriptedConn }

func (c pushingConn) Read([]byte) (int, error) { panic("Read was called in spite of WriteTo") }

func (c pushingConn) WriteTo(w io.Writer) (n int64, err error) {
	for b := range c.in {
		if _, err := w.Write(b); err != nil {
			return n, err
		}
		n += int64(len(b))
	}
	return n, nil
}

func TestUDPOverWriterTo(t *testing.T) {
	r, c := newRig(t), newScriptedConn()
	r.do(func() {
		r.s.cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Use, Conn: pushingConn{c}} })
	})
	peer := netip.AddrPortFrom(r.peer, 53)
	r.sendDatagram(5000, peer, "question")
	c.takes(t, "question")
	c.in <- []byte("one")
	c.in <- []byte(text(3000)[:1400])
	r.gets(peer, 5000, "one", text(1400))
	close(c.in)
	c.isClosed(t)
	r.until("the flow has ended", func() bool { return len(r.s.udp.flows) == 0 })
}
