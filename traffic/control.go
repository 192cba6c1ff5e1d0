package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// peer is the other end of the control channel.
type peer struct {
	conn net.Conn
	in   chan message
	gone chan struct{} // closed after the last message was sent to in
	err  error         // the reason; valid after gone is closed
}

// newPeer starts reading control messages of at most limit bytes from conn. close stops
// it.
func newPeer(conn net.Conn, limit int) *peer {
	p := &peer{conn: conn, in: make(chan message, 8), gone: make(chan struct{})}
	go p.read(limit)
	return p
}

func (p *peer) read(limit int) {
	defer close(p.gone)
	for {
		m, err := readMessage(p.conn, limit)
		if err != nil {
			p.err = err
			return
		}
		select {
		case p.in <- m:
		default: // the protocol never has 8 messages outstanding
			p.err = fmt.Errorf("%w: too many control messages", ErrNotTraffic)
			return
		}
	}
}

const controlWrite = 5 * time.Second

func (p *peer) send(m message) error {
	p.conn.SetWriteDeadline(time.Now().Add(controlWrite))
	return writeMessage(p.conn, m)
}

// expect waits for the next message and checks its kind. An error message from the peer
// becomes the error.
func (p *peer) expect(ctx context.Context, kind messageKind) (message, error) {
	m, err := p.next(ctx)
	if err != nil {
		return message{}, fmt.Errorf("wait for %q from %s: %w", kind, p.conn.RemoteAddr(), err)
	}
	if m.Kind == kindError {
		return message{}, fmt.Errorf("server: %s", m.Error)
	}
	if m.Kind != kind {
		return message{}, fmt.Errorf("%w: control message %q, not %q", ErrNotTraffic, m.Kind, kind)
	}
	return m, nil
}

// expectReport is expect for a message that holds a report.
func (p *peer) expectReport(ctx context.Context, kind messageKind) (report, error) {
	m, err := p.expect(ctx, kind)
	if err != nil {
		return report{}, err
	}
	if m.Report == nil {
		return report{}, fmt.Errorf("%w: empty report", ErrNotTraffic)
	}
	return *m.Report, nil
}

func (p *peer) next(ctx context.Context) (message, error) {
	select {
	case m := <-p.in:
		return m, nil
	default:
	}
	select {
	case m := <-p.in:
		return m, nil
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	case <-p.gone:
		select {
		case m := <-p.in: // sent before the end
			return m, nil
		default:
		}
		if errors.Is(p.err, io.EOF) || errors.Is(p.err, net.ErrClosed) {
			return message{}, ErrPeerGone
		}
		return message{}, p.err
	}
}

func (p *peer) close() {
	p.conn.Close()
	<-p.gone
}

// ErrPeerGone means that the peer closed the control connection.
var ErrPeerGone = errors.New("the peer closed the control connection")

// zoneIndex returns the interface index of an IPv6 zone, or 0.
func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0
	}
	return uint32(ifi.Index)
}
