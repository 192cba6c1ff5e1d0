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
	// A conversation over UDP ends so long after the last answer, since a flow
	// costs the data path memory. A and AAAA are asked for at once; what comes
	// later from the same socket begins another conversation.
	lingers = 500 * time.Millisecond
	// One over TCP ends after so long without a question (RFC 7766 section 6.2.3:
	// a few seconds).
	streamIdle = 10 * time.Second
	// Questions of one TCP connection that are under way.
	maxPipelined = 16
)

// past is a deadline that ends reads and writes at once.
var past = time.Unix(1, 0)

// place is an end of a conversation.
type place struct{}

func (place) Network() string { return "dns" }
func (place) String() string  { return "forwarder" }

// packets is a conversation over UDP. Writing never blocks.
type packets struct {
	f *Forwarder

	mu       sync.Mutex
	news     sync.Cond
	answers  [][]byte // behind their lengths
	under    int      // questions under way
	closed   bool
	ended    bool // by the forwarder: what is there can still be read
	deadline time.Time
	wake     *time.Timer // at the deadline
	linger   *time.Timer
}

// Write takes one question.
func (c *packets) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.ended {
		return 0, net.ErrClosed
	}
	if c.f.submit(b, false, c.answer) {
		c.under++
	}
	return len(b), nil
}

// answer is called once for each question that was taken, with nil where there
// is no answer.
func (c *packets) answer(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under--; c.under == 0 {
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

// Read waits for an answer. One that is longer than b is cut.
func (c *packets) Read(b []byte) (int, error) {
	answer, err := c.next()
	return copy(b, answer), err
}

// WriteTo writes answers as they come, each in one piece, until the conversation
// ends: who calls it needs no buffer for the longest.
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
			return frame[lengthBytes:], nil
		case c.ended:
			return nil, io.EOF
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return nil, os.ErrDeadlineExceeded
		}
		c.news.Wait()
	}
}

// end is the forwarder's way to close.
func (c *packets) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.linger.Stop()
	c.news.Broadcast()
}

// idle ends the conversation unless another question has come.
func (c *packets) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under == 0 {
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
		c.setDeadline(time.Time{})
		c.f.leave(c)
	}
	return nil
}

func (c *packets) setDeadline(t time.Time) {
	if c.wake != nil {
		c.wake.Stop()
	}
	if c.deadline = t; !t.IsZero() {
		c.wake = time.AfterFunc(time.Until(t), func() {
			c.mu.Lock() // or a reader may be between looking and waiting
			defer c.mu.Unlock()
			c.news.Broadcast()
		})
	}
	c.news.Broadcast()
}

func (c *packets) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setDeadline(t)
	return nil
}

func (c *packets) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *packets) SetWriteDeadline(time.Time) error { return nil }
func (c *packets) LocalAddr() net.Addr              { return place{} }
func (c *packets) RemoteAddr() net.Addr             { return place{} }

// stream is the forwarder's end of a conversation over TCP.
type stream struct {
	f      *Forwarder
	conn   net.Conn
	noMore atomic.Bool   // the guest has closed its direction
	turn   chan struct{} // holds one answer's right to be written
}

// guestStream is the guest's end.
type guestStream struct {
	net.Conn
	ours *stream
}

// CloseWrite says that there are no more questions; answers still come. What was
// written has been read, since a net.Pipe holds nothing.
func (g *guestStream) CloseWrite() error {
	g.ours.noMore.Store(true)
	return g.ours.conn.SetReadDeadline(past)
}

func (c *stream) end() { c.conn.Close() }

// serve answers questions until the guest has no more.
func (c *stream) serve() {
	var under sync.WaitGroup
	slots := make(chan struct{}, maxPipelined)
	for {
		c.conn.SetReadDeadline(time.Now().Add(streamIdle))
		if c.noMore.Load() {
			break
		}
		msg, err := readMessage(c.conn, maxQuestion)
		if err != nil {
			break
		}
		slots <- struct{}{}
		under.Add(1)
		done := func(frame []byte) {
			defer under.Done()
			if frame == nil || c.send(frame) != nil {
				c.conn.Close() // a stream that skips answers is of no use
			}
			<-slots
		}
		if !c.f.submit(msg, true, done) {
			done(nil)
		}
	}
	under.Wait()
	c.conn.Close()
}

// send writes an answer and releases it. Length and message are one write (RFC 7766
// section 8).
func (c *stream) send(frame []byte) error {
	defer c.f.guest.release(len(frame))
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.conn.SetWriteDeadline(time.Now().Add(streamIdle))
	_, err := c.conn.Write(frame)
	return err
}
