package experiment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/cell"
)

// TestRootlessMeasuresItsGoals checks what the preset measures.
func TestRootlessMeasuresItsGoals(t *testing.T) {
	e := load(t, "rootless")
	if e.Subject != "cleat" || e.Repeat < 10 {
		t.Errorf("subject %q, %d blocks", e.Subject, e.Repeat)
	}
	have := e.Networks()
	for _, n := range catalog.All() {
		if n.Role == catalog.Rootless && !slices.Contains(have, n.Name) {
			t.Errorf("network %s is missing", n.Name)
		}
	}
	got := counts(e.Jobs(), func(j Job) string {
		c := j.Cell
		if c.Loop() == cell.ClosedLoop { // beside the same at a rate
			return ""
		}
		return fmt.Sprintf("%s %s %s %d %d %d %s", c.Network, j.Work.Kind, c.Direction, c.MTU, c.Streams, c.MessageBytes, c.Factors["peer"])
	})
	for _, network := range []string{"cleat", "pasta", "slirp4netns", "gvproxy"} {
		for _, want := range []string{
			"tcp outbound 65520 1 131072 host-loopback", "tcp outbound 32768 1 131072 host-loopback", "tcp outbound 1500 1 131072 host-loopback",
			"tcp inbound 65520 1 131072 host-loopback", "tcp inbound 65520 1 131072 host-address", "tcp inbound 1500 1 131072 host-address",
			"rr outbound 65520 1 64 host-loopback", "rr inbound 65520 1 64 host-loopback",
			"crr outbound 65520 1 64 host-loopback", "crr inbound 65520 1 64 host-loopback",
			"udp outbound 65520 1 1400 host-loopback", "udp inbound 65520 1 1400 host-loopback",
			"tcp outbound 65520 64 131072 host-loopback", "tcp inbound 65520 1024 131072 host-loopback",
			"memory outbound 65520 1000 0 host-loopback", "start outbound 65520 1 0 host-loopback",
		} {
			if got[network+" "+want] != 1 {
				t.Errorf("%s %s: %d jobs", network, want, got[network+" "+want])
			}
		}
	}
	for _, want := range []string{
		"loopback tcp local 0 1 131072 ", "loopback tcp local 0 1024 131072 ", "loopback rr local 0 1 64 ",
		"loopback crr local 0 1 64 ", "loopback udp local 0 1 1400 ", "loopback start local 0 1 0 ",
		"nsnet tcp outbound 32768 1 131072 host-loopback", "cleat rr outbound 32768 1 64 host-loopback",
	} {
		if got[want] != 1 {
			t.Errorf("%s: %d jobs", want, got[want])
		}
	}
	if d := e.Estimate(nil); d < 40*time.Minute || d > 70*time.Minute {
		t.Errorf("estimated at %v, want about an hour", d)
	}
	for _, j := range e.Jobs() {
		if _, search := j.Offered(); j.Work.Kind == UDP && !search {
			t.Errorf("%s has no search for the rate", j.Cell.Key())
		}
		if j.Cell.Streams > 1 && j.Work.Kind == TCP && j.Work.Duration < 10*time.Second {
			t.Errorf("%s for %v", j.Cell.Key(), j.Work.Duration)
		}
	}
}

