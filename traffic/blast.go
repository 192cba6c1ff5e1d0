package traffic

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// blast sends datagrams on one flow.
type blast struct {
	flow    *flow
	round   uint16
	size    int     // bytes of UDP payload, including the datagram header
	rate    float64 // datagrams per second; 0 means as fast as possible
	gso     bool
	start   int64 // on the clock of nanos
	until   int64 // on the clock of nanos
	stop    *atomic.Bool
	sent    atomic.Uint64 // datagrams
	lag     *hdrhistogram.Histogram
	lastErr error
}

// maxBurst limits how far behind schedule the sender catches up. What is older is
// skipped, and shows as lag and as a rate below the offered one.
const maxBurst = 5 * time.Millisecond

// segmentsMax is UDP_MAX_SEGMENTS of kernels before 6.9.
const segmentsMax = 64

// run sends until the time is over. With a schedule it uses a thread of its own.
func (s *blast) run() {
	s.lag = newLatency()
	segments := 1
	if s.gso {
		segments = min(segmentsMax, MaxDatagramBytes/s.size)
	}
	out := newOutgoing(s, segments)
	if s.rate > 0 {
		onOwnThread(func() { s.paced(out) })
		return
	}
	var seq uint64
	var y yielder
	for !s.stop.Load() && nanos() < s.until {
		n := s.send(out, seq, out.capacity())
		seq += n
		s.sent.Store(seq)
		if s.lastErr != nil {
			return
		}
		y.call()
	}
}

func (s *blast) paced(out *outgoing) {
	plan := schedule{start: s.start, interval: 1e9 / s.rate}
	var seq uint64   // of datagrams
	var slots uint64 // of the schedule, including skipped ones
	for {
		now := waitUntil(plan.at(slots), 0, s.stop)
		if s.stop.Load() || now >= s.until {
			return
		}
		if behind := now - plan.at(slots); behind > int64(maxBurst) {
			slots = plan.due(now - int64(maxBurst))
		}
		record(s.lag, now-plan.at(slots))
		due := plan.due(now) - slots
		n := s.send(out, seq, int(min(due, uint64(out.capacity()))))
		if s.lastErr != nil {
			return
		}
		seq += n
		slots += n
		s.sent.Store(seq)
	}
}

// send sends count datagrams from seq on, and returns how many were sent.
func (s *blast) send(out *outgoing, seq uint64, count int) uint64 {
	msgs := out.fill(seq, count, nanos())
	for done := 0; done < msgs; {
		n, err := out.batch.Send(s.flow.sock.fd, done, msgs-done, 0)
		done += n
		sent := uint64(min(done*out.segments, count))
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOBUFS):
			runtime.Gosched() // the device's queue is full: drop datagrams, as a router would
			return sent
		case retry(err), errors.Is(err, unix.ECONNREFUSED):
			if s.stop.Load() || nanos() >= s.until {
				return sent
			}
		default:
			s.lastErr = fmt.Errorf("send datagrams of %d bytes: %w", s.size, gsoHint(s.gso, err))
			return sent
		}
	}
	return uint64(count)
}

func gsoHint(gso bool, err error) error {
	if gso && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMSGSIZE)) {
		return fmt.Errorf("%w (UDP_SEGMENT needs datagrams that fit the path MTU)", err)
	}
	return err
}

// outgoing is a batch of messages with varying headers and a common payload: a single
// buffer, which stays in the cache.
type outgoing struct {
	batch    *sys.Batch
	heads    []byte // one header a datagram
	segments int    // datagrams in a message
	template datagram
	size     int
}

func newOutgoing(s *blast, segments int) *outgoing {
	n := batchFor(s.size * segments)
	out := &outgoing{
		batch: sys.NewBatch(n, 2*segments), heads: make([]byte, n*segments*datagramHeaderLen),
		segments: segments, size: s.size,
		template: datagram{kind: datagramData, index: s.flow.index, token: s.flow.token, round: s.round},
	}
	payload := make([]byte, max(s.size-datagramHeaderLen, 1))
	fill(payload)
	for i := range n * segments {
		m, k := i/segments, i%segments
		out.batch.SetBuffer(m, 2*k, out.heads[i*datagramHeaderLen:(i+1)*datagramHeaderLen])
		out.batch.SetBuffer(m, 2*k+1, payload)
		if s.size == datagramHeaderLen {
			out.batch.ClearBuffer(m, 2*k+1)
		}
	}
	return out
}

// capacity returns the number of datagrams in a batch.
func (o *outgoing) capacity() int { return o.batch.Len() * o.segments }

// fill writes headers for count datagrams, and returns the number of messages.
func (o *outgoing) fill(seq uint64, count int, now int64) int {
	d := o.template
	d.sent = now
	for i := range count {
		d.seq = seq + uint64(i)
		d.put(o.heads[i*datagramHeaderLen:])
	}
	msgs := (count + o.segments - 1) / o.segments
	for m := range msgs {
		k := min(o.segments, count-m*o.segments)
		o.batch.SetBuffers(m, 2*k)
		if o.segments > 1 {
			o.batch.SetSegment(m, o.size)
		}
	}
	return msgs
}
