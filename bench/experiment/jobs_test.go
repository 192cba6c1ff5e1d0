package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
)

// load returns a preset.
func load(t *testing.T, name string) Experiment {
	t.Helper()
	e, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// counts returns the number of jobs by key.
func counts(jobs []Job, key func(Job) string) map[string]int {
	n := map[string]int{}
	for _, j := range jobs {
		n[key(j)]++
	}
	return n
}

func TestQuick(t *testing.T) {
	e := load(t, "quick")
	want := strings.Fields("loopback veth bridge bridge-nf published-host nat-out macvlan-bridge ipvlan-l2 ipvlan-l3 vxlan tun cleat pasta slirp4netns cleat-bridge docker-bridge")
	if !slices.Equal(e.Networks(), want) {
		t.Errorf("networks %v", e.Networks())
	}
	if e.Repeat != 8 || e.Warmup != 1 {
		t.Errorf("%d blocks and %d warm-up blocks", e.Repeat, e.Warmup)
	}
	jobs := e.Jobs()
	if len(jobs) != 3*len(want) {
		t.Errorf("%d jobs", len(jobs))
	}
	for _, j := range jobs {
		c := j.Cell
		if c.Pairs != 1 || c.Placement != "different-cores" || c.Congestion != "cubic" || c.Topology != "local" {
			t.Errorf("job %s %s", j.Work.Kind, c.Key())
		}
		if d := map[string]time.Duration{TCP: 300 * time.Millisecond, RR: 200 * time.Millisecond, CRR: 200 * time.Millisecond}[j.Work.Kind]; j.Work.Duration != d {
			t.Errorf("%s takes %v, want %v", j.Work.Kind, j.Work.Duration, d)
		}
	}
	if d := e.Estimate(nil); d < 2*time.Minute || d > 3*time.Minute {
		t.Errorf("estimated at %v, want at most three minutes", d)
	}
}

func TestClaassen2015(t *testing.T) {
	e := load(t, "claassen2015")
	jobs := e.Jobs()
	got := counts(jobs, func(j Job) string { return j.Work.Kind + " " + j.Cell.Topology })
	// 6 networks on one node, 5 between two, × 2 MTUs × 8 or 5 numbers of pairs
	for key, want := range map[string]int{"tcp local": 96, "tcp switched": 80, "udp local": 60, "udp switched": 50} {
		if got[key] != want {
			t.Errorf("%s: %d cells, want %d", key, got[key], want)
		}
	}
	for _, j := range jobs {
		if j.Work.Kind != UDP {
			continue
		}
		rate, search := j.Offered()
		if rate != 1e10 || search || j.Cell.MessageBytes != 8192 || j.Cell.Pairs > 16 {
			t.Fatalf("unexpected UDP job %s", j.Cell.Key())
		}
	}
	veth := counts(jobs, func(j Job) string { return j.Cell.Topology + " " + j.Cell.Network })
	for _, key := range []string{"local published-container", "local published-container-nat", "local bridge", "switched published-outside", "switched bridge"} {
		if veth[key] == 0 {
			t.Errorf("network %s is missing: veth runs through a published port and directly", key)
		}
	}
	// the command that the description recommends
	short := e.Override(Override{Repeat: 3, Duration: time.Second, Pairs: []int{1, 2, 4, 8, 16}})
	if err := short.Validate(); err != nil {
		t.Fatal(err)
	}
	if n := len(short.Jobs()); n != 220 {
		t.Errorf("%d jobs up to 16 pairs, want 220", n)
	}
}

func TestVirtualInterfacesHasTheSevenCells(t *testing.T) {
	have := load(t, "virtual-interfaces").Networks()
	for _, n := range []string{"host-loopback", "own-address", "container-to-host", "bridge", "host-to-container", "published-loopback", "published-host", "tun", "tap"} {
		if !slices.Contains(have, n) {
			t.Errorf("network %s is missing", n)
		}
	}
}

func TestOverlaysHasEveryOverlayAndBothPorts(t *testing.T) {
	e := load(t, "overlays")
	ports := map[string][]string{}
	attached := map[string]bool{}
	for _, j := range e.Jobs() {
		n := j.Cell.Network
		if j.Work.Kind == Attach {
			attached[n] = true
			continue
		}
		if p := j.Cell.Factors[vxlanPortFactor]; !slices.Contains(ports[n], p) {
			ports[n] = append(ports[n], p)
		}
	}
	for _, n := range catalog.All() {
		if n.Role != catalog.Overlay {
			continue
		}
		want := []string{""}
		if strings.HasPrefix(n.Name, "vxlan") {
			want = []string{"4789", "8472"}
		}
		if !slices.Equal(ports[n.Name], want) {
			t.Errorf("%s at ports %q, want %q", n.Name, ports[n.Name], want)
		}
		if attached[n.Name] != n.Cluster {
			t.Errorf("%s: attach is measured: %t", n.Name, attached[n.Name])
		}
	}
}

// TestFaultsHasEveryEvent checks that the preset measures every event of cleat-overlay with every data plane, and of
// its rivals those that they have.
func TestFaultsHasEveryEvent(t *testing.T) {
	have := map[string][]string{}
	for _, j := range load(t, "faults").Jobs() {
		n := j.Cell.Network + " " + j.Cell.Factors[dataplaneFactor]
		have[n] = append(have[n], j.Cell.Factors[eventFactor])
	}
	rivals := []string{eventJoin, "endpoint", "healing"}
	ofDocker := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return e == eventAddress })
	for n, want := range map[string][]string{
		"cleat-overlay auto": events, "cleat-overlay vxlan": events, "cleat-overlay routes": events,
		"flannel-vxlan ": rivals, "flannel-host-gw ": rivals, "bird-routes ": rivals, "weave ": rivals, "docker-overlay ": ofDocker,
	} {
		if !slices.Equal(have[n], want) {
			t.Errorf("%s: %q, want %q", n, have[n], want)
		}
	}
}

