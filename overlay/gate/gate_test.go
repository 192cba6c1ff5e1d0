package gate_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/overlay/gate"
	"cleat/overlay/trust"
)

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 2000 {
		if done() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// cluster is an authority with the pins of its hosts.
type cluster struct {
	t         *testing.T
	authority *trust.Authority

	mu   sync.Mutex
	pins map[string]string
	log  []string
}

func newCluster(t *testing.T) *cluster {
	a, err := trust.NewAuthority("0123456789abcdef", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, authority: a, pins: map[string]string{}}
}

// identity returns a new identity of a host, whose certificate was signed at a time.
func (c *cluster) identity(host string, at time.Time) *trust.Identity {
	c.t.Helper()
	id, err := trust.NewIdentity(host)
	if err == nil {
		id, err = id.SignedBy(c.authority, at)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// host returns a new identity that the cluster admits.
func (c *cluster) host(name string) *trust.Identity {
	id := c.identity(name, time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins[name] = id.Pin()
	return id
}

func (c *cluster) remove(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pins, host)
}

func (c *cluster) admit(host, pin string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pins[host] != pin {
		return fmt.Errorf("host %s does not belong to the cluster", host)
	}
	return nil
}

func (c *cluster) logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *cluster) logged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.log, "\n")
}

// echo serves connections by sending back what arrives, after a line that says who is served.
func echo(who string, c net.Conn) {
	fmt.Fprintf(c, "%s\n", who)
	_, _ = io.Copy(c, c)
}

// backend returns a function that connects to a new echo.
func backend(who string) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		go func() { defer b.Close(); echo(who, b) }()
		return a, nil
	}
}

// config returns the configuration of a gate of a host that serves everything.
func (c *cluster) config(id *trust.Identity) gate.Config {
	return gate.Config{
		Identity: func() *trust.Identity { return id }, Admit: c.admit, Log: c.logf,
		Registry: backend("registry"), Peers: backend("peers"),
		Serve: func(_ context.Context, host string, c net.Conn) { echo("node for "+host, c) },
		Joining: func(_ context.Context, c net.Conn, binding []byte) error {
			echo(fmt.Sprintf("join %x", binding), c)
			return nil
		},
	}
}

// running is a gate that runs.
type running struct {
	*gate.Gate
	addr  string
	close func()
}

// run starts a gate. It is closed at the end of the test at the latest.
func (c *cluster) run(cfg gate.Config) *running { return c.runAt("127.0.0.1", cfg) }

// runAt is run at an address of the loopback device.
func (c *cluster) runAt(address string, cfg gate.Config) *running {
	c.t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := gate.New(cfg)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, l) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("Run: %v", err)
		}
	})
	c.t.Cleanup(stop)
	return &running{g, l.Addr().String(), stop}
}

// raw connects without package gate's Dial, as anybody could.
func raw(t *testing.T, addr string, id *trust.Identity, change func(*tls.Config)) (*tls.Conn, error) {
	t.Helper()
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{gate.Host}}
	if id != nil {
		cfg.Certificates = []tls.Certificate{*id.TLS()}
	}
	if change != nil {
		change(cfg)
	}
	c, err := tls.Dial("tcp", addr, cfg)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// line reads the first line of a connection.
func line(c net.Conn) string {
	var text []byte
	b := make([]byte, 1)
	for {
		n, err := c.Read(b)
		if err != nil || n == 1 && b[0] == '\n' {
			return string(text)
		}
		text = append(text, b[:n]...)
	}
}

// closed reports whether a connection has been closed by its other end, without anything sent.
func closed(c net.Conn) bool {
	n, err := c.Read(make([]byte, 1))
	return n == 0 && err != nil
}

func TestAdmitted(t *testing.T) {
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	b := c.host("b")
	for protocol, want := range map[string]string{gate.Host: "node for b", gate.Registry: "registry", "h2": "registry", gate.Peer: "peers"} {
		t.Run(protocol, func(t *testing.T) {
			conn, err := gate.Dial(t.Context(), b, g.addr, protocol, c.admit)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got := line(conn); got != want {
				t.Errorf("served by %q, want %q", got, want)
			}
			sent := bytes.Repeat([]byte("0123456789"), 10_000)
			go conn.Write(sent)
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("what came back differs: %v", err)
			}
		})
	}
}

