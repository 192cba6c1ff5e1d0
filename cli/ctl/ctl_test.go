package ctl

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/internal/columns"
	"cleat/sandbox/control"
	"cleat/usernet"

	"github.com/google/go-cmp/cmp"
)

func TestCtlArgs(t *testing.T) {
	for _, tt := range []struct{ typed, want string }{
		{"ctl web flows --json", "ctl --target=web flows --json"},
		{"ctl 4711 forward add 8080:80", "ctl --target=4711 forward add 8080:80"},
		{"ctl flows", "ctl flows"},
		{"ctl forward add", "ctl forward add"},
		{"ctl web", "ctl web"},
		{"ctl --target web flows", "ctl --target web flows"},
		{"ctl", "ctl"},
		{"bench web flows", "bench web flows"},
		{"__complete ctl web", "__complete ctl web"},
		{"__complete ctl web fl", "__complete ctl --target=web fl"},
		{"__completeNoDesc ctl web forward a", "__completeNoDesc ctl --target=web forward a"},
	} {
		if d := cmp.Diff(strings.Fields(tt.want), Args(strings.Fields(tt.typed))); d != "" {
			t.Errorf("%q: -want +got:\n%s", tt.typed, d)
		}
	}
}

// A subcommand that is missing in subcommands would be taken for a target.
func TestCtlWordsAreTheCommands(t *testing.T) {
	for _, c := range New().Commands() {
		if got := Args([]string{"ctl", c.Name(), "x"}); got[1] != c.Name() {
			t.Errorf("%s is taken for a target", c.Name())
		}
	}
}

func TestFlowsText(t *testing.T) {
	at := time.Unix(1000, 0)
	var b strings.Builder
	err := flowsText(&b, []control.Flow{{
		Protocol: "tcp", Source: netip.MustParseAddrPort("10.0.2.100:40000"), Destination: netip.MustParseAddrPort("10.0.2.2:5432"),
		Name: "db.example\x1b[2J", Host: netip.MustParseAddrPort("127.0.0.1:5432"), State: "established", Started: at, OutBytes: 1500,
	}}, at.Add(90*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tcp", "out", "10.0.2.2:5432 (db.example [2J) via 127.0.0.1:5432", "1m30s", "1.5 kB"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

// Text from another user's instance can't act on root's terminal.
func TestHostileHelpersTexts(t *testing.T) {
	const evil = "x\x1b]0;y\x07\nroot\u202e\u009b"
	stats := control.Stats{Kept: map[string]uint64{evil: 1}, Stats: usernet.Stats{Unspliced: map[string]uint64{evil: 1}}}
	for name, print := range map[string]func(io.Writer) error{
		"ls": func(w io.Writer) error {
			return listText(w, []control.Info{{Name: evil, Command: []string{evil}}, {Name: evil, Namespace: evil}})
		},
		"flows": func(w io.Writer) error {
			return flowsText(w, []control.Flow{{Protocol: evil, Name: evil, State: evil, Tier: evil, Why: evil}}, time.Now())
		},
		"forward": func(w io.Writer) error {
			return forwardsText(w, []control.Forward{{Protocol: evil, Interface: evil}})
		},
		"stats":  func(w io.Writer) error { return writeStats(w, stats) },
		"policy": func(w io.Writer) error { return writePolicy(w, evil) },
	} {
		var b strings.Builder
		if err := print(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if columns.PlainText(line) != line || strings.HasPrefix(line, "root") && name != "policy" {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
}
