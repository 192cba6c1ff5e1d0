package experiment

import (
	"errors"
	"maps"
	"testing"
	"time"

	"cleat/bench/cell"
)

const contained = `
name: contained
title: ends in containers
groups:
  - networks: [veth]
    runtimes: [native, docker]
    work:
      - {kind: tcp, duration: 1s}
      - {kind: udp, duration: 1s}
      - {kind: setup}
`

func TestRuntimes(t *testing.T) {
	e, err := Parse("contained.yaml", []byte(contained))
	if err != nil {
		t.Fatal(err)
	}
	key := func(j Job) string { return j.Work.Kind + " in " + j.Cell.Runtime }
	for _, tt := range []struct {
		name string
		o    Override
		want map[string]int
	}{
		// Only traffic has ends.
		{"file", Override{}, map[string]int{"tcp in native": 1, "tcp in docker": 1, "udp in native": 1, "udp in docker": 1, "setup in native": 1}},
		{"flag", Override{Runtimes: []string{"podman"}}, map[string]int{"tcp in podman": 1, "udp in podman": 1, "setup in native": 1}},
		{"only one of two", Override{Only: Only{"runtime": {"docker"}}}, map[string]int{"tcp in docker": 1, "udp in docker": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := e.Override(tt.o)
			if err := changed.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := counts(changed.Jobs(), key); !maps.Equal(got, tt.want) {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
	if native := e.Override(Override{Runtimes: []string{cell.Native}}); e.Estimate(nil) < native.Estimate(nil)+time.Second {
		t.Errorf("estimated at %v with containers, at %v without", e.Estimate(nil), native.Estimate(nil))
	}
}

func TestUnknownRuntime(t *testing.T) {
	e := load(t, "quick").Override(Override{Runtimes: []string{"native", "podmna"}})
	var wrong *Error
	if err := e.Validate(); !errors.As(err, &wrong) || wrong.Error() != `unknown runtime "podmna"` || wrong.Hint() != `did you mean "podman"?` {
		t.Errorf("got %v", err)
	}
}
