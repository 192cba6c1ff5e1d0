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

// uneven are the paths of TestTunnelOverUnevenPaths, of which the last loses.
var uneven = []quality{{2 * time.Millisecond, 0}, {10 * time.Millisecond, 0}, {30 * time.Millisecond, 0}, {20 * time.Millisecond, 0.01}}

const (
	// unevenStreams TCP connections share the tunnel: one alone, which takes every loss
	// for a full link, would measure TCP.
	unevenStreams = 4

	// unevenTries: a machine that stands still for longer than a shaper's burst lasts
	// loses rate.
	unevenTries = 5
)

// load is what a machine can be asked for.
type load struct {
	rate   int64 // of each path, bit/s
	bytes  int64 // of each connection
	atBest int   // so many of the best paths are to be outdone
}

// emulated tells whether this is a guest, whose processor has no time for more than the
// two ends at 3 to 5 Mbit/s.
func emulated() bool {
	f, _ := lab.Inside()
	return f == lab.None
}

// unevenLoad asks for what the three best paths carry at best, and of an emulated
// processor for more than one path carries.
func unevenLoad() load {
	if emulated() {
		return load{rate: 2e6, bytes: 256 << 10, atBest: 1}
	}
	return load{rate: 5e6, bytes: 2 << 20, atBest: 3}
}

// TestTunnelOverUnevenPaths has `cleat tunnel up` on both ends of four paths that delay,
// by the relay or the kernel's netem, and of which one loses: what goes in comes out, over
// all of them together.
func TestTunnelOverUnevenPaths(t *testing.T) {
	lab.Need(t)
	if os.Getenv(programEnv) == "" && !needRun(t) {
		t.Skip("nothing to build the program with")
	}
	t.Run("relay", func(t *testing.T) {
		if emulated() {
			t.Skip("an emulated processor has no time for the relay besides")
		}
		tunnelOver(t, relayedLinks(t, uneven, unevenLoad().rate))
	})
	t.Run("netem", func(t *testing.T) { tunnelOver(t, netemLinks(t, uneven, unevenLoad().rate)) })
}

// tunnelOver sends through a tunnel between two nodes until it is fast enough.
func tunnelOver(t *testing.T, sides [2]*lab.Node) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	startTunnel(t, sides)
	l := unevenLoad()
	want, _ := multipath.Spec{Links: l.atBest, RateBitsPerSec: float64(l.rate)}.
		Ideal(multipath.Load{Network: "tunnel"}, multipath.Stretch{Whole: time.Second, To: time.Second})
	rate := 0.0
	for try := 0; try < unevenTries && rate < want; try++ {
		took, err := hashedStreams(ctx, sides, l.bytes)
		must(t, err)
		rate = max(rate, float64(8*unevenStreams*l.bytes)/took.Seconds())
		t.Logf("%.2f Mbit/s in %s; the best %d paths carry %.2f", rate/1e6, took.Round(time.Millisecond), l.atBest, want/1e6)
	}
	if rate < want {
		t.Errorf("%.2f Mbit/s, want %.2f", rate/1e6, want/1e6)
	}
	for i := range uneven {
		if got := received(t, sides[1], crossDevice(i)); got < uint64(l.bytes)/2 {
			t.Errorf("path %d carried %d bytes", i+1, got)
		}
	}
}

// insideAddr is the address of a side, 0 or 1, in the tunnel.
func insideAddr(side int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + side)}), 30)
}

// startTunnel runs the program on both sides.
func startTunnel(t *testing.T, sides [2]*lab.Node) {
	t.Helper()
	dir := scratch(t)
	for side, n := range sides {
		var b strings.Builder
		fmt.Fprintf(&b, "name: %s-%d\ndevice: mp0\naddress: [%q]\npaths:\n", filepath.Base(dir), side, insideAddr(side))
		for i := range uneven {
			fmt.Fprintf(&b, "  - {device: %s, remote: %q}\n", crossDevice(i), crossAddr(i, 2-side).Addr())
		}
		file := filepath.Join(dir, fmt.Sprintf("tunnel%d.yaml", side))
		must(t, os.WriteFile(file, []byte(b.String()), 0o600))
		said, err := os.Create(file + ".log")
		must(t, err)
		p, err := n.Start(lab.Command{Args: []string{lab.Self, "tunnel", "up", file}, Stdout: said, Stderr: said})
		must(t, errors.Join(err, said.Close()))
		t.Cleanup(func() {
			if t.Failed() {
				text, _ := os.ReadFile(file + ".log")
				t.Logf("%s said:\n%s", n, text)
			}
		})
		killedAfter(t, p)
	}
}

// hashedStreams sends over all connections at once and compares what comes out; it is how
// long the last took.
func hashedStreams(ctx context.Context, sides [2]*lab.Node, bytes int64) (time.Duration, error) {
	var l net.Listener
	if err := untilDone(ctx, func() error { // the tunnel's device comes when it is up
		return sides[1].NS.Do(func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(insideAddr(1).Addr(), 0).String())
			return err
		})
	}); err != nil {
		return 0, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var pairs [unevenStreams][2]net.Conn
	for i := range pairs {
		if err := untilDone(ctx, func() error {
			return sides[0].NS.Do(func() (err error) {
				pairs[i][0], err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
				return err
			})
		}); err != nil {
			return 0, err
		}
		defer pairs[i][0].Close()
		for pairs[i][1] == nil { // one that was given up may have come too
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
		go func() { errs <- hashed(ctx, c, byte(i), bytes) }()
	}
	var err error
	for range pairs {
		err = errors.Join(err, <-errs)
	}
	return time.Since(began), err
}

// untilDone tries until it works or ctx ends.
func untilDone(ctx context.Context, do func() error) error {
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

// hashed sends n bytes of a seed from one end of a connection to the other.
func hashed(ctx context.Context, ends [2]net.Conn, seed byte, n int64) error {
	deadline, _ := ctx.Deadline()
	sent, came := sha256.New(), sha256.New()
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
	got, err := io.Copy(came, ends[1])
	if err := errors.Join(<-failed, err); err != nil {
		return fmt.Errorf("connection %d after %d bytes: %w", seed, got, err)
	}
	if !bytes.Equal(sent.Sum(nil), came.Sum(nil)) {
		return fmt.Errorf("connection %d: %d bytes came of %d, and they differ", seed, got, n)
	}
	return nil
}
