package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"cleat/internal/localsock"

	"golang.org/x/sys/unix"
)

type server struct {
	cfg ServeConfig
	l   *listener
	wg  sync.WaitGroup

	places   chan struct{} // holds an entry for each connection outside any session
	mu       sync.Mutex
	sessions map[token]*session
	byHead   map[uint64]*session
	held     resources // of all sessions
	stop     context.CancelCauseFunc
}

// Limits of what all clients together can make a server hold. Each stream, and each
// connection outside any session, may keep a thread in a system call, and a flow of a
// reversed test keeps two: the Go runtime aborts a program with 10,000 threads.
const (
	maxSessions    = 1024
	maxConnections = 1024    // outside any session; more wait in the kernel's queue
	maxServed      = 3072    // streams of all sessions: three tests with MaxStreams
	maxBuffers     = 1 << 30 // bytes of all sessions' buffers: 64 streams with MaxMessageBytes
)

// resources are what a session makes the server hold.
type resources struct{ streams, bytes int }

// needs returns the resources of a session. The bytes are at least those of its buffers:
// see flow.receive, streamSet and echo.
func (p *params) needs() resources {
	r := resources{streams: p.Streams}
	switch p.Work {
	case TCP:
		r.bytes = min(p.Streams, max(mostThreads, runtime.NumCPU())) * max(p.MessageBytes, minRead)
	case RR:
		r.bytes = p.Streams * p.MessageBytes
	case UDP, UDPRR, Probe:
		r.bytes = p.Streams * 2 * flowBuffers // a reversed test sends as much
	}
	return r
}

// Serve listens and serves any number of tests at once. It returns when ctx ends (which
// is not an error), when no connection can be accepted any more, or, with Once, after the
// first test. It owns everything it starts and returns after the last has ended.
func Serve(ctx context.Context, cfg ServeConfig) error {
	switch cfg.Engine {
	case "", EngineCleat:
	case EngineIperf3, EngineIperf:
		return serveForeign(ctx, cfg)
	default:
		return &ConfigError{Field: "engine", Value: string(cfg.Engine), Want: oneOf(Engines())}
	}
	_, path, err := parseControl(cfg.Control)
	if err != nil {
		return err
	}
	l, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer l.close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &server{
		cfg: cfg, l: l, places: make(chan struct{}, maxConnections),
		sessions: map[token]*session{}, byHead: map[uint64]*session{}, stop: stop,
	}
	if path != "" {
		u, err := listenUnix(path)
		if err != nil {
			return err
		}
		s.wg.Go(func() { s.acceptUnix(ctx, u) })
		defer context.AfterFunc(ctx, func() { u.Close() })()
	}
	s.wg.Go(func() { s.greet(ctx) })
	s.wg.Go(func() { s.accept(ctx) })
	if cfg.Ready != nil {
		cfg.Ready(l.addr.String())
	}
	<-ctx.Done()
	s.wg.Wait()
	if err := context.Cause(ctx); errors.Is(err, errAccept) {
		return err
	}
	return nil
}

// errAccept ends a server that can accept no more connections.
var errAccept = errors.New("accept traffic connection")

// admit calls f with a connection, on a new goroutine, as soon as there is a free slot. f
// calls release when the connection belongs to a session or has ended.
func (s *server) admit(ctx context.Context, drop func(), f func(release func())) {
	select {
	case s.places <- struct{}{}:
		s.wg.Go(func() {
			release := sync.OnceFunc(func() { <-s.places })
			defer release()
			f(release)
		})
	case <-ctx.Done():
		drop()
	}
}

// accept accepts TCP connections. The single request of a CRR connection has usually
// arrived by then, and is answered right here: a goroutine, often on another thread,
// would cost as much as the connection.
func (s *server) accept(ctx context.Context) {
	buf := make([]byte, atOnceBytes)
	w, err := newWaiter(ctx)
	if err != nil {
		s.stop(fmt.Errorf("%w: %w", errAccept, err))
		return
	}
	defer w.close()
	next := func() (int, error) {
		if err := w.wait(s.l.tcp, unix.POLLIN); err != nil {
			return -1, err
		}
		fd, _, err := unix.Accept4(s.l.tcp, unix.SOCK_CLOEXEC)
		return fd, err
	}
	for {
		fd, err := localsock.Accept(ctx, next)
		if err != nil {
			s.stop(fmt.Errorf("%w: %w", errAccept, err))
			return
		}
		sock := &socket{fd: fd}
		drop := func() { sock.close(true) }
		n, _, err := unix.Recvfrom(fd, buf[:preambleLen], unix.MSG_DONTWAIT)
		if err != nil || n < preambleLen {
			head := bytes.Clone(buf[:max(n, 0)])
			s.admit(ctx, drop, func(release func()) { s.welcome(ctx, sock, head, release) })
			continue
		}
		p, err := parsePreamble(buf)
		if err == nil && p.channel == channelCRR {
			if t := s.lookup(p.token); t != nil && t.answerAtOnce(sock, buf) {
				continue
			}
		}
		s.admit(ctx, drop, func(release func()) { s.assign(ctx, sock, p, err, release) })
	}
}

