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

// deadAfter is how long a host may be silent until its connections end (TCP_USER_TIMEOUT, tcp(7)). gRPC's own
// keepalive takes 10 s at least.
const deadAfter = 3 * time.Second

// keepAlive notices the end of a host on an idle connection as soon.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}
}

func dialer() *net.Dialer {
	return &net.Dialer{Timeout: deadAfter, KeepAliveConfig: keepAlive(), Control: func(_, _ string, c syscall.RawConn) error {
		return setTimeout(c)
	}}
}

// setTimeout ends a connection when what was sent is not acknowledged in time.
func setTimeout(c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter/time.Millisecond))
	})
	return errors.Join(err, failed)
}

// Dial connects to another host's gate. admit, if set, gets the other host's name and the pin of its key, and
// returns an error if they are not the expected ones.
func Dial(ctx context.Context, id *trust.Identity, to, protocol string, admit func(host, pin string) error) (net.Conn, error) {
	c, err := dialer().DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, fmt.Errorf("connect to host at %s: %w", to, err)
	}
	t := tls.Client(c, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: id.Roots(), ServerName: trust.PeerName, NextProtos: []string{protocol},
		Certificates: []tls.Certificate{*id.TLS()},
		VerifyConnection: func(s tls.ConnectionState) error {
			if admit == nil {
				return nil
			}
			return admit(s.PeerCertificates[0].Subject.CommonName, trust.Pin(s.PeerCertificates[0]))
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to host at %s: %w", to, explain(err)), c.Close())
	}
	return t, nil
}

// DialToJoin connects to a host of the cluster that a token is of.
func DialToJoin(ctx context.Context, token trust.Token, to netip.AddrPort) (net.Conn, *x509.Certificate, error) {
	c, err := dialer().DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, nil, fmt.Errorf("connect to host at %s: %w", to, err)
	}
	var authority *x509.Certificate
	t := tls.Client(c, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{Join},
		// The host has no name yet by which it could be verified, but its authority must be that of the token.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			last := s.PeerCertificates[len(s.PeerCertificates)-1]
			if !token.IsOf(last) {
				return fmt.Errorf("the host at %s is not of the token's cluster", to)
			}
			authority = last
			roots := x509.NewCertPool()
			roots.AddCert(last)
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: trust.PeerName})
			return err
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connect to host at %s: %w", to, explain(err)), c.Close())
	}
	return t, authority, nil
}
