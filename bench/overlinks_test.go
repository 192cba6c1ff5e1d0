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

// TestRelate holds the parts of the ideal against sums done by hand: three of
// four links live on.
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
		t.Error("a stream lost datagrams")
	}
}

// TestRelateStalled: a stream that stands still after its beginning counts with
// 0 %, instead of being left out of the median.
func TestRelateStalled(t *testing.T) {
	job := linksJob("tunnel", experiment.TCP, map[string]string{"link_rate": "100M"})
	s := cell.Sample{Cell: job.Cell, Work: job.Work.Kind, Values: map[cell.Metric]float64{cell.Throughput: 1e6}}
	relate(&s, job, []traffic.Result{{Work: experiment.TCP, EarlySeconds: 2, EarlyBitsPerSecond: 2e6, Outage: 3 * time.Second}})
	if v, ok := s.Values[cell.SteadyOfIdeal]; !ok || v != 0 {
		t.Errorf("steady is %v, %v; want 0, true", v, ok)
	}
}

// TestRelateLong: where the steady part begins later, what comes before is not
// called the first 2 s.
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

// TestRelateOffered: what is not sent can't arrive.
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

// TestRelateWithoutIdeal: nothing is made up for what has none.
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
	beside := client{}.beside(linksJob("tunnel", experiment.Loaded, rate), &server{control: "/c"})
	if got := strings.Join(beside.args, " "); !strings.HasPrefix(got, "udprr ") || !strings.Contains(got, "--duration 5s") || !strings.Contains(got, "--control unix:/c") {
		t.Errorf("round trips are asked for by %q", got)
	}
}

// TestCollectLoaded: the stream's rate, the datagrams' loss.
func TestCollectLoaded(t *testing.T) {
	s := cell.Sample{Work: experiment.Loaded}
	err := collect(&s, []traffic.Result{{Work: "tcp", BitsPerSecond: 10}, {Work: "udprr", Transactions: 90, Lost: 10}})
	if err != nil || s.Values[cell.Throughput] != 10 || s.Values[cell.Loss] != 0.1 {
		t.Errorf("%v, %v", s.Values, err)
	}
}

// TestWorthAnother: one unlucky moment of a busy machine does not take a network
// out of an experiment; what is not there is not asked for twice.
func TestWorthAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		got  *testbed
		err  error
		want bool
	}{
		"all is well":               {&testbed{}, nil, false},
		"full-size packets vanish":  {&testbed{probe: probe{BlackHole: true}}, nil, true},
		"a tunnel that is not up":   {nil, errors.New("reach 198.18.250.2 through the tunnel: timeout"), true},
		"no traffic passes":         {&testbed{}, errors.New("no traffic passes"), true},
		"a program that is missing": {nil, fmt.Errorf("wire mpt: %w", &link.Lack{What: "mpt"}), false},
		"a design":                  {nil, &wiring.NotApplicable{Why: "it joins containers of one host only"}, false},
		"a parameter":               {nil, &link.ParamError{Kind: "links"}, false},
	} {
		if got := worthAnother(tt.got, tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestColdTestbedsAreNotKept, so that they take no room.
func TestColdTestbedsAreNotKept(t *testing.T) {
	b := newTestbeds(t.TempDir(), nil)
	veth := experiment.Job{Cell: cell.Cell{Network: "veth", Pairs: 1}}
	if got := b.plan([]experiment.Job{linksJob("tunnel", experiment.TCP, nil), veth}); got != nodesFor(1) {
		t.Errorf("%d nodes are planned, want %d", got, nodesFor(1))
	}
}

func TestNoteOverLinks(t *testing.T) {
	got := linkDetails(cell.Cell{Network: "tunnel", Topology: "links", Links: 4,
		Factors: map[string]string{"link_rate": "100M", "variant": "plain", "outer": "ipv4", "scheduler": "flow", "crypto": "on"}})
	if want := []string{"4 links", "100M", "plain", "ipv4", "flow", "encrypted"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
