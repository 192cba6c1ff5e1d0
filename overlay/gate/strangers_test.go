package gate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/trust"
)

func TestJoin(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	g := c.run(c.config(c.host("a")))
	at := netip.MustParseAddrPort(g.addr)
	token, err := trust.NewToken(c.authority.Certificate, []netip.AddrPort{at})
	if err != nil {
		t.Fatal(err)
	}
	var bindings []string
	for range 2 {
		d, err := gate.DialToJoin(t.Context(), token, at)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if !d.Authority.Equal(c.authority.Certificate) {
			t.Error("another authority")
		}
		if got := line(d); got != fmt.Sprintf("join %x", d.Binding) {
			t.Errorf("served by %q, binding %x", got, d.Binding)
		}
		bindings = append(bindings, string(d.Binding))
	}
	if bindings[0] == bindings[1] {
		t.Error("two connections have one binding")
	}
	token.Authority = [16]byte{}
	if _, err := gate.DialToJoin(t.Context(), token, at); !errors.As(err, new(*gate.OtherClusterError)) {
		t.Errorf("token of another cluster: %v", err)
	}
	// The authority's certificate is public. It helps nobody without a host's key of that authority.
	forged := other.run(other.config(other.host("a")))
	chained := other.config(nil)
	chained.Identity = func() *trust.Identity {
		id := other.identity("a", time.Now())
		id.Authority = c.authority.Certificate
		return id
	}
	liar := other.run(chained)
	token.Authority = mustToken(t, c).Authority
	for _, addr := range []string{forged.addr, liar.addr} {
		if d, err := gate.DialToJoin(t.Context(), token, netip.MustParseAddrPort(addr)); err == nil {
			d.Close()
			t.Error("a host of another cluster passes")
		}
	}
}

func mustToken(t *testing.T, c *cluster) trust.Token {
	t.Helper()
	token, err := trust.NewToken(c.authority.Certificate, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Strangers whose handshakes never end get places from one address up to a limit, and hosts get in beside them.
func TestStrangersCostLittle(t *testing.T) {
	c := newCluster(t)
	cfg := c.config(c.host("a"))
	host := netip.MustParseAddr("127.0.0.9")
	cfg.Known = func(a netip.Addr) bool { return a == host }
	before, open := runtime.NumGoroutine(), descriptors(t)
	g := c.run(cfg)
	const many, perAddress, strangers = 1000, 16, 64
	var conns []net.Conn
	for i := range many {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%8))}}
		conn, err := d.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	// The gate has accepted all of them when it serves one that came later.
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: host.AsSlice()}}
	below, err := d.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	b := c.host("b")
	late := tls.Client(below, &tls.Config{RootCAs: b.Roots(), ServerName: trust.PeerName, NextProtos: []string{gate.Host}, Certificates: []tls.Certificate{*b.TLS()}})
	if got := line(late); got != "anode for b" {
		t.Errorf("a host among strangers got %q", got)
	}
	late.Close()
	if n := runtime.NumGoroutine() - before; n > 3*strangers+20 {
		t.Errorf("%d goroutines for %d strangers", n, many)
	}
	if n := descriptors(t) - open - many; n > strangers+20 {
		t.Errorf("%d descriptors for %d strangers", n, many)
	}
	if n := strings.Count(c.logged(), "\n"); n > 5 {
		t.Errorf("%d lines in the log", n)
	}
	g.close()
	for _, conn := range conns {
		conn.Close()
	}
	waitFor(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// One address can't have all places of strangers.
func TestPlacesOfOneAddress(t *testing.T) {
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	at := netip.MustParseAddrPort(g.addr)
	for range 100 {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	below, err := d.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	joins := tls.Client(below, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{gate.Join}})
	defer joins.Close()
	if got := line(joins); !strings.HasPrefix(got, "join ") {
		t.Errorf("got %q", got)
	}
}

// The relay closes both ends when either of them closes.
func TestRelayEnds(t *testing.T) {
	for name, by := range map[string]func(client, member net.Conn){
		"the client closes":          func(client, _ net.Conn) { client.Close() },
		"the client closes its half": func(client, _ net.Conn) { client.(*tls.Conn).CloseWrite() },
		"the client breaks off":      func(client, _ net.Conn) { client.(*tls.Conn).NetConn().Close() },
		"the member closes":          func(_, member net.Conn) { member.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			cfg := c.config(c.host("a"))
			members := make(chan net.Conn, 1)
			cfg.Registry = func(context.Context) (net.Conn, error) {
				a, b := net.Pipe()
				members <- b
				return a, nil
			}
			g := c.run(cfg)
			client, err := gate.Dial(t.Context(), c.host("b"), g.addr, gate.Registry, c.admit)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			member := <-members
			by(client, member)
			if name != "the client closes" && name != "the client breaks off" && !closed(client) {
				t.Error("the client's end is open")
			}
			if !closed(member) {
				t.Error("the member's end is open")
			}
		})
	}
}

// Run returns with connections of every kind open, and leaves nothing.
func TestRunEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	var conns []net.Conn
	for _, protocol := range []string{gate.Host, gate.Registry, gate.Peer, gate.Join} {
		conn, err := raw(t, g.addr, c.host("b"), func(c *tls.Config) { c.NextProtos = []string{protocol} })
		if err != nil {
			t.Fatal(err)
		}
		line(conn)
		conns = append(conns, conn)
	}
	silent, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	g.close()
	for i, conn := range append(conns, silent) {
		if !closed(conn) {
			t.Errorf("connection %d is open", i)
		}
		conn.Close()
	}
	waitFor(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

func TestRunReturnsErrorsOfTheListener(t *testing.T) {
	c := newCluster(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := gate.New(c.config(c.host("a"))).Run(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
}
