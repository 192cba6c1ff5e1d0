package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// External is an etcd that is not run by hosts of the cluster.
type External struct {
	URLs []string `json:"urls"`           // https://HOST:PORT, or http:// with a loopback address
	CA   string   `json:"ca,omitempty"`   // file with the certificates by which servers are verified; "": the system's
	Cert string   `json:"cert,omitempty"` // file with the client's certificate
	Key  string   `json:"key,omitempty"`  // file with its key
}

// ExternalError is why an etcd can't be used.
type ExternalError struct {
	Text string
	Help string // what to type next
}

func (e *ExternalError) Error() string { return e.Text }

// Hint returns what to type next; it may be empty.
func (e *ExternalError) Hint() string { return e.Help }

// Check completes the names of files, and returns an *ExternalError if something is missing. It asks nobody.
func (e *External) Check() error {
	if len(e.URLs) == 0 {
		return &ExternalError{"no URL of etcd", "e.g. --etcd https://192.0.2.9:2379"}
	}
	for _, text := range e.URLs {
		if err := checkURL(text); err != nil {
			return err
		}
	}
	if (e.Cert == "") != (e.Key == "") {
		return &ExternalError{"a certificate needs its key, and a key its certificate", "--etcd-cert FILE --etcd-key FILE"}
	}
	for _, name := range []*string{&e.CA, &e.Cert, &e.Key} {
		if *name == "" {
			continue
		}
		path, err := filepath.Abs(*name)
		if err != nil {
			return err
		}
		*name = path
	}
	_, err := e.config("")
	return err
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Port() == "" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "" {
		return &ExternalError{fmt.Sprintf("%q is no URL of etcd", text), "e.g. --etcd https://192.0.2.9:2379"}
	}
	switch ip := net.ParseIP(u.Hostname()); {
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()):
		return nil
	case u.Scheme == "http":
		return &ExternalError{"without TLS, whoever is on the network can change the registry: " + text, "use https:// with --etcd-ca, --etcd-cert and --etcd-key"}
	}
	return &ExternalError{fmt.Sprintf("%q is no URL of etcd", text), "e.g. --etcd https://192.0.2.9:2379"}
}

// config returns how a server is verified. It reads the files, which may change.
func (e *External) config(server string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server, NextProtos: []string{"h2"}}
	if e.CA != "" {
		text, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, fmt.Errorf("read the authority of etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, &ExternalError{"read the authority of etcd: " + e.CA + " has no certificate", ""}
		}
	}
	if e.Cert != "" {
		pair, err := tls.LoadX509KeyPair(e.Cert, e.Key)
		if err != nil {
			return nil, fmt.Errorf("read the certificate for etcd: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Endpoints returns what Config.Endpoints has of the etcd.
func (e *External) Endpoints() (all []string) {
	for _, text := range e.URLs {
		all = append(all, "http://"+e.hostPort(text)) // http, because Dial uses TLS
	}
	return all
}

func (e *External) hostPort(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), u.Port())
}

// Has reports whether an address, with its port, is one of the etcd's.
func (e *External) Has(endpoint string) bool { return e.urlOf(endpoint) != "" }

func (e *External) urlOf(endpoint string) string {
	for _, text := range e.URLs {
		if e.hostPort(text) == endpoint {
			return text
		}
	}
	return ""
}

// silentFor is how long a connection lasts whose other end does not answer.
const silentFor = 3 * time.Second

// Dial connects to a server of the etcd.
func (e *External) Dial(ctx context.Context, endpoint string) (net.Conn, error) {
	d := net.Dialer{Timeout: silentFor, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2},
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentFor.Milliseconds()))
			})
		}}
	c, err := d.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	u, err := url.Parse(e.urlOf(endpoint))
	if err == nil && u.Scheme == "http" {
		return c, nil
	}
	host, _, _ := net.SplitHostPort(endpoint)
	cfg, err := e.config(host)
	if err != nil {
		c.Close()
		return nil, err
	}
	t := tls.Client(c, cfg)
	ctx, cancel := context.WithTimeout(ctx, silentFor)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to etcd at %s: %w", endpoint, err)
	}
	return t, nil
}

// DialAny connects to a server of the etcd that answers.
func (e *External) DialAny(ctx context.Context) (net.Conn, error) {
	var errs []error
	for _, i := range rand.Perm(len(e.URLs)) {
		c, err := e.Dial(ctx, e.hostPort(e.URLs[i]))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// awaitRefusal returns the error by which a server refuses this client's certificate. By TLS 1.3 it comes after the
// handshake. A server that accepts the certificate sends something, or waits.
func awaitRefusal(c net.Conn) error {
	const within = 300 * time.Millisecond
	_ = c.SetReadDeadline(time.Now().Add(within))
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("connect to etcd at %s: %w", c.RemoteAddr(), err)
	}
	return nil
}

// Probe asks the etcd for its cluster. c is nil if it has none, and nothing else below the keys of this program.
func (e *External) Probe(ctx context.Context) (c *Cluster, err error) {
	first, err := e.DialAny(ctx) // its error says more than that of a request
	if err == nil {
		err = awaitRefusal(first)
		first.Close()
	}
	if err != nil {
		return nil, &ExternalError{err.Error(), "is etcd there, and are --etcd-ca, --etcd-cert and --etcd-key its files?"}
	}
	r, err := Open(Config{Endpoints: e.Endpoints(), Dial: e.Dial})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	got, err := r.Cluster(ctx)
	if err == nil {
		return &got, nil
	}
	if !errors.As(err, new(*NotFoundError)) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), requestWithin)
	defer cancel()
	foreign, err := r.c.Get(ctx, everything, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return nil, &UnreachableError{err}
	}
	if len(foreign.Kvs) > 0 {
		return nil, &ExternalError{fmt.Sprintf("the etcd has keys of something else below %s, such as %s", everything, foreign.Kvs[0].Key), "use another etcd"}
	}
	return nil, nil
}
