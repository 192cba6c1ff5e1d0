package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"cleat/bench/cell"
	"cleat/bench/experiment"
	"cleat/bench/multipath"
	"cleat/bench/stats"
	"cleat/internal/linkzoo"
	"cleat/traffic"
)

// Round trips of up to zooPingPatience are measured, and their schedule holds: queues of the
// zoo are as long as 500 ms each way, and delays 300 ms.
const (
	zooPingRate     = 20 // per second, of all sockets together
	zooPingSockets  = 40
	zooPingPatience = 2 * time.Second
)

const (
	zooOfferedShare = 0.9                  // of the payload that the links have room for, that datagrams are offered at
	usedShare       = 0.01                 // of all bytes, that a link carries at least to count as used
	policedBytes    = 150e3                // that a policer must see for its losses to count
	lateRelay       = time.Millisecond     // p99 that a reader should know of: a burst takes as long to write
	tooLateRelay    = 5 * time.Millisecond // p99 beyond which the links were not what they should be
)

// zooOffered returns the rate at which datagrams are offered to a case: a share of what a
// tunnel over its links has room for, the same for all networks.
func zooOffered(c linkzoo.Case) float64 {
	const typicalHeaders = 100 // bytes of a datagram's packet in any tunnel
	const message = 1400
	return zooOfferedShare * c.Capacity(0, time.Minute) * message / (message + typicalHeaders)
}

// competitors returns the clients whose streams compete with the network, one cubic stream
// each.
func (b *testbed) competitors(ctx context.Context, job experiment.Job) ([]client, error) {
	var clients []client
	for i, p := range b.Cross {
		s, err := b.serve(ctx, len(b.Pairs)+i, engineCleat, nil)
		if err != nil {
			return nil, err
		}
		args := append([]string{experiment.TCP, p.Dial.String(), "--json", "--duration", job.Work.Duration.String(), "--start-on-stdin",
			"--congestion", "cubic", "--early", steadyFrom(job).String()}, s.controlFlag()...)
		clients = append(clients, client{pair: p, args: args, timeout: 2*job.Work.Duration + graceTime})
	}
	return clients, nil
}

// relateZoo adds to a sample of a case of the zoo what its links, its competitors and the
// round trips have shown.
func (b *testbed) relateZoo(s *cell.Sample, job experiment.Job, rivals []traffic.Result) error {
	c, ok := job.Case()
	if !ok {
		return nil
	}
	if n, _ := strconv.Atoi(job.Cell.Factors["zoo_link"]); n > 0 {
		c = c.Alone(n - 1)
	}
	if s.Latency != "" {
		h, err := stats.MergeHistograms([]string{s.Latency})
		if err != nil {
			return fmt.Errorf("read latencies: %w", err)
		}
		s.Values[cell.LatencyP95] = float64(h.ValueAtQuantile(95))
	}
	for i, link := range c.Competitors() {
		if i < len(rivals) {
			alone := multipath.Spec{Links: 1, RateBitsPerSec: c.Links[link].Rate}
			room, _ := alone.Ideal(multipath.Load{Network: "single"}, multipath.Interval{Whole: job.Work.Duration, To: job.Work.Duration})
			s.Values[cell.Competitor] = rivals[i].SteadyBitsPerSecond / room
		}
	}
	return addRelayReports(s, c, b.RelayReports())
}

// addRelayReports adds what the relay has reported, at the latest once the case had settled
// and at its end.
func addRelayReports(s *cell.Sample, c linkzoo.Case, texts [][]byte) error {
	if len(texts) == 0 {
		return nil
	}
	reports := make([]traffic.ShapedReport, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &reports[i]); err != nil {
			return fmt.Errorf("read the relay's report: %w", err)
		}
	}
	first, last := reports[0], reports[len(reports)-1]
	if len(first.Links) != len(c.Links) || len(last.Links) != len(c.Links) {
		return fmt.Errorf("the relay reports %d links instead of %d", len(last.Links), len(c.Links))
	}
	if len(reports) == 1 {
		first = traffic.ShapedReport{Links: make([]traffic.ShapedLinkStats, len(c.Links))}
	}
	total := 0.0
	for i := range c.Links {
		total += float64(last.Links[i].AB.Bytes - first.Links[i].AB.Bytes)
	}
	for i := range c.Links {
		l, before, after := &c.Links[i], first.Links[i].AB, last.Links[i].AB
		if float64(after.Bytes-before.Bytes) > usedShare*total {
			alone := c.Alone(i)
			s.Values[cell.OwnLatency] = max(s.Values[cell.OwnLatency], float64(alone.Longest()))
		}
		if offered := float64(after.OfferedBytes - before.OfferedBytes); l.Queue == 0 && offered > policedBytes {
			s.Values[cell.PolicedLoss] = max(s.Values[cell.PolicedLoss], float64(after.DroppedBytes-before.DroppedBytes)/offered)
		}
	}
	s.Values[cell.RelayLate] = float64(last.LateP99)
	late := max(last.LateP99, last.GapP99)
	w := cell.Warning{Code: "late-relay", Severity: late.Seconds(),
		Text: fmt.Sprintf("the relay of the links was late: p99 %s, at most %s to deliver; p99 %s to notice packets (%s of processor time in %s, priority %s)",
			micro(last.LateP99), micro(last.LateMax), micro(last.GapP99), micro(last.CPU), micro(last.Running), last.Priority)}
	switch {
	case late > tooLateRelay:
		s.Bad = w
	case late > lateRelay:
		s.Warnings = append(s.Warnings, w)
	}
	return nil
}

func micro(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
