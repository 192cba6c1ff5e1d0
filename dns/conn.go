package dns

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lingers is the time after the last answer at which a UDP conversation ends, because
	// a flow costs the data path memory. A and AAAA are queried at once; a later query
	// from the same socket begins another conversation.
	lingers = 500 * time.Millisecond
	// streamIdle is the time without a query after which a TCP conversation ends (RFC
	// 7766 section 6.2.3: a few seconds).
	streamIdle = 10 * time.Second
	// maxPipelined limits the queries in progress on one TCP connection.
	maxPipelined = 16
)

// past is a deadline that interrupts reads and writes at once.
var past = time.Unix(1, 0)

// connAddr is the address of both ends of a conversation.
type connAddr struct{}

func (connAddr) Network() string { return "dns" }
func (connAddr) String() string  { return "forwarder" }

// packets is a conversation over UDP. Writing never blocks, and reading has no deadline.
type packets struct {
	f *Forwarder

	mu      sync.Mutex
	news    sync.Cond
	answers [][]byte // with their length prefixes
	pending int      // queries in progress
	closed  bool
	ended   bool // by the forwarder; pending answers can still be read
	linger  *time.Timer
}

// Write submits one query.
func (c *packets) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.ended {
		return 0, net.ErrClosed
	}
	if c.f.submit(b, false, c.answer) {
		c.pending++
	}
	return len(b), nil
}

// answer is called once for each submitted query, with nil if there is no answer.
func (c *packets) answer(frame []byte, _ Learned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending--; c.pending == 0 {
		c.linger.Reset(lingers)
	}
	switch {
	case frame == nil:
	case c.closed || c.ended:
		c.f.guest.release(len(frame))
	default:
		c.answers = append(c.answers, frame)
		c.news.Broadcast()
	}
}

// Read waits for an answer. If the answer is longer than b, the rest is dropped.
func (c *packets) Read(b []byte) (int, error) {
	answer, err := c.next()
	return copy(b, answer), err
}

// WriteTo writes answers to w as they arrive, one Write each, until the conversation
// ends. The caller needs no buffer for the longest answer.
func (c *packets) WriteTo(w io.Writer) (n int64, err error) {
	for {
		answer, err := c.next()
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		m, err := w.Write(answer)
		if n += int64(m); err != nil {
			return n, err
		}
	}
}

// next waits for an answer.
func (c *packets) next() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return nil, net.ErrClosed
		case len(c.answers) > 0:
			frame := c.answers[0]
			c.answers = c.answers[1:]
			c.f.guest.release(len(frame))
			return frame[LengthBytes:], nil
		case c.ended:
			return nil, io.EOF
		}
		c.news.Wait()
	}
}

// end closes the conversation on behalf of the forwarder.
func (c *packets) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.linger.Stop()
	c.news.Broadcast()
}

// idle ends the conversation unless another query has arrived.
func (c *packets) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == 0 {
		c.ended = true
		c.news.Broadcast()
		c.f.leave(c)
	}
}

func (c *packets) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.linger.Stop()
		for _, answer := range c.answers {
			c.f.guest.release(len(answer))
		}
		c.answers = nil
		c.f.guest.ledger.Refund(packetsCost)
		c.news.Broadcast()
		c.f.leave(c)
	}
	return nil
}

func (c *packets) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *packets) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *packets) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
func (c *packets) LocalAddr() net.Addr              { return connAddr{} }
func (c *packets) RemoteAddr() net.Addr             { return connAddr{} }

// stream is the forwarder's end of a conversation over TCP.
type stream struct {
	f      *Forwarder
	conn   net.Conn
	noMore atomic.Bool   // the guest has closed its direction
	turn   chan struct{} // a lock: holds one token while an answer is written
}

// guestStream is the guest's end of the conversation.
type guestStream struct {
	net.Conn
	ours *stream
}

// CloseWrite ends the queries; answers still arrive. Everything written has been read,
// because a net.Pipe buffers nothing.
func (g *guestStream) CloseWrite() error {
	g.ours.noMore.Store(true)
	return g.ours.conn.SetReadDeadline(past)
}

func (c *stream) end() { c.conn.Close() }

// serve answers queries until the guest has no more.
func (c *stream) serve() {
	var under sync.WaitGroup
	slots := make(chan struct{}, maxPipelined)
	for {
		c.conn.SetReadDeadline(time.Now().Add(streamIdle))
		if c.noMore.Load() {
			break
		}
		msg, err := ReadMessage(c.conn, maxQuestion)
		if err != nil {
			break
		}
		slots <- struct{}{}
		under.Add(1)
		done := func(frame []byte, _ Learned) {
			defer under.Done()
			if frame == nil || c.send(frame) != nil {
				c.conn.Close() // a stream must not skip answers
			}
			<-slots
		}
		if !c.f.submit(msg, true, done) {
			done(nil, Learned{})
		}
	}
	under.Wait()
	c.conn.Close()
}

// send writes an answer and releases its bytes. Length and message are one write (RFC
// 7766 section 8).
func (c *stream) send(frame []byte) error {
	defer c.f.guest.release(len(frame))
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.conn.SetWriteDeadline(time.Now().Add(streamIdle))
	_, err := c.conn.Write(frame)
	return err
}