// Nobody but hosts with the key that the registry has gets anything.
func TestRefused(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	a := c.host("a")
	c.host("b")
	gone := c.host("gone")
	c.remove("gone")
	for name, tt := range map[string]struct {
		id  *trust.Identity
		log string
	}{
		"no certificate":             {nil, "it has no certificate of the cluster"},
		"another authority":          {other.host("b"), "its certificate is of another cluster"},
		"a host's name, another key": {c.identity("b", time.Now()), "host b does not belong to the cluster"},
		"a name that nobody has":     {c.identity("new", time.Now()), "host new does not belong to the cluster"},
		"a host that was removed":    {gone, "host gone does not belong to the cluster"},
		"an expired certificate":     {c.identity("b", time.Now().Add(-400*24*time.Hour)), "the certificate of b is valid from"},
		"a certificate of tomorrow":  {c.identity("b", time.Now().Add(48*time.Hour)), "the certificate of b is valid from"},
	} {
		for _, protocol := range []string{gate.Host, gate.Registry, "h2", gate.Peer, ""} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				g := c.run(c.config(a)) // one for each row: the log of a gate leaves lines out
				conn, err := raw(t, g.addr, tt.id, func(c *tls.Config) {
					c.NextProtos = nil
					if protocol != "" {
						c.NextProtos = []string{protocol}
					}
				})
				if err == nil {
					got, _ := io.ReadAll(conn)
					if len(got) > 1 || len(got) == 1 && got[0] != 'u' {
						t.Errorf("got %q", got)
					}
				}
				waitFor(t, "a line in the log: "+tt.log, func() bool { return strings.Contains(c.logged(), tt.log) })
			})
		}
	}
}

func TestDialErrors(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	a := c.host("a")
	g := c.run(c.config(a))
	noMember := c.config(a)
	noMember.Registry = nil
	without := c.run(noMember)
	expired := c.run(c.config(c.identity("a", time.Now().Add(-400*24*time.Hour))))
	impostor := c.run(c.config(c.identity("a", time.Now())))
	gone := c.host("gone")
	c.remove("gone")
	b := c.host("b")
	asExpired := new(*gate.ExpiredError)
	for name, tt := range map[string]struct {
		id   *trust.Identity
		to   string
		as   any
		want string
	}{
		"removed":              {gone, g.addr, new(*gate.RemovedError), "host a does not admit this host"},
		"own certificate old":  {c.identity("b", time.Now().Add(-400*24*time.Hour)), g.addr, asExpired, "the certificate of b is valid from"},
		"own not yet valid":    {c.identity("b", time.Now().Add(48*time.Hour)), g.addr, asExpired, "the certificate of b is valid from"},
		"its certificate old":  {b, expired.addr, asExpired, "the certificate of a is valid from"},
		"its key is another":   {b, impostor.addr, nil, "host a does not belong to the cluster"},
		"another cluster":      {other.host("b"), g.addr, nil, "its certificate is of another cluster"},
		"no registry there":    {b, without.addr, nil, "no member of the registry runs there"},
		"nobody listens there": {b, "127.0.0.1:1", nil, "connect to host at 127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := gate.Dial(t.Context(), tt.id, tt.to, gate.Registry, c.admit)
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.as != nil && !errors.As(err, tt.as) {
				t.Errorf("error %T %v, want %T that says %q", err, err, tt.as, tt.want)
			}
		})
	}
	e, layout := *asExpired, "2006-01-02"
	for _, at := range []time.Time{e.Certificate.NotBefore, e.Certificate.NotAfter, e.Now} {
		if day := at.UTC().Format(layout); !strings.Contains(e.Error(), day) {
			t.Errorf("the error %q does not have %s", e, day)
		}
	}
}

// A gate that a host connects to while it is removed closes the connection, and all later ones.
func TestEvict(t *testing.T) {
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	b, other := c.host("b"), c.host("c")
	var conns []net.Conn
	for _, protocol := range []string{gate.Host, gate.Registry, "h2", gate.Peer} {
		conn, err := gate.Dial(t.Context(), b, g.addr, protocol, c.admit)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		line(conn)
		conns = append(conns, conn)
	}
	stays, err := gate.Dial(t.Context(), other, g.addr, gate.Host, c.admit)
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	line(stays)
	c.remove("b")
	g.Evict("b")
	for i, conn := range conns {
		if !closed(conn) {
			t.Errorf("connection %d is open", i)
		}
	}
	if _, err := gate.Dial(t.Context(), b, g.addr, gate.Host, nil); !errors.As(err, new(*gate.RemovedError)) {
		t.Errorf("the host that was removed comes back: %v", err)
	}
	fmt.Fprintln(stays, "still here")
	if got := line(stays); got != "still here" {
		t.Errorf("the other host got %q", got)
	}
}

