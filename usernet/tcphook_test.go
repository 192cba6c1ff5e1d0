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
)

// hooked returns a configuration change that sets the hook.
func hooked(h Hook) func(*Config) { return func(cfg *Config) { cfg.Hook = h } }

// answerReachesGuest sends a word from the far end to the guest.
func (r *rig) answerReachesGuest(c *guesttest.Conn, host net.Conn) {
	r.Helper()
	r.write(host, "answer")
	if got := c.Expect(6); string(got) != "answer" {
		r.Errorf("the guest reads %q", got)
	}
}

// bothClose closes a connection in order, the far end first.
func (r *rig) bothClose(c *guesttest.Conn, host net.Conn) {
	r.Helper()
	host.Close()
	c.ExpectFIN()
	c.Send(packet.ACK|packet.FIN, nil)
	r.g.Settle()
	r.gone()
}

func TestHookTCPConn(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := newRig(t, hooked(func(ctx context.Context, _ Flow) Verdict {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return Verdict{Action: Refuse}
		}
		_, _ = io.WriteString(c, "greeting of the proxy's, ")
		return Verdict{Action: Use, Conn: c}
	}))
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Open()
	host := r.accept(l.(*net.TCPListener))
	c.Send(packet.ACK, []byte("through the proxy"))
	r.reads(host, "greeting of the proxy's, through the proxy")
	r.answerReachesGuest(c, host)
	r.bothClose(c, host)
}

// piped returns a guest's connection through a hook that gives one end of a net.Pipe to
// the Stack and the other to the test.
func piped(t *testing.T) (*rig, *guesttest.Conn, net.Conn) {
	t.Helper()
	far := make(chan net.Conn, 1)
	r := newRig(t, hooked(func(context.Context, Flow) Verdict {
		near, other := net.Pipe()
		_ = other.SetDeadline(time.Now().Add(testTimeout))
		far <- other
		return Verdict{Action: Use, Conn: near}
	}))
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Open()
	return r, c, <-far
}

func TestHookPipe(t *testing.T) {
	r, c, host := piped(t)
	c.Send(packet.ACK, []byte("through the pipe"))
	r.reads(host, "through the pipe")
	r.answerReachesGuest(c, host)
	r.bothClose(c, host)
}

func TestHookPipeClosedByGuest(t *testing.T) {
	r, c, host := piped(t)
	c.Send(packet.ACK|packet.FIN, []byte("all of it"))
	got, err := io.ReadAll(host)
	if err != nil || string(got) != "all of it" {
		t.Errorf("the far end reads %q, %v", got, err)
	}
	host.Close()
	c.ExpectFIN()
	r.gone()
}

func TestHookPipeReset(t *testing.T) {
	r, c, host := piped(t)
	c.Send(packet.RST, nil)
	if _, err := io.ReadAll(host); err != nil {
		t.Errorf("the far end reads %v, want the end", err)
	}
	r.gone()
}

func TestHookPipeUrgentByte(t *testing.T) {
	r, c, host := piped(t)
	s := c.Segment(packet.ACK|packet.URG, []byte("ab!d"))
	s.Urgent = 3
	r.g.Send(s)
	c.Seq += 4
	r.last(r.g.Settle(), c.Acks())
	r.reads(host, "ab!d")
}

func TestHookRefuses(t *testing.T) {
	for _, v := range []Verdict{{Action: Refuse}, {Action: Use}} {
		r := newRig(t, hooked(func(context.Context, Flow) Verdict { return v }))
		c := r.conn(netip.AddrPortFrom(r.peer, 443))
		c.Send(packet.SYN, nil)
		r.g.Await(c.Resets())
		r.gone()
	}
}

func TestHookDrops(t *testing.T) {
	r := newRig(t, hooked(func(context.Context, Flow) Verdict { return Verdict{Action: Drop} }))
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Send(packet.SYN, nil)
	r.until("the hook has spoken", func() bool { return r.s.stats.Refused == 1 })
	r.g.Silent()
}

func TestHookRedirects(t *testing.T) {
	var to netip.AddrPort
	var seen Flow
	r := newStack(t, hooked(func(_ context.Context, f Flow) Verdict { seen = f; return Verdict{Action: Redirect, To: to} }))
	l := r.listen()
	to = l.Addr().(*net.TCPAddr).AddrPort()
	r.run()
	c := r.conn(netip.MustParseAddrPort("203.0.113.5:443"))
	c.Open()
	c.Send(packet.ACK, []byte("elsewhere"))
	r.reads(r.accept(l), "elsewhere")
	r.do(func() {
		if seen != (Flow{Protocol: packet.TCP, Source: c.Local, Destination: c.Peer}) {
			t.Errorf("the hook saw %+v", seen)
		}
	})
}

