package report

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"cleat/bench/cell"
	"cleat/bench/summary"
)

// synthetic makes deterministic results that look like real runs.
type synthetic struct {
	rng *rand.Rand
	in  Input
}

func newSynthetic(preset string) *synthetic {
	return &synthetic{
		rng: rand.New(rand.NewPCG(1, 2)),
		in:  Input{Preset: preset, Host: "example", Date: "2026-10-09", Standings: map[Mark]Standing{}, Environment: syntheticEnvironment(preset)},
	}
}

// add adds n samples of one cell around the given value of each metric, and their
// summary.
func (g *synthetic) add(c cell.Cell, work string, n int, spread float64, cpu cell.CoresPerGbit, values map[cell.Metric]float64) {
	sums := map[cell.Metric][]float64{}
	for b := 1; b <= n; b++ {
		s := cell.Sample{Cell: c, Work: work, Block: b, Started: time.Unix(1_760_000_000+int64(b), 0).UTC(), Values: map[cell.Metric]float64{}}
		for _, m := range cell.Metrics() {
			if v, ok := values[m]; ok {
				x := v * math.Exp(g.rng.NormFloat64()*spread)
				s.Values[m] = x
				sums[m] = append(sums[m], x)
			}
		}
		gbit := s.Values[cell.Throughput] / 1e9 // in one second
		s.CPU = cell.CPU{User: cpu.User * gbit, System: cpu.System * gbit, SoftIRQ: cpu.SoftIRQ * gbit, Idle: 1, Wall: 1}
		g.in.Samples = append(g.in.Samples, s)
	}
	for _, m := range cell.Metrics() {
		xs := sums[m]
		if len(xs) == 0 {
			continue
		}
		slices.Sort(xs)
		mean, sq := 0.0, 0.0
		for _, x := range xs {
			mean += x / float64(n)
		}
		for _, x := range xs {
			sq += (x - mean) * (x - mean)
		}
		sum := cell.Summary{Cell: c, Metric: m, Unit: m.Unit(), N: n, Median: (xs[(n-1)/2] + xs[n/2]) / 2,
			CILow: xs[min(n-1, 1)], CIHigh: xs[max(0, n-2)], CILevel: 0.95, Mean: mean, Available: true,
			StdErr: math.Sqrt(sq / float64(max(1, n-1)) / float64(n))}
		if n < 6 {
			sum.Warnings = append(sum.Warnings, cell.Warning{Code: summary.CodeFewSamples, Text: fmt.Sprintf("%d samples: the interval is their range", n)})
			sum.CILow, sum.CIHigh, sum.CILevel = xs[0], xs[n-1], 1-2*math.Pow(0.5, float64(n))
		}
		if m == cell.Throughput {
			sum.CoresPerGbit = cpu
		}
		g.in.Summaries = append(g.in.Summaries, sum)
	}
}

func (g *synthetic) warn(network string, m cell.Metric, bad int, text string) {
	for i := range g.in.Summaries {
		if s := &g.in.Summaries[i]; s.Network == network && s.Metric == m {
			s.BadSamples += bad
			if bad > 0 {
				s.Warnings = append(s.Warnings, cell.Warning{Code: "late", Count: bad, Text: "the generator was late"})
			}
			if text != "" {
				s.Warnings = append(s.Warnings, cell.Note(text))
			}
		}
	}
}

func (g *synthetic) stand(network string, m cell.Metric, st Standing) {
	for _, s := range g.in.Summaries {
		if s.Network == network && s.Metric == m {
			g.in.Standings[Mark{s.Key(), m}] = st
		} else if mark := (Mark{s.Key(), m}); g.in.Standings[mark] == Unranked {
			g.in.Standings[mark] = Behind
		}
	}
}

