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

// callsToTry is how many calls a random program makes: CLEAT_FUZZ_CALLS, or what takes a few
// seconds.
func callsToTry(t *testing.T) uint64 {
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

// A program that makes whatever calls come to its mind reaches nothing that is forbidden and
// gets no port of the host's; nothing breaks, it does not cost more and more, and whoever
// comes after it is served.
func TestRandomCalls(t *testing.T) {
	world(t)
	j := openJudges(t)
	server := answerTCP(t, outside4, "hello", false)
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
	calls := callsToTry(t)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) (said string)
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
			watch := func(n *sandbox.Network, ended <-chan struct{}) { watchChaos(t, n, listeners, ended) }
			said := tt.run(t, sandbox.Config{Policy: p}, watch, fmt.Sprint(seed), fmt.Sprint(calls), server.String())
			if said != "hello" {
				t.Errorf("afterwards the guest printed %q", said)
			}
			if k := j.arrived.Load(); k != 0 {
				t.Errorf("%d times somebody arrived where nobody may, last at %s", k, j.last.Load())
			}
			if now := guesttest.Descriptors(t); now > files+8 {
				t.Errorf("%d open files, %d before", now, files)
			}
		})
	}
}

// watchChaos looks at what the helper spends until the guest has ended.
func watchChaos(t *testing.T, n *sandbox.Network, listeners []string, ended <-chan struct{}) {
	t.Helper()
	early := 0
	for tick := time.Tick(50 * time.Millisecond); ; {
		select {
		case <-ended:
			s := n.Stats()
			t.Logf("counters %+v", s.Supervisor)
			if s.Supervisor.Connected == 0 || len(s.Supervisor.Kept) < 3 {
				t.Error("this test does not get far enough to try anything")
			}
			if late := residentBytes(t); early != 0 && late > early+64<<20 {
				t.Errorf("%d MiB resident at the beginning, %d MiB at the end", early>>20, late>>20)
			}
			return
		case <-tick:
		}
		if early == 0 && n.Stats().Supervisor.Connected > 20 {
			early = residentBytes(t)
		}
		if k := guesttest.Descriptors(t); k > 2000 {
			t.Fatalf("%d open files", k)
		}
		for _, l := range hostListeners(t) {
			if !slices.Contains(listeners, l) {
				t.Fatalf("a port of the host's is listened on that nobody asked for: %s", l)
			}
		}
	}
}

// hostListeners are the TCP sockets that listen in the host's namespace, each by its local
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

// chaosCommand runs the guest as a command of its own network.
func chaosCommand(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) string {
	cfg.Tier = sandbox.TierSeccomp
	n := newNetwork(t, cfg)
	cmd, out := guest(t.Context(), "chaos", args...)
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = n.Exec(t.Context(), cmd)
	}()
	watchUnlessSkipped(t, n, ended, &err, watch)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(strings.TrimPrefix(out.String(), "ready\n"))
}

// watchUnlessSkipped skips the test where the tier can't be had.
func watchUnlessSkipped(t *testing.T, n *sandbox.Network, ended <-chan struct{}, err *error, watch func(*sandbox.Network, <-chan struct{})) {
	t.Helper()
	select {
	case <-ended:
		if *err != nil && strings.Contains((*err).Error(), sys.ErrNoLandlock.Error()) {
			t.Skip(*err)
		}
	case <-time.After(100 * time.Millisecond):
	}
	watch(n, ended)
}

// chaosContainer runs the guest as a container, and another one after it.
func chaosContainer(t *testing.T, cfg sandbox.Config, watch func(*sandbox.Network, <-chan struct{}), args ...string) string {
	s := newServed(t, cfg)
	c := s.start(t, "chaos", args...)
	if said := c.line(t); said != "ready" {
		t.Fatalf("the guest printed %q", said)
	}
	if err := c.pipe.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var said string
	var err error
	go func() {
		defer close(ended)
		if said, err = c.out.ReadString('\n'); err == nil {
			err = c.cmd.Wait()
		}
	}()
	watch(s.n, ended)
	if err != nil {
		t.Fatalf("the guest printed %q, %v", said, err)
	}
	before := s.n.Stats().Supervisor.Connected
	if got := s.start(t, "dial", "tcp", args[2]).rest(t); got != "hello" || s.n.Stats().Supervisor.Connected != before+1 {
		t.Errorf("another container printed %q; counters %+v, %d connections before", got, s.n.Stats().Supervisor, before)
	}
	s.end(t)
	return strings.TrimSpace(said)
}
