package sandbox_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cleat/internal/sys"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/usernet/guesttest"
)

// callCount is how many calls the random program makes: CLEAT_FUZZ_CALLS, or a number
// that takes a few seconds.
func callCount(t *testing.T) uint64 {
	t.Helper()
	s := os.Getenv("CLEAT_FUZZ_CALLS")
	if s == "" {
		return 20_000
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("CLEAT_FUZZ_CALLS: %v", err)
	}
	return n
}

// A program that makes random system calls reaches no forbidden address and gets no port
// of the host. The supervisor survives, its memory and descriptors stay bounded, and the
// next program is served.
func TestRandomCalls(t *testing.T) {
	fakeInternet(t)
	wires := openTripwires(t)
	server := serveTCP(t, outside4, "hello", false)
	rules, err := policy.Parse("rules", strings.NewReader(forbiddenRule))
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	if s := os.Getenv("CLEAT_FUZZ_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CLEAT_FUZZ_SEED: %v", err)
		}
	}
	calls := callCount(t)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) (output string)
	}{
		{"command", chaosCommand},
		{"container", chaosContainer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Logf("CLEAT_FUZZ_SEED=%d", seed)
			p, err := policy.New(policy.Config{Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			listeners := hostListeners(t)
			files := guesttest.Descriptors(t)
			watch := func(n *sandbox.Network, done <-chan struct{}) { watchChaos(t, n, listeners, done) }
			output := tt.run(t, sandbox.Config{Policy: p}, watch, fmt.Sprint(seed), fmt.Sprint(calls), server.String())
			if output != "hello" {
				t.Errorf("after its calls the guest printed %q, want hello", output)
			}
			if k := wires.arrived.Load(); k != 0 {
				t.Errorf("%d arrivals at forbidden addresses, the last at %s", k, wires.last.Load())
			}
			if now := guesttest.Descriptors(t); now > files+8 {
				t.Errorf("%d open files, %d before", now, files)
			}
		})
	}
}

// watchChaos watches this process's memory, descriptors and listeners until the guest has
// ended.
func watchChaos(t *testing.T, n *sandbox.Network, listeners []string, done <-chan struct{}) {
	t.Helper()
	start := 0
	for tick := time.Tick(50 * time.Millisecond); ; {
		select {
		case <-done:
			s := n.Stats()
			t.Logf("counters %+v", s.Supervisor)
			if s.Supervisor.Connected == 0 || len(s.Supervisor.Kept) < 3 {
				t.Error("too few connections to test anything")
			}
			if end := residentBytes(t); start != 0 && end > start+64<<20 {
				t.Errorf("%d MiB resident at the start, %d MiB at the end", start>>20, end>>20)
			}
			return
		case <-tick:
		}
		if start == 0 && n.Stats().Supervisor.Connected > 20 {
			start = residentBytes(t)
		}
		if k := guesttest.Descriptors(t); k > 2000 {
			t.Fatalf("%d open files", k)
		}
		for _, l := range hostListeners(t) {
			if !slices.Contains(listeners, l) {
				t.Fatalf("unexpected listener on the host: %s", l)
			}
		}
	}
}

// hostListeners returns the listening TCP sockets of the host's namespace, each by local
// address and inode.
func hostListeners(t *testing.T) (all []string) {
	t.Helper()
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			const listen = "0A"
			if f := strings.Fields(string(line)); len(f) > 9 && f[3] == listen {
				all = append(all, f[1]+" "+f[9])
			}
		}
	}
	return all
}

// chaosCommand runs the guest as a command.
func chaosCommand(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) string {
	cfg.Tier = sandbox.TierSeccomp
	n := newNetwork(t, cfg)
	cmd, out := guest(t.Context(), "chaos", args...)
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = n.Exec(t.Context(), cmd)
	}()
	watchUnlessSkipped(t, n, done, &err, watch)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(strings.TrimPrefix(out.String(), "ready\n"))
}

// watchUnlessSkipped skips the test if the kernel lacks the seccomp tier.
func watchUnlessSkipped(t *testing.T, n *sandbox.Network, done <-chan struct{}, err *error, watch func(*sandbox.Network, <-chan struct{})) {
	t.Helper()
	select {
	case <-done:
		if *err != nil && strings.Contains((*err).Error(), sys.ErrNoLandlock.Error()) {
			t.Skip(*err)
		}
	case <-time.After(100 * time.Millisecond):
	}
	watch(n, done)
}

// chaosContainer runs the guest as a container, and another container after it.
func chaosContainer(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) string {
	s := newContainerNet(t, cfg)
	c := s.start(t, "chaos", args...)
	if output := c.line(t); output != "ready" {
		t.Fatalf("the guest printed %q", output)
	}
	if err := c.pipe.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var output string
	var err error
	go func() {
		defer close(done)
		if output, err = c.out.ReadString('\n'); err == nil {
			err = c.cmd.Wait()
		}
	}()
	watch(s.n, done)
	if err != nil {
		t.Fatalf("the guest printed %q, %v", output, err)
	}
	before := s.n.Stats().Supervisor.Connected
	if got := s.start(t, "dial", "tcp", args[2]).rest(t); got != "hello" || s.n.Stats().Supervisor.Connected != before+1 {
		t.Errorf("another container printed %q; counters %+v, %d connections before", got, s.n.Stats().Supervisor, before)
	}
	s.end(t)
	return strings.TrimSpace(output)
}
