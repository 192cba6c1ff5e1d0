package dns

import (
	"encoding/binary"
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
	// Answers that nobody has read yet: bytes, of all conversations together.
	maxUnread = 4 << 20
	// Questions of one TCP connection that are under way.
	maxPipelined = 16
)

// place is an end of a conversation.
type place struct{}

func (place) Network() string { return "dns" }
func (place) String() string  { return "forwarder" }

// packets is a conversation over UDP. Writing never blocks.
type packets struct {
	f *Forwarder

	mu       sync.Mutex
	news     sync.Cond
	answers  [][]byte
	under    int // questions under way
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
func (c *packets) answer(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under--; c.under == 0 {
		c.linger.Reset(lingers)
	}
	switch {
	case msg == nil || c.closed || c.ended:
	case c.f.unread.Add(int64(len(msg))) > maxUnread:
		c.f.unread.Add(-int64(len(msg)))
		c.f.stats.dropped.Add(1)
	default:
		c.answers = append(c.answers, msg)
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
			answer := c.answers[0]
			c.answers = c.answers[1:]
			c.f.unread.Add(-int64(len(answer)))
			return answer, nil
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
			c.f.unread.Add(-int64(len(answer)))
		}
		c.answers = nil
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
	noMore atomic.Bool // the guest has closed its direction
	mu     sync.Mutex  // one answer at a time
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
	return g.ours.conn.SetReadDeadline(time.Unix(1, 0))
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
		done := func(answer []byte) {
			defer under.Done()
			if answer == nil || c.send(answer) != nil {
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

func (c *stream) send(answer []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer)))
	c.conn.SetWriteDeadline(time.Now().Add(streamIdle))
	_, err := c.conn.Write(append(out, answer...))
	return err
}
