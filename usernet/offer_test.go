package usernet

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"cleat/packet"

	"golang.org/x/sys/unix"
)

// offeringRig is a Stack with a forward whose clients are offered.
type offeringRig struct {
	*gateRig
	inside *net.TCPListener
	at     netip.AddrPort
}

func newOfferingRig(t *testing.T) *offeringRig {
	t.Helper()
	g := &offeringRig{gateRig: newGateRig(t, false, func(c *Config) {
		c.Gate.Every = false
		c.Shown = map[netip.Addr]netip.Addr{outsider: outsider}
	})}
	g.inside = g.listen()
	own := g.inside.Addr().(*net.TCPAddr).AddrPort()
	var err error
	if g.at, err = g.stack.Forward(Forward{Protocol: packet.TCP, Listen: netip.AddrPortFrom(loopback4, 0), To: netip.AddrPortFrom(netip.Addr{}, own.Port())}); err != nil {
		t.Fatal(err)
	}
	if ok, err := g.stack.OfferFor(netip.AddrPortFrom(netip.IPv4Unspecified(), own.Port()), LoanConfig{Family: unix.AF_INET}); !ok || err != nil {
		t.Fatal("the forward's clients are not offered:", err)
	}
	return g
}

// outsider is a client's address that means the same inside.
var outsider = netip.MustParseAddr("127.0.0.2")

// call is a client from there. What stands for it inside is bound to the same address,
// since the guest lives on the host.
func (g *offeringRig) call() *net.TCPConn {
	g.Helper()
	shared := func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(controlErr, err)
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(outsider, 0)), Timeout: patience, Control: shared}
	c, err := d.Dial("tcp", g.at.String())
	if err != nil {
		g.Fatal(err)
	}
	return g.keep(c.(*net.TCPConn))
}

// take accepts as the server inside, and takes the host's socket for what it has.
func (g *offeringRig) take() (own *net.TCPConn, o *Offer) {
	g.Helper()
	own = g.accept(g.inside)
	o, ok := g.stack.Take(own.LocalAddr().(*net.TCPAddr).AddrPort(), own.RemoteAddr().(*net.TCPAddr).AddrPort())
	if !ok {
		g.Fatal("there is nothing to take")
	}
	return own, o
}

// A client whose socket is taken has nothing to do with us any more.
func TestOfferIsTaken(t *testing.T) {
	g := newOfferingRig(t)
	for range 20 { // so many short ones would take the device
		client := g.call()
		own, o := g.take()
		fd, family, from := o.Socket()
		if family != unix.AF_INET || from != client.LocalAddr().(*net.TCPAddr).AddrPort() {
			t.Errorf("family %d, client %s", family, from)
		}
		if delay, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || delay != 0 {
			t.Errorf("TCP_NODELAY is %d, %v", delay, err)
		}
		o.Keep()
		own.Close()
		if _, err := unix.Write(fd, []byte("from the host's")); err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		g.reads(client, "from the host's")
		g.readsEOF(client)
		client.Close()
	}
	g.advance(offerFor) // nobody is woken before
	g.gone()
	if s := g.stats(); s.Spliced != 0 || len(s.Unspliced) != 0 {
		t.Errorf("counters %+v", s)
	}
}

// One that is given back is spliced, as is one that nobody takes.
func TestOfferIsSplicedAfterAll(t *testing.T) {
	g := newOfferingRig(t)
	for i, unwanted := range []func() *net.TCPConn{
		func() *net.TCPConn { own, o := g.take(); o.Splice(); return own },
		func() *net.TCPConn { own := g.accept(g.inside); g.advance(offerFor); return own },
	} {
		client := g.call()
		g.write(client, "a question")
		server := unwanted()
		g.reads(server, "a question")
		g.write(server, "an answer")
		g.reads(client, "an answer")
		if s := g.stats(); s.Spliced != uint64(i+1) {
			t.Errorf("counters %+v", s)
		}
		client.Close()
		server.Close()
		g.gone()
	}
	// Where that becomes the rule nobody waits for it.
	for range mostFailures - 1 {
		client := g.call()
		server := g.accept(g.inside)
		g.advance(offerFor)
		client.Close()
		server.Close()
		g.gone()
	}
	g.call()
	g.accept(g.inside)
	g.do(func() {
		for _, f := range g.s.tcp.flows {
			if f.state == offered {
				t.Error("it is offered all the same")
			}
		}
	})
}

