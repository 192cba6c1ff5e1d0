package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"cleat/internal/procstat"
	"cleat/internal/sys"

	"golang.org/x/sync/errgroup"
)

// client is a running test.
type client struct {
	cfg    Config
	addr   netip.AddrPort
	token  token
	far    *peer
	result Result

	cpuBefore procstat.CPU
	cpuAt     int64 // when cpuBefore was read, on the clock of nanos
	cpuErr    error
}

// Run runs one test against a server and returns the results of both ends. It blocks for
// about Duration. When ctx ends, it stops within a second even if the server is silent.
// If counting had begun by then, it returns the result so far with a warning and no
// error.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	cfg = cfg.withDefaults()
	c := &client{cfg: cfg, token: newToken(), result: Result{
		Work: string(cfg.Work), Engine: string(cfg.Engine), Address: cfg.Address,
		Streams: cfg.Streams, MessageBytes: cfg.MessageBytes, GSO: cfg.GSO, MPTCP: cfg.MPTCP,
		Reverse: cfg.Reverse,
	}}
	run := c.run
	if cfg.Engine != EngineCleat {
		run = c.runForeign
	}
	err := run(ctx)
	return c.result, err
}

func (c *client) run(ctx context.Context) error {
	var err error
	if c.addr, err = parseServer(ctx, c.cfg.Address); err != nil {
		return err
	}
	if c.cfg.NoChecksum && c.addr.Addr().Is6() && !c.addr.Addr().Is4In6() {
		return &ConfigError{Field: "no-checksum", Value: "true", Want: "an IPv4 address: UDP over IPv6 requires the checksum"}
	}
	if c.cfg.Work == Probe {
		return c.probe(ctx)
	}
	if err := c.dial(ctx, dialPatience); err != nil {
		return err
	}
	defer c.far.close()
	switch c.cfg.Work {
	case TCP:
		return c.runTCP(ctx)
	case UDP:
		return c.runUDP(ctx)
	case CRR:
		return c.runCRR(ctx)
	default:
		return c.runRR(ctx)
	}
}

