package bench

import (
	"errors"
	"fmt"
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

func TestPlace(t *testing.T) {
	two, four := []int{0, 1}, []int{0, 2, 1, 3}
	for _, tt := range []struct {
		placement      string
		pair           int
		cpus           []int
		client, server []int
	}{
		{"different-cores", 0, two, []int{0}, []int{1}},
		{"different-cores", 1, two, []int{1}, []int{0}}, // neighbours swap roles
		{"different-cores", 2, two, []int{0}, []int{1}},
		{"different-cores", 0, four, []int{0}, []int{2}},
		{"different-cores", 1, four, []int{1}, []int{3}},
		{"different-cores", 2, four, []int{2}, []int{1}},
		{"same-core", 0, two, []int{0}, []int{0}},
		{"same-core", 1, two, []int{1}, []int{1}},
		{"free", 0, two, nil, nil},
		{"different-cores", 0, []int{5}, []int{5}, []int{5}},
	} {
		client, server := cpusOf(tt.placement, tt.pair, tt.cpus)
		if !slices.Equal(client, tt.client) || !slices.Equal(server, tt.server) {
			t.Errorf("%s, pair %d of %v: %v and %v, want %v and %v", tt.placement, tt.pair, tt.cpus, client, server, tt.client, tt.server)
		}
	}
}

// TestPlacementIsBalanced checks that over as many pairs as there are processors each carries as many clients as
// servers, and that the two ends of a pair share none, if there are two.
func TestPlacementIsBalanced(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8} {
		clients, servers := make([]int, n), make([]int, n)
		cpus := make([]int, n)
		for i := range cpus {
			cpus[i] = i
		}
		for pair := range 2 * n {
			client, server := cpusOf("different-cores", pair, cpus)
			if n > 1 && client[0] == server[0] {
				t.Errorf("%d processors: both ends of pair %d are on %d", n, pair, client[0])
			}
			clients[client[0]]++
			servers[server[0]]++
			if pair == n-1 || pair == 2*n-1 {
				if slices.Min(clients) != slices.Max(clients) || slices.Min(servers) != slices.Max(servers) {
					t.Errorf("%d processors, %d pairs: %v clients and %v servers on them", n, pair+1, clients, servers)
				}
			}
		}
	}
}

// TestOneProcessorIsSaid checks that a sample says that its ends share the only processor, although its placement
// is different-cores.
func TestOneProcessorIsSaid(t *testing.T) {
	for _, tt := range []struct {
		placement string
		cpus      int
		want      int
	}{{"different-cores", 1, 1}, {"different-cores", 2, 0}, {"same-core", 1, 0}, {"free", 1, 0}} {
		if got := placementWarnings(tt.placement, tt.cpus); len(got) != tt.want {
			t.Errorf("%s on %d: %v", tt.placement, tt.cpus, got)
		}
	}
}

