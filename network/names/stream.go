package names

import (
	"bufio"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"cleat/dns"
)

const (
	maxStreams          = 512
	maxStreamsPerClient = 32
	// streamIdle is the time without a query after which a connection ends (RFC 7766 section
	// 6.2.3: a few seconds).
	streamIdle = 10 * time.Second
	// maxPipelined limits the forwarded queries in progress on one connection.
	maxPipelined = 16
	maxQuery     = 4096 // bytes: a name of 255, and options
)

// stream is a TCP connection of a client.
type stream struct {
	k      *socket
	client netip.Addr
	conn   net.Conn
	q      query
	slots  chan struct{}  // forwarded queries in progress
	busy   sync.WaitGroup // of slots
	mu     sync.Mutex     // one answer at a time
}

// serveStream answers the queries of a connection until the client ends it.
func (k *socket) serveStream(conn net.Conn) {
	client := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	if !k.reserve(k.clients, client, maxStreamsPerClient) {
		k.counts[dropped].Add(1)
		return
	}
	defer k.release(k.clients, client)
	k.streams.Add(1)
	s := &stream{k: k, client: client, conn: conn, slots: make(chan struct{}, maxPipelined)}
	defer s.busy.Wait()
	in := bufio.NewReader(conn)
	for {
		conn.SetReadDeadline(time.Now().Add(streamIdle))
		msg, err := dns.ReadMessage(in, maxQuery)
		if err != nil || !s.answer(msg) {
			return
		}
	}
}

// answer answers a message, now or later. It reports whether the connection can go on: a
// stream must not skip answers.
func (s *stream) answer(msg []byte) bool {
	r, o := s.q.process(s.k, msg, s.client)
	if o == forwarded {
		r, o = s.forward(msg)
	}
	s.k.counts[o].Add(1)
	switch o {
	case forwarded:
		return true
	case ignored, dropped:
		return false
	}
	out, complete := s.q.appendReply(nil, msg, r, maxMessage)
	if !complete {
		s.k.truncated.Add(1)
	}
	return s.send(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
}

// forward forwards a query. Its answer may overtake others.
func (s *stream) forward(msg []byte) (reply, outcome) {
	s.slots <- struct{}{}
	s.busy.Add(1)
	end := func() { <-s.slots; s.busy.Done() }
	r, o := s.k.forward(msg, true, s.client, func(frame []byte) {
		defer end()
		if frame == nil || !s.send(frame) {
			s.conn.Close()
		}
	})
	if o != forwarded {
		end()
	}
	return r, o
}

// send writes an answer with its length at once (RFC 7766 section 8).
func (s *stream) send(frame []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.SetWriteDeadline(time.Now().Add(streamIdle))
	_, err := s.conn.Write(frame)
	return err == nil
}
