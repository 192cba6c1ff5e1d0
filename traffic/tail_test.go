package traffic_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"cleat/traffic"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// tailBytes is the size of a request. Greetings and preambles are shorter.
const tailBytes = 100

// stall is a path that holds a single request back, and what comes after it.
type stall struct {
	ctx  context.Context
	left atomic.Int64 // requests to pass before
	wait time.Duration
}

// pass blocks once.
func (s *stall) pass() {
	if s.left.Add(-1) != 0 {
		return
	}
	select {
	case <-time.After(s.wait):
	case <-s.ctx.Done():
	}
}

// began reports whether the request has arrived that is held back.
func (s *stall) began() bool { return s.left.Load() <= 0 }

// stalling starts a forward of TCP and UDP to a server. It holds the request number at back
// for the time wait.
func stalling(t *testing.T, to string, at int64, wait time.Duration) (address string, s *stall) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s = &stall{ctx: ctx, wait: wait}
	s.left.Store(at)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go s.stream(near, to)
		}
	}()
	near, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	far, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	go s.datagrams(near, far)
	return l.Addr().String(), s
}

func (s *stall) stream(near net.Conn, to string) {
	defer near.Close()
	defer context.AfterFunc(s.ctx, func() { near.Close() })()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		io.Copy(near, far)
		near.Close()
	}()
	buf := make([]byte, tailBytes)
	for {
		n, err := near.Read(buf)
		if n >= tailBytes/2 {
			s.pass()
		}
		if n > 0 {
			far.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (s *stall) datagrams(near net.PacketConn, far net.Conn) {
	var client atomic.Pointer[net.Addr]
	go func() {
		buf := make([]byte, 2000)
		for {
			n, err := far.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if to := client.Load(); to != nil && err == nil {
				near.WriteTo(buf[:n], *to)
			}
		}
	}()
	buf := make([]byte, 2000)
	for {
		n, from, err := near.ReadFrom(buf)
		if err != nil {
			return
		}
		client.Store(&from)
		if n == tailBytes {
			s.pass()
		}
		far.Write(buf[:n])
	}
}

// TestStallAtTheEndIsCounted checks that a stall that begins within a run and ends after it
// is in the latencies: in that of the transaction under way, and on a schedule in those that
// had to wait. The rate counts only what ended in time.
func TestStallAtTheEndIsCounted(t *testing.T) {
	const (
		duration  = 50 * time.Millisecond
		wait      = duration + 150*time.Millisecond
		rate      = 1000
		scheduled = int64(rate * duration / time.Second)
		at        = 3 // a machine so slow that it sends less within the duration skips the test
	)
	for _, tt := range []struct {
		name string
		cfg  traffic.Config
	}{
		{"rr", traffic.Config{Work: traffic.RR}},
		{"rr, schedule", traffic.Config{Work: traffic.RR, TransactionsPerSecond: rate}},
		{"crr", traffic.Config{Work: traffic.CRR}},
		{"crr, schedule", traffic.Config{Work: traffic.CRR, TransactionsPerSecond: rate}},
		{"udprr", traffic.Config{Work: traffic.UDPRR, Patience: time.Minute}},
		{"udprr, schedule", traffic.Config{Work: traffic.UDPRR, TransactionsPerSecond: rate, Patience: time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			control := "unix:" + filepath.Join(t.TempDir(), "control")
			cfg := tt.cfg
			address, path := stalling(t, serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: control}), at, wait)
			cfg.Address, cfg.Control, cfg.Duration, cfg.MessageBytes = address, control, duration, tailBytes
			r := run(t, cfg)
			switch {
			case r.Failures > 0:
				t.Skip("the machine is slow: a connection took longer than its timeout, and counts as failed")
			case cfg.TransactionsPerSecond == 0 && !path.began():
				t.Skip("the machine is slow: the run ended before the stall")
			}
			if r.Transactions > at || r.DurationSeconds != duration.Seconds() || r.TransactionsPerSecond != float64(r.Transactions)/duration.Seconds() {
				t.Errorf("the rate counts more than what ended in time: %d transactions, %g s, %g/s", r.Transactions, r.DurationSeconds, r.TransactionsPerSecond)
			}
			if r.P999 < atLeast(wait) {
				t.Errorf("p99.9 %s: the stall of %s has vanished", r.P999, wait)
			}
			h := latencies(t, r)
			if cfg.TransactionsPerSecond == 0 {
				return
			}
			if h.TotalCount() != scheduled {
				t.Errorf("%d latencies of %d transactions on the schedule", h.TotalCount(), scheduled)
			}
			if r.P50 < atLeast(wait-duration) {
				t.Errorf("p50 %s: what had to wait does not count from its intended time", r.P50)
			}
		})
	}
}

// TestDeadPathAtTheEnd checks that a run ends soon though a response never arrives, and that
// the transaction counts as at least as long as it has taken.
func TestDeadPathAtTheEnd(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		control := "unix:" + filepath.Join(t.TempDir(), "control")
		address, path := stalling(t, serving(t, traffic.ServeConfig{Listen: "127.0.0.1:0", Control: control}), 3, time.Hour)
		r := run(t, traffic.Config{Work: traffic.RR, TransactionsPerSecond: rate, MessageBytes: tailBytes, Control: control, Address: address})
		if !path.began() {
			t.Skip("the machine is slow: the run ended before the path died")
		}
		if r.P999 < atLeast(time.Second) || len(r.Warnings) == 0 || r.Partial {
			t.Errorf("rate %g: p99.9 %s, warnings %q, partial %v", rate, r.P999, r.Warnings, r.Partial)
		}
		latencies(t, r)
	}
}

// atLeast returns the least value that a histogram of three digits may give for d.
func atLeast(d time.Duration) time.Duration { return d - d/500 }

// latencies returns the histogram of a result. It checks that the histogram holds each
// transaction that was begun.
func latencies(t *testing.T, r traffic.Result) *hdrhistogram.Histogram {
	t.Helper()
	h, err := hdrhistogram.Decode([]byte(r.Latency))
	if err != nil {
		t.Fatal(err)
	}
	if begun := r.Transactions + r.Late + r.Unfinished; h.TotalCount() != int64(begun) {
		t.Errorf("%d latencies for %d transactions", h.TotalCount(), begun)
	}
	return h
}
