package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/localsock"
	"cleat/network/named"
)

// Manager is the attach.Container.Manager of containers that Docker has connected by this driver.
const Manager = "docker"

// Config configures a Server.
type Config struct {
	// Networks returns the configuration for one request. It is called for each.
	Networks func(ctx context.Context) (named.Config, error)
	// Do runs a function in the host's network namespace; nil: the process is in it.
	Do func(f func() error) error
	// Explain returns what to do about an error, in words; "" if it does not know. It may be nil.
	Explain func(err error) string
	Log     func(format string, args ...any) // safe for concurrent use
	// HostResolvConf is the path of the host's resolv.conf; "" means /etc/resolv.conf.
	HostResolvConf string
}

// Server answers Docker's requests. It is an http.Handler.
type Server struct {
	Config
	inFlight   atomic.Int64   // requests
	last       atomic.Int64   // when a request ended, or the Server was made: Unix time
	background sync.WaitGroup // identifies containers
	ctx        context.Context
	stop       context.CancelFunc
}

// New returns a Server. It starts nothing before the first request.
func New(c Config) *Server {
	if c.Do == nil {
		c.Do = func(f func() error) error { return f() }
	}
	s := &Server{Config: c}
	if os.Getenv("LISTEN_FDS") != "" { // systemd may have started this process for a request (sd_listen_fds(3))
		s.last.Store(time.Now().Add(firstWithin - lingering).Unix())
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// lingering is how long after a request more may be expected: a daemon sends them one after the other.
const lingering = 15 * time.Second

// firstWithin is how long a process that systemd has started waits for the first request, which may be why.
const firstWithin = 3 * time.Second

// Busy reports whether requests are being answered, or may be expected.
func (s *Server) Busy() bool {
	return s.inFlight.Load() > 0 || time.Since(time.Unix(s.last.Load(), 0)) < lingering
}

// Close ends what requests left running in the background, and waits for it.
func (s *Server) Close() {
	s.stop()
	s.background.Wait()
}

// maxRequest bounds a request. That of a container with 1,000 published ports has 150 kB.
const maxRequest = 16 << 20

// call is one request.
type call struct {
	*Server
	networks named.Config
	store    store
	peer     int // process id of the daemon; 0: unknown
}

// method answers a request. Its error is the caller's, unless it is a syntaxError.
type method func(c *call, ctx context.Context, body []byte) (any, error)

// syntaxError means that a request is not one of the protocol.
type syntaxError struct{ error }

// methods are those of the plug-in protocol by path.
var methods = map[string]method{
	"/Plugin.Activate": answer(activation{[]string{"NetworkDriver", "IpamDriver"}}),

	"/NetworkDriver.GetCapabilities":             answer(driverCapabilities{Scope: "local", ConnectivityScope: "global", GwAllocChecker: true}),
	"/NetworkDriver.GwAllocCheck":                answer(gatewayCheck{}),
	"/NetworkDriver.AllocateNetwork":             refuse("networks of cleat are networks of one host, which Swarm can't allocate"),
	"/NetworkDriver.FreeNetwork":                 answer(struct{}{}),
	"/NetworkDriver.CreateNetwork":               handle((*call).createNetwork),
	"/NetworkDriver.DeleteNetwork":               handle((*call).deleteNetwork),
	"/NetworkDriver.CreateEndpoint":              handle((*call).createEndpoint),
	"/NetworkDriver.DeleteEndpoint":              handle((*call).deleteEndpoint),
	"/NetworkDriver.EndpointOperInfo":            handle((*call).endpointInfo),
	"/NetworkDriver.Join":                        handle((*call).join),
	"/NetworkDriver.Leave":                       handle((*call).leave),
	"/NetworkDriver.DiscoverNew":                 answer(struct{}{}),
	"/NetworkDriver.DiscoverDelete":              answer(struct{}{}),
	"/NetworkDriver.ProgramExternalConnectivity": handle((*call).publish),
	"/NetworkDriver.RevokeExternalConnectivity":  handle((*call).withdraw),

	"/IpamDriver.GetCapabilities":         answer(ipamCapabilities{}),
	"/IpamDriver.GetDefaultAddressSpaces": answer(addressSpaces{addressSpace, addressSpace + "-global"}),
	"/IpamDriver.RequestPool":             handle((*call).requestPool),
	"/IpamDriver.ReleasePool":             handle((*call).releasePool),
	"/IpamDriver.RequestAddress":          handle((*call).requestAddress),
	"/IpamDriver.ReleaseAddress":          handle((*call).releaseAddress),
}

// answer always gives the same answer.
func answer(v any) method {
	return func(*call, context.Context, []byte) (any, error) { return v, nil }
}

func refuse(why string) method {
	return func(*call, context.Context, []byte) (any, error) { return nil, errors.New(why) }
}

// handle decodes the request for f.
func handle[T any](f func(c *call, ctx context.Context, r *T) (any, error)) method {
	return func(c *call, ctx context.Context, body []byte) (any, error) {
		var r T
		if len(body) == 0 { // dockerd sends a request again without its body (moby, pkg/plugins/client.go)
			return nil, syntaxError{errors.New("the connection broke before this request was answered, and dockerd repeats it without its content: run the command again")}
		}
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, syntaxError{fmt.Errorf("read the request: %w", err)}
		}
		return f(c, ctx, &r)
	}
}

// ServeHTTP answers a request of the daemon. A request is completed even if the daemon has lost
// interest: it is undone by another request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := methods[r.URL.Path]
	switch {
	case m == nil:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.inFlight.Add(1)
	defer func() { s.last.Store(time.Now().Unix()); s.inFlight.Add(-1) }()
	peer, _ := r.Context().Value(peerKey{}).(int)
	v, err := s.run(context.WithoutCancel(r.Context()), m, body, peer)
	if errors.As(err, &syntaxError{}) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err != nil {
		v = failure{s.text(err), s.text(err)}
	}
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	_, _ = w.Write(append(text, '\n'))
}

func (s *Server) run(ctx context.Context, m method, body []byte, peer int) (v any, err error) {
	doErr := s.Do(func() error {
		c, openErr := s.open(ctx, peer)
		if err = openErr; err == nil {
			v, err = m(c, ctx, body)
		}
		return nil
	})
	return v, errors.Join(err, doErr)
}

func (s *Server) open(ctx context.Context, peer int) (*call, error) {
	cfg, err := s.Networks(ctx)
	if err != nil {
		return nil, err
	}
	cfg.Attach.Background = &s.background
	return &call{Server: s, networks: cfg, store: store{cfg.Attach.Store}, peer: peer}, nil
}

// text returns an error in one line, with what to do about it.
func (s *Server) text(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if s.Explain != nil {
		if remedy := s.Explain(err); remedy != "" {
			text += " (" + remedy + ")"
		}
	}
	return text
}

// peerKey is the key of the daemon's process id in the context of a connection.
type peerKey struct{}

// Serve answers requests at a listener until ctx ends. Those that are being answered then are
// completed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			unix, ok := c.(*net.UnixConn)
			if !ok {
				return ctx
			}
			pid, err := localsock.PeerPID(unix)
			if err != nil {
				return ctx
			}
			return context.WithValue(ctx, peerKey{}, pid)
		},
		ErrorLog: nil,
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ended <- server.Shutdown(context.Background())
	}()
	err := server.Serve(l)
	if ctx.Err() == nil {
		return err
	}
	return <-ended
}
