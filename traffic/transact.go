package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// transactor makes transactions one after the other. In a closed loop each follows the
// last response. On a schedule each has an intended time, from which its latency counts,
// so that a slow response shows in all transactions that had to wait for it.
//
// A transaction whose intended time is before until counts in the latency, however late it
// ends: a stall at the end of a run would otherwise leave no trace. So the transactor waits
// for the one under way at until, and makes those that had to wait. What has not ended at
// giveUp counts as if it ended then.
type transactor struct {
	do     func(seq uint64) error // one request with its response
	plan   schedule               // interval 0 means a closed loop
	omit   int64                  // on the clock of nanos; what was intended before does not count
	until  int64                  // on the clock of nanos
	giveUp int64                  // on the clock of nanos; do is interrupted then, or returns soon
	stop   *atomic.Bool

	done       uint64 // ended until the time until
	late       uint64 // ended after it
	unfinished uint64 // had not ended at giveUp
	lost       uint64 // timed out, or the connection failed
	latency    *hdrhistogram.Histogram
	lag        *hdrhistogram.Histogram
	err        error // what ended it early
	why        error // the first failure
}

const (
	// drainTime is how long a run waits after its end for transactions under way. A stall
	// that is longer is at least as long in the results.
	drainTime = time.Second
	// quietTime is how long a client that has ended does nothing, while other clients'
	// last transactions are under way: encoding a result takes a processor for about a
	// millisecond, which on a machine with many clients would show in their tails.
	quietTime = 10 * time.Millisecond
)

// errLost is returned by do, perhaps with a cause, when a response did not arrive. The
// loop continues.
var errLost = errors.New("no response")

// lost returns the error of a transaction that failed at a step.
func lost(step string, cause error) error { return fmt.Errorf("%s: %w: %w", step, errLost, cause) }

// errNoResponse ends a transactor that got no response at all.
var errNoResponse = errors.New("no response to the first request")

func (t *transactor) run() {
	t.latency, t.lag = newLatency(), newLatency()
	var y yielder
	free := nanos() // when the generator could have sent the next
	for seq := uint64(0); ; seq++ {
		intended := t.plan.at(seq)
		if t.plan.interval == 0 {
			if y.call() {
				free = nanos() // yielding must not count as latency of the path
			}
			intended = max(free, t.plan.start)
		}
		if intended >= t.until {
			return
		}
		sent := waitUntil(intended, spinBefore, t.stop)
		if t.stop.Load() {
			return
		}
		if sent >= t.giveUp {
			t.abandon(seq, intended, sent)
			return
		}
		lag := sent - max(intended, free)
		err := t.do(seq)
		now := nanos()
		free = now
		counts := intended >= t.omit
		switch {
		case errors.Is(err, errLost):
			if counts {
				t.lost++
				t.why = cmp.Or(t.why, err)
			}
		case err != nil && now >= t.giveUp && seq > 0: // interrupted
			t.abandon(seq, intended, now)
			return
		case err != nil && now >= t.giveUp:
			t.err = errNoResponse
			return
		case err != nil:
			t.err = err
			return
		case counts:
			record(t.latency, now-intended)
			if t.plan.interval > 0 {
				record(t.lag, lag)
			}
			if now <= t.until {
				t.done++
			} else {
				t.late++
			}
		}
	}
}

// mostSteps limits the time that abandon takes: a schedule of hours may be far behind.
const mostSteps = 10_000

// abandon records the transactions from number seq on, the first with its intended time, as
// if they ended now.
func (t *transactor) abandon(seq uint64, intended, now int64) {
	if t.plan.interval == 0 {
		if intended >= t.omit {
			record(t.latency, now-intended)
			t.unfinished++
		}
		return
	}
	first, end := max(seq, t.plan.before(t.omit)), t.plan.before(t.until)
	step := max(1, (max(end, first)-first)/mostSteps)
	for n := first; n < end; n += step {
		count := min(step, end-n)
		recordMany(t.latency, now-t.plan.at(n+count/2), int64(count))
		t.unfinished += count
	}
}

