package usernettest_test

import (
	"testing"
	"time"

	"cleat/lab"
	"cleat/usernet/usernettest"
)

// TestFaultsAreFound proves that the suite can fail: each case passes on the reference,
// and fails if the reference has the fault that the case looks for.
func TestFaultsAreFound(t *testing.T) {
	lab.Need(t)
	if testing.Short() {
		t.Skip("not with -short")
	}
	byName := map[string]usernettest.Case{}
	for _, c := range usernettest.Cases() {
		if _, twice := byName[c.Name]; twice {
			t.Errorf("two cases are called %s", c.Name)
		}
		byName[c.Name] = c
	}
	for _, f := range []struct{ fault, found string }{
		{"corrupts", "integrity/to-server/out/v4"},
		{"corrupts", "integrity/both-ways-at-once/in/v6"},
		{"loses-bytes", "integrity/to-client/out/v4"},
		{"corrupts", "churn/mixed/out/v4"},
		{"drops-FIN", "close/half-inside/out/v4"},
		{"drops-FIN", "close/simultaneous/in/v6"},
		{"drops-RST", "close/reset-outside/out/v4"},
		{"drops-RST", "connect/refused/v4"},
		{"drops-ICMP", "connect/prohibited/v4"},
		{"drops-ICMP", "udp/refused/v4"},
		{"drops-ICMP", "ping/answered/v4"},
		{"drops-probes", "flow/keepalive/v4"},
		{"forgets-urgent", "urgent/v4"},
		{"leaks", "many/one-after-the-other/v4"},
		{"leaks", "many/failing/v4"},
		{"few-peers", "udp/many-peers/out/v4"},
		{"swaps-datagrams", "udp/burst/out/v4"},
		{"drops-fragments", "fragments/8192-at-mtu-1500/out/v4"},
		{"drops-fragments", "fragments/60000-at-mtu-1500/in/v6"},
		{"answers-pings", "ping/nobody-there/v4"},
		{"dies", "close/half-outside/out/v4"},
		{"deaf-to-SIGTERM", "end/terminated"},
		// The reference lets everything through.
		{"none", "policy/deny-address"},
		{"none", "policy/deny-name"},
		{"none", "policy/only-one-port"},
		{"none", "policy/metadata"},
		{"none", "policy/link-local"},
		{"none", "policy/forged-name/udp"},
		{"none", "hostile/forged-source/v4"},
	} {
		t.Run(f.fault+"/"+f.found, func(t *testing.T) {
			t.Parallel()
			c, ok := byName[f.found]
			if !ok {
				t.Fatalf("no case is called %s", f.found)
			}
			s := usernettest.Settings{Short: true}
			if f.fault != "none" {
				if r := usernettest.Try(t.Context(), relayPath("none"), c, s); r.Verdict != usernettest.Pass {
					t.Fatalf("without a fault: %s: %s; %v", r.Verdict, r.Reason, r.Notes)
				}
			}
			s.Timeout = 1500 * time.Millisecond // cases that hang fail soon
			r := usernettest.Try(t.Context(), relayPath(f.fault), c, s)
			if r.Verdict != usernettest.Fail {
				t.Fatalf("the fault was not found: %s %s", r.Verdict, r.Reason)
			}
			t.Log(r.Reason)
		})
	}
}

// TestReference runs the whole suite on the reference.
func TestReference(t *testing.T) {
	lab.Need(t)
	if !*all {
		t.Skip("the whole suite runs on the reference only with -all")
	}
	p := relayPath("none")
	p.Lacks[usernettest.Policy], p.Lacks[usernettest.NamePolicy] = "it routes", "it routes"
	usernettest.Run(t, p, settings(), match(t))
}
