package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// crossed has two networks, two kinds of work, a rate and the kernel's default MTU: 24
// jobs.
const crossed = `
name: crossed
title: something of everything
groups:
  - networks: [veth, bridge]
    mtu: [0, 9000]
    pairs: [1, 2]
    work:
      - {kind: tcp, duration: 1s}
      - {kind: udp, duration: 1s, message_bytes: [1000]}
    factors:
      offered: [1G, 10G]
`

func TestOnlyMatches(t *testing.T) {
	e, err := Parse("crossed.yaml", []byte(crossed))
	if err != nil {
		t.Fatal(err)
	}
	all := e.Jobs()
	if len(all) != 24 {
		t.Fatalf("%d jobs without it", len(all))
	}
	for _, tt := range []struct {
		only string
		want int
		keep func(Job) bool
	}{
		{"network=veth", 12, func(j Job) bool { return j.Cell.Network == "veth" }},
		{"network=veth|bridge", 24, func(Job) bool { return true }},
		{"network=veth,network=bridge", 24, func(Job) bool { return true }},
		{"work=tcp", 8, func(j Job) bool { return j.Work.Kind == TCP }},
		{"network=veth,work=udp", 8, func(j Job) bool { return j.Cell.Network == "veth" && j.Work.Kind == UDP }},
		{"pairs=2", 12, func(j Job) bool { return j.Cell.Pairs == 2 }},
		{"mtu=9000", 12, func(j Job) bool { return j.Cell.MTU == 9000 }},
		{"mtu=default", 12, func(j Job) bool { return j.Cell.MTU == 0 }},
		{"mtu=0", 12, func(j Job) bool { return j.Cell.MTU == 0 }},
		{"offered=10G", 8, func(j Job) bool { return j.Cell.Factors["offered"] == "10G" }},
		{"offered=10000000000", 8, func(j Job) bool { return j.Cell.Factors["offered"] == "10G" }},
		{"offered=none", 8, func(j Job) bool { return j.Work.Kind == TCP }},
		{"congestion=none", 16, func(j Job) bool { return j.Work.Kind == UDP }},
		{"transport=tcp, placement=different-cores", 8, func(j Job) bool { return j.Work.Kind == TCP }},
		{"links=none,runtime=" + all[0].Cell.Runtime, 24, func(Job) bool { return true }},
		{"message_bytes=1000,engine=cleat,streams=1,topology=local,direction=between", 16, func(j Job) bool { return j.Work.Kind == UDP }},
	} {
		t.Run(tt.only, func(t *testing.T) {
			o, err := ParseOnly(strings.Split(tt.only, ","))
			if err != nil {
				t.Fatal(err)
			}
			few := e.Override(Override{Only: o})
			if err := few.Validate(); err != nil {
				t.Fatal(err)
			}
			got := few.Jobs()
			if len(got) != tt.want || slices.ContainsFunc(got, func(j Job) bool { return !tt.keep(j) }) {
				t.Errorf("%d jobs, want %d: %v", len(got), tt.want, counts(got, func(j Job) string { return j.Work.Kind + " " + j.Cell.Key() }))
			}
			if len(e.Jobs()) != len(all) {
				t.Error("the experiment itself was changed")
			}
		})
	}
}

func TestOnlyErrors(t *testing.T) {
	for _, tt := range []struct{ only, want, hint string }{
		{"netwrok=veth", `only: unknown axis "netwrok"; this experiment has congestion, direction, engine, links, message_bytes, mtu, network, `, `did you mean "network"?`},
		{"network=vteh", `only: unknown network "vteh"; this experiment has bridge, veth`, `did you mean "veth"?`},
		{"network=veth|macvlan-bridge", `only: unknown network "macvlan-bridge"; this experiment has bridge, veth`, ""},
		{"mtu=1500", `only: unknown mtu "1500"; this experiment has 9000, default`, ""},
		{"gso=on", `only: unknown axis "gso"; this experiment has `, ""},
		{"work=tcp,offered=10G", "only offered=10G,work=tcp: no cell of this experiment matches all of it", ""},
		{"network", `only "network": want AXIS=VALUE, e.g. network=veth or mtu=1500|9000`, ""},
		{"=veth", `only "=veth": want AXIS=VALUE`, ""},
		{"network=", `only "network=": no value for network`, ""},
		{"network=veth|", `only "network=veth|": no value for network`, ""},
	} {
		t.Run(tt.only, func(t *testing.T) {
			e, err := Parse("crossed.yaml", []byte(crossed))
			if err != nil {
				t.Fatal(err)
			}
			o, err := ParseOnly(strings.Split(tt.only, ","))
			if err == nil {
				err = e.Override(Override{Only: o}).Validate()
			}
			var wrong *Error
			if !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Error(), tt.want) {
				t.Fatalf("got  %v\nwant %s", err, tt.want)
			}
			if wrong.Hint() != tt.hint {
				t.Errorf("hint %q, want %q", wrong.Hint(), tt.hint)
			}
		})
	}
}

// TestAxesAreUnique: cells of the work "loaded" have a factor "work", too.
func TestAxesAreUnique(t *testing.T) {
	e, err := Load("multipath")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, a := range axes(e.Jobs()) {
		if seen[a.name] {
			t.Errorf("axis %q appears twice", a.name)
		}
		seen[a.name] = true
	}
	if !seen["work"] || !seen["variant"] {
		t.Errorf("axes %v", seen)
	}
}

func TestOnlyFromFile(t *testing.T) {
	e, err := Parse("crossed.yaml", []byte(crossed+"only: {network: [bridge], mtu: [9000], offered: [1G]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if jobs := e.Jobs(); len(jobs) != 2 || !slices.Equal(e.Networks(), []string{"bridge"}) {
		t.Errorf("%d jobs of %v", len(jobs), e.Networks())
	}
	recorded, err := e.JSON()
	if err != nil || !strings.Contains(string(recorded), `"only": {"mtu": ["9000"], "network": ["bridge"], "offered": ["1G"]}`) {
		t.Errorf("record %s, %v", recorded, err)
	}
	_, err = Parse("crossed.yaml", []byte(crossed+"only:\n  network: [vteh]\n"))
	if want := `crossed.yaml:14:12: only: unknown network "vteh"; this experiment has bridge, veth`; fmt.Sprint(err) != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// The subject is dropped if it is not measured any more.
func TestOnlyDropsTheSubject(t *testing.T) {
	e := load(t, "rootless")
	few := e.Override(Override{Only: Only{"network": {"pasta"}}})
	if err := few.Validate(); err != nil || few.Subject != "" || e.Subject == "" {
		t.Errorf("subject %q of %q: %v", few.Subject, e.Subject, err)
	}
}