// runTransactors runs one transactor a thread and fills in the result. interrupt makes calls
// of dos return an error; it may be nil if they return soon in any case.
func (c *client) runTransactors(ctx context.Context, dos []func(seq uint64) error, interrupt func()) error {
	var stop atomic.Bool
	there, cancel := c.whileThere(ctx, c.cfg.Omit+c.cfg.Duration+reportGrace)
	defer cancel()
	defer context.AfterFunc(there, func() { stop.Store(true) })()
	start := nanos() + int64(time.Millisecond) // threads are running by then
	counting := start + int64(c.cfg.Omit)
	until := counting + int64(c.cfg.Duration)
	giveUp := until + int64(drainTime)
	if interrupt != nil {
		defer time.AfterFunc(time.Duration(giveUp-nanos()), interrupt).Stop()
	}
	all := make([]*transactor, len(dos))
	var wg sync.WaitGroup
	for i, do := range dos {
		t := &transactor{do: do, omit: counting, until: until, giveUp: giveUp, stop: &stop, plan: schedule{start: start}}
		if rate := c.cfg.TransactionsPerSecond / float64(len(dos)); rate > 0 {
			t.plan.interval = 1e9 / rate
			t.plan.start += int64(t.plan.interval * float64(i) / float64(len(dos))) // evenly staggered
		}
		all[i] = t
		wg.Go(func() {
			if t.plan.interval > 0 {
				onOwnThread(t.run)
			} else {
				t.run()
			}
		})
	}
	join := c.cpuFrom(c.cfg.Omit)
	wg.Wait()
	ended := nanos()
	join()
	c.stopCPU()
	select {
	case <-time.After(time.Duration(until + int64(quietTime) - nanos())):
	case <-there.Done():
	}
	return c.transacted(ctx, all, time.Duration(min(ended, until)-counting))
}

func (c *client) transacted(ctx context.Context, all []*transactor, took time.Duration) error {
	latency, lag := newLatency(), newLatency()
	r := &c.result
	var why error
	for _, t := range all {
		latency.Merge(t.latency)
		lag.Merge(t.lag)
		r.Transactions += t.done
		r.Late += t.late
		r.Unfinished += t.unfinished
		if c.cfg.Work == UDPRR {
			r.Lost += t.lost
		} else {
			r.Failures += t.lost
		}
		why = cmp.Or(why, t.why)
		if t.err != nil && ctx.Err() == nil {
			return fmt.Errorf("test aborted after %d transactions: %w", t.done, t.err)
		}
	}
	if ctx.Err() == nil {
		select {
		case <-c.far.gone:
			return fmt.Errorf("test aborted after %d transactions: %w", r.Transactions, ErrPeerGone)
		default:
		}
	}
	r.DurationSeconds = max(took.Seconds(), 0)
	if took > 0 {
		r.TransactionsPerSecond = float64(r.Transactions) / took.Seconds()
	}
	if tried := r.Transactions + r.Late + r.Lost + r.Failures; tried > 0 {
		r.LossFraction = float64(r.Lost+r.Failures) / float64(tried)
	}
	// Both directions carry the payload.
	r.BytesReceived = r.Transactions * uint64(c.cfg.MessageBytes)
	r.LagP99 = time.Duration(lag.ValueAtQuantile(99))
	if err := r.setLatency(latency); err != nil {
		return err
	}
	if few := fewTransactions(latency.TotalCount()); few != "" {
		c.warn("%s", few)
	}
	if r.Failures > 0 {
		c.warn("%d connections failed, the first: %v", r.Failures, why)
	}
	if r.Unfinished > 0 {
		c.warn("%d transactions had not ended %s after the run: their latency counts as at least so much", r.Unfinished, drainTime)
	}
	c.finish(ctx.Err() != nil)
	return nil
}

func (c *client) runRR(ctx context.Context) error {
	if c.cfg.Work == UDPRR {
		return c.runUDPRR(ctx)
	}
	socks, err := c.connect(ctx, dialPatience+time.Duration(c.cfg.Streams)*streamPatience)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range socks {
			s.close(true)
		}
	}()
	// A read returns when the socket is shut down; the timeout is for a dead path.
	interrupt := func() {
		for _, s := range socks {
			s.wake()
		}
	}
	defer context.AfterFunc(ctx, interrupt)()
	if err := c.begin(ctx, 0); err != nil {
		return err
	}
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	dos := make([]func(uint64) error, len(socks))
	for i, s := range socks {
		out, in := make([]byte, c.cfg.MessageBytes), make([]byte, c.cfg.MessageBytes)
		dos[i] = func(uint64) error {
			if err := writeFull(s.fd, out); err != nil {
				return fmt.Errorf("send request: %w", err)
			}
			if err := readFull(s.fd, in); err != nil {
				return fmt.Errorf("receive response: %w", err)
			}
			return nil
		}
		if err := setTimeouts(s.fd, c.cfg.Duration+c.cfg.Omit+reportGrace); err != nil {
			return err
		}
	}
	if info, err := unix.GetsockoptString(socks[0].fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		c.result.Congestion = info
	}
	return c.runTransactors(ctx, dos, interrupt)
}

