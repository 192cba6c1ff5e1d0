package traffic

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cleat/internal/sys"

	"golang.org/x/sys/unix"
)

// flow is one end of one stream of datagrams on a connected socket. Its receiving
// goroutine answers greetings, probes and requests, and counts data.
type flow struct {
	sock  *socket
	index uint16
	token uint64
	stop  atomic.Bool
	early time.Duration // what arrives within this time is counted separately; 0: nothing
	came  *arrivals     // shared by all flows of the test; nil without early

	mu    sync.Mutex // taken once a batch
	tally tally
}

// tally counts what a flow received in one round.
type tally struct {
	round   uint16
	bytes   uint64
	early   uint64 // the part of bytes within flow.early of the first
	packets uint64
	first   int64 // on the clock of nanos
	last    int64
	track   tracker
}

// begin resets the counters; from now on only data of this round counts.
func (f *flow) begin(round uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally = tally{round: round}
	f.came.forget()
}

// batchFor returns how many messages of size bytes are moved at once: enough to amortize
// the system call, few enough to stay in the second-level cache.
func batchFor(size int) int { return min(max(flowBuffers/max(size, 1), 1), 64) }

// flowBuffers is the most memory for one flow's batch, in bytes.
const flowBuffers = 256 << 10

// receiveSize returns the buffer size for one message: with GRO the kernel joins
// datagrams up to 64 KiB.
func receiveSize(messageBytes int, gro bool) int {
	if gro {
		return 1 << 16
	}
	return max(messageBytes, 2048)
}

// receive runs until stop is set or the socket fails permanently. size is the longest
// expected message.
func (f *flow) receive(size int) error {
	n := batchFor(size)
	in := sys.NewBatch(n, 1)
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, size)
		in.SetBuffer(i, 0, bufs[i])
		in.SetBuffers(i, 1)
	}
	var y yielder
	for !f.stop.Load() {
		got, err := in.Recv(f.sock.fd, unix.MSG_WAITFORONE)
		y.call()
		if err != nil {
			// ECONNREFUSED: an ICMP error for something sent before the peer listened, or
			// after it closed.
			if retry(err) || errors.Is(err, unix.ECONNREFUSED) {
				continue
			}
			return fmt.Errorf("receive datagrams: %w", err)
		}
		f.take(in, bufs, got)
	}
	return nil
}

func (f *flow) take(in *sys.Batch, bufs [][]byte, got int) {
	now := nanos()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range got {
		b := bufs[i][:min(in.Size(i), len(bufs[i]))]
		segment := in.Segment(i)
		if segment <= 0 {
			segment = len(b)
		}
		for len(b) > 0 {
			one := b[:min(segment, len(b))]
			b = b[len(one):]
			f.handle(one, now)
		}
	}
}

func (f *flow) handle(b []byte, now int64) {
	d, ok := parseDatagram(b)
	if !ok || d.token != f.token || d.index != f.index {
		return
	}
	switch d.kind {
	case datagramData:
		if d.round != f.tally.round {
			return
		}
		t := &f.tally
		if t.packets == 0 {
			t.first = now
		}
		t.last = now
		t.packets++
		f.came.markAt(now)
		if t.track.add(d.seq, d.sent, now) {
			t.bytes += uint64(len(b))
			if now-t.first < int64(f.early) {
				t.early += uint64(len(b))
			}
		}
	case datagramEcho:
		unix.Write(f.sock.fd, b) // the client counts lost answers
	case datagramHello, datagramProbe:
		f.ack(d, len(b))
	}
}

// ack reports to the peer that size bytes of UDP payload arrived.
func (f *flow) ack(d datagram, size int) {
	var b [datagramHeaderLen]byte
	d.kind, d.seq = datagramAck, uint64(size)
	d.put(b[:])
	unix.Write(f.sock.fd, b[:])
}

// end stops the receiving goroutine. The caller waits for it.
func (f *flow) end() {
	f.stop.Store(true)
	f.sock.wake()
}

// greet announces the flow to the server until the server answers. A single greeting is
// easily lost: the first packet of a path may wait for ARP, a proxy, or NAT.
func (f *flow) greet(done <-chan struct{}, patience time.Duration) error {
	var out, in [datagramHeaderLen]byte
	datagram{kind: datagramHello, index: f.index, token: f.token}.put(out[:])
	until := nanos() + int64(patience)
	wait := 20 * time.Millisecond
	for nanos() < until {
		select {
		case <-done:
			return errStopped
		default:
		}
		unix.Write(f.sock.fd, out[:]) // refused or lost: the next one may succeed
		if err := setTimeouts(f.sock.fd, wait); err != nil {
			return err
		}
		if f.awaitAck(in[:], nanos()+int64(wait)) {
			return setTimeouts(f.sock.fd, stopCheck)
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
	return ErrNoDatagrams
}

func (f *flow) awaitAck(b []byte, until int64) bool {
	for {
		n, err := unix.Read(f.sock.fd, b)
		if err == nil {
			if d, ok := parseDatagram(b[:n]); ok && d.kind == datagramAck && d.token == f.token && d.index == f.index {
				return true
			}
		}
		if nanos() >= until || (err != nil && !errors.Is(err, unix.EINTR)) {
			return false
		}
	}
}

var (
	// ErrNoDatagrams means that a small UDP datagram got no answer.
	ErrNoDatagrams = errors.New("no UDP datagram came back: the path drops them, or the port is not forwarded for UDP")

	errStopped = errors.New("stopped")
)