// atOnceBytes is the longest request that is answered without a goroutine, so that it
// does not block other connections.
const atOnceBytes = 16 << 10

const (
	// preamblePatience is how long a client may take for its preamble, and again for its
	// hello.
	preamblePatience = 5 * time.Second
	// requestPatience is how long a CRR connection may take from its preamble on:
	// MaxMessageBytes at 5 Mbit/s each way.
	requestPatience = time.Minute
)

// welcome reads the first bytes of a connection, some of which have arrived, and assigns
// the connection.
func (s *server) welcome(ctx context.Context, sock *socket, got []byte, release func()) {
	var head [preambleLen]byte
	patient, cancel := context.WithTimeout(ctx, preamblePatience)
	awake := context.AfterFunc(patient, sock.wake)
	err := readFull(sock.fd, head[copy(head[:], got):])
	intime := awake()
	cancel()
	if err != nil || !intime {
		sock.close(false)
		return
	}
	p, err := parsePreamble(head[:])
	s.assign(ctx, sock, p, err, release)
}

// assign passes a connection to its session or handler.
func (s *server) assign(ctx context.Context, sock *socket, p preamble, err error, release func()) {
	if err != nil {
		s.refuse(sock, err)
		return
	}
	switch p.channel {
	case channelControl:
		s.control(ctx, sock, p, release)
		return
	case channelHello:
		writeFull(sock.fd, p.append(nil)) // fits into the send buffer; an error means that the client is gone
		sock.close(false)
		return
	}
	t := s.lookup(p.token)
	if t == nil {
		sock.close(false)
		return
	}
	if p.channel == channelCRR {
		s.answerCRR(ctx, t, sock)
		return
	}
	if setTimeouts(sock.fd, 0) != nil || !t.attach(p.index, sock) {
		sock.close(true)
	}
}

// refuse sends a client of another version the reason, in a format that every version
// reads. Garbage gets no answer.
func (s *server) refuse(sock *socket, err error) {
	defer sock.close(false)
	if errors.Is(err, ErrVersion) {
		var frame bytes.Buffer
		if writeMessage(&frame, message{Kind: kindError, Error: err.Error()}) == nil {
			unix.Write(sock.fd, frame.Bytes())
		}
	}
}

// readFull fills b from a blocking socket.
func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case n > 0:
			b = b[n:]
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			return unix.ECONNRESET
		}
	}
	return nil
}

// answerCRR answers a request if there is memory for its buffer.
func (s *server) answerCRR(ctx context.Context, t *session, sock *socket) {
	r := resources{bytes: t.params.MessageBytes}
	if !s.take(r) {
		sock.close(true)
		return
	}
	defer s.giveBack(r)
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	t.answerCRR(ctx, sock)
}

// control turns a raw connection into a control channel and runs its test.
func (s *server) control(ctx context.Context, sock *socket, p preamble, release func()) {
	if setTimeouts(sock.fd, 0) != nil {
		sock.close(false)
		return
	}
	f := os.NewFile(uintptr(sock.fd), "control")
	conn, err := net.FileConn(f) // a duplicate in the runtime's poller
	sock.mu.Lock()
	sock.closed = true
	sock.mu.Unlock()
	f.Close()
	if err != nil {
		return
	}
	s.run(ctx, conn, p, release)
}

func (s *server) acceptUnix(ctx context.Context, u net.Listener) {
	for {
		conn, err := localsock.Accept(ctx, u.Accept)
		if err != nil {
			s.stop(fmt.Errorf("%w: %w", errAccept, err))
			return
		}
		s.admit(ctx, func() { conn.Close() }, func(release func()) { s.welcomeUnix(ctx, conn, release) })
	}
}