// A client can meet its server again, and loses nothing by it.
func TestOfferIsMadeAgain(t *testing.T) {
	g := newOfferingRig(t)
	client := g.call()
	g.write(client, "a question")
	own, o := g.take()
	o.Again()
	g.isReset(own)
	_, o = g.take()
	fd, _, _ := o.Socket()
	o.Keep()
	var b [32]byte
	if n, err := unix.Read(fd, b[:]); err != nil || string(b[:n]) != "a question" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	unix.Close(fd)
}

// A client that is called otherwise inside, as one of the host's loopback, is not
// offered: its server would take it for its own.
func TestStrangersAreNotOffered(t *testing.T) {
	g := newOfferingRig(t)
	client := g.client(g.at, netip.AddrPort{})
	g.write(client, "at once")
	server := g.accept(g.inside)
	g.reads(server, "at once")
	if got := server.RemoteAddr().(*net.TCPAddr).IP.String(); got != "127.0.0.9" {
		t.Errorf("it appears as %s", got)
	}
}

// What is offered when the Stack ends is reset; what was taken lives.
func TestOffersWhenTheStackEnds(t *testing.T) {
	g := newOfferingRig(t)
	waiting := g.call()
	g.accept(g.inside)
	taken := g.call()
	_, o := g.take()
	g.stop()
	g.isReset(waiting)
	fd, _, _ := o.Socket()
	o.Keep()
	if _, err := unix.Write(fd, []byte("lives")); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	g.reads(taken, "lives")
}

// The Stack listens with sockets of the server's family: another one's would not be
// what the server expects.
func TestOfferForAFamily(t *testing.T) {
	needIPv6(t)
	g := newGateRig(t, false)
	everywhere, err := g.stack.Forward(Forward{Protocol: packet.TCP, To: netip.AddrPortFrom(netip.Addr{}, 80)})
	if err != nil {
		t.Fatal(err)
	}
	port := everywhere.Port()
	offer := func(family int, only6 bool) bool {
		any := netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			any = netip.IPv6Unspecified()
		}
		ok, err := g.stack.OfferFor(netip.AddrPortFrom(any, 80), LoanConfig{Family: family, Only6: only6})
		return ok && err == nil
	}
	parts := func() (all map[place]int) {
		all = map[place]int{}
		g.do(func() {
			for _, l := range g.s.forwards {
				for _, part := range l.tcp {
					all[part.place] = 0
					if part.offering != nil {
						all[part.place] = part.offering.family
					}
				}
			}
		})
		return all
	}
	all4, all6 := place{at: netip.AddrPortFrom(netip.IPv4Unspecified(), port)}, place{at: netip.AddrPortFrom(netip.IPv6Unspecified(), port)}
	if got := parts(); len(got) != 1 || got[place{all6.at, true}] != 0 {
		t.Errorf("listens at %v", got)
	}
	if ok := offer(unix.AF_INET, false); !ok || len(parts()) != 2 || parts()[all4] != unix.AF_INET || parts()[all6] != 0 {
		t.Errorf("%v; listens at %v", ok, parts())
	}
	if ok := offer(unix.AF_INET6, true); !ok || parts()[all4] != unix.AF_INET || parts()[all6] != unix.AF_INET6 {
		t.Errorf("%v; listens at %v", ok, parts())
	}
	if ok := offer(unix.AF_INET6, false); !ok || len(parts()) != 1 || parts()[place{all6.at, true}] != unix.AF_INET6 {
		t.Errorf("%v; listens at %v", ok, parts())
	}
	if ok := offer(unix.AF_INET, false); !ok || len(parts()) != 2 || parts()[all4] != unix.AF_INET || parts()[all6] != 0 {
		t.Errorf("%v; listens at %v", ok, parts())
	}
	if ok, _ := g.stack.OfferFor(netip.AddrPortFrom(netip.IPv4Unspecified(), 81), LoanConfig{Family: unix.AF_INET}); ok {
		t.Error("no forward leads to port 81")
	}
}
