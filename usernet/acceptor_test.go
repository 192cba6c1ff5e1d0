package usernet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"cleat/internal/sys"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// inLoop reports whether an engine's loop waits for a descriptor.
func (r *rig) inLoop(fd int) bool {
	r.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", r.s.loop.epfd))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "tfd:" && f[1] == fmt.Sprint(fd) {
			return true
		}
	}
	return false
}

// destroy has the same effect on a listening socket as SOCK_DESTROY, as far as epoll is
// concerned.
func destroy(t *testing.T, fd int) {
	t.Helper()
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
}

// A guest that destroys the gate's listener does not make the loop spin. Connections take
// the device from then on.
func TestGateListenerDestroyed(t *testing.T) {
	g := newGateRig(t, false)
	guest, host, _ := g.through()
	listener := g.stack.group.gate.v4.listener
	if !g.inLoop(listener) {
		t.Fatal("the loop does not wait for the gate")
	}
	destroy(t, listener)
	g.until("the loop stops waiting", func() bool { return !g.inLoop(listener) })
	g.carries(guest, host)
	c, _ := g.port()
	c.Open()
	g.keep(g.accept(g.server))
	g.until("it takes the device", func() bool {
		f := g.flow(c)
		return f != nil && f.state == stateEstablished && f.deviceReason == reasonListenerLost
	})
}

// forwardOutRig is a Stack with a port in the guest's namespace that leads to a server of
// the host's.
func forwardOutRig(t *testing.T, change ...func(*Config)) (r *rig, inside netip.AddrPort, server *net.TCPListener) {
	t.Helper()
	r = newRig(t, change...)
	listener := tcpFile(t, loopback4, true)
	at, errno := sys.LocalAddress(int(listener.Fd()))
	if errno != 0 {
		t.Fatal(errno)
	}
	server = r.listen()
	fd, err := unix.FcntlInt(listener.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the Stack owns it
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if err := r.stack.ForwardOut(os.NewFile(uintptr(fd), "inside"), server.Addr().(*net.TCPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	return r, at.AddrPort(), server
}

func TestForwardOut(t *testing.T) {
	r, inside, server := forwardOutRig(t)
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp", inside.String())
		if err != nil {
			t.Fatal(err)
		}
		return r.keep(c.(*net.TCPConn))
	}
	guest := dial()
	host := r.accept(server)
	r.carries(guest, host)
	flows, err := r.stack.Flows()
	if err != nil || len(flows) != 1 {
		t.Fatalf("flows %v, %v", flows, err)
	}
	if f := flows[0]; f.Tier != TierSplice || f.Destination != inside || f.Host != server.Addr().(*net.TCPAddr).AddrPort() || f.Protocol != packet.TCP {
		t.Errorf("flow %+v", f)
	}
	guest.Close()
	r.readsEOF(host)
	host.Close()
	r.gone()

	server.Close() // the host refuses from now on
	r.dialedReset(inside)
	r.gone()
}

// The guest may destroy a port in its namespace.
func TestForwardOutListenerDestroyed(t *testing.T) {
	r, inside, server := forwardOutRig(t)
	var fd int
	r.do(func() {
		for o := range r.s.outForwards {
			fd = o.fd
		}
	})
	c, err := net.Dial("tcp", inside.String())
	if err != nil {
		t.Fatal(err)
	}
	guest, host := r.keep(c.(*net.TCPConn)), r.accept(server)
	destroy(t, fd)
	r.until("the port is closed", func() bool { return len(r.s.outForwards) == 0 })
	r.carries(guest, host)
}

// Clients in the guest's namespace count against the limits, and are reset beyond them.
func TestForwardOutLimits(t *testing.T) {
	const most = 5
	r, inside, server := forwardOutRig(t, func(c *Config) { c.Limits.Flows = most })
	for range most {
		c, err := net.Dial("tcp", inside.String())
		if err != nil {
			t.Fatal(err)
		}
		r.carries(r.keep(c.(*net.TCPConn)), r.accept(server))
	}
	r.dialedReset(inside)
	if s := r.stack.Stats(); s.OverLimit != 1 {
		t.Errorf("%d flows over the limit", s.OverLimit)
	}
}

// dialedReset fails the test unless a connection is reset, during connect or later.
func (r *rig) dialedReset(to netip.AddrPort) {
	r.Helper()
	c, err := net.Dial("tcp", to.String())
	switch {
	case err == nil:
		r.isReset(r.keep(c.(*net.TCPConn)))
	case !errors.Is(err, unix.ECONNRESET):
		r.Fatal(err)
	}
}

// carries sends a word in each direction between the two ends of a connection.
func (r *rig) carries(a, b *net.TCPConn) {
	r.Helper()
	for _, way := range []struct {
		from, to *net.TCPConn
		word     string
	}{{a, b, "there"}, {b, a, "back"}} {
		r.write(way.from, way.word)
		r.reads(way.to, way.word)
	}
}

// A listener that lacks descriptors or memory stays readable. It is not tried again for a
// while.
func TestAcceptorPausesWhenExhausted(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		l := newTestLoop(t)
		r, w := pipe2(t)
		tries := 0
		waiting := &acceptor{s: &engine{loop: l}, fd: r, accept: func() unix.Errno { tries++; return errno }}
		if err := waiting.add(); err != nil {
			t.Fatal(err)
		}
		write(t, w)
		for range 10 {
			poll(t, l)
		}
		if tries != 1 {
			t.Errorf("%v: accepted %d times in a row", errno, tries)
		}
		waiting.resumeTimer.fire()
		if poll(t, l); tries != 2 {
			t.Errorf("%v: accepted %d times after the pause", errno, tries)
		}
	}
}

// If a connection can't be accepted at the gate, the gate's listener reports an error.
func TestGateAcceptError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	errno := new(tcpTable).acceptArrivals(&gateFamily{listener: int(f.Fd())})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if errno != unix.EMFILE {
		t.Errorf("got %v", errno)
	}
}
