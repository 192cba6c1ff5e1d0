package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"cleat/internal/localsock"
	"cleat/overlay/trust"
)

// Protocols by which clients say what they want.
const (
	Registry = "cleat-registry"
	Host     = "cleat-host"
	Join     = "cleat-join"
	Peer     = "cleat-peer" // the registry's member, for other members
	h2       = "h2"         // of etcdctl
)

// What a gate answers to clients of the protocols Registry, Peer and Host, in one byte, before anything else.
const (
	admitted = 'a'
	unknown  = 'u' // the registry does not have the host with its key
	noMember = 'm' // the host of the gate has no member of the registry
)

// handshakeWithin bounds the time that a connection may need until it is known to be of a host.
const handshakeWithin = 5 * time.Second

// Config configures a Gate.
type Config struct {
	// Identity returns the host's identity. It is called for each connection.
	Identity func() *trust.Identity
	// Admit returns an error unless a host may connect with the key that has a pin.
	Admit func(host, pin string) error
	// Known, if set, reports whether a host of the cluster has an address. Places are kept for these.
	Known func(a netip.Addr) bool
	// Registry and Peers connect to the registry's member on this host; nil: it has none.
	Registry, Peers func(ctx context.Context) (net.Conn, error)
	// Serve serves a connection of another host, and Joining one of a host that wants to join. The gate
	// closes the connection when they return. binding is what trust.Proof needs. Errors are logged.
	Serve   func(ctx context.Context, host string, c net.Conn)
	Joining func(ctx context.Context, c net.Conn, binding []byte) error
	Log     func(format string, args ...any)
}

// A Gate accepts connections of other hosts. It is safe for concurrent use.
type Gate struct {
	cfg     Config
	places  places
	refused refusals

	mu       sync.Mutex
	conns    map[net.Conn]string   // those of hosts, below TLS, by host
	to       map[net.Conn]struct{} // those to hosts, below TLS
	attempts map[*attempt]struct{}
}

// New returns a gate, and starts nothing.
func New(cfg Config) *Gate {
	return &Gate{cfg: cfg, conns: map[net.Conn]string{}, to: map[net.Conn]struct{}{}, attempts: map[*attempt]struct{}{}}
}

// Run accepts connections until ctx ends. It closes the listener, and returns when all connections are closed.
func (g *Gate) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := localsock.Accept(ctx, l.Accept)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept connections of hosts: %w", err)
		}
		from := addressOf(c)
		p := g.places.take(from, g.cfg.Known != nil && g.cfg.Known(from))
		if p == nil { // hosts try again
			c.Close()
			g.refuse(c, errors.New("too many connections at a time"))
			continue
		}
		serving.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if err := g.handle(ctx, c, sync.OnceFunc(p.leave)); err != nil && ctx.Err() == nil {
				g.refuse(c, err)
			}
		})
	}
}

// refuse logs that a connection was refused, unless others were logged a short time ago.
func (g *Gate) refuse(c net.Conn, err error) {
	if errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError)) { // it has closed the connection
		return
	}
	missed, ok := g.refused.due(time.Now())
	switch {
	case ok && missed > 0:
		g.cfg.Log("refused %s: %s (and %d others before)", c.RemoteAddr(), plain(err.Error()), missed)
	case ok:
		g.cfg.Log("refused %s: %s", c.RemoteAddr(), plain(err.Error()))
	}
}

// handle serves a connection. It calls known when the other end is a host. Its error is why it has refused the
// connection.
func (g *Gate) handle(ctx context.Context, c net.Conn, known func()) error {
	defer known()
	noticeDeath(c)
	t, err := g.handshake(ctx, c)
	if err != nil {
		return err
	}
	state := t.ConnectionState()
	if state.NegotiatedProtocol == Join {
		binding, err := bindingOf(state)
		if err != nil {
			return err
		}
		return g.cfg.Joining(ctx, t, binding)
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("it has no certificate of the cluster")
	}
	host, pin := state.PeerCertificates[0].Subject.CommonName, trust.Pin(state.PeerCertificates[0])
	// First remembered, then admitted: Evict sees the connection, or Admit knows that the host was removed.
	g.mu.Lock()
	g.conns[c] = host
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.conns, c)
		g.mu.Unlock()
	}()
	if err := g.cfg.Admit(host, pin); err != nil {
		g.answer(t, unknown)
		return err
	}
	known()
	g.serve(ctx, t, host)
	return nil
}

func (g *Gate) handshake(ctx context.Context, c net.Conn) (*tls.Conn, error) {
	id := g.cfg.Identity()
	t := tls.Server(c, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*id.TLS()}, Time: id.Now,
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: id.Roots(), NextProtos: []string{Registry, Host, Join, Peer, h2},
		SessionTicketsDisabled: true, // a host that was removed can't resume
	})
	ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, explain(err, id.Now())
	}
	return t, nil
}

// answer sends the first byte, to clients that wait for it. It reports whether the connection can be used.
func (g *Gate) answer(t *tls.Conn, what byte) bool {
	switch t.ConnectionState().NegotiatedProtocol {
	case Registry, Peer, Host:
		_ = t.SetWriteDeadline(time.Now().Add(handshakeWithin))
		if _, err := t.Write([]byte{what}); err != nil {
			return false
		}
		_ = t.SetWriteDeadline(time.Time{})
	}
	return what == admitted
}

func (g *Gate) serve(ctx context.Context, t *tls.Conn, host string) {
	var dial func(context.Context) (net.Conn, error)
	switch t.ConnectionState().NegotiatedProtocol {
	case Host:
		if g.answer(t, admitted) {
			g.cfg.Serve(ctx, host, t)
		}
		return
	case Registry, h2:
		dial = g.cfg.Registry
	case Peer:
		dial = g.cfg.Peers
	}
	if dial == nil {
		g.answer(t, noMember)
		return
	}
	to, err := dial(ctx)
	if err != nil { // the member is starting or ending; the host tries again
		g.answer(t, noMember)
		return
	}
	defer to.Close()
	if g.answer(t, admitted) {
		Relay(ctx, t, to)
	}
}

// Relay passes bytes on in both directions until one end closes the connection, or its half of it. It closes
// both: neither gRPC nor the members of the registry send anything after the other end has closed its half.
func Relay(ctx context.Context, a, b net.Conn) {
	closeBoth := sync.OnceFunc(func() { a.Close(); b.Close() })
	defer context.AfterFunc(ctx, closeBoth)()
	var back sync.WaitGroup
	back.Go(func() {
		defer closeBoth()
		_, _ = io.Copy(a, b)
	})
	_, _ = io.Copy(b, a)
	closeBoth()
	back.Wait()
}

// Evict closes the connections of a host. It does not wait for the host.
func (g *Gate) Evict(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, of := range g.conns {
		if of == host {
			c.Close()
		}
	}
}

// Leave closes the connections from and to an address that a host had, of this host or of another one, and ends attempts
// to connect to it. Nobody answers there any more, which would be noticed after seconds only.
func (g *Gate) Leave(a netip.Addr) {
	is := func(end string) bool {
		at, err := netip.ParseAddrPort(end)
		return err == nil && at.Addr().Unmap() == a
	}
	g.mu.Lock()
	all := slices.AppendSeq(slices.Collect(maps.Keys(g.conns)), maps.Keys(g.to))
	for at := range g.attempts {
		if is(at.to) {
			at.cancel(errLeft)
		}
	}
	g.mu.Unlock()
	for _, c := range all {
		if is(c.LocalAddr().String()) || is(c.RemoteAddr().String()) {
			c.Close()
		}
	}
}