func TestRootlessJobs(t *testing.T) {
	start, memory, rr := Work{Kind: Start}, Work{Kind: Memory}, Work{Kind: RR, Duration: time.Second}
	for _, tt := range []struct {
		name  string
		group Group
		want  []string // jobs
	}{
		{"only rootless networks have a peer", Group{Networks: []string{"pasta", "nat-out"}, Work: []Work{rr}, Factors: map[string][]string{"peer": {"outside"}}},
			[]string{
				"rr pasta|native|local|tcp|outbound|0|1|1|0|64|cubic|different-cores|cleat|peer=outside|rate=50%",
				"rr nat-out|native|local|tcp|outbound|0|1|1|0|64|cubic|different-cores|cleat|rate=50%",
			}},
		{"outbound, the host has one address", Group{Networks: []string{"pasta"}, Directions: []string{"outbound", "inbound"}, Work: []Work{rr}, Factors: map[string][]string{"peer": {"host-loopback", "host-address"}}},
			[]string{
				"rr pasta|native|local|tcp|outbound|0|1|1|0|64|cubic|different-cores|cleat|peer=host-loopback|rate=50%",
				"rr pasta|native|local|tcp|inbound|0|1|1|0|64|cubic|different-cores|cleat|peer=host-loopback|rate=50%",
				"rr pasta|native|local|tcp|inbound|0|1|1|0|64|cubic|different-cores|cleat|peer=host-address|rate=50%",
			}},
		{"the host is one node", Group{Networks: []string{"pasta"}, Topologies: []string{"local", "switched"}, Work: []Work{rr}, Factors: map[string][]string{"peer": {"host-loopback"}}},
			[]string{"rr pasta|native|local|tcp|outbound|0|1|1|0|64|cubic|different-cores|cleat|peer=host-loopback|rate=50%"}},
		{"start needs a network with a command", Group{Networks: []string{"loopback", "pasta"}, Directions: []string{"outbound", "inbound"}, MTU: []int{1500}, Streams: []int{1000}, Placement: []string{"free"}, Work: []Work{start}},
			[]string{
				"start loopback|native|local|tcp|local|1500|1|1|0|0|||cleat",
				"start pasta|native|local|tcp|outbound|1500|1|1|0|0|||cleat",
			}},
		{"memory has flows", Group{Networks: []string{"pasta"}, Work: []Work{memory}},
			[]string{"memory pasta|native|local|tcp|outbound|0|1|1000|0|0|||cleat"}},
		{"number of flows of the group", Group{Networks: []string{"pasta"}, Streams: []int{10}, Work: []Work{memory}},
			[]string{"memory pasta|native|local|tcp|outbound|0|1|10|0|0|||cleat"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Experiment{Name: "x", Repeat: 1, Groups: []Group{tt.group}}
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, j := range e.Jobs() {
				got = append(got, j.Work.Kind+" "+j.Cell.Key())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
}

func TestRootlessErrors(t *testing.T) {
	plain := func(work Work, networks ...string) Experiment {
		return Experiment{Name: "x", Repeat: 1, Groups: []Group{{Networks: networks, Work: []Work{work}}}}
	}
	rr := Work{Kind: RR, Duration: time.Second}
	for _, tt := range []struct {
		name string
		e    func() Experiment
		want string
	}{
		{"memory of a network without programs", func() Experiment { return plain(Work{Kind: Memory}, "veth") },
			`network "veth" can't be measured in this experiment: memory does not apply: no program of its own carries its traffic`},
		{"start of a bridge", func() Experiment { return plain(Work{Kind: Start}, "bridge") },
			`network "bridge" can't be measured in this experiment: start does not apply: it is not built together with a command`},
		{"start for a second", func() Experiment { return plain(Work{Kind: Start, Duration: time.Second}, "pasta") },
			"start has no duration: it ends by itself"},
		{"unknown peer", func() Experiment {
			e := plain(rr, "pasta")
			e.Groups[0].Factors = map[string][]string{"peer": {"moon"}}
			return e
		}, `unknown peer "moon"`},
		{"a subject that is not measured", func() Experiment { e := plain(rr, "pasta"); e.Subject = "cleat"; return e },
			`subject "cleat" is not a network of this experiment`},
		{"too many streams", func() Experiment { e := plain(rr, "pasta"); e.Groups[0].Streams = []int{1025}; return e },
			"streams 1025: want 1…1024"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.e().Validate(); err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestOverrideDropsTheSubject(t *testing.T) {
	e := load(t, "rootless")
	if got := e.Override(Override{Networks: []string{"cleat", "pasta"}}); got.Subject != "cleat" || got.Validate() != nil {
		t.Errorf("subject %q, %v", got.Subject, got.Validate())
	}
	if got := e.Override(Override{Networks: []string{"pasta"}}); got.Subject != "" || got.Validate() != nil {
		t.Errorf("subject %q, %v", got.Subject, got.Validate())
	}
	only := e.Override(Override{Work: []string{"start", "memory"}})
	for _, j := range only.Jobs() {
		if j.Work.Kind != Start && j.Work.Kind != Memory {
			t.Errorf("%s remains", j.Work.Kind)
		}
	}
	if only.Subject != "cleat" || only.Validate() != nil {
		t.Errorf("subject %q, %v", only.Subject, only.Validate())
	}
	if err := e.Override(Override{Work: []string{"setup"}}).Validate(); err == nil || !strings.Contains(err.Error(), "none with these networks and this work") {
		t.Errorf("no work remains: %v", err)
	}
	if got := e.Override(Override{Duration: time.Second}); got.Validate() != nil {
		t.Error(got.Validate())
	}
}
