package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// session is the server's end of a test.
type session struct {
	token  token
	params params
	far    *peer
	port   uint16
	stop   atomic.Bool

	mu       sync.Mutex
	ended    bool
	broken   bool // an error was sent
	streams  []*socket
	attached int
	whole    chan struct{} // closed when all streams are there
	ending   chan struct{} // closed when the session ends
	flows    []*flow
	granted  int       // receive buffer of the flows in bytes
	came     *arrivals // of all flows; nil if not requested
	wg       sync.WaitGroup
}

func newSession(t token, p params, far *peer, port uint16) *session {
	return &session{
		token: t, params: p, far: far, port: port,
		streams: make([]*socket, p.Streams), whole: make(chan struct{}), ending: make(chan struct{}),
		flows: make([]*flow, p.Streams), came: newArrivals(p.Early > 0),
	}
}

// Works over TCP streams, and over flows of datagrams.
var (
	streamWorks = []Work{TCP, RR, Probe}
	flowWorks   = []Work{UDP, UDPRR, Probe}
)

// complain sends the session's first error to the client. The caller holds mu and also
// serves other clients, and a second error could block on the client's full window.
func (t *session) complain(err error) {
	if !t.broken {
		t.broken = true
		t.far.send(message{Kind: kindError, Error: err.Error()})
	}
}

// attach adds a stream to the session. It reports whether the session accepts it.
func (t *session) attach(index uint16, sock *socket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || !slices.Contains(streamWorks, t.params.Work) || int(index) >= len(t.streams) || t.streams[index] != nil {
		return false
	}
	o := tcpOptions{congestion: t.params.Congestion, buffer: t.params.BufferBytes, noDelay: t.params.Work == RR}
	if err := o.apply(sock.fd); err != nil {
		t.complain(err)
		return false
	}
	if o.congestion == "" {
		_ = unix.SetsockoptString(sock.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, usualCongestion()) // otherwise Reno would be reported
	}
	t.streams[index] = sock
	if t.attached++; t.attached == len(t.streams) {
		close(t.whole)
	}
	return true
}

// attachFlow adds a flow of datagrams to the session and answers its greeting.
func (t *session) attachFlow(d datagram, local, from netip.AddrPort, size int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.broken || !slices.Contains(flowWorks, t.params.Work) || int(d.index) >= len(t.flows) || t.flows[d.index] != nil {
		return // an existing flow answers on its own socket
	}
	if t.params.Reverse && !t.isClient(from.Addr()) {
		t.complain(fmt.Errorf("a reversed test sends only to the client's own address, not to %s", from.Addr()))
		return
	}
	sock, err := openUDP(local, from, t.params.BufferBytes)
	if err != nil {
		t.complain(err)
		return
	}
	err = sock.tuneUDP(t.params.GSO, t.params.NoChecksum)
	if err == nil {
		t.granted, err = setBuffers(sock.fd, 0)
	}
	if err != nil {
		sock.close(false)
		t.complain(err)
		return
	}
	f := &flow{sock: sock, index: d.index, token: t.token.head(), early: t.params.Early, came: t.came}
	t.flows[d.index] = f
	f.ack(d, size)
	t.wg.Go(func() { f.receive(receiveSize(t.params.MessageBytes, t.params.GSO || t.params.Work == Probe)) })
}

// isClient reports whether an address is that of the control connection. The source of a
// datagram can be forged, and the server must not flood a third party. A client on the
// control socket is on this machine.
func (t *session) isClient(a netip.Addr) bool {
	far, ok := t.far.conn.RemoteAddr().(*net.TCPAddr)
	return !ok || far.AddrPort().Addr().Unmap().WithZone("") == a.Unmap().WithZone("")
}

// run does the server's part. It returns nil if the client ended the test.
func (t *session) run(ctx context.Context) error {
	if err := t.far.send(message{Kind: kindReady}); err != nil {
		return err
	}
	switch t.params.Work {
	case TCP:
		return t.runTCP(ctx)
	case UDP:
		return t.runUDP(ctx)
	case RR:
		return t.runRR(ctx)
	case Probe:
		t.wg.Go(t.countProbe)
	}
	return t.untilStop(ctx)
}

// end closes what the test used.
func (t *session) end() {
	t.stop.Store(true)
	close(t.ending)
	t.mu.Lock()
	t.ended = true
	for _, sock := range t.streams {
		if sock != nil {
			sock.wake()
		}
	}
	for _, f := range t.flows {
		if f != nil {
			f.end()
		}
	}
	t.mu.Unlock()
	t.wg.Wait()
	for _, sock := range t.streams {
		if sock != nil {
			sock.close(true)
		}
	}
	for _, f := range t.flows {
		if f != nil {
			f.sock.close(false)
		}
	}
}

