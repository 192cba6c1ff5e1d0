package experiment

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"
)

// linksGroup returns an experiment with one group over several links.
func linksGroup(networks []string, links []int, work string, factors map[string][]string) Experiment {
	w := Work{Kind: work, Duration: time.Second}
	if kindOf(work).untimed {
		w.Duration = 0
	}
	return Experiment{Name: "x", Repeat: 1, Groups: []Group{{Networks: networks, Links: links, Work: []Work{w}, Factors: factors}}}
}

// TestLinksCrossing checks which factors each network has.
func TestLinksCrossing(t *testing.T) {
	factors := map[string][]string{"link_rate": {"100M"}, "scheduler": {"flow", "adaptive"}, "crypto": {"on"}, "settings": {"best"}}
	e := linksGroup([]string{"single", "mptcp", "tunnel", "mpt"}, []int{1, 4}, TCP, factors)
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range e.Jobs() {
		c := j.Cell
		if c.Topology != "links" || c.Factors["link_rate"] != "100M" || c.Factors["variant"] != "plain" || c.Factors["outer"] != "ipv4" {
			t.Errorf("%+v", c)
		}
		if _, there := c.Factors["contained"]; there {
			t.Errorf("%+v does not vary what is in containers", c)
		}
		got = append(got, strings.Join([]string{c.Network, c.Transport, c.Factors["scheduler"], c.Factors["crypto"], c.Factors["settings"], string(rune('0' + c.Links))}, " "))
	}
	want := []string{
		"single tcp    1", "mptcp mptcp    1", "mptcp mptcp    4",
		"tunnel tcp flow on  1", "tunnel tcp adaptive on  1", "tunnel tcp flow on  4", "tunnel tcp adaptive on  4",
		"mpt tcp   best 1", "mpt tcp   best 4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// TestContained checks that only the tunnel varies what is in containers, and only where
// there are containers.
func TestContained(t *testing.T) {
	e := linksGroup([]string{"mptcp", "tunnel"}, []int{2}, TCP, map[string][]string{"contained": {"ends", "program"}})
	e.Groups[0].Runtimes = []string{"native", "docker"}
	var got []string
	for _, j := range e.Jobs() {
		got = append(got, strings.TrimSpace(j.Cell.Network+" "+j.Cell.Runtime+" "+j.Cell.Factors["contained"]))
	}
	if want := []string{"mptcp native", "mptcp docker", "tunnel native", "tunnel docker ends", "tunnel docker program"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLossNeedsItsVariant checks that a loss has no meaning for other links.
func TestLossNeedsItsVariant(t *testing.T) {
	levels := func(factors map[string][]string) (got []string) {
		for _, j := range linksGroup([]string{"tunnel"}, []int{2}, TCP, factors).Jobs() {
			got = append(got, j.Cell.Factors["variant"]+" "+j.Cell.Factors["loss"])
		}
		return got
	}
	if got := levels(map[string][]string{"variant": {"plain", "loss"}, "loss": {"0.1%", "1%"}}); !slices.Equal(got, []string{"plain ", "loss 0.1%", "loss 1%"}) {
		t.Errorf("with two shares: %q", got)
	}
	if got := levels(map[string][]string{"variant": {"loss", "rates"}}); !slices.Equal(got, []string{"loss 1%", "rates "}) {
		t.Errorf("without any: %q", got)
	}
}

// TestImpossibleOverLinks checks the reason of each rule.
func TestImpossibleOverLinks(t *testing.T) {
	for _, tt := range []struct {
		name string
		e    Experiment
		want string
	}{
		{"one link of several", linksGroup([]string{"single"}, []int{2}, TCP, nil), "it uses a single link"},
		{"datagrams", linksGroup([]string{"mptcp"}, []int{2}, UDP, nil), "MPTCP carries TCP only"},
		{"unlike", linksGroup([]string{"tunnel"}, []int{1}, TCP, map[string][]string{"variant": {"flap"}}), "variant flap needs two links"},
		{"search", linksGroup([]string{"tunnel"}, []int{2}, UDP, map[string][]string{"variant": {"blackhole"}, "offered": {"search"}}), "fixed times, which a search"},
		{"IPv6", linksGroup([]string{"mlvpn"}, []int{2}, TCP, map[string][]string{"outer": {"ipv6"}}), "over IPv4 only"},
		{"setup", linksGroup([]string{"tunnel"}, []int{2}, Setup, nil), "setup is not measured"},
	} {
		var wrong *Error
		if err := tt.e.Validate(); !errors.As(err, &wrong) || !strings.Contains(wrong.Problem, tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	for name, e := range map[string]Experiment{
		"loss on the only link":      linksGroup([]string{"single"}, []int{1}, TCP, map[string][]string{"variant": {"loss"}}),
		"a fixed rate while it dies": linksGroup([]string{"tunnel"}, []int{2}, UDP, map[string][]string{"variant": {"blackhole"}, "offered": {"10M"}}),
		"MPTCP over IPv6":            linksGroup([]string{"mptcp"}, []int{2}, TCP, map[string][]string{"outer": {"ipv6"}}),
		"round trips by MPTCP":       linksGroup([]string{"mptcp"}, []int{2}, RR, nil),
	} {
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLinkRateOfTheExperiment checks that it takes precedence over a group's, and doubles
// no job.
func TestLinkRateOfTheExperiment(t *testing.T) {
	e := linksGroup([]string{"tunnel"}, []int{2}, TCP, map[string][]string{"link_rate": {"100M", "1G"}})
	if n := len(e.Jobs()); n != 2 {
		t.Errorf("%d jobs, want one for each rate", n)
	}
	e = e.Override(Override{LinkRate: "10M"})
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	jobs := e.Jobs()
	if len(jobs) != 1 || jobs[0].Cell.Factors[linkRateFactor] != "10M" {
		t.Errorf("%+v", jobs)
	}
}

func TestOverrideLinksAndFactors(t *testing.T) {
	e, err := Load("multipath")
	if err != nil {
		t.Fatal(err)
	}
	before := len(e.Jobs())
	o := e.Override(Override{Networks: []string{"tunnel"}, Work: []string{TCP}, Links: []int{3}, Factors: map[string][]string{"variant": {"rates"}, "scheduler": {"flow"}}})
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, j := range o.Jobs() {
		if c := j.Cell; c.Network != "tunnel" || c.Links != 3 || c.Factors["variant"] != "rates" || c.Factors["scheduler"] != "flow" {
			t.Errorf("%+v", c)
		}
	}
	if after := len(e.Jobs()); after != before {
		t.Errorf("Override changed the original: %d jobs, had %d", after, before)
	}
}

// TestSingleLinkBaseline overrides the number of links of a preset. Its single link stays
// as the baseline.
func TestSingleLinkBaseline(t *testing.T) {
	e, err := Load("multipath")
	if err != nil {
		t.Fatal(err)
	}
	given := e.Override(Override{Links: []int{2, 3}})
	if err := given.Validate(); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, j := range given.Jobs() {
		got[fmt.Sprint(j.Cell.Network == "single", j.Cell.Links)] = true
	}
	if want := map[string]bool{"true 1": true, "false 2": true, "false 3": true}; !maps.Equal(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
	if err := e.Override(Override{Links: []int{2}, Networks: []string{"single"}}).Validate(); err == nil {
		t.Error("nothing but the one link, twice, is no mistake")
	}
}

// TestMultipathPreset checks that the preset has the cells of the paper's figures and of
// ours.
func TestMultipathPreset(t *testing.T) {
	e, err := Load("multipath")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, j := range e.Jobs() {
		c := j.Cell
		if c.Congestion != "cubic" && c.Transport != "udp" {
			t.Errorf("no congestion control: %+v", c)
		}
		seen[c.Network+" "+j.Work.Kind+" "+c.Factors["variant"]]++
	}
	for want, n := range map[string]int{"tunnel tcp plain": 12, "mptcp tcp plain": 12, "tunnel tcp rates": 1, "tunnel tcp delays": 2, "tunnel tcp loss": 2,
		"tunnel tcp blackhole": 2, "tunnel udp blackhole": 2, "tunnel tcp flap": 1, "tunnel loaded plain": 2, "single tcp plain": 2, "glorytun tcp plain": 8} {
		if seen[want] < n {
			t.Errorf("%d jobs of %s, want %d or more", seen[want], want, n)
		}
	}
	for _, j := range e.Jobs() {
		long := Work{Kind: TCP, Duration: 45 * time.Second, Steady: 30 * time.Second, MessageBytes: j.Work.MessageBytes}
		if w := j.Work; (j.Cell.Factors["variant"] == "delays") != reflect.DeepEqual(w, long) || w.Duration != 5*time.Second && w.Duration != long.Duration {
			t.Errorf("%s takes %+v", j.Cell.Key(), w)
		}
	}
	if took := e.Estimate(nil); took > 6*time.Hour+40*time.Minute {
		t.Errorf("estimated at %s", took)
	}
}

// TestSteady checks that the steady part keeps its share of another duration, and must be
// shorter than the duration.
func TestSteady(t *testing.T) {
	e, err := Parse("f.yaml", []byte("name: x\ngroups:\n  - networks: [single]\n    work: [{kind: tcp, duration: 45s, steady: 30s}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	short := e.Override(Override{Duration: 3 * time.Second})
	if w := short.Jobs()[0].Work; w.Duration != 3*time.Second || w.Steady != 2*time.Second {
		t.Errorf("with 3 s: %+v", w)
	}
	if err := short.Validate(); err != nil {
		t.Error(err)
	}
	for work, want := range map[string]string{
		"{kind: tcp, duration: 5s, steady: 5s}":     "steady 5s of tcp: want less than its duration, 5s",
		"{kind: udp, duration: 5s, steady: -1s}":    "steady -1s of udp: want less than its duration, 5s",
		"{kind: rr, duration: 5s, steady: 1s}":      "steady 1s of rr: only tcp, udp, loaded have a steady part",
		"{kind: packets, duration: 5s, steady: 1s}": "steady 1s of packets",
	} {
		_, err := Parse("f.yaml", []byte("name: x\ngroups:\n  - networks: [veth]\n    work: ["+work+"]\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", work, err, want)
		}
	}
}

// TestEstimate checks that impossible jobs take no time, that a longer duration counts,
// and that each container made for one measurement counts.
func TestEstimate(t *testing.T) {
	job := linksGroup([]string{"tunnel"}, []int{4}, TCP, nil).Jobs()[0]
	job.Cell.Runtime = cell.Native
	native := job.Estimate()
	job.Cell.Runtime = "docker"
	if got := job.Estimate() - native; got != 2*containerOverhead {
		t.Errorf("two ends in containers take %v more", got)
	}
	job.Cell.Factors[containedFactor], job.Cell.Pairs = containedProgram, 8
	if got := job.Estimate() - native; got != 2*containerOverhead+7*pairOverhead {
		t.Errorf("a tunnel in containers, and 7 pairs more, take %v more", got)
	}
	job.Work.Duration += 40 * time.Second
	if got := job.Estimate() - native; got < 40*time.Second {
		t.Errorf("40 s more take %v more", got)
	}
	e := linksGroup([]string{"tunnel", "mptcp"}, []int{1, 2}, TCP, nil)
	e.Repeat, e.Warmup = 3, 1
	one := func(j Job) bool { return j.Cell.Network == "mptcp" && j.Cell.Links == 2 }
	if got, want := e.Estimate(one), 4*e.Jobs()[3].Estimate(); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
