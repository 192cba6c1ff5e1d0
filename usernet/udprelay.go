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

// udpRelay carries a flow over a Conn that a policy or hook has given. A
// goroutine writes, another reads. The reader needs room for the largest
// datagram; a Conn that is an io.WriterTo spares it that, and has its datagrams
// taken one a Write.
type udpRelay struct {
	f           *udpFlow
	conn        net.Conn
	out         chan []byte
	queuedBytes atomic.Int64  // bytes in out
	done        chan struct{} // the loop has taken what was read
	ctx         context.Context
	stop        context.CancelFunc

	ledger *ledger.Ledger
	costs  ledger.Cost
}

// How many datagrams, and bytes, wait for a Conn that is slow to write; those
// beyond are dropped and counted. A resolver may ask hundreds of questions at
// once from one socket.
const (
	relayQueue       = 256
	relayBytes       = 256 << 10
	relayBufferBytes = 1 << 16 // for the longest datagram
)

// startRelay begins to carry a flow; nil: the limits don't permit that, and c was closed.
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
	wg.Go(r.write)
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
		r.out <- bytes.Clone(piece) // nobody else sends: there is room
		r.f.sent(len(piece))
	}
}

// datagramCost is the cost of a datagram that waits to be written.
func datagramCost(b []byte) ledger.Cost { return ledger.Cost{Bytes: len(b)} }

// write writes what is sent until the flow ends; from then on nothing more is sent.
func (r *udpRelay) write() {
	for r.ctx.Err() == nil {
		select {
		case <-r.ctx.Done():
		case b := <-r.out:
			r.queuedBytes.Add(-int64(len(b)))
			_, _ = r.conn.Write(b) // a datagram may get lost; the reader hears of the end
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

// read hands what comes to the loop until the Conn ends, and the flow with it.
func (r *udpRelay) read() {
	defer r.stop()
	if c, ok := r.conn.(io.WriterTo); ok {
		_, _ = c.WriteTo(relayWriter{r})
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
			if !r.deliver(room[:n]) {
				return
			}
		}
		// Refused was an earlier datagram; it is not the end.
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}

// hand gives a datagram to the loop and returns when that has taken it: while it
// is busy, the Conn waits. It tells whether there is still a flow.
func (r *udpRelay) deliver(b []byte) bool {
	posted := r.f.t.s.loop.post(func() {
		if r.f.relay == r {
			r.f.receiveFromConn(b)
		}
		select {
		case r.done <- struct{}{}:
		case <-r.ctx.Done():
		}
	})
	if !posted {
		return false
	}
	select {
	case <-r.done:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// relayed hands a datagram of the Conn's to the guest.
func (f *udpFlow) receiveFromConn(b []byte) {
	n := copy(f.t.scratch[udpHeadroom:], b)
	f.t.deliver(f, f.t.scratch[:udpHeadroom+n], 0)
	f.received(n)
}

// relayWriter takes a datagram a Write.
type relayWriter struct{ *udpRelay }

func (w relayWriter) Write(b []byte) (int, error) {
	if !w.deliver(b) {
		return 0, net.ErrClosed
	}
	return len(b), nil
}
