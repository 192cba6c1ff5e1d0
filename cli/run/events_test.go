package run

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"cleat/cli/term"
	"cleat/internal/ledger"
	"cleat/policy"
	"cleat/sandbox"
	"cleat/sandbox/control"
	"cleat/usernet"
)

// stuckWriter blocks in its first Write until it is released.
type stuckWriter struct {
	bytes.Buffer
	begun, letGo chan struct{}
	stuck        bool
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	if !w.stuck {
		w.stuck = true
		close(w.begun)
		<-w.letGo
	}
	return w.Buffer.Write(p)
}

// A message never blocks its sender.
func TestSayNeverBlocks(t *testing.T) {
	w := &stuckWriter{begun: make(chan struct{}), letGo: make(chan struct{})}
	s := newEventLog(w, false)
	s.warn("first")
	<-w.begun
	for range eventQueue + 10 {
		s.warn("more")
	}
	close(w.letGo)
	s.close()
	if got := strings.Count(w.String(), "more\n"); got != eventQueue {
		t.Errorf("%d lines printed, want %d", got, eventQueue)
	}
	if !strings.Contains(w.String(), "cleat: 10 more messages were dropped: too fast to print\n") {
		t.Errorf("nothing is said of what was dropped:\n%.200s", w.String())
	}
}

func TestSayRefused(t *testing.T) {
	flow := sandbox.Flow{Protocol: sandbox.TCP, Source: netip.MustParseAddrPort("192.0.2.5:40000"), Destination: netip.MustParseAddrPort("198.51.100.1:443")}
	rule, err := policy.ParseRule(false, "198.51.100.0/24")
	if err != nil {
		t.Fatal(err)
	}
	d := policy.Decision{Rule: &rule, Names: []string{"example.com"}, Reason: "denied by the rule"}
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		s := newEventLog(&out, asJSON)
		s.refused(flow, d)
		s.close()
		if !asJSON {
			if want := "cleat: refused: tcp to 198.51.100.1:443 (example.com): denied by the rule\n"; out.String() != want {
				t.Errorf("said %q, want %q", out.String(), want)
			}
			continue
		}
		var e event
		if err := json.Unmarshal(out.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event != "refused" || e.Refused.Protocol != "tcp" || e.Refused.Rule != "198.51.100.0/24" || e.Message == "" || e.Refused.Names[0] != "example.com" {
			t.Errorf("said %s", out.String())
		}
	}
}

func TestStatsText(t *testing.T) {
	quiet := StatsText(control.Stats{Stats: usernet.Stats{TCPFlows: 3, TunOutBytes: 1_500_000}})
	if !strings.Contains(quiet, "3 TCP") || !strings.Contains(quiet, "1.5 MB") || strings.Contains(quiet, "refused") {
		t.Errorf("without trouble:\n%s", quiet)
	}
	if loud := StatsText(control.Stats{Stats: usernet.Stats{Refused: 2}}); !strings.Contains(loud, "flows refused by rules: 2") {
		t.Errorf("with trouble:\n%s", loud)
	}
}

func TestStatsTextShowsTheLedger(t *testing.T) {
	usage := ledger.Usage{
		Used:  ledger.Cost{Descriptors: 12, Bytes: 1_300_000, Goroutines: 4},
		Limit: ledger.Cost{Descriptors: 960, Bytes: 128 << 20, Goroutines: 12288},
	}
	for refused, want := range map[uint64]string{
		0: "in use: 12 of 960 descriptors, 1.3 MB of 134.2 MB, 4 of 12288 goroutines\n",
		7: "in use: 12 of 960 descriptors, 1.3 MB of 134.2 MB, 4 of 12288 goroutines; refused 7 times\n",
	} {
		usage.Refused = refused
		if got := StatsText(control.Stats{Ledger: usage}); !strings.Contains(got, want) {
			t.Errorf("%d refused:\n%swant %s", refused, got, want)
		}
	}
}

func TestByteText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_500_000: "1.5 MB", 999_950: "1.0 MB", 1 << 63: "9.2 EB"} {
		if got := term.Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