// quickInput returns a run of the preset quick: 14 networks, two unavailable.
func quickInput() Input {
	g := newSynthetic("quick")
	for _, q := range []struct {
		name                 string
		gbit, p50, p99, p999 float64
		user, system, soft   float64
		spread               float64
	}{
		{"host-loopback", 55.1, 31, 58, 140, 0.002, 0.024, 0.006, 0.02},
		{"loopback", 54.4, 31.5, 59, 150, 0.002, 0.024, 0.006, 0.02},
		{"own-address", 54.0, 32, 60, 149, 0.002, 0.024, 0.006, 0.02},
		{"veth", 35.2, 41, 77, 240, 0.003, 0.034, 0.011, 0.03},
		{"bridge", 31.9, 44, 82, 260, 0.003, 0.035, 0.015, 0.03},
		{"bridge-nf", 24.8, 49, 96, 330, 0.003, 0.037, 0.027, 0.04},
		{"published-host", 23.6, 52, 101, 380, 0.004, 0.038, 0.029, 0.05},
		{"nat-out", 26.7, 50, 95, 350, 0.004, 0.037, 0.024, 0.04},
		{"macvlan-bridge", 36.4, 40, 74, 215, 0.003, 0.033, 0.010, 0.03},
		{"vxlan", 12.3, 63, 133, 640, 0.005, 0.071, 0.052, 0.06},
		{"tun", 6.4, 96, 240, 1900, 0.06, 0.19, 0.04, 0.09},
		{"vxlan-multicast-bridge", 10.1, 69, 148, 720, 0.005, 0.078, 0.061, 0.06},
		{"pasta", 2.8, 94, 310, 5400, 0.21, 0.36, 0.05, 0.30},
		{"slirp4netns", 3.4, 155, 420, 3100, 0.34, 0.22, 0.04, 0.08},
	} {
		c := cell.Cell{Network: q.name, Runtime: cell.Native, Topology: "local", Transport: "tcp", Direction: "between",
			MTU: 1500, Pairs: 1, Streams: 1, Links: 1, MessageBytes: 131072, Congestion: "cubic", Placement: "different-cores", Engine: "cleat"}
		g.add(c, "tcp", 8, q.spread, cell.CoresPerGbit{User: q.user, System: q.system, SoftIRQ: q.soft},
			map[cell.Metric]float64{cell.Throughput: q.gbit * 1e9})
		c.MessageBytes, c.Factors = 64, map[string]string{cell.RateFactor: "50%"}
		g.add(c, "rr", 8, q.spread, cell.CoresPerGbit{}, map[cell.Metric]float64{
			cell.LatencyP50: q.p50 * 1e3, cell.LatencyP99: q.p99 * 1e3, cell.LatencyP999: q.p999 * 1e3})
	}
	for i := range g.in.Summaries {
		if s := &g.in.Summaries[i]; s.Metric.IsLatency() {
			s.Rate = 3200
		}
	}
	g.stand("macvlan-bridge", cell.Throughput, Best)
	g.stand("veth", cell.Throughput, Tied)
	g.stand("macvlan-bridge", cell.LatencyP50, Best)
	g.stand("veth", cell.LatencyP50, Tied)
	g.stand("vxlan", cell.Throughput, Best)
	g.stand("slirp4netns", cell.Throughput, Best)
	g.warn("pasta", cell.Throughput, 2, "bimodal: 5 samples near 3.4 Gbit/s, 3 near 1.1 Gbit/s")
	g.warn("tun", cell.LatencyP999, 1, "")
	g.warn("vxlan", cell.Throughput, 0, "packets were never really segmented: veth carries super-packets")
	ip := "this kernel has no ipvlan (CONFIG_IPVLAN)"
	modprobe := "modprobe ipvlan, or a distribution kernel"
	for _, n := range []string{"ipvlan-l2", "ipvlan-l3"} {
		g.in.Absent = append(g.in.Absent, cell.Absent{Cell: cell.Cell{Network: n, Transport: "tcp"}, Work: "tcp", Reason: ip, Remedy: modprobe})
	}
	g.in.Absent = append(g.in.Absent, cell.Absent{Cell: cell.Cell{Network: "macvlan-private", Transport: "tcp"}, Work: "tcp",
		Reason: "private macvlan devices of one parent never reach each other", NotApplicable: true})
	g.in.Recommendation = []Advice{{
		Question: "Containers on one host, by throughput",
		Network:  "macvlan-bridge",
		Summary:  "36.4 Gbit/s over one TCP stream, 0.66 of this machine's loopback, for 0.046 cores per Gbit/s.",
		Reasons: []string{
			"1.14 × the throughput of bridge (1.09–1.19).",
			"The lowest median latency, 40 µs, among those compared.",
		},
		RunnerUp: []string{"veth: 35.2 Gbit/s, can't be told apart (ratio 0.97, 0.93–1.01)"},
		Caveats: []string{
			"host ↔ container does not work: a macvlan device can't reach its own parent",
			"does not work over Wi-Fi: an access point accepts one MAC address per station",
		},
	}, {
		Question: "Containers of different hosts",
		Network:  "vxlan", Summary: "12.3 Gbit/s over one TCP stream.",
		Reasons: []string{"1.22 × the throughput of vxlan-multicast-bridge (1.13–1.31)."},
		Caveats: []string{"50 bytes of each packet are headers: lower the MTU inside, or raise it outside"},
	}, {
		Question: "To the outside without root",
		Network:  "slirp4netns", Summary: "3.4 Gbit/s over one TCP stream.",
		Reasons: []string{"pasta stalls on this machine: its samples form two clusters."},
	}}
	return g.in
}

