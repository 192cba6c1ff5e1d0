package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// server is one running Serve.
type server struct {
	cfg ServeConfig
	l   *listener
	wg  sync.WaitGroup

	mu       sync.Mutex
	sessions map[token]*session
	byHead   map[uint64]*session
	stop     context.CancelFunc
}

// maxSessions bounds the tests at once; 128 pairs fit with room.
const maxSessions = 1024

// Serve listens and takes part in the tests that clients ask for, any number at
// once, until ctx ends (which is no error) or, with Once, the first test has
// ended. It owns everything it starts and returns after the last has ended.
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{cfg: cfg, l: l, sessions: map[token]*session{}, byHead: map[uint64]*session{}, stop: cancel}
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
	return nil
}

// accept takes TCP connections. The one request of a CRR connection is usually
// there by the time the connection is taken, and is answered right here: a
// goroutine, often on another thread, would cost as much as the connection.
func (s *server) accept(ctx context.Context) {
	buf := make([]byte, atOnceBytes)
	for waitFD(ctx, s.l.tcp, unix.POLLIN) == nil {
		fd, _, err := unix.Accept4(s.l.tcp, unix.SOCK_CLOEXEC)
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				time.Sleep(10 * time.Millisecond) // descriptors come free as tests end
			}
			continue
		}
		sock := &socket{fd: fd}
		n, _, err := unix.Recvfrom(fd, buf[:preambleLen], unix.MSG_DONTWAIT)
		if err != nil || n < preambleLen {
			head := bytes.Clone(buf[:max(n, 0)])
			s.wg.Go(func() { s.welcome(ctx, sock, head) })
			continue
		}
		p, err := parsePreamble(buf)
		if err == nil && p.channel == channelCRR {
			if t := s.lookup(p.token); t != nil && t.answerAtOnce(sock, buf) {
				continue
			}
		}
		s.wg.Go(func() { s.assign(ctx, sock, p, err) })
	}
}

// atOnceBytes is the longest request that is answered without a goroutine: it
// must not block the others.
const atOnceBytes = 16 << 10

// preamblePatience bounds how long a connection may stay silent.
const preamblePatience = 5 * time.Second

// welcome reads the first bytes of a connection, some of which are there, and
// hands it to whom it belongs.
func (s *server) welcome(ctx context.Context, sock *socket, got []byte) {
	var head [preambleLen]byte
	release := context.AfterFunc(ctx, sock.wake)
	err := readFull(sock.fd, head[copy(head[:], got):])
	release()
	if err != nil {
		sock.close(false)
		return
	}
	p, err := parsePreamble(head[:])
	s.assign(ctx, sock, p, err)
}

// assign hands a connection to whom it belongs.
func (s *server) assign(ctx context.Context, sock *socket, p preamble, err error) {
	if err != nil {
		s.refuse(sock, err)
		return
	}
	switch p.channel {
	case channelControl:
		s.control(ctx, sock, p)
		return
	case channelHello:
		writeFull(sock.fd, p.append(nil)) // fits the send buffer; who is gone does not read it
		sock.close(false)
		return
	}
	t := s.lookup(p.token)
	if t == nil {
		sock.close(false)
		return
	}
	if p.channel == channelCRR {
		t.answerCRR(ctx, sock)
		return
	}
	if setTimeouts(sock.fd, 0) != nil || !t.attach(p.index, sock) {
		sock.close(true)
	}
}

// refuse tells a client of another version why, in a form that every version
// reads; garbage gets no answer.
func (s *server) refuse(sock *socket, err error) {
	defer sock.close(false)
	if errors.Is(err, ErrVersion) {
		var frame frameBuffer
		if writeMessage(&frame, message{Kind: kindError, Error: err.Error()}) == nil {
			unix.Write(sock.fd, frame)
		}
	}
}

type frameBuffer []byte

func (b *frameBuffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

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

// control turns a raw connection into a control channel and runs its test.
func (s *server) control(ctx context.Context, sock *socket, p preamble) {
	if setTimeouts(sock.fd, 0) != nil {
		sock.close(false)
		return
	}
	f := os.NewFile(uintptr(sock.fd), "control")
	conn, err := net.FileConn(f) // a duplicate, in the runtime's poller
	sock.mu.Lock()
	sock.closed = true
	sock.mu.Unlock()
	f.Close()
	if err != nil {
		return
	}
	s.run(ctx, conn, p)
}

func (s *server) acceptUnix(ctx context.Context, u net.Listener) {
	for ctx.Err() == nil {
		conn, err := u.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.welcomeUnix(ctx, conn) })
	}
}

// welcomeUnix reads the preamble of a control connection.
func (s *server) welcomeUnix(ctx context.Context, conn net.Conn) {
	var head [preambleLen]byte
	release := context.AfterFunc(ctx, func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(preamblePatience))
	_, err := io.ReadFull(conn, head[:])
	conn.SetReadDeadline(time.Time{})
	release()
	if err != nil {
		conn.Close()
		return
	}
	p, err := parsePreamble(head[:])
	switch {
	case err == nil && p.channel == channelControl:
		s.run(ctx, conn, p)
		return
	case errors.Is(err, ErrVersion):
		writeMessage(conn, message{Kind: kindError, Error: err.Error()})
	}
	conn.Close()
}

// run is one test, from hello to the end of its control channel.
func (s *server) run(ctx context.Context, conn net.Conn, p preamble) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	far := newPeer(conn)
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
	err = t.run(ctx)
	s.unregister(t)
	t.end()
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
		s.stop()
	}
}

func (s *server) register(t *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) >= maxSessions {
		return fmt.Errorf("%d tests are under way, which is the most at once", maxSessions)
	}
	if s.sessions[t.token] != nil || s.byHead[t.token.head()] != nil {
		return errors.New("a test with this token is under way")
	}
	s.sessions[t.token], s.byHead[t.token.head()] = t, t
	return nil
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

// greet takes the first datagram of each flow and gives the flow a connected
// socket of its own at the same port, which the kernel prefers from then on.
func (s *server) greet(ctx context.Context) {
	buf, oob := make([]byte, 2048), make([]byte, 256)
	for waitFD(ctx, s.l.udp, unix.POLLIN) == nil {
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
