package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a probe. It ends within about two seconds, whatever is lost.
const (
	probeDial      = 900 * time.Millisecond // for the control connection and the TCP stream
	probeGreet     = 500 * time.Millisecond // for the first small datagram
	probeRound     = 60 * time.Millisecond  // for the answers to one ladder of sizes, in addition to the RTT
	probeTries     = 2                      // ladders without an answer after which a size counts as lost
	probeRungs     = 16                     // sizes tried at once: 65,535 narrows to 1 in four ladders
	probeTransfer  = 700 * time.Millisecond // for the bulk transfer
	probeBulk      = 256 << 10              // bytes: five times the initial window, so full-size segments are sent
	leastMTU4      = 68                     // RFC 791: minimum of every IPv4 link
	leastMTU6      = 1280                   // RFC 8200 section 5
	udpHeaders4    = 20 + 8
	udpHeaders6    = 40 + 8
	probeChunk     = 16 << 10
	probeCountSize = 8
)

// probe determines what arrives: datagrams of growing size, and a short stream. Loss is a
// finding, not an error; a server that refuses is an error.
func (c *client) probe(ctx context.Context) error {
	began := nanos()
	defer func() { c.result.DurationSeconds = time.Duration(nanos() - began).Seconds() }()
	if err := c.dial(ctx, probeDial); err != nil {
		if !isTimeout(err) || ctx.Err() != nil {
			return err
		}
		c.result.ProbeError = fmt.Sprintf("control: %v", err)
		return nil
	}
	defer c.far.close()
	var (
		wg             sync.WaitGroup
		sizes          sizes
		udpErr, tcpErr error
	)
	wg.Go(func() { sizes, udpErr = c.probeSizes(ctx) })
	wg.Go(func() { tcpErr = c.probeStream(ctx) })
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	c.conclude(sizes, udpErr, tcpErr)
	return nil
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ETIMEDOUT)
}

// sizes are sizes of IP packets in bytes.
type sizes struct {
	link    int // according to the sender's kernel
	arrived int // the largest that arrived; 0 if none
	full    int // the largest UDP packet for the link
}

// conclude turns the findings into a result. A path with a smaller MTU than the link is a
// black hole only if TCP does not get through either: otherwise the path reported the MTU
// (ICMP) or clamps the MSS. If full-size packets arrive, a stream that does not finish in
// time is slow.
func (c *client) conclude(s sizes, udpErr, tcpErr error) {
	r := &c.result
	r.LinkMTU, r.PathMTU = s.link, s.arrived
	small := udpErr == nil
	switch {
	case udpErr != nil && tcpErr != nil:
		r.ProbeError = fmt.Sprintf("tcp: %v; udp: %v", tcpErr, udpErr)
		r.BlackHole = errors.Is(tcpErr, errStalled) // the handshake consisted of small packets
	case errors.Is(tcpErr, errStalled) && s.arrived >= s.full:
		c.warn("%d bytes of a stream did not arrive within %s, though full-size packets do", probeBulk, probeTransfer)
	case tcpErr != nil:
		r.ProbeError = fmt.Sprintf("tcp: %v", tcpErr)
		r.BlackHole = errors.Is(tcpErr, errStalled) || s.arrived < s.full
	case udpErr != nil:
		r.ProbeError = fmt.Sprintf("udp: %v", udpErr)
	}
	if small && s.arrived < s.full && !r.BlackHole {
		c.warn("packets of at most %d bytes arrive, although the link's MTU is %d; TCP adapts", s.arrived, s.link)
	}
	if small && s.arrived == s.full {
		r.PathMTU = s.link // the limit is UDP's length field, not the path
	}
}

var errStalled = errors.New("the connection is established, but full-size segments do not arrive")

// probeStream sends probeBulk bytes and expects their number back.
func (c *client) probeStream(ctx context.Context) error {
	dial, cancel := context.WithTimeout(ctx, probeDial)
	defer cancel()
	o := tcpOptions{congestion: c.cfg.Congestion, mss: c.cfg.MSS}
	s, err := dialTCP(dial, c.addr, o, preamble{channel: channelStream, token: c.token})
	if err != nil {
		if isTimeout(err) {
			return fmt.Errorf("connect to %s: no answer within %s", c.addr, probeDial)
		}
		return err
	}
	defer s.close(true)
	if mtu, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil {
		c.result.MSSBytes = mtu
	}
	end := time.AfterFunc(probeTransfer, s.wake)
	defer end.Stop()
	defer context.AfterFunc(ctx, s.wake)()
	sent := writeFull(s.fd, make([]byte, probeBulk))
	var count [probeCountSize]byte
	if sent != nil || readFull(s.fd, count[:]) != nil {
		return errStalled
	}
	if got := binary.BigEndian.Uint64(count[:]); got != probeBulk {
		return fmt.Errorf("%d of %d bytes arrived", got, probeBulk)
	}
	c.result.BytesReceived = probeBulk
	return nil
}