// untilStop waits until the client sends stop or is gone.
func (t *session) untilStop(ctx context.Context) error {
	_, err := t.far.expect(ctx, kindStop)
	return clientEnded(err)
}

// clientEnded ignores that the client just closed: it has its result.
func clientEnded(err error) error {
	if errors.Is(err, ErrPeerGone) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// stoppable returns a context that also ends when the client sends stop or is gone.
// release returns the control channel.
func (t *session) stoppable(ctx context.Context) (stoppable context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := t.far.expect(ctx, kindStop)
		if err == nil {
			err = errStopped
		}
		cancel(err)
	}()
	return ctx, func() { cancel(nil); <-done }
}

// attachPatience is how long connected streams may take to arrive after the client
// reports that all are connected.
const attachPatience = 5 * time.Second

// started waits for the client's start message and for all streams.
func (t *session) started(ctx context.Context) error {
	if _, err := t.far.expect(ctx, kindStart); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, attachPatience+time.Duration(len(t.streams))*streamPatience)
	defer cancel()
	select {
	case <-t.whole:
		return nil
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		return fmt.Errorf("only %d of %d streams arrived", t.attached, len(t.streams))
	}
}

func (t *session) runTCP(ctx context.Context) error {
	if err := t.started(ctx); err != nil {
		return clientEnded(err)
	}
	early := t.params.Early
	if t.params.Reverse {
		early = 0
	}
	set := newStreamSet(t.streams, early)
	defer set.end()
	if t.params.Reverse {
		return t.sendTCP(ctx, set)
	}
	if err := set.receive(t.params.MessageBytes); err != nil {
		return err
	}
	if err := t.far.send(message{Kind: kindStarted}); err != nil {
		return err
	}
	ctx2, release := t.stoppable(ctx)
	w := set.measure(ctx2, t.params.Omit, t.params.Duration, nil)
	release()
	r := w.report()
	set.describe(&r)
	if err := t.far.send(message{Kind: kindReport, Report: &r}); err != nil {
		return clientEnded(err)
	}
	// Keep the sockets open and drained until the client has read its own kernel's
	// counters.
	return t.untilStop(ctx)
}

func (w window) report() report {
	r := report{Duration: w.duration, Bytes: w.bytes, Partial: w.partial, EarlyTime: w.earlyTime, EarlyBytes: w.earlyBytes, Gap: w.gap}
	if len(w.streams) > 1 {
		r.Streams = w.streams
	}
	return r
}

func (t *session) sendTCP(ctx context.Context, set *streamSet) error {
	if err := t.far.send(message{Kind: kindStarted}); err != nil {
		return err
	}
	if err := set.send(t.params.MessageBytes); err != nil {
		return err
	}
	if err := t.untilStop(ctx); err != nil {
		return err
	}
	var r report
	set.describe(&r)
	return clientEnded(t.far.send(message{Kind: kindReport, Report: &r}))
}

func (t *session) runRR(ctx context.Context) error {
	if err := t.started(ctx); err != nil {
		return clientEnded(err)
	}
	for _, sock := range t.streams {
		t.wg.Go(func() { echo(sock.fd, t.params.MessageBytes) })
	}
	if err := t.far.send(message{Kind: kindStarted}); err != nil {
		return err
	}
	return t.untilStop(ctx)
}

// echo answers each request of size bytes with as many bytes.
func echo(fd, size int) {
	buf := make([]byte, size)
	var y yielder
	for readFull(fd, buf) == nil {
		y.call()
		if writeFull(fd, buf) != nil {
			return
		}
	}
}

func writeFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if n > 0 {
			b = b[n:]
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// answerCRR reads the rest of a connection's single request, responds and closes first,
// so that the TIME_WAIT state is here and the client does not run out of ports.
func (t *session) answerCRR(ctx context.Context, sock *socket) {
	defer sock.close(false)
	defer context.AfterFunc(ctx, sock.wake)()
	buf := make([]byte, max(t.params.MessageBytes, preambleLen))
	if readFull(sock.fd, buf[preambleLen:]) == nil {
		writeFull(sock.fd, buf)
	}
}

// answerAtOnce is answerCRR for a request whose preamble is in buf and whose rest has
// arrived. It never blocks. If it returns false, the connection is unchanged.
func (t *session) answerAtOnce(sock *socket, buf []byte) bool {
	size := t.params.MessageBytes
	if size > len(buf) || size < preambleLen {
		return false
	}
	if rest := buf[preambleLen:size]; len(rest) > 0 {
		if n, _, err := unix.Recvfrom(sock.fd, rest, unix.MSG_PEEK|unix.MSG_DONTWAIT); err != nil || n < len(rest) {
			return false
		}
		if readFull(sock.fd, rest) != nil {
			return false
		}
	}
	writeFull(sock.fd, buf[:size]) // fits into the send buffer; an error means that the client is gone
	sock.close(false)
	return true
}
