package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/wiring"
	"cleat/link"
	"cleat/traffic"
)

func linksJob(network, work string, factors map[string]string) experiment.Job {
	return experiment.Job{
		Cell: cell.Cell{Network: network, Links: 4, Pairs: 1, Streams: 1, Engine: "cleat", MessageBytes: 1400, Factors: factors},
		Work: experiment.Work{Kind: work, Duration: 5 * time.Second},
	}
}

// TestRelate compares the shares of the ideal with numbers computed by hand: one of
// four links dies.
func TestRelate(t *testing.T) {
	job := linksJob("tunnel", experiment.TCP, map[string]string{"link_rate": "100M", "variant": "blackhole"})
	share := (1500.0 - 52 - 52) / 1514
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 350e6 * share * 0.9}}
	relate(&s, job, []traffic.Result{
		{Work: experiment.TCP, EarlySeconds: 2, EarlyBitsPerSecond: 200e6 * share, SteadyBitsPerSecond: 100e6 * share, Outage: 30 * time.Millisecond},
		{Work: experiment.TCP, EarlySeconds: 2, EarlyBitsPerSecond: 160e6 * share, SteadyBitsPerSecond: 150e6 * share, Outage: 40 * time.Millisecond},
	})
	dead := 2.5 / 3 // of the last link's time after the first 2 s
	for m, want := range map[cell.Metric]float64{
		cell.Ideal: 350e6 * share, cell.OfIdeal: 0.9, cell.EarlyOfIdeal: 0.9, cell.SteadyOfIdeal: 250 / (400 - 100*dead), cell.Outage: 40e6,
	} {
		if got := s.Values[m]; math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s is %v, want %v", m, got, want)
		}
	}
	if _, ok := s.Values[cell.LostPackets]; ok {
		t.Error("a stream has lost datagrams")
	}
}

// TestRelateStalled checks that a stream that stalls after its beginning counts as
// 0 %, instead of being left out of the median.
func TestRelateStalled(t *testing.T) {
	job := linksJob("tunnel", experiment.TCP, map[string]string{"link_rate": "100M"})
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 1e6}}
	relate(&s, job, []traffic.Result{{Work: experiment.TCP, EarlySeconds: 2, EarlyBitsPerSecond: 2e6, Outage: 3 * time.Second}})
	if v, ok := s.Values[cell.SteadyOfIdeal]; !ok || v != 0 {
		t.Errorf("steady is %v, %v; want 0, true", v, ok)
	}
}

// TestRelateLong checks that an early part longer than 2 s is not reported as the
// first 2 s.
func TestRelateLong(t *testing.T) {
	job := linksJob("tunnel", experiment.TCP, map[string]string{"link_rate": "100M", "variant": "delays"})
	job.Work.Duration, job.Work.Steady = 45*time.Second, 30*time.Second
	share := (1500.0 - 52 - 52) / 1514
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 1e6}}
	relate(&s, job, []traffic.Result{{Work: experiment.TCP, EarlySeconds: 30, EarlyBitsPerSecond: 100e6, SteadyBitsPerSecond: 380e6 * share}})
	if got := s.Values[cell.SteadyOfIdeal]; math.Abs(got-0.95) > 1e-9 {
		t.Errorf("steady is %v, want 0.95", got)
	}
	if v, ok := s.Values[cell.EarlyOfIdeal]; ok {
		t.Errorf("30 s are taken for the first 2: %v", v)
	}
}

// TestRelateOffered checks that the offered rate bounds the ideal.
func TestRelateOffered(t *testing.T) {
	job := linksJob("tunnel", experiment.UDP, map[string]string{"link_rate": "100M", "offered": "100M"})
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 99e6}}
	relate(&s, job, []traffic.Result{{Work: experiment.UDP}})
	if got := s.Values[cell.OfIdeal]; math.Abs(got-0.99) > 1e-9 || s.Values[cell.Ideal] != 100e6 {
		t.Errorf("%v of %v, want 0.99 of what is offered", got, s.Values[cell.Ideal])
	}
}

func TestRelateDatagrams(t *testing.T) {
	job := linksJob("tunnel", experiment.UDP, map[string]string{"link_rate": "100M"})
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 100e6}}
	relate(&s, job, []traffic.Result{{Work: experiment.UDP, Lost: 3}, {Work: experiment.UDP}})
	if got := s.Values[cell.LostPackets]; got != 3 {
		t.Errorf("%v datagrams lost, want 3", got)
	}
	if got, want := s.Values[cell.OfIdeal], 100*(1400+28+52+14)/(400*1400.0); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v of the ideal, want %v", got, want)
	}
}

// TestRelateWithoutIdeal checks cells whose ideal can't be computed.
func TestRelateWithoutIdeal(t *testing.T) {
	for name, job := range map[string]experiment.Job{
		"no links":     {Cell: cell.Cell{Network: "veth"}, Work: experiment.Work{Kind: experiment.TCP, Duration: time.Second}},
		"no rate":      linksJob("tunnel", experiment.TCP, nil),
		"transactions": linksJob("tunnel", experiment.RR, map[string]string{"link_rate": "100M"}),
	} {
		s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 1}}
		relate(&s, job, []traffic.Result{{Work: job.Work.Kind, BitsPerSecond: 1}})
		for _, m := range []cell.Metric{cell.Ideal, cell.OfIdeal, cell.EarlyOfIdeal, cell.SteadyOfIdeal} {
			if v, ok := s.Values[m]; ok {
				t.Errorf("%s: %s is %v", name, m, v)
			}
		}
	}
}

