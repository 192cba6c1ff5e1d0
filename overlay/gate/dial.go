package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"cleat/overlay/trust"

	"golang.org/x/sys/unix"
)

// deadAfter is how long a connection lasts whose other end does not answer, whether or not bytes are on the way.
// gRPC's own keepalive takes 10 s at least.
const deadAfter = 3 * time.Second

// segmentBytes is the maximum segment size of connections between hosts, in both directions: packets of at most 1,280
// bytes, which all IPv6 paths pass, and nearly all others. Hosts reach each other although a path between them drops
// larger packets and reports nothing.
const segmentBytes = 1280 - 40 - 20

func dialer() *net.Dialer {
	return &net.Dialer{Timeout: deadAfter, KeepAliveConfig: keepAlive, Control: func(_, _ string, raw syscall.RawConn) error {
		limitSilence(raw)
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segmentBytes) // the other end gets it in the SYN
		})
		return nil
	}}
}

// keepAlive asks the other end of a silent connection whether it lives.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}

// noticeDeath closes an accepted connection when its other end is dead.
func noticeDeath(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(keepAlive) // without it death is noticed later
	if raw, err := t.SyscallConn(); err == nil {
		limitSilence(raw)
	}
}

// limitSilence bounds the time that sent bytes stay unacknowledged. Keepalives are not sent while there are any.
func limitSilence(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
	})
}

// Dial connects to another host's gate. admit, if set, gets the other host's name and the pin of its key, and
// returns an error if they are not the expected ones. The error is a *RemovedError if the other host does not
// admit this one.
func Dial(ctx context.Context, id *trust.Identity, to, protocol string, admit func(host, pin string) error) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("connect to host at %s: %w", to, explain(err, id.Now()))
	}
	if now := id.Now(); !id.Valid(now) {
		return fail(&ExpiredError{id.Certificate, now})
	}
	c, err := dialer().DialContext(ctx, "tcp", to)
	if err != nil {
		return fail(err)
	}
	t := tls.Client(c, &tls.Config{
		MinVersion: tls.VersionTLS13, Time: id.Now, RootCAs: id.Roots(), ServerName: trust.PeerName, NextProtos: []string{protocol},
		Certificates: []tls.Certificate{*id.TLS()},
		VerifyConnection: func(s tls.ConnectionState) error {
			if admit == nil {
				return nil
			}
			return admit(s.PeerCertificates[0].Subject.CommonName, trust.Pin(s.PeerCertificates[0]))
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return fail(err)
	}
	if err := awaitAnswer(ctx, t); err != nil {
		c.Close()
		return fail(err)
	}
	return t, nil
}

// Dial is the function Dial with this host's identity. Leave ends the attempt, and closes the connection.
func (g *Gate) Dial(ctx context.Context, to, protocol string, admit func(host, pin string) error) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at := &attempt{to, cancel}
	g.mu.Lock()
	g.attempts[at] = struct{}{}
	g.mu.Unlock()
	c, err := Dial(ctx, g.cfg.Identity(), to, protocol, admit)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.attempts, at)
	left := errors.Is(context.Cause(ctx), errLeft)
	if err == nil && !left {
		o := &outgoing{c.(*tls.Conn), g}
		g.to[o.NetConn()] = struct{}{}
		return o, nil
	}
	if err == nil {
		_ = c.(*tls.Conn).NetConn().Close() // with nothing sent, for which it would wait
	}
	if left {
		err = fmt.Errorf("connect to host at %s: %w", to, errLeft)
	}
	return nil, err
}

// attempt is one to connect to a host.
type attempt struct {
	to     string // address and port
	cancel context.CancelCauseFunc
}

var errLeft = errors.New("the host has another address now")

// outgoing is a connection to a host, of which the gate knows.
type outgoing struct {
	*tls.Conn
	of *Gate
}

// Close implements net.Conn.
func (c *outgoing) Close() error {
	c.of.mu.Lock()
	delete(c.of.to, c.NetConn())
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// awaitAnswer waits until the gate has admitted this host.
func awaitAnswer(ctx context.Context, t *tls.Conn) error {
	state := t.ConnectionState()
	if p := state.NegotiatedProtocol; p != Registry && p != Peer && p != Host {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { t.NetConn().Close() })
	defer stop()
	var b [1]byte
	if _, err := t.Read(b[:]); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	switch b[0] {
	case admitted:
		return nil
	case unknown:
		return &RemovedError{By: state.PeerCertificates[0].Subject.CommonName}
	case noMember:
		return errors.New("no member of the registry runs there")
	}
	return fmt.Errorf("an answer of another version: %#x", b[0])
}

// A Door is a connection to a host of a cluster that this host wants to join.
type Door struct {
	net.Conn
	Authority *x509.Certificate // of the cluster
	Binding   []byte            // for trust.Proof
}

// DialToJoin connects to a host of the cluster that a token is of. The error is an *OtherClusterError if the
// host is of another cluster.
func DialToJoin(ctx context.Context, token trust.Token, to netip.AddrPort) (*Door, error) {
	fail := func(err error) (*Door, error) {
		return nil, fmt.Errorf("connect to host at %s: %w", to, explain(err, time.Now()))
	}
	c, err := dialer().DialContext(ctx, "tcp", to.String())
	if err != nil {
		return fail(err)
	}
	d := &Door{}
	t := tls.Client(c, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{Join},
		// The host has no name yet by which it could be verified, but its authority must be that of the token.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			d.Authority, err = authorityOf(s.PeerCertificates, token, to)
			return err
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return fail(err)
	}
	d.Conn = t
	if d.Binding, err = bindingOf(t.ConnectionState()); err != nil {
		c.Close()
		return fail(err)
	}
	return d, nil
}

// authorityOf returns the authority of a chain of certificates, which must be that of the token.
func authorityOf(chain []*x509.Certificate, token trust.Token, at netip.AddrPort) (*x509.Certificate, error) {
	last := chain[len(chain)-1]
	if !token.IsOf(last) {
		return nil, &OtherClusterError{at.String()}
	}
	roots := x509.NewCertPool()
	roots.AddCert(last)
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: trust.PeerName})
	return last, err
}

// bindingOf returns bytes that only the two ends of a connection know, and that no other connection has (RFC 9266).
func bindingOf(s tls.ConnectionState) ([]byte, error) {
	const length = 32
	b, err := s.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, length)
	if err != nil {
		return nil, fmt.Errorf("bind to the connection: %w", err)
	}
	return b, nil
}
