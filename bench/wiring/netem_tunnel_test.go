package wiring_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/bench/multipath"
	"cleat/lab"
)

// uneven are the paths of TestTunnelOverUnevenPaths. The last loses packets.
var uneven = []impairment{{2 * time.Millisecond, 0}, {10 * time.Millisecond, 0}, {30 * time.Millisecond, 0}, {20 * time.Millisecond, 0.01}}

const (
	// unevenStreams is how many TCP connections share the tunnel. A single one takes
	// every loss for congestion, so it would measure TCP.
	unevenStreams = 4

	// unevenTries is how often the rate is measured at most: a machine that stalls for
	// longer than a shaper's burst loses rate.
	unevenTries = 5
)

// load is what a machine can be asked for.
type load struct {
	rate  int64 // of each path, bit/s
	bytes int64 // of each connection
	beat  int   // the rate of so many of the best paths is to be exceeded
}

// emulated reports whether this is a guest, whose processor has time for nothing but the
// two ends at 3 to 5 Mbit/s.
func emulated() bool {
	f, _ := lab.Inside()
	return f == lab.None
}

// unevenLoad asks for the ideal rate of the three best paths, or, of an emulated
// processor, for more than one path carries.
func unevenLoad() load {
	if emulated() {
		return load{rate: 2e6, bytes: 256 << 10, beat: 1}
	}
	return load{rate: 5e6, bytes: 2 << 20, beat: 3}
}

// TestTunnelOverUnevenPaths runs `cleat tunnel up` on both ends of four paths that delay,
// by the relay or by netem, and of which one loses. Data must arrive intact, over all
// paths together.
func TestTunnelOverUnevenPaths(t *testing.T) {
	lab.Need(t)
	if os.Getenv(programEnv) == "" && !needRun(t) {
		t.Skip("no Go toolchain to build the program")
	}
	t.Run("relay", func(t *testing.T) {
		if emulated() {
			t.Skip("an emulated processor has no time for the relay, too")
		}
		testUnevenTunnel(t, relayedLinks(t, uneven, unevenLoad().rate))
	})
	t.Run("netem", func(t *testing.T) { testUnevenTunnel(t, netemLinks(t, uneven, unevenLoad().rate)) })
}

// testUnevenTunnel measures a tunnel between two nodes until it is fast enough.
func testUnevenTunnel(t *testing.T, sides [2]*lab.Node) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	startTunnel(t, sides)
	l := unevenLoad()
	want, _ := multipath.Spec{Links: l.beat, RateBitsPerSec: float64(l.rate)}.
		Ideal(multipath.Load{Network: "tunnel"}, multipath.Interval{Whole: time.Second, To: time.Second})
	rate := 0.0
	for try := 0; try < unevenTries && rate < want; try++ {
		took, err := sendStreams(ctx, sides, l.bytes)
		must(t, err)
		rate = max(rate, float64(8*unevenStreams*l.bytes)/took.Seconds())
		t.Logf("%.2f Mbit/s in %s; the best %d paths carry %.2f", rate/1e6, took.Round(time.Millisecond), l.beat, want/1e6)
	}
	if rate < want {
		t.Errorf("%.2f Mbit/s, want %.2f", rate/1e6, want/1e6)
	}
	for i := range uneven {
		if got := received(t, sides[1], sideDevice(i)); got < uint64(l.bytes)/2 {
			t.Errorf("path %d carried %d bytes", i+1, got)
		}
	}
}

// innerAddr is the address of a side, 0 or 1, in the tunnel.
func innerAddr(side int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + side)}), 30)
}

// startTunnel runs `cleat tunnel up` on both sides.
func startTunnel(t *testing.T, sides [2]*lab.Node) {
	t.Helper()
	dir := scratch(t)
	for side, n := range sides {
		var b strings.Builder
		fmt.Fprintf(&b, "name: %s-%d\ndevice: mp0\naddress: [%q]\npaths:\n", filepath.Base(dir), side, innerAddr(side))
		for i := range uneven {
			fmt.Fprintf(&b, "  - {device: %s, remote: %q}\n", sideDevice(i), sideAddr(i, 2-side).Addr())
		}
		file := filepath.Join(dir, fmt.Sprintf("tunnel%d.yaml", side))
		must(t, os.WriteFile(file, []byte(b.String()), 0o600))
		log, err := os.Create(file + ".log")
		must(t, err)
		p, err := n.Start(lab.Command{Args: []string{lab.Self, "tunnel", "up", file}, Stdout: log, Stderr: log})
		must(t, errors.Join(err, log.Close()))
		t.Cleanup(func() {
			if t.Failed() {
				text, _ := os.ReadFile(file + ".log")
				t.Logf("%s log:\n%s", n, text)
			}
		})
		killAtCleanup(t, p)
	}
}

// sendStreams sends over all connections at once and compares the data received. It
// returns the time until the last one has ended.
func sendStreams(ctx context.Context, sides [2]*lab.Node, bytes int64) (time.Duration, error) {
	var l net.Listener
	if err := retry(ctx, func() error { // the tunnel's device appears when it is up
		return sides[1].NS.Do(func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(innerAddr(1).Addr(), 0).String())
			return err
		})
	}); err != nil {
		return 0, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var pairs [unevenStreams][2]net.Conn
	for i := range pairs {
		if err := retry(ctx, func() error {
			return sides[0].NS.Do(func() (err error) {
				pairs[i][0], err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
				return err
			})
		}); err != nil {
			return 0, err
		}
		defer pairs[i][0].Close()
		for pairs[i][1] == nil { // a connection whose dial was given up may be accepted first
			c, err := l.Accept()
			if err != nil {
				return 0, err
			}
			defer c.Close()
			if c.RemoteAddr().String() == pairs[i][0].LocalAddr().String() {
				pairs[i][1] = c
			}
		}
	}
	began := time.Now()
	errs := make(chan error)
	for i, c := range pairs {
		go func() { errs <- sendHashed(ctx, c, byte(i), bytes) }()
	}
	var err error
	for range pairs {
		err = errors.Join(err, <-errs)
	}
	return time.Since(began), err
}

// retry calls do until it succeeds or ctx ends.
func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sendHashed sends n bytes made from a seed from one end of a connection to the other,
// and compares their hashes.
func sendHashed(ctx context.Context, ends [2]net.Conn, seed byte, n int64) error {
	deadline, _ := ctx.Deadline()
	sent, received := sha256.New(), sha256.New()
	failed := make(chan error, 1)
	for _, c := range ends {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	go func() {
		_, err := io.CopyN(io.MultiWriter(ends[0], sent), rand.NewChaCha8([32]byte{seed}), n)
		failed <- errors.Join(err, ends[0].(*net.TCPConn).CloseWrite())
	}()
	got, err := io.Copy(received, ends[1])
	if err := errors.Join(<-failed, err); err != nil {
		return fmt.Errorf("connection %d after %d bytes: %w", seed, got, err)
	}
	if !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		return fmt.Errorf("connection %d: %d of %d bytes arrived, and differ from what was sent", seed, got, n)
	}
	return nil
}