// Leave closes what was accepted at an address and what was dialled to it, and nothing else.
func TestLeave(t *testing.T) {
	c := newCluster(t)
	a, b, other := c.runAt("127.0.0.2", c.config(c.host("a"))), c.runAt("127.0.0.3", c.config(c.host("b"))), c.runAt("127.0.0.4", c.config(c.host("c")))
	dial := func(to *running) net.Conn {
		t.Helper()
		conn, err := b.Dial(t.Context(), to.addr, gate.Host, c.admit)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		line(conn)
		return conn
	}
	for name, leave := range map[string]func(netip.Addr){"accepted": a.Leave, "dialled": b.Leave} {
		goes, stays := dial(a), dial(other)
		leave(netip.MustParseAddr("127.0.0.2"))
		goes.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := goes.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is open", name)
		}
		fmt.Fprintln(stays, "still here")
		if got := line(stays); got != "still here" {
			t.Errorf("%s: the connection to another host got %q", name, got)
		}
	}
}

// Leave ends an attempt to connect to an address where nobody answers.
func TestLeaveWhileDialling(t *testing.T) {
	c := newCluster(t)
	b := c.run(c.config(c.host("b")))
	silent, err := net.Listen("tcp", "127.0.0.2:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := b.Dial(t.Context(), silent.Addr().String(), gate.Peer, c.admit)
		failed <- err
	}()
	for deadline := time.After(10 * time.Second); ; {
		b.Leave(netip.MustParseAddr("127.0.0.2"))
		select {
		case err := <-failed:
			if err == nil || !strings.Contains(err.Error(), "another address") {
				t.Errorf("the attempt ends with %v", err)
			}
			return
		case <-deadline:
			t.Fatal("the attempt goes on")
		case <-time.After(time.Millisecond):
		}
	}
}

// A host that is removed in the middle of its handshake does not slip through.
func TestEvictBetweenHandshakeAndAdmission(t *testing.T) {
	c := newCluster(t)
	cfg := c.config(c.host("a"))
	asked, goOn := make(chan struct{}), make(chan struct{})
	cfg.Admit = func(host, pin string) error {
		err := c.admit(host, pin)
		asked <- struct{}{}
		<-goOn
		return err
	}
	g := c.run(cfg)
	conn, err := raw(t, g.addr, c.host("b"), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-asked // the host is admitted, and removed before it is served
	c.remove("b")
	g.Evict("b")
	close(goOn)
	if !closed(conn) {
		t.Error("the connection is open")
	}
}

func TestNoResumption(t *testing.T) {
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	b := c.host("b")
	cache := tls.NewLRUClientSessionCache(4)
	for range 2 {
		conn, err := raw(t, g.addr, b, func(c *tls.Config) {
			c.ClientSessionCache, c.InsecureSkipVerify, c.RootCAs, c.ServerName = cache, false, b.Roots(), trust.PeerName
		})
		if err != nil {
			t.Fatal(err)
		}
		line(conn)
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	c := newCluster(t)
	g := c.run(c.config(c.host("a")))
	if _, err := raw(t, g.addr, c.host("b"), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }); err == nil {
		t.Error("a connection of TLS 1.2 is accepted")
	}
}

// The gate uses a new certificate without a restart.
func TestRenewed(t *testing.T) {
	c := newCluster(t)
	var mu sync.Mutex
	id := c.host("a")
	cfg := c.config(id)
	cfg.Identity = func() *trust.Identity { mu.Lock(); defer mu.Unlock(); return id }
	g := c.run(cfg)
	b := c.host("b")
	serial := func() string {
		conn, err := gate.Dial(t.Context(), b, g.addr, gate.Host, c.admit)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	renewed, err := id.SignedBy(c.authority, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	id = renewed
	mu.Unlock()
	if after := serial(); after == before {
		t.Error("the gate has the old certificate")
	}
}