func TestEveryNetworkIsMeasured(t *testing.T) {
	have := load(t, "wire").Networks()
	roles := []catalog.Role{catalog.Container, catalog.Overlay, catalog.Rootless, catalog.Userspace, catalog.Attacher}
	for _, n := range catalog.All() {
		if slices.Contains(roles, n.Role) && !n.Cluster && !slices.Contains(have, n.Name) { // a cluster has events instead
			t.Errorf("network %s is missing", n.Name)
		}
	}
}

func TestUDPCrossesItsFactors(t *testing.T) {
	jobs := load(t, "udp").Jobs()
	levels := map[string]map[string]bool{}
	add := func(factor, level string) {
		if levels[factor] == nil {
			levels[factor] = map[string]bool{}
		}
		levels[factor][level] = true
	}
	for _, j := range jobs {
		add("size", fmt.Sprint(j.Cell.MessageBytes))
		add("mtu", fmt.Sprint(j.Cell.MTU))
		add("pairs", fmt.Sprint(j.Cell.Pairs))
		for k, v := range j.Cell.Factors {
			add(k, v)
		}
		if j.Cell.Factors["gso"] == "on" && j.Cell.MessageBytes+28 > j.Cell.MTU {
			t.Errorf("the kernel refuses GSO of %d bytes at MTU %d", j.Cell.MessageBytes, j.Cell.MTU)
		}
	}
	for factor, want := range map[string]int{"size": 3, "mtu": 2, "pairs": 2, "offered": 3, "gso": 2, "checksum": 2} {
		if len(levels[factor]) != want {
			t.Errorf("factor %s has levels %v, want %d", factor, levels[factor], want)
		}
	}
}