// welcomeUnix reads the preamble of a control connection.
func (s *server) welcomeUnix(ctx context.Context, conn net.Conn, release func()) {
	var head [preambleLen]byte
	awake := context.AfterFunc(ctx, func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(preamblePatience))
	_, err := io.ReadFull(conn, head[:])
	conn.SetReadDeadline(time.Time{})
	awake()
	if err != nil {
		conn.Close()
		return
	}
	p, err := parsePreamble(head[:])
	switch {
	case err == nil && p.channel == channelControl:
		s.run(ctx, conn, p, release)
		return
	case errors.Is(err, ErrVersion):
		conn.SetWriteDeadline(time.Now().Add(controlWrite))
		writeMessage(conn, message{Kind: kindError, Error: err.Error()})
	}
	conn.Close()
}

// run runs one test, from hello to the end of its control channel. It releases the
// connection's slot once there is a session.
func (s *server) run(ctx context.Context, conn net.Conn, p preamble, release func()) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	far := newPeer(conn, maxOrder)
	defer far.close()
	hello, cancel := context.WithTimeout(ctx, preamblePatience)
	m, err := far.expect(hello, kindHello)
	cancel()
	if err == nil {
		err = m.Params.validate()
	}
	if err != nil {
		far.send(message{Kind: kindError, Error: err.Error()})
		return
	}
	t := newSession(p.token, *m.Params, far, s.l.addr.Port())
	if err := s.register(t); err != nil {
		far.send(message{Kind: kindError, Error: err.Error()})
		return
	}
	release()
	err = t.run(ctx)
	s.unregister(t)
	t.end()
	s.giveBack(t.params.needs())
	served := Served{Work: t.params.Work, Client: "unix"}
	if conn.RemoteAddr().Network() != "unix" {
		served.Client = conn.RemoteAddr().String()
	}
	if err != nil {
		far.send(message{Kind: kindError, Error: err.Error()})
		served.Error = err.Error()
	}
	if s.cfg.Done != nil {
		s.cfg.Done(served)
	}
	if s.cfg.Once {
		s.stop(nil)
	}
}

func (s *server) register(t *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= maxSessions {
		return fmt.Errorf("%d tests are running, which is the maximum", maxSessions)
	}
	if s.sessions[t.token] != nil || s.byHead[t.token.head()] != nil {
		return errors.New("a test with this token is running")
	}
	if !s.takeLocked(t.params.needs()) {
		return fmt.Errorf("%d streams and %d bytes of buffers are in use; there is room for %d and %d",
			s.held.streams, s.held.bytes, maxServed, maxBuffers)
	}
	s.sessions[t.token], s.byHead[t.token.head()] = t, t
	return nil
}

// take reserves r and reports whether there is room for it.
func (s *server) take(r resources) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(r)
}

func (s *server) takeLocked(r resources) bool {
	if s.held.streams+r.streams > maxServed || s.held.bytes+r.bytes > maxBuffers {
		return false
	}
	s.held.streams += r.streams
	s.held.bytes += r.bytes
	return true
}

func (s *server) giveBack(r resources) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.streams -= r.streams
	s.held.bytes -= r.bytes
}

func (s *server) unregister(t *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, t.token)
	delete(s.byHead, t.token.head())
}

func (s *server) lookup(t token) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[t]
}

// greet receives the first datagram of each flow and gives the flow its own connected
// socket on the same port, which the kernel prefers from then on.
func (s *server) greet(ctx context.Context) {
	buf, oob := make([]byte, 2048), make([]byte, 256)
	w, err := newWaiter(ctx)
	if err != nil {
		s.stop(fmt.Errorf("%w: %w", errAccept, err))
		return
	}
	defer w.close()
	for w.wait(s.l.udp, unix.POLLIN) == nil {
		n, from, to, err := receiveGreeting(s.l.udp, buf, oob)
		if err != nil {
			continue
		}
		d, ok := parseDatagram(buf[:n])
		if !ok || d.kind != datagramHello {
			continue
		}
		s.mu.Lock()
		t := s.byHead[d.token]
		s.mu.Unlock()
		if t != nil {
			t.attachFlow(d, netip.AddrPortFrom(to.Addr(), s.l.addr.Port()), from, n)
		}
	}
}