// countProbe is the server's end of probeStream.
func (t *session) countProbe() {
	select {
	case <-t.whole:
	case <-t.ending:
		return
	}
	buf := make([]byte, probeChunk)
	var got uint64
	for got < probeBulk {
		n, err := unix.Read(t.streams[0].fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return
		}
		got += uint64(n)
	}
	writeFull(t.streams[0].fd, binary.BigEndian.AppendUint64(nil, got))
}

// probeSizes finds the largest datagram that arrives unfragmented.
func (c *client) probeSizes(ctx context.Context) (sizes, error) {
	sock, err := openUDP(netip.AddrPort{}, c.addr, 1<<20)
	if err != nil {
		return sizes{}, err
	}
	f := &flow{sock: sock, token: c.token.head()}
	defer closeFlows([]*flow{f})
	s, headers, err := linkSizes(sock.fd, c.addr.Addr().Unmap().Is4())
	if err != nil {
		return s, err
	}
	began := nanos()
	if err := f.greet(ctx.Done(), probeGreet); err != nil {
		return s, err
	}
	wait := probeRound + min(2*time.Duration(nanos()-began), probeRound)
	s.arrived = datagramHeaderLen + headers
	p := &ladder{flow: f, headers: headers, wait: wait, buf: make([]byte, 1<<16)}
	// Try the full size first. On a healthy path nothing else is needed.
	s.arrived = max(s.arrived, p.climb([]int{s.full}))
	for high := s.full; high-s.arrived > 1 && ctx.Err() == nil; {
		s.arrived, high = p.narrow(s.arrived, high)
	}
	return s, nil
}

// linkSizes prepares the socket for probes: never fragmented, of any size that the device
// accepts, ignoring what the kernel has learned about the path.
func linkSizes(fd int, v4 bool) (s sizes, headers int, err error) {
	level, discover, probe, mtu := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, unix.IPV6_MTU
	headers = udpHeaders6
	least := leastMTU6
	if v4 {
		level, discover, probe, mtu = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, unix.IP_MTU
		headers, least = udpHeaders4, leastMTU4
	}
	if err := unix.SetsockoptInt(fd, level, discover, probe); err != nil {
		return s, 0, fmt.Errorf("forbid fragmentation: %w", err)
	}
	if s.link, err = unix.GetsockoptInt(fd, level, mtu); err != nil {
		return s, 0, fmt.Errorf("read the link's MTU: %w", err)
	}
	s.full = max(min(s.link, MaxDatagramBytes+headers), least)
	if v4 {
		s.full = min(s.full, 65535)
	}
	return s, headers, nil
}

// narrow tries up to probeRungs sizes between one that arrived and one that did not, and
// returns closer ones.
func (l *ladder) narrow(low, high int) (int, int) {
	var sizes []int
	n := min(probeRungs, high-low-1)
	for i := 1; i <= n; i++ {
		sizes = append(sizes, low+(high-low)*i/(n+1))
	}
	low = max(low, l.climb(sizes))
	for _, size := range sizes {
		if size > low {
			return low, size
		}
	}
	return low, high
}

// ladder sends probes of several sizes at once.
type ladder struct {
	flow    *flow
	headers int
	wait    time.Duration
	buf     []byte
}

// climb sends one packet of each size, a second time if there is no answer, and returns
// the largest that arrived, or 0.
func (l *ladder) climb(packets []int) int {
	best := 0
	for range probeTries {
		for _, size := range packets {
			payload := l.buf[:size-l.headers]
			datagram{kind: datagramProbe, token: l.flow.token}.put(payload)
			unix.Write(l.flow.sock.fd, payload) // EMSGSIZE, too big for the device, is a finding as well
		}
		best = max(best, l.answers(packets[len(packets)-1]))
		if best > 0 {
			break
		}
	}
	return best
}

// answers collects acks until the wait is over or the largest size has arrived.
func (l *ladder) answers(largest int) int {
	var in [datagramHeaderLen]byte
	best := 0
	until := nanos() + int64(l.wait)
	for best < largest {
		left := time.Duration(until - nanos())
		if left <= 0 || setTimeouts(l.flow.sock.fd, max(left, time.Microsecond)) != nil {
			break
		}
		n, err := unix.Read(l.flow.sock.fd, in[:])
		if err != nil {
			continue // timeout, or an ICMP error for an earlier probe
		}
		d, ok := parseDatagram(in[:n])
		if ok && d.kind == datagramAck && d.token == l.flow.token {
			best = max(best, int(d.seq)+l.headers)
		}
	}
	return best
}
