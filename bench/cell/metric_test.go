package cell

import (
	"slices"
	"testing"
)

func TestScale(t *testing.T) {
	for _, c := range []struct {
		m    Metric
		x    float64
		want string
	}{
		{Throughput, 34.51e9, "34.5 Gbit/s"}, {Loss, 0.0051, "0.510 %"}, {LatencyP99, 123_400, "123 µs"},
		{Connections, 9312, "9310 1/s"}, {Packets, 1.25e6, "1250 1000/s"}, {SetupTime, 12.34e6, "12.3 ms"},
	} {
		s := c.m.Scale()
		if got := s.Of(c.x) + " " + s.Unit; got != c.want {
			t.Errorf("%s %g: %q, want %q", c.m, c.x, got, c.want)
		}
	}
}

func TestTitlesDiffer(t *testing.T) {
	seen := map[string]Metric{}
	for _, m := range Metrics() {
		if other, ok := seen[m.Title()]; ok || m.Title() == "" {
			t.Errorf("%s and %s are both %q", m, other, m.Title())
		}
		seen[m.Title()] = m
	}
}

func TestUnknownMetricsComeLast(t *testing.T) {
	for _, m := range Metrics() {
		if CompareMetrics(m, "aaa") >= 0 || CompareMetrics("aaa", m) <= 0 {
			t.Errorf("an unknown metric is sorted before %s", m)
		}
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		m    Metric
		x    float64
		want string
	}{
		{Throughput, 34.6e9, "34.6 Gbit/s"}, {Throughput, 89e6, "89.0 Mbit/s"}, {LatencyP50, 41e3, "41.0 µs"}, {LatencyP99, 1.2e6, "1.20 ms"},
		{SetupTime, 400e3, "400 µs"}, {AttachTime, 0.9e6, "0.900 ms"}, {Packets, 1e6, "1000000 1/s"}, {Ideal, 94e6, "94.0 Mbit/s"},
	} {
		if got := c.m.Format(c.x); got != c.want {
			t.Errorf("%s %g: %q, want %q", c.m, c.x, got, c.want)
		}
	}
}

// TestDeclarations checks that each metric is declared in full.
func TestDeclarations(t *testing.T) {
	for _, m := range metrics {
		if m.unit == "" || m.scale.Per <= 0 || m.scale.Unit == "" {
			t.Errorf("%s: unit %q, scale %v", m.name, m.unit, m.scale)
		}
		if (m.percentile > 0) != (m.drawing == DrawPercentile) || m.percentile > 0 && m.loop == AnyLoop {
			t.Errorf("%s: percentile %v of loop %d, drawing %d", m.name, m.percentile, m.loop, m.drawing)
		}
	}
}

func TestMetricsOf(t *testing.T) {
	for _, tt := range []struct {
		work string
		loop Loop
		want []Metric
	}{
		{"tcp", OpenLoop, []Metric{Throughput}},
		{"udp", OpenLoop, []Metric{Throughput, Loss}},
		{"rr", OpenLoop, []Metric{LatencyP50, LatencyP99, LatencyP999}},
		{"rr", ClosedLoop, []Metric{ClosedP50, ClosedP99}},
		{"rr", AnyLoop, []Metric{LatencyP50, LatencyP99, LatencyP999, ClosedP50, ClosedP99}},
		{"loaded", OpenLoop, []Metric{Throughput, LatencyP50, LatencyP99, LatencyP999, LatencyAdded}},
		{"memory", OpenLoop, []Metric{MemoryIdle, MemoryAnon, MemoryFlows}},
		{"of a later version", OpenLoop, []Metric{Throughput}},
	} {
		if got := MetricsOf(tt.work, tt.loop); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.work, got, tt.want)
		}
	}
}