// pairsInput returns a run by number of pairs with three repeats.
func pairsInput() Input {
	g := newSynthetic("pairs")
	for _, topology := range []string{"local", "switched"} {
		for _, mtu := range []int{1500, 9000} {
			for _, q := range []struct {
				name  string
				level float64
			}{{"loopback", 2.1}, {"bridge", 1}, {"published-container", 0.2}, {"published-container-nat", 0.7}, {"macvlan-bridge", 1.3}, {"ipvlan-l2", 1.34}, {"ipvlan-l3", 1.42}} {
				for pairs := 1; pairs <= 128; pairs *= 2 {
					for _, transport := range []string{"tcp", "udp"} {
						if transport == "udp" && pairs > 16 || q.name == "loopback" && topology == "switched" {
							continue
						}
						base := 22 * math.Pow(float64(pairs), -0.1) * q.level
						if transport == "udp" {
							base = (2.4 + float64(mtu)/9000*3.6) * math.Pow(float64(pairs), -0.3) * q.level
						}
						if topology == "switched" {
							base = 9.2 * math.Pow(float64(pairs), -0.06) * (0.93 + 0.05*q.level) * (0.8 + 0.2*float64(mtu)/9000)
						}
						c := cell.Cell{Network: q.name, Runtime: cell.Native, Topology: topology, Transport: transport, Direction: "between",
							MTU: mtu, Pairs: pairs, Streams: 1, Links: 1, MessageBytes: 131072, Congestion: "cubic", Placement: "free", Engine: "cleat"}
						values := map[cell.Metric]float64{cell.Throughput: base * 1e9}
						if transport == "udp" {
							c.Congestion, c.MessageBytes = "", 8192
						}
						g.add(c, transport, 3, 0.05, cell.CoresPerGbit{User: 0.003, System: 0.03 / q.level * math.Pow(float64(pairs), 0.08), SoftIRQ: 0.012 / q.level}, values)
					}
				}
			}
		}
	}
	return g.in
}

// udpInput returns a run of the preset udp on two networks.
func udpInput() Input {
	g := newSynthetic("udp")
	for _, network := range []string{"veth", "macvlan-bridge"} {
		for _, bytes := range []int{1472, 8192, 65507} {
			for _, gso := range []string{"off", "on"} {
				for i, rate := range []string{"1G", "2G", "5G", "10G", "20G"} {
					offered := []float64{1, 2, 5, 10, 20}[i]
					limit := 1.6 + float64(bytes)/9000
					if gso == "on" {
						limit *= 2.5
					}
					got := min(offered, limit*(1+0.1*float64(len(network)-4)/10))
					c := cell.Cell{Network: network, Topology: "local", Transport: "udp", MTU: 1500, Pairs: 1, Streams: 1,
						MessageBytes: bytes, Placement: "different-cores", Engine: "cleat", Factors: map[string]string{"gso": gso, "offered": rate}}
					g.add(c, "udp", 10, 0.03, cell.CoresPerGbit{User: 0.03, System: 0.2, SoftIRQ: 0.1},
						map[cell.Metric]float64{cell.Throughput: got * 1e9, cell.Loss: 1 - got/offered})
				}
			}
		}
	}
	return g.in
}

func syntheticEnvironment(preset string) map[string]any {
	const text = `{
	"seed": 4711, "preset": "PRESET", "partial": false, "started": "2026-10-09T08:53:20Z", "duration_seconds": 141.2,
	"versions": {"cleat": "0.1.0", "go": "go1.25.0", "iperf3": "3.12", "pasta": "2023-03-29", "slirp4netns": "1.2.0"},
	"host": {
		"kernel": {"release": "6.18.0"}, "hostname": "example", "virtualization": "kvm", "accounting": "tick",
		"cpu": {"model": "Example Processor 8481C @ 2.70 GHz", "online": 2, "threads_per_core": 1, "governor": "performance", "mitigations": ["spectre_v2: enhanced IBRS", "mds: not affected"]},
		"memory_bytes": 8318976000,
		"sysctl": {"net.ipv4.tcp_congestion_control": "cubic", "net.core.rmem_max": 212992, "net.bridge.bridge-nf-call-iptables": 1, "net.ipv4.conf.all.rp_filter": 2},
		"warnings": ["the processor's frequency is not fixed"]
	},
	"lab": {"flavour": "user", "uid": 1000}
	}`
	var env map[string]any
	if err := json.Unmarshal([]byte(text), &env); err != nil {
		panic(err)
	}
	env["preset"] = preset
	return env
}