func TestWarningOf(t *testing.T) {
	for _, tt := range []struct {
		text, code string
		severity   float64
	}{
		{"12 connections failed, the first: EOF", "connections failed, the first", 12},
		{"packets of at most 1400 bytes arrive, although the link's MTU is 1500; TCP adapts", "packets of at most bytes arrive, although the link's MTU is TCP adapts", 0},
		{"partial: stopped after 0.2 s of 1 s", "partial", 0},
		{"MPTCP fell back to TCP", "MPTCP fell back to TCP", 0},
	} {
		want := cell.Warning{Code: tt.code, Severity: tt.severity, Text: tt.text}
		if got := warningOf(tt.text); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// calm returns a sample that nothing disturbed.
func calm() cell.Sample {
	return cell.Sample{CPU: cell.CPU{Wall: 1, Foreign: 0.05, Steal: 0.01}, Values: map[cell.Metric]float64{cell.LatencyP50: 50_000}}
}

func TestDisturbance(t *testing.T) {
	job := experiment.Job{Work: experiment.Work{Duration: time.Second}}
	for _, tt := range []struct {
		name  string
		spoil func(*cell.Sample, *traffic.Result)
		want  string // a part of the reason; "": it counts
	}{
		{"calm", func(*cell.Sample, *traffic.Result) {}, ""},
		{"foreign load", func(s *cell.Sample, _ *traffic.Result) { s.CPU.Foreign = 0.5 }, "other programs used 0.50 processors"},
		{"steal", func(s *cell.Sample, _ *traffic.Result) { s.CPU.Steal = 0.5 }, "the hypervisor took 25 %"},
		{"late generator", func(s *cell.Sample, _ *traffic.Result) { s.Lag = 40 * time.Microsecond }, "the generator was 40µs late"},
		{"late client", func(_ *cell.Sample, r *traffic.Result) { r.StartedLate = 80 * time.Millisecond }, "a client began 80ms late"},
		{"a little late", func(_ *cell.Sample, r *traffic.Result) { r.StartedLate = 20 * time.Millisecond }, ""},
		{"meter starved", func(s *cell.Sample, _ *traffic.Result) { s.CPU.Wall = 0.01 }, "too busy to read its processor time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, r := calm(), traffic.Result{}
			tt.spoil(&s, &r)
			got := disturbance(s, []traffic.Result{{}, r}, 2, job).Text
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDisturbedSearch(t *testing.T) {
	for foreign, want := range map[float64]string{0.2: "", 0.4: "other programs used 0.20 processors during the search"} {
		if got := disturbedSearch(cell.CPU{Wall: 2, Foreign: foreign}).Text; got != want {
			t.Errorf("%v s of 2: %q, want %q", foreign, got, want)
		}
	}
	if got := disturbedSearch(cell.CPU{}).Text; got != "" {
		t.Errorf("no search: %q", got)
	}
}

// TestForeignLoadOnTheHost checks that foreign load does not disturb a host
// baseline: its own programs run outside of the lab and count as foreign.
func TestForeignLoadOnTheHost(t *testing.T) {
	s := calm()
	s.CPU.Foreign = 1.5
	job := experiment.Job{Cell: cell.Cell{Network: "host-loopback"}, Work: experiment.Work{Duration: time.Second}}
	if got := disturbance(s, nil, 2, job).Text; got != "" {
		t.Errorf("got %q", got)
	}
}

func TestCollect(t *testing.T) {
	pair := func(rate float64, sent, lost uint64) traffic.Result {
		return traffic.Result{BitsPerSecond: rate, PacketsSent: sent, Lost: lost, OfferedBitsPerSecond: 10, SentBitsPerSecond: 10, PacketsPerSecond: rate / 2, TransactionsPerSecond: rate}
	}
	results := []traffic.Result{pair(10, 100, 10), pair(30, 300, 10)}
	for _, tt := range []struct {
		work string
		want map[cell.Metric]float64
	}{
		{experiment.TCP, map[cell.Metric]float64{cell.Throughput: 40}},
		{experiment.UDP, map[cell.Metric]float64{cell.Throughput: 40, cell.Loss: 20.0 / 400}},
		{experiment.Packets, map[cell.Metric]float64{cell.Packets: 20, cell.Loss: 20.0 / 400}},
		{experiment.CRR, map[cell.Metric]float64{cell.Connections: 40}},
	} {
		t.Run(tt.work, func(t *testing.T) {
			s := cell.Sample{Work: tt.work}
			if err := collect(&s, results); err != nil {
				t.Fatal(err)
			}
			for m, want := range tt.want {
				if s.Values[m] != want {
					t.Errorf("%s is %v, want %v", m, s.Values[m], want)
				}
			}
		})
	}
}

func TestCollectWarnsOfASlowSender(t *testing.T) {
	s := cell.Sample{Work: experiment.UDP}
	err := collect(&s, []traffic.Result{{BitsPerSecond: 1, OfferedBitsPerSecond: 10, SentBitsPerSecond: 4}})
	if err != nil || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0].Text, "could not keep up") {
		t.Errorf("warnings %v, %v", s.Warnings, err)
	}
}

func TestCollectRefusesASearchWithoutAResult(t *testing.T) {
	s := cell.Sample{Work: experiment.UDP}
	if err := collect(&s, []traffic.Result{{}}); !errors.Is(err, errNothingArrived) {
		t.Errorf("got %v", err)
	}
}

func TestAbsence(t *testing.T) {
	lack := &link.Lack{What: "links of kind \"ipvlan\"", Reason: "the kernel has none", Remedy: "modprobe ipvlan"}
	for _, tt := range []struct {
		name string
		err  error
		want cell.Absent
	}{
		{"lack", fmt.Errorf("wire: %w", lack), cell.Absent{Reason: `links of kind "ipvlan": the kernel has none`, Remedy: "modprobe ipvlan"}},
		{"never", &wiring.NotApplicable{Why: "by design"}, cell.Absent{Reason: "by design", NotApplicable: true}},
		{"other", errors.New("no route"), cell.Absent{Reason: "no route"}},
		{"black hole", blackHole(probe{LinkMTU: 9000, PathMTU: 1500}), cell.Absent{
			Reason: "control messages pass, data does not: packets of 9000 bytes, the link's MTU, do not arrive; the largest that do have 1500 bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Absence(tt.err); got.Reason != tt.want.Reason || got.Remedy != tt.want.Remedy || got.NotApplicable != tt.want.NotApplicable {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNote(t *testing.T) {
	for name, c := range map[string]cell.Cell{
		"veth":                        {Network: "veth", Topology: "local"},
		"bridge (switched, MTU 9000)": {Network: "bridge", Topology: "switched", MTU: 9000},
		"vxlan (switched, port 8472)": {Network: "vxlan", Topology: "switched", Factors: map[string]string{"vxlan_port": "8472"}},
		"vxlan (switched)":            {Network: "vxlan", Topology: "switched", Factors: map[string]string{"vxlan_port": "4789"}},
		"pasta (inbound)":             {Network: "pasta", Topology: "local", Direction: "inbound"},
	} {
		e := Environment{Networks: map[string]NetworkFacts{}}
		e.note(c, NetworkFacts{LinkMTU: 1})
		if e.Networks[name].LinkMTU != 1 {
			t.Errorf("%+v is noted as %v, want %q", c, e.Networks, name)
		}
	}
}

// TestStoreKeepsResults checks that a directory with results is not overwritten.
func TestStoreKeepsResults(t *testing.T) {
	dir := t.TempDir()
	s, err := newStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.add(calm()); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(dir); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a second run in the same directory: %v, want %v", err, ErrNotEmpty)
	}
}

func TestHopelessJobsAreGivenUp(t *testing.T) {
	job := func(network string) experiment.Job {
		return experiment.Job{Cell: cell.Cell{Network: network}, Work: experiment.Work{Kind: experiment.TCP}}
	}
	f := failures{}
	for range maxFailures {
		if f.hopeless(job("a")) {
			t.Fatal("given up too early")
		}
		f.note(job("a"), true)
		f.note(job("b"), true)
	}
	f.note(job("c"), false)
	for range 2 * maxFailures {
		f.note(job("c"), true)
	}
	if !f.hopeless(job("a")) || !f.hopeless(job("b")) {
		t.Error("jobs that never worked are not given up")
	}
	if f.hopeless(job("c")) || f.hopeless(job("d")) {
		t.Error("a job that worked once, or was never tried, is given up")
	}
}

// TestNoRateIsAnError checks that a job whose rate is a share of nothing known is not measured: it would be a closed loop
// under the name of a schedule.
func TestNoRateIsAnError(t *testing.T) {
	job := experiment.Job{Cell: cell.Cell{Network: "veth", Factors: map[string]string{cell.RateFactor: "50%"}}, Work: experiment.Work{Kind: experiment.RR}}
	if err := (&run{}).measure(t.Context(), nil, job, &cell.Sample{}); !errors.Is(err, errNoRate) {
		t.Error(err)
	}
}