// parseServer resolves a server address given by a user.
func parseServer(ctx context.Context, address string) (netip.AddrPort, error) {
	host, port, err := splitAddress("address", address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return resolve(ctx, host, port)
}

const (
	dialPatience   = 5 * time.Second      // to connect and to agree on the test
	streamPatience = 5 * time.Millisecond // added for each stream, which are opened one after the other
	reportGrace    = 5 * time.Second      // added to the duration of a test for its report
	partialGrace   = time.Second          // for the report after a stop
	greetAtOnce    = 32                   // flows; more would overflow a short queue
	greetPatience  = 3 * time.Second      // for the answer to the first datagram
)

// dial opens the control channel and sends the parameters.
func (c *client) dial(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	network, address, err := parseControl(c.cfg.Control)
	if err != nil {
		return err
	}
	if network == "" {
		network, address = "tcp", c.addr.String()
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return fmt.Errorf("connect to traffic server: %w", err)
	}
	if _, err := conn.Write(preamble{channel: channelControl, token: c.token}.append(nil)); err != nil {
		conn.Close()
		return fmt.Errorf("write to traffic server: %w", err)
	}
	c.far = newPeer(conn, maxFrame)
	p := &params{
		Work: c.cfg.Work, Duration: c.cfg.Duration, Omit: c.cfg.Omit, Streams: c.cfg.Streams,
		MessageBytes: c.cfg.MessageBytes, Congestion: c.cfg.Congestion, BufferBytes: c.cfg.BufferBytes,
		Reverse: c.cfg.Reverse, Rate: c.cfg.BitsPerSecond, GSO: c.cfg.GSO, NoChecksum: c.cfg.NoChecksum,
		Early: c.cfg.Early,
	}
	err = c.far.send(message{Kind: kindHello, Params: p})
	if err == nil {
		_, err = c.far.expect(ctx, kindReady)
	}
	if err != nil {
		c.far.close()
		return err
	}
	return nil
}

// connect opens the streams.
func (c *client) connect(ctx context.Context, patience time.Duration) ([]*socket, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o := tcpOptions{
		congestion: c.cfg.Congestion, mss: c.cfg.MSS, buffer: c.cfg.BufferBytes,
		noDelay: c.cfg.Work == RR, mptcp: c.cfg.MPTCP,
	}
	socks := make([]*socket, 0, c.cfg.Streams)
	for i := range c.cfg.Streams {
		s, err := dialTCP(ctx, c.addr, o, preamble{channel: channelStream, index: uint16(i), token: c.token})
		if err != nil {
			for _, s := range socks {
				s.close(true)
			}
			return nil, fmt.Errorf("open stream %d: %w", i, err)
		}
		socks = append(socks, s)
	}
	if c.cfg.MPTCP {
		c.noteMPTCP(socks[0].fd)
	}
	return socks, nil
}

// noteMPTCP records whether the connection really uses MPTCP.
func (c *client) noteMPTCP(fd int) {
	info, err := sys.GetMPTCPInfo(fd)
	if err != nil || info.Flags&sys.MPTCPFallback != 0 {
		c.result.MPTCPFallback = true
		c.warn("MPTCP fell back to TCP")
		return
	}
	c.result.Subflows = 1 + int(info.Subflows)
}

// begin starts a round with the server.
func (c *client) begin(ctx context.Context, round uint16) error {
	agree, cancel := context.WithTimeout(ctx, dialPatience+time.Duration(c.cfg.Streams)*streamPatience)
	defer cancel()
	if err := c.far.send(message{Kind: kindStart, Round: round}); err != nil {
		return err
	}
	_, err := c.far.expect(agree, kindStarted)
	return err
}

// awaitStart waits until all clients of a test start together. It returns ErrPeerGone if
// gone is closed before.
func (c *client) awaitStart(ctx context.Context, gone <-chan struct{}) error {
	gate := c.cfg.Gate
	if gate == nil {
		return nil
	}
	c.cfg.Gate = nil // the clients start together, not each trial of a search
	at, err := gate(ctx)
	if err != nil {
		return err
	}
	wait := time.Until(at)
	if wait <= 0 {
		c.result.StartedLate = -wait
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-gone:
		return ErrPeerGone
	}
}

func (c *client) warn(format string, args ...any) {
	c.result.Warnings = append(c.result.Warnings, fmt.Sprintf(format, args...))
}

// await waits for the server's report. When ctx ends, it requests the report so far.
func (c *client) await(ctx context.Context, patience time.Duration) (report, error) {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := c.far.expectReport(wait, kindReport)
	if err != nil && wait.Err() != nil && !errors.Is(err, ErrPeerGone) {
		late := ctx.Err() == nil
		r, err = c.hurry()
		if late && err == nil {
			c.warn("the server sent its report only on request")
		}
	}
	return r, err
}

// hurry asks the server to stop now.
func (c *client) hurry() (report, error) {
	ctx, cancel := context.WithTimeout(context.Background(), partialGrace)
	defer cancel()
	if err := c.far.send(message{Kind: kindStop}); err != nil {
		return report{}, err
	}
	return c.far.expectReport(ctx, kindReport)
}

// startCPU and stopCPU enclose the time that counts.
func (c *client) startCPU() {
	c.cpuBefore, c.cpuErr = procstat.ReadCPU()
	c.cpuAt = nanos()
}

func (c *client) stopCPU() {
	after, err := procstat.ReadCPU()
	if c.cpuErr != nil || err != nil {
		c.warn("processor time is unknown: %v", errors.Join(c.cpuErr, err))
		return
	}
	c.result.CPU = &CPUTimes{after.Since(c.cpuBefore), time.Duration(nanos() - c.cpuAt).Seconds()}
	c.result.CPUAccounting = AccountingMode()
}

// finish computes derived results.
func (c *client) finish(partial bool) {
	r := &c.result
	if partial {
		c.warn("partial: stopped after %.3f s of %.3f s", r.DurationSeconds, c.cfg.Duration.Seconds())
		r.Partial = true
	}
	r.setCost()
}

func (c *client) runTCP(ctx context.Context) error {
	socks, err := c.connect(ctx, dialPatience+time.Duration(c.cfg.Streams)*streamPatience)
	if err != nil {
		return err
	}
	early := time.Duration(0)
	if c.cfg.Reverse {
		early = c.cfg.Early
	}
	set := newStreamSet(socks, early)
	defer set.end()
	if c.cfg.Reverse {
		return c.receiveTCP(ctx, set)
	}
	if err := c.begin(ctx, 0); err != nil {
		return err
	}
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	stopProgress := c.progress(set.total)
	if err := set.send(c.cfg.MessageBytes); err != nil {
		stopProgress()
		return err
	}
	join := c.cpuFrom(c.cfg.Omit)
	far, err := c.await(ctx, c.cfg.Omit+c.cfg.Duration+reportGrace)
	stopProgress()
	join()
	c.stopCPU()
	var near report
	set.describe(&near)
	if err != nil {
		return fmt.Errorf("test aborted after %d bytes were sent: %w", set.total(), err)
	}
	c.far.send(message{Kind: kindStop}) // an error is harmless: the server also sees the close
	c.counted(far, near)
	return nil
}

// cpuFrom reads the processor times when the ramp is over. Call join before stopCPU.
func (c *client) cpuFrom(omit time.Duration) (join func()) {
	c.startCPU()
	if omit == 0 {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTimer(omit)
		defer t.Stop()
		select {
		case <-t.C:
			c.startCPU()
		case <-done:
		}
	}()
	return func() { close(done); <-ended }
}

// counted fills in the results of streams from both ends.
func (c *client) counted(receiver, sender report) {
	r := &c.result
	r.BytesReceived = receiver.Bytes
	r.StreamBytes, r.Fairness = receiver.Streams, Fairness(receiver.Streams)
	r.DurationSeconds = receiver.Duration.Seconds()
	if receiver.Duration > 0 {
		r.BitsPerSecond = 8 * float64(receiver.Bytes) / r.DurationSeconds
	}
	c.early(receiver, receiver.Duration)
	r.Retransmits, r.MSSBytes, r.Congestion = sender.Retransmits, sender.MSS, sender.Congestion
	if c.cfg.Congestion != "" && receiver.Congestion != "" && receiver.Congestion != sender.Congestion {
		c.warn("congestion control differs: sender %s, receiver %s", sender.Congestion, receiver.Congestion)
	}
	c.finish(receiver.Partial)
}

// early fills in what the receiver recorded about its first bytes and its pauses, in a
// run of length whole.
func (c *client) early(receiver report, whole time.Duration) {
	r := &c.result
	r.Outage = receiver.Gap
	if receiver.EarlyTime <= 0 {
		return
	}
	r.EarlySeconds = receiver.EarlyTime.Seconds()
	r.EarlyBitsPerSecond = 8 * float64(receiver.EarlyBytes) / r.EarlySeconds
	if rest := whole - receiver.EarlyTime; c.cfg.Duration > c.cfg.Early && rest > 0 && receiver.Bytes > receiver.EarlyBytes {
		r.SteadyBitsPerSecond = 8 * float64(receiver.Bytes-receiver.EarlyBytes) / rest.Seconds()
	}
}

func (c *client) receiveTCP(ctx context.Context, set *streamSet) error {
	if err := c.awaitStart(ctx, c.far.gone); err != nil {
		return err
	}
	if err := set.receive(c.cfg.MessageBytes); err != nil {
		return err
	}
	if err := c.begin(ctx, 0); err != nil {
		return err
	}
	stopProgress := c.progress(set.total)
	gone, cancel := c.whileThere(ctx, c.cfg.Omit+c.cfg.Duration+reportGrace)
	w := set.measure(gone, c.cfg.Omit, c.cfg.Duration, c.startCPU)
	cancel()
	stopProgress()
	c.stopCPU()
	near := w.report()
	set.describe(&near)
	far, err := c.hurry()
	switch {
	case err == nil:
		c.counted(near, far)
	case w.duration == 0:
		return fmt.Errorf("nothing arrived: %w", err)
	default:
		c.counted(near, report{MSS: near.MSS, Congestion: near.Congestion})
		c.warn("no report from the sender: %v", err)
	}
	return nil
}

// whileThere returns a context that also ends with the server or after patience.
func (c *client) whileThere(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	go func() {
		select {
		case <-c.far.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// greet opens the flows of a UDP test.
func (c *client) greet(ctx context.Context, patience time.Duration) (flows []*flow, rtt time.Duration, err error) {
	defer func() {
		if err != nil {
			closeFlows(flows)
		}
	}()
	came := newArrivals(c.cfg.Early > 0)
	for i := range c.cfg.Streams {
		sock, err := openUDP(netip.AddrPort{}, c.addr, c.cfg.BufferBytes)
		if err != nil {
			return flows, 0, err
		}
		f := &flow{sock: sock, index: uint16(i), token: c.token.head(), early: c.cfg.Early, came: came}
		flows = append(flows, f)
		if err := sock.tuneUDP(c.cfg.GSO && c.cfg.Reverse, c.cfg.NoChecksum); err != nil {
			return flows, 0, err
		}
	}
	// Together: one after the other, forty flows over a round trip of 0.6 s take 24 s.
	var mu sync.Mutex
	greeting := errgroup.Group{}
	greeting.SetLimit(greetAtOnce)
	for i, f := range flows {
		greeting.Go(func() error {
			began := nanos()
			if err := f.greet(ctx.Done(), patience); err != nil {
				return fmt.Errorf("open flow %d to %s: %w", i, c.addr, err)
			}
			mu.Lock()
			defer mu.Unlock()
			rtt = max(rtt, time.Duration(nanos()-began))
			return nil
		})
	}
	if err := greeting.Wait(); err != nil {
		return flows, 0, err
	}
	return flows, rtt, nil
}

func closeFlows(flows []*flow) {
	for _, f := range flows {
		f.end()
	}
	for _, f := range flows {
		f.sock.close(false)
	}
}

// progress calls cfg.Progress every second with the current rate.
func (c *client) progress(total func() uint64) (stop func()) {
	if c.cfg.Progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		before, last := total(), nanos()
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			case <-t.C:
			}
			now, sum := nanos(), total()
			rate := 8 * float64(sum-before) / time.Duration(now-last).Seconds()
			before, last = sum, now
			c.cfg.Progress(fmt.Sprintf("%4d s  %s", n, FormatRate(rate)))
		}
	}()
	return func() { close(done); <-ended }
}