func TestJobsRules(t *testing.T) {
	tcp, udp := Work{Kind: TCP, Duration: time.Second}, Work{Kind: UDP, Duration: time.Second}
	rr, setup := Work{Kind: RR, Duration: time.Second}, Work{Kind: Setup}
	for _, tt := range []struct {
		name  string
		group Group
		want  []string // "kind key"
	}{
		{"defaults", Group{Networks: []string{"veth"}, Work: []Work{tcp}},
			[]string{"tcp veth|native|local|tcp|between|0|1|1|0|131072|cubic|different-cores|cleat"}},
		{"one node only", Group{Networks: []string{"tun", "bridge"}, Topologies: []string{"local", "switched"}, Work: []Work{tcp}},
			[]string{
				"tcp tun|native|local|tcp|between|0|1|1|0|131072|cubic|different-cores|cleat",
				"tcp bridge|native|local|tcp|between|0|1|1|0|131072|cubic|different-cores|cleat",
				"tcp bridge|native|switched|tcp|between|0|1|1|1|131072|cubic|different-cores|cleat",
			}},
		{"UDP has no congestion control, TCP no offered rate",
			Group{Networks: []string{"veth"}, Work: []Work{tcp, udp}, Congestion: []string{"reno"}, Factors: map[string][]string{"offered": {"1G"}}},
			[]string{
				"tcp veth|native|local|tcp|between|0|1|1|0|131072|reno|different-cores|cleat",
				"udp veth|native|local|udp|between|0|1|1|0|1472||different-cores|cleat|offered=1G",
			}},
		{"UDP is offered without limit", Group{Networks: []string{"veth"}, Work: []Work{udp}},
			[]string{"udp veth|native|local|udp|between|0|1|1|0|1472||different-cores|cleat|offered=unlimited"}},
		{"iperf3 has no request/response and no MPTCP",
			Group{Networks: []string{"veth"}, Work: []Work{tcp, rr}, Engine: []string{"iperf3"}, Transports: []string{"tcp", "mptcp"}},
			[]string{"tcp veth|native|local|tcp|between|0|1|1|0|131072|cubic|different-cores|iperf3"}},
		{"iperf3 has no GSO and no search",
			Group{Networks: []string{"veth"}, Work: []Work{udp}, Engine: []string{"iperf3"}, Factors: map[string][]string{"gso": {"on", "off"}, "offered": {"search", "1G"}}},
			[]string{"udp veth|native|local|udp|between|0|1|1|0|1472||different-cores|iperf3|gso=off|offered=1G"}},
		{"the host's loopback keeps its MTU", Group{Networks: []string{"host-loopback"}, MTU: []int{0, 1500}, Work: []Work{tcp}},
			[]string{"tcp host-loopback|native|local|tcp|local|0|1|1|0|131072|cubic|different-cores|cleat"}},
		{"GSO needs datagrams that fit", Group{Networks: []string{"veth"}, MTU: []int{0, 9000},
			Work: []Work{{Kind: UDP, Duration: time.Second, MessageBytes: []int{8192}}}, Factors: map[string][]string{"gso": {"on"}}},
			[]string{"udp veth|native|local|udp|between|9000|1|1|0|8192||different-cores|cleat|gso=on|offered=unlimited"}},
		{"rootless networks have two directions", Group{Networks: []string{"pasta", "nat-out"}, Directions: []string{"inbound"}, Work: []Work{rr}},
			[]string{
				"rr pasta|native|local|tcp|inbound|0|1|1|0|64|cubic|different-cores|cleat|rate=50%",
				"rr nat-out|native|local|tcp|outbound|0|1|1|0|64|cubic|different-cores|cleat|rate=50%",
			}},
		{"setup has no traffic", Group{Networks: []string{"veth"}, Pairs: []int{1, 2}, MTU: []int{1500, 9000}, Work: []Work{setup}},
			[]string{"setup veth|native|local|tcp|between|0|1|1|0|0|||cleat"}},
		{"a loopback has no checksum offload to switch off", Group{Networks: []string{"loopback", "veth"}, Work: []Work{rr}, Factors: map[string][]string{"checksum": {"off"}}},
			[]string{
				"rr loopback|native|local|tcp|local|0|1|1|0|64|cubic|different-cores|cleat|rate=50%",
				"rr veth|native|local|tcp|between|0|1|1|0|64|cubic|different-cores|cleat|checksum=off|rate=50%",
			}},
		{"only vepa has a hairpin switch", Group{Networks: []string{"macvlan-vepa", "macvlan-bridge"}, Work: []Work{rr}, Factors: map[string][]string{"hairpin": {"on"}}},
			[]string{
				"rr macvlan-vepa|native|local|tcp|between|0|1|1|0|64|cubic|different-cores|cleat|hairpin=on|rate=50%",
				"rr macvlan-bridge|native|local|tcp|between|0|1|1|0|64|cubic|different-cores|cleat|rate=50%",
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Experiment{Name: "x", Repeat: 1, Groups: []Group{tt.group, tt.group}} // each network is named twice, and equal jobs are one
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

// Jobs must not share a map: setting a factor of one would change another.
func TestJobsOwnTheirFactors(t *testing.T) {
	jobs := load(t, "udp").Jobs()
	jobs[0].Cell.Factors["offered"] = "changed"
	if jobs[1].Cell.Factors["offered"] == "changed" {
		t.Error("two jobs share their factors")
	}
}

func TestOverride(t *testing.T) {
	base := load(t, "bridge-netfilter")
	got := base.Override(Override{
		Networks: []string{"bridge", "veth"}, Repeat: 2, Duration: 3 * time.Second, Pairs: []int{4},
		Engine: []string{"cleat", "iperf3"}, Seed: 5, MTU: []int{9000},
	})
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"bridge", "veth"}; !slices.Equal(got.Networks(), want) {
		t.Errorf("networks %v, want %v", got.Networks(), want)
	}
	if got.Repeat != 2 || got.Seed != 5 {
		t.Errorf("repeat %d, seed %d", got.Repeat, got.Seed)
	}
	for _, j := range got.Jobs() {
		if j.Cell.Pairs != 4 || j.Cell.MTU != 9000 || j.Work.Duration != 3*time.Second {
			t.Errorf("job %s for %v", j.Cell.Key(), j.Work.Duration)
		}
	}
	if e := counts(got.Jobs(), func(j Job) string { return j.Cell.Engine }); e["iperf3"] != 4 || e["cleat"] != 12 {
		t.Errorf("jobs by engine: %v", e) // iperf3 measures two of the five kinds of work, of which one has two rates
	}
	if again := load(t, "bridge-netfilter"); fmt.Sprint(again) != fmt.Sprint(base) {
		t.Error("Override changed the experiment it was called on")
	}
}

func TestOverrideErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Override
		want string
	}{
		{"unknown network", Override{Networks: []string{"vteh"}}, `unknown network "vteh"`},
		{"unknown engine", Override{Engine: []string{"netperf"}}, `unknown engine "netperf"`},
		{"too many pairs", Override{Pairs: []int{1000}}, "pairs 1000: want 1…128"},
		{"too short", Override{Duration: time.Nanosecond}, "duration 1ns of tcp: want 10ms…24h0m0s"},
		{"negative repeat", Override{Repeat: -1}, "repeat -1: want 1…10000 blocks"},
		{"no links to shape", Override{LinkRate: "1G"}, "link rate 1G applies to nothing: no network here is measured over a switch or links"},
		{"no links to count", Override{Links: []int{4, 8}}, "links 4 8: none of the networks here is measured over several links"},
		{"no network with the factor", Override{Factors: map[string][]string{"variant": {"loss"}}}, "factor variant: none of the networks here has it"},
		{"bad link rate", Override{LinkRate: "1X"}, `link rate "1X": want a number above 0 in bit/s, with an optional k, M, G or T`},
		{"MTU too small", Override{Networks: []string{"veth"}, MTU: []int{12}}, "mtu 12: want 576…65535 bytes, or 0 for the kernel's default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := load(t, "quick").Override(tt.o)
			err := o.Validate()
			if err == nil {
				err = tt.o.ValidateUse(o)
			}
			var e *Error
			if !errors.As(err, &e) || e.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestLinkRateShapesOnlyLinks(t *testing.T) {
	e := load(t, "claassen2015").Override(Override{LinkRate: "10G"})
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, j := range e.Jobs() {
		want := Rate("")
		if j.Cell.Topology == "switched" {
			want = "10G"
		}
		if got := Rate(j.Cell.Factors[linkRateFactor]); got != want {
			t.Fatalf("%s: link rate %q", j.Cell.Key(), got)
		}
	}
}

func TestRate(t *testing.T) {
	for _, tt := range []struct {
		rate Rate
		want float64
		ok   bool
	}{
		{"", 0, true}, {"unlimited", 0, true}, {"search", 0, true},
		{"1000", 1000, true}, {"100M", 1e8, true}, {"2.5G", 2.5e9, true}, {"1k", 1e3, true}, {"1T", 1e12, true},
		{"G", 0, false}, {"fast", 0, false}, {"-1G", 0, false}, {"0", 0, false}, {"1e9", 0, false},
		{"0x10M", 0, false}, {"nan", 0, false}, {"inf", 0, false}, {"10 G", 0, false}, {"10Gi", 0, false},
	} {
		got, err := tt.rate.BitsPerSecond()
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("rate %q = %g, %v", tt.rate, got, err)
		}
	}
}

// TestRates checks what becomes of the levels of the factor "rate", and what is measured before the first block.
func TestRates(t *testing.T) {
	e := Experiment{Name: "rates", Repeat: 1, Groups: []Group{{Networks: []string{"veth"},
		Work:    []Work{{Kind: TCP, Duration: time.Second}, {Kind: RR, Duration: time.Second}, {Kind: UDPRR, Duration: 50 * time.Millisecond}, {Kind: CRR, Duration: time.Second}},
		Factors: map[string][]string{"rate": {"25%", "closed", "1000"}}}}}
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range e.Jobs() {
		share, _ := j.RateShare()
		got = append(got, fmt.Sprintf("%s %q %v %v %v", j.Work.Kind, j.Cell.Factors["rate"], share, j.Rate, j.Cell.Loop()))
	}
	if want := []string{
		`tcp "" 0 0 1`,
		`rr "25%" 0.25 0 1`, `rr "closed" 0 0 2`, `rr "1000" 0 1000 1`,
		`udprr "25%" 0.25 0 1`, `udprr "closed" 0 0 2`, `udprr "1000" 0 1000 1`,
		`crr "" 0 0 1`, `crr "1000" 0 1000 1`,
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = nil
	for _, j := range e.Calibrations() {
		got = append(got, fmt.Sprintf("%s %s %v", j.Work.Kind, j.Cell.Factors["rate"], j.Work.Duration))
	}
	if want := []string{"rr closed 200ms", "udprr closed 50ms"}; !slices.Equal(got, want) {
		t.Errorf("before the first block %q, want %q", got, want)
	}
	for _, bad := range []string{"0%", "101%", "-5%", "NaN%", "half", "0", "closed loop"} {
		e.Groups[0].Factors["rate"] = []string{bad}
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), "50%") {
			t.Errorf("rate %q: %v", bad, err)
		}
	}
}
