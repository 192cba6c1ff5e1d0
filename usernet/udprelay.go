package usernet

import (
	"bytes"
	"context"
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// udpRelay carries a flow over a Conn that a policy or hook has given. A
// goroutine writes, another reads.
type udpRelay struct {
	f    *udpFlow
	conn net.Conn
	out  chan []byte
	ctx  context.Context
	stop context.CancelFunc
}

// relayQueue is how many datagrams wait for a Conn that is slow to write; those
// beyond are dropped and counted.
const relayQueue = 32

func startRelay(f *udpFlow, c net.Conn) *udpRelay {
	r := &udpRelay{f: f, conn: c, out: make(chan []byte, relayQueue)}
	r.ctx, r.stop = context.WithCancel(f.t.s.ctx)
	context.AfterFunc(r.ctx, func() { _ = c.Close() })
	go r.write()
	go r.read()
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
		select {
		case r.out <- bytes.Clone(piece):
			p.flow.sent(len(piece))
		default:
			r.f.t.s.stats.OverLimit++
		}
	}
}

func (r *udpRelay) write() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case b := <-r.out:
			_, _ = r.conn.Write(b) // a datagram may get lost; the reader hears of the end
		}
	}
}

// read hands what comes to the loop, one at a time: while that is busy, the Conn
// waits.
func (r *udpRelay) read() {
	defer r.stop()
	room := make([]byte, frameBytes)
	done := make(chan struct{})
	for {
		n, err := r.conn.Read(room[udpHeadroom:])
		refused := errors.Is(err, unix.ECONNREFUSED) // an earlier datagram's: not the end
		posted := r.f.t.s.loop.post(func() {
			r.deliver(room[:udpHeadroom+n], err, refused)
			select {
			case done <- struct{}{}:
			case <-r.ctx.Done():
			}
		})
		if !posted {
			return
		}
		select {
		case <-done:
		case <-r.ctx.Done():
			return
		}
		if err != nil && !refused {
			return
		}
	}
}

// deliver takes what was read, on the loop's thread.
func (r *udpRelay) deliver(room []byte, err error, refused bool) {
	f := r.f
	if f.relay != r {
		return // it has ended meanwhile
	}
	if err == nil || len(room) > udpHeadroom {
		f.t.deliver(f, room, 0)
		f.received(len(room) - udpHeadroom)
	}
	if err != nil && !refused {
		f.drop()
	}
}