// responseTimeout is the time after which a UDP response counts as lost.
const responseTimeout = 250 * time.Millisecond

func (c *client) runUDPRR(ctx context.Context) error {
	flows, rtt, err := c.greet(ctx, greetPatience)
	if err != nil {
		return err
	}
	defer closeFlows(flows)
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	timeout := cmp.Or(c.cfg.Patience, max(responseTimeout, 4*rtt))
	dos := make([]func(uint64) error, len(flows))
	for i, f := range flows {
		if err := setTimeouts(f.sock.fd, timeout); err != nil {
			return err
		}
		dos[i] = requester(f, c.cfg.MessageBytes, timeout)
	}
	return c.runTransactors(ctx, dos, nil) // a response takes at most timeout
}

// requester sends a request and waits for the response with its number.
func requester(f *flow, size int, timeout time.Duration) func(seq uint64) error {
	out, in := make([]byte, size), make([]byte, max(size, datagramHeaderLen))
	fill(out)
	return func(seq uint64) error {
		d := datagram{kind: datagramEcho, index: f.index, token: f.token, seq: seq}
		d.put(out)
		until := nanos() + int64(timeout)
		if _, err := unix.Write(f.sock.fd, out); err != nil && !retry(err) {
			if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOBUFS) {
				return errLost
			}
			return fmt.Errorf("send request: %w", err)
		}
		for {
			n, err := unix.Read(f.sock.fd, in)
			if err == nil {
				if d, ok := parseDatagram(in[:n]); ok && d.kind == datagramEcho && d.token == f.token && d.seq == seq {
					return nil
				}
			} else if !retry(err) && !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("receive response: %w", err)
			}
			if nanos() >= until {
				return errLost
			}
		}
	}
}

// connectTimeout limits each call of a CRR transaction.
const connectTimeout = time.Second

func (c *client) runCRR(ctx context.Context) error {
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	o := tcpOptions{congestion: c.cfg.Congestion, mss: c.cfg.MSS, buffer: c.cfg.BufferBytes, mptcp: c.cfg.MPTCP}
	dos := make([]func(uint64) error, c.cfg.Streams)
	for i := range dos {
		r := newConnector(c, o, uint16(i))
		dos[i] = func(uint64) error { return r.once() }
	}
	return c.runTransactors(ctx, dos, nil) // each call takes at most connectTimeout
}

// connector makes the connections of one thread.
type connector struct {
	sa       unix.Sockaddr
	family   int
	protocol int
	options  tcpOptions
	request  []byte
	response []byte
}

func newConnector(c *client, o tcpOptions, index uint16) *connector {
	r := &connector{options: o, protocol: unix.IPPROTO_TCP}
	if o.mptcp {
		r.protocol = unix.IPPROTO_MPTCP
	}
	r.sa, r.family = sockaddr(c.addr)
	r.request = make([]byte, c.cfg.MessageBytes)
	preamble{channel: channelCRR, index: index, token: c.token}.append(r.request[:0])
	r.response = make([]byte, c.cfg.MessageBytes)
	return r
}

// once makes one transaction: the response is complete and the server has closed. Any
// failure after the socket is created is a lost transaction.
func (r *connector) once() error {
	fd, err := unix.Socket(r.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, r.protocol)
	if err != nil {
		return fmt.Errorf("create stream socket: %w", mptcpHint(r.options.mptcp, err))
	}
	defer unix.Close(fd)
	if err := r.options.apply(fd); err != nil {
		return err
	}
	if err := setTimeouts(fd, connectTimeout); err != nil {
		return err
	}
	err = unix.Connect(fd, r.sa)
	for errors.Is(err, unix.EINTR) { // a signal of the runtime; the connect continues
		err = unix.Connect(fd, r.sa)
	}
	if err != nil {
		return lost("connect", err)
	}
	if err := writeFull(fd, r.request); err != nil {
		return lost("send request", err)
	}
	if err := readFull(fd, r.response); err != nil {
		return lost("receive response", err)
	}
	if err := readEnd(fd); err != nil {
		return lost("wait for the server to close", err)
	}
	return nil
}

// readEnd expects that the peer has sent everything.
func readEnd(fd int) error {
	var one [1]byte
	for {
		n, err := unix.Read(fd, one[:])
		switch {
		case n > 0:
			return ErrNotTraffic
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}