func TestHookZeroVerdictKeepsPolicy(t *testing.T) {
	r := newRig(t, hooked(func(context.Context, Flow) Verdict { return Verdict{} }))
	c, host := r.open()
	c.Send(packet.ACK, []byte("x"))
	r.reads(host, "x")
}

func TestHookNotCalledAfterRefusal(t *testing.T) {
	r := newRig(t, func(cfg *Config) {
		cfg.Policy = judgeFunc(func(Flow) Verdict { return Verdict{Action: Refuse} })
		cfg.Hook = func(context.Context, Flow) Verdict { panic("the hook was called") }
	})
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Send(packet.SYN, nil)
	r.g.Only(c.Resets())
}

// closeNotifier is a Conn that reports its Close.
type closeNotifier struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *closeNotifier) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// await waits for Close.
func (c *closeNotifier) await(t *testing.T) {
	t.Helper()
	select {
	case <-c.closed:
	case <-time.After(testTimeout):
		t.Fatal("the late Conn is not closed")
	}
}

func TestGuestResetsBeforeHookReturns(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := &closeNotifier{Conn: near, closed: make(chan struct{})}
	var ended error
	r := newRig(t, hooked(func(ctx context.Context, _ Flow) Verdict {
		<-ctx.Done() // the guest's RST ends it
		ended = ctx.Err()
		return Verdict{Action: Use, Conn: conn}
	}))
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Send(packet.SYN, nil)
	r.g.Silent()
	c.SendAt(0, packet.RST, nil)
	conn.await(t)
	if !errors.Is(ended, context.Canceled) {
		t.Errorf("the hook's context ended with %v", ended)
	}
	r.g.Silent()
	r.gone()
	r.until("no hook is under way", func() bool { return r.s.runningHooks == 0 })
}

func TestStackEndsBeforeHookReturns(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := &closeNotifier{Conn: near, closed: make(chan struct{})}
	asked := make(chan struct{})
	r := newRig(t, hooked(func(ctx context.Context, _ Flow) Verdict {
		close(asked)
		<-ctx.Done()
		return Verdict{Action: Use, Conn: conn}
	}))
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Send(packet.SYN, nil)
	<-asked
	r.stop()
	conn.await(t)
}

func TestHookContextEndsWithFlow(t *testing.T) {
	contexts := make(chan context.Context, 1)
	r := newRig(t, hooked(func(ctx context.Context, _ Flow) Verdict { contexts <- ctx; return Verdict{} }))
	c, host := r.open()
	ctx := <-contexts
	r.write(host, "x")
	c.Expect(1)
	if ctx.Err() != nil {
		t.Error("the context ended before the flow")
	}
	r.bothClose(c, host)
	select {
	case <-ctx.Done():
	case <-time.After(testTimeout):
		t.Error("the context outlives the flow")
	}
}

func TestTooManyHooks(t *testing.T) {
	r := newRig(t, blockedHook)
	for range maxHooks {
		c := r.conn(netip.AddrPortFrom(r.peer, 443))
		c.Send(packet.SYN, nil)
	}
	r.g.Silent()
	c := r.conn(netip.AddrPortFrom(r.peer, 443))
	c.Send(packet.SYN, nil)
	r.g.Only(c.Resets())
	if n := r.stack.Stats().OverLimit; n != 1 {
		t.Errorf("%d turned away by limits, want 1", n)
	}
}

func TestHookContextEndsWithUDPFlow(t *testing.T) {
	contexts := make(chan context.Context, 1)
	r := newRig(t, hooked(func(ctx context.Context, _ Flow) Verdict { contexts <- ctx; return Verdict{} }))
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	frame := datagramFrame(netAddr(rigGuest4, 5000), netAddr(rigPeer4, u.LocalAddr().(*net.UDPAddr).Port), []byte(text(100)), 0)
	new(packet.VNetHdr).Put(frame)
	// Without NEEDS_CSUM a checksum of 0 means that there is none (RFC 768).
	frame[packet.VNetHdrBytes+packet.IPv4Bytes+packet.UDPChecksumOffset] = 0
	frame[packet.VNetHdrBytes+packet.IPv4Bytes+packet.UDPChecksumOffset+1] = 0
	r.g.SendFrame(frame)
	ctx := <-contexts
	_ = u.SetDeadline(time.Now().Add(testTimeout))
	if _, _, err := u.ReadFromUDPAddrPort(make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Error("the context ended before the flow")
	}
	r.advance(time.Hour)
	select {
	case <-ctx.Done():
	case <-time.After(testTimeout):
		t.Error("the context outlives the flow")
	}
}
