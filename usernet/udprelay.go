package usernet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// udpRelay carries a flow over the Conn of a verdict. One goroutine writes and another
// reads. The reader needs a buffer for the largest datagram, unless the Conn is an
// io.WriterTo, which passes each datagram in one Write.
type udpRelay struct {
	f           *udpFlow
	conn        net.Conn
	out         chan []byte
	queuedBytes atomic.Int64  // bytes in out
	done        chan struct{} // the loop has taken the datagram of Write
	ctx         context.Context
	stop        context.CancelFunc

	ledger *ledger.Ledger
	costs  ledger.Cost
}

// How many datagrams, and bytes, wait for a Conn that is slow to write. Others are
// dropped and counted. A program may send a resolver hundreds of queries at once from one
// socket.
const (
	relayQueue       = 256
	relayBytes       = 256 << 10
	relayBufferBytes = 1 << 16 // the longest datagram
)

// startRelay starts to carry a flow over c. It closes c and returns nil if the limits
// don't allow it.
func startRelay(f *udpFlow, c net.Conn) *udpRelay {
	r := &udpRelay{f: f, conn: c, ledger: f.t.s.group.ledger, costs: relayCost}
	if _, ok := c.(io.WriterTo); !ok {
		r.costs.Bytes += relayBufferBytes
	}
	if !r.ledger.Charge(r.costs) {
		_ = c.Close()
		return nil
	}
	r.out, r.done = make(chan []byte, relayQueue), make(chan struct{})
	r.ctx, r.stop = context.WithCancel(f.t.s.ctx)
	context.AfterFunc(r.ctx, func() { _ = c.Close() })
	var wg sync.WaitGroup
	wg.Go(r.writeAll)
	go func() {
		r.read()
		wg.Wait()
		r.ledger.Refund(r.costs)
	}()
	return r
}

// send copies a parcel's datagrams for the writer.
func (r *udpRelay) send(p *parcel) {
	segment := p.segment
	if segment == 0 {
		segment = max(len(p.payload), 1)
	}
	for at := 0; at < len(p.payload) || at == 0; at += segment {
		piece := p.payload[at:min(at+segment, len(p.payload))]
		if len(r.out) == relayQueue || r.queuedBytes.Load()+int64(len(piece)) > relayBytes || !r.ledger.Charge(datagramCost(piece)) {
			r.f.t.s.stats.OverLimit++
			continue
		}
		r.queuedBytes.Add(int64(len(piece)))
		r.out <- bytes.Clone(piece) // this does not block: only the loop's thread sends, and there is room
		r.f.sent(len(piece))
	}
}

// datagramCost is the cost of a datagram that waits to be written.
func datagramCost(b []byte) ledger.Cost { return ledger.Cost{Bytes: len(b)} }

// writeAll writes the guest's datagrams to the Conn until the flow ends. After that send is not
// called.
func (r *udpRelay) writeAll() {
	for r.ctx.Err() == nil {
		select {
		case <-r.ctx.Done():
		case b := <-r.out:
			r.queuedBytes.Add(-int64(len(b)))
			_, _ = r.conn.Write(b) // a datagram may get lost; the reader sees the end
			r.ledger.Refund(datagramCost(b))
		}
	}
	for {
		select {
		case b := <-r.out:
			r.ledger.Refund(datagramCost(b))
		default:
			return
		}
	}
}

// read delivers datagrams until the Conn ends, and then drops the flow.
func (r *udpRelay) read() {
	defer r.stop()
	if c, ok := r.conn.(io.WriterTo); ok {
		_, _ = c.WriteTo(r)
	} else {
		r.readAll()
	}
	r.f.t.s.loop.post(func() {
		if r.f.relay == r {
			r.f.drop()
		}
	})
}

func (r *udpRelay) readAll() {
	room := make([]byte, relayBufferBytes)
	for {
		n, err := r.conn.Read(room)
		if err == nil || n > 0 {
			if _, err := r.Write(room[:n]); err != nil {
				return
			}
		}
		// ECONNREFUSED is about an earlier datagram, and not the end.
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}

// Write passes a datagram of the Conn to the loop and returns when the loop has taken it. So
// the Conn waits while the loop is busy. Write returns net.ErrClosed if the flow has ended.
func (r *udpRelay) Write(b []byte) (int, error) {
	posted := r.f.t.s.loop.post(func() {
		if f := r.f; f.relay == r {
			n := copy(f.t.scratch[udpHeadroom:], b)
			f.t.deliver(f, f.t.scratch[:udpHeadroom+n], 0)
			f.received(n)
		}
		select {
		case r.done <- struct{}{}:
		case <-r.ctx.Done():
		}
	})
	if !posted {
		return 0, net.ErrClosed
	}
	select {
	case <-r.done:
		return len(b), nil
	case <-r.ctx.Done():
		return 0, net.ErrClosed
	}
}