func TestArgumentsOverLinks(t *testing.T) {
	words := func(job experiment.Job) string {
		return strings.Join(arguments(job, wiring.Pair{}, &server{}), " ")
	}
	rate := map[string]string{"link_rate": "100M"}
	if got := words(linksJob("tunnel", experiment.TCP, rate)); !strings.Contains(got, "--early 2s") {
		t.Errorf("a stream over links is started by %q", got)
	}
	if got := words(linksJob("tunnel", experiment.Loaded, rate)); !strings.HasPrefix(got, "tcp ") || !strings.Contains(got, "--early 2s") {
		t.Errorf("a load is made by %q", got)
	}
	if got := words(linksJob("tunnel", experiment.UDP, map[string]string{"offered": "search"})); strings.Contains(got, "--early") {
		t.Errorf("a search is started by %q", got)
	}
	long := linksJob("tunnel", experiment.TCP, rate)
	long.Work.Steady = 30 * time.Second
	if got := words(long); !strings.Contains(got, "--early 30s") {
		t.Errorf("a long stream is started by %q", got)
	}
	if got := words(linksJob("veth", experiment.TCP, nil)); strings.Contains(got, "--early") {
		t.Errorf("without links: %q", got)
	}
	pinger := client{}.pinger(5*time.Second, &server{control: "/c"}, false)
	if got := strings.Join(pinger.args, " "); !strings.HasPrefix(got, "udprr ") || !strings.Contains(got, "--duration 5s") || !strings.Contains(got, "--control unix:/c") {
		t.Errorf("round trips are asked for by %q", got)
	}
	zoo := client{}.pinger(5*time.Second, &server{control: "/c"}, true)
	if got := strings.Join(zoo.args, " "); !strings.Contains(got, "--patience 2s") || !strings.Contains(got, "--rate 20") {
		t.Errorf("round trips of the zoo are asked for by %q", got)
	}
}

// TestCollectLoaded checks that the rate is the stream's, and the loss that of all datagrams, late ones too.
func TestCollectLoaded(t *testing.T) {
	s := cell.Sample{Work: experiment.Loaded}
	few := []string{traffic.FewTransactions + ": of this sample, not of all"}
	err := collect(&s, []traffic.Result{{Work: "tcp", BitsPerSecond: 10}, {Work: "udprr", Transactions: 85, Late: 5, Lost: 10, Warnings: few}})
	if err != nil || s.Values[cell.Throughput] != 10 || s.Values[cell.Loss] != 0.1 {
		t.Errorf("%v, %v", s.Values, err)
	}
	if len(s.Warnings) > 0 { // percentiles are those of all samples of a cell
		t.Errorf("warnings %v", s.Warnings)
	}
}

// TestIsTemporary checks which errors are tried again.
func TestIsTemporary(t *testing.T) {
	for name, tt := range map[string]struct {
		got  *testbed
		err  error
		want bool
	}{
		"no error":                   {&testbed{}, nil, false},
		"full-size packets are lost": {&testbed{probe: probe{BlackHole: true}}, nil, true},
		"a tunnel that is down":      {nil, errors.New("reach 198.18.250.2 through the tunnel: timeout"), true},
		"no traffic passes":          {&testbed{}, errors.New("no traffic passes"), true},
		"a missing program":          {nil, fmt.Errorf("wire mpt: %w", &link.Lack{What: "mpt"}), false},
		"a design":                   {nil, &wiring.NotApplicable{Why: "it joins containers of one host only"}, false},
		"a parameter":                {nil, &link.ParamError{Kind: "links"}, false},
	} {
		if got := isTemporary(tt.got, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestColdTestbedsAreNotKept checks that cold networks take no room in the plan.
func TestColdTestbedsAreNotKept(t *testing.T) {
	b := newTestbeds(t.TempDir(), nil, nil)
	veth := experiment.Job{Cell: cell.Cell{Network: "veth", Pairs: 1}}
	if got := b.plan([]experiment.Job{linksJob("tunnel", experiment.TCP, nil), veth}); got != nodesFor(1) {
		t.Errorf("%d nodes are planned, want %d", got, nodesFor(1))
	}
}

// TestRootlessTestbedsAreKeptOneAtATime checks that a rootless network's program never
// idles beside a measurement of another one, and that other networks are kept.
func TestRootlessTestbedsAreKeptOneAtATime(t *testing.T) {
	job := func(network string, mtu int) experiment.Job {
		return experiment.Job{Cell: cell.Cell{Network: network, MTU: mtu, Pairs: 1}}
	}
	b := newTestbeds(t.TempDir(), nil, nil)
	jobs := []experiment.Job{job("pasta", 1500), job("pasta", 65520), job("cleat", 1500), job("veth", 1500)}
	if got := b.plan(jobs); got != 2*nodesFor(1) {
		t.Errorf("%d nodes are planned, want %d", got, 2*nodesFor(1))
	}
	for _, j := range jobs {
		b.cached = append(b.cached, &testbed{Network: &wiring.Network{}, job: j})
	}
	b.dropRootless(job("loopback", 0))
	if len(b.cached) != len(jobs) {
		t.Errorf("for loopback: %d of %d are kept", len(b.cached), len(jobs))
	}
	b.dropRootless(job("pasta", 9000))
	if len(b.cached) != 1 || b.cached[0].job.Cell.Network != "veth" {
		t.Errorf("for another pasta: %d are kept, want veth alone", len(b.cached))
	}
}

func TestNoteOverLinks(t *testing.T) {
	got := linkDetails(cell.Cell{Network: "tunnel", Topology: "links", Links: 4,
		Factors: map[string]string{"link_rate": "100M", "variant": "plain", "outer": "ipv4", "scheduler": "flow", "crypto": "on"}})
	if want := []string{"4 links", "100M", "plain", "ipv4", "flow", "encrypted"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
