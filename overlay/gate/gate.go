package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
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

const (
	maxHandshakes   = 256
	handshakeWithin = 5 * time.Second
)

// Config configures a Gate.
type Config struct {
	// Identity returns the host's identity. It is called for each connection.
	Identity func() *trust.Identity
	// Admit returns an error unless a host may connect with the key that has a pin.
	Admit func(host, pin string) error
	// Registry and Peers connect to the registry's member on this host; nil: it has none.
	Registry, Peers func(ctx context.Context) (net.Conn, error)
	// Serve serves a connection of another host, and Joining one of a host that wants to join. The gate
	// closes the connection when they return.
	Serve   func(ctx context.Context, host string, c net.Conn)
	Joining func(ctx context.Context, c net.Conn)
	Log     func(format string, args ...any)
}

// A Gate accepts connections of other hosts. It is safe for concurrent use.
type Gate struct {
	cfg Config

	mu    sync.Mutex
	conns map[net.Conn]string // those of hosts, by host
}

// New returns a gate, and starts nothing.
func New(cfg Config) *Gate { return &Gate{cfg: cfg, conns: map[net.Conn]string{}} }

// Run accepts connections until ctx ends. It closes the listener, and returns when all connections are closed.
func (g *Gate) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, maxHandshakes)
	for {
		c, err := localsock.Accept(ctx, l.Accept)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept connections of hosts: %w", err)
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			if raw, err := tcp.SyscallConn(); err == nil {
				_ = errors.Join(setTimeout(raw), tcp.SetKeepAliveConfig(keepAlive()))
			}
		}
		select {
		case slots <- struct{}{}:
		default: // more than hosts need; they come again
			c.Close()
			continue
		}
		serving.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			t, host, err := g.handshake(ctx, c)
			<-slots
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.As(err, new(*net.OpError)) {
					g.cfg.Log("refused %s: %v", c.RemoteAddr(), err)
				}
				return
			}
			g.serve(ctx, t, host)
		})
	}
}

// handshake returns the connection with the host at its other end; "" if the host wants to join.
func (g *Gate) handshake(ctx context.Context, c net.Conn) (*tls.Conn, string, error) {
	id := g.cfg.Identity()
	t := tls.Server(c, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*id.TLS()},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: id.Roots(), NextProtos: []string{Registry, Host, Join, Peer, h2},
		SessionTicketsDisabled: true, // a host that was removed can't resume
	})
	ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, "", explain(err)
	}
	state := t.ConnectionState()
	if state.NegotiatedProtocol == Join {
		return t, "", nil
	}
	if len(state.PeerCertificates) == 0 {
		return nil, "", errors.New("it has no certificate of the cluster")
	}
	cert := state.PeerCertificates[0]
	if err := g.cfg.Admit(cert.Subject.CommonName, trust.Pin(cert)); err != nil {
		return nil, "", err
	}
	return t, cert.Subject.CommonName, nil
}

func (g *Gate) serve(ctx context.Context, t *tls.Conn, host string) {
	protocol := t.ConnectionState().NegotiatedProtocol
	if protocol == Join {
		g.cfg.Joining(ctx, t)
		return
	}
	g.mu.Lock()
	g.conns[t] = host
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.conns, t)
		g.mu.Unlock()
	}()
	// The host may have been removed since the handshake, and Evict may not have seen the connection.
	cert := t.ConnectionState().PeerCertificates[0]
	if g.cfg.Admit(host, trust.Pin(cert)) != nil {
		return
	}
	var dial func(context.Context) (net.Conn, error)
	switch protocol {
	case Host:
		g.cfg.Serve(ctx, host, t)
		return
	case Registry, h2:
		dial = g.cfg.Registry
	case Peer:
		dial = g.cfg.Peers
	}
	if dial == nil {
		return
	}
	to, err := dial(ctx)
	if err != nil {
		return // the member is starting or ending; the host tries again
	}
	Relay(ctx, t, to)
}

// Relay passes bytes on in both directions until one end closes the connection. It closes both.
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

// Evict closes the connections of a host.
func (g *Gate) Evict(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, of := range g.conns {
		if of == host {
			c.Close()
		}
	}
}

// ExpiredError means that a certificate is not valid at the time of this host's clock.
type ExpiredError struct {
	Certificate *x509.Certificate
	Now         time.Time
}

func (e *ExpiredError) Error() string {
	const day = "2006-01-02 15:04"
	c := e.Certificate
	return fmt.Sprintf("the certificate of %s is valid from %s to %s UTC, and this host's clock says %s",
		c.Subject.CommonName, c.NotBefore.UTC().Format(day), c.NotAfter.UTC().Format(day), e.Now.UTC().Format(day))
}

// explain makes the errors of package crypto/x509 readable.
func explain(err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return &ExpiredError{invalid.Cert, time.Now()}
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		return errors.New("its certificate is of another cluster")
	}
	return err
}
