package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/order"
	"cleat/tunnel/sched"
	"cleat/tunnel/spec"
)

// fake is a Target that records what it is asked to do.
type fake struct {
	mu      sync.Mutex
	name    string
	paths   []tunnel.PathStatus
	reload  func() (Reloaded, error)
	added   []spec.Path
	stopped chan struct{}
}

// began is when every fake was started.
var began = time.Date(2026, 11, 22, 9, 26, 1, 500_000_000, time.UTC)

func newFake(name string) *fake {
	dsl := tunnel.PathStatus{
		PathConfig: tunnel.PathConfig{Name: "dsl", Device: "eth0", Local: netip.MustParseAddr("192.0.2.1"), Port: 4754,
			Remote: netip.MustParseAddrPort("198.51.100.2:4754"), Weight: 3, MaxRate: 50e6, MTU: 1492, Metered: true},
		Open: true, InUse: true, AnsweredAgo: 200 * time.Millisecond, MeasuringBytes: 987_654, PaddingLimitBytes: 1_000_000, Share: 0.25,
		Status: sched.Status{Up: true, Live: true, RateBitsPerSec: 48e6, DeliveredBitsPerSec: 40e6, DeliveredPackets: 1000, LostPackets: 7, MarkedPackets: 3, DeliveredBytes: 1_500_000,
			LossRate: 0.005, RTT: 12500 * time.Microsecond, Queue: 300 * time.Microsecond, Delay: 2 * time.Millisecond, InFlightBytes: 60_000, Tripped: true, Trips: 30, Contended: true},
	}
	lte := tunnel.PathStatus{PathConfig: tunnel.PathConfig{Name: "lte", Device: "wwan0", Port: 4754,
		Remote: netip.MustParseAddrPort("[2001:db8::2]:4754"), MTU: 1500}, Learns: true, RemoteSince: began.Add(time.Minute)}
	return &fake{name: name, paths: []tunnel.PathStatus{dsl, lte}, stopped: make(chan struct{})}
}

func (f *fake) Info() Info {
	return Info{Name: f.name, Device: "cleat0", File: "/etc/cleat/office.yaml", PID: os.Getpid(), Started: began,
		Form: spec.Auto, Scheduler: spec.Adaptive, Version: "v1.2.3",
		Sealed: Sealed{Capabilities: []string{"CAP_NET_ADMIN"}, NoNewPrivileges: true, Seccomp: true, LandlockABI: 7}}
}

func (f *fake) Status() tunnel.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return tunnel.Status{Up: true, Form: tunnel.Native, Cipher: "AES-128-GCM", Rate: 48e6, Paths: slices.Clone(f.paths), Stats: distinctStats()}
}

// distinctStats returns counters that all differ.
func distinctStats() tunnel.Stats {
	return tunnel.Stats{
		Read: 1, ReadBytes: 2, QueueDrops: 3, QueueMarks: 4, TooBig: 5, Sent: 6, Resent: 7, LateResends: 29, SendErrors: 8, Received: 9,
		ReceivedBytes: 10, Invalid: 11, WrongSource: 28, Written: 12, WriteErrors: 13, Reports: 14, Missing: 15, QueueBytes: 16, KeptBytes: 17,
		Order: order.Stats{Delivered: 18, Held: 19, Lost: 20, Late: 21, Duplicates: 22, TooOld: 23, Forced: 24, Waiting: 25, WaitingBytes: 26, MaxWaiting: 27},
	}
}

func (f *fake) index(name string) int {
	return slices.IndexFunc(f.paths, func(p tunnel.PathStatus) bool { return p.Name == name })
}

func (f *fake) SetPath(name string, up bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.index(name)
	if i < 0 {
		return fmt.Errorf("path %q: %w", name, tunnel.ErrNoPath)
	}
	f.paths[i].Down = !up
	return nil
}

// These paths can't be added.
const (
	oneTooMany = "too-many"
	noPath     = "not-right"
	noReason   = "broken"
)

func (f *fake) AddPath(p spec.Path) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch p.Name {
	case oneTooMany:
		return fmt.Errorf("path %q: %w", p.Name, tunnel.ErrTooMany)
	case noPath:
		return fmt.Errorf("add path: %w", &spec.PathError{Findings: []spec.Finding{{Message: "weight 0", Hint: "give it one"}}})
	case noReason:
		return hintError{errors.New("open socket: operation not permitted")}
	}
	if f.index(p.Name) >= 0 {
		return fmt.Errorf("path %q: %w", p.Name, tunnel.ErrPathExists)
	}
	f.added = append(f.added, p)
	f.paths = append(f.paths, tunnel.PathStatus{PathConfig: tunnel.PathConfig{Name: p.Name, Remote: p.Remote}})
	return nil
}

// hintError is an error with a hint.
type hintError struct{ error }

func (hintError) Hint() string { return "be root" }

func (f *fake) RemovePath(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.index(name)
	if i < 0 {
		return fmt.Errorf("path %q: %w", name, tunnel.ErrNoPath)
	}
	f.paths = slices.Delete(f.paths, i, i+1)
	return nil
}

func (f *fake) Reload() (Reloaded, error) {
	if f.reload != nil {
		return f.reload()
	}
	return Reloaded{Changed: []string{}, Refused: []string{}}, nil
}

func (f *fake) Stop() { close(f.stopped) }

// testName returns a name that no other test on the machine uses.
func testName(t *testing.T) string { return fmt.Sprintf("test-%d-%s", os.Getpid(), t.Name()) }

// serveFake starts a server for the test and returns a client for it.
func serveFake(t *testing.T, f *fake) *Client {
	t.Helper()
	l, err := Listen(f.name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, f) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	c, err := Dial(t.Context(), f.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
