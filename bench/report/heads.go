package report

import (
	"slices"
	"strings"

	"cleat/bench/cell"
)

// shortMetric is a metric's head over two lines, the unit below.
func shortMetric(m cell.Metric, rows []row, fs []cell.Factor) (over, head string) {
	u := m.Scale().Unit
	switch m {
	case cell.Throughput:
		if slices.ContainsFunc(fs, func(f cell.Factor) bool { return f.Name == "transport" }) {
			return "", u
		}
		return commonTransport(rows), u
	case cell.Connections:
		return "conn", "/s"
	case cell.Packets:
		return "packets", u
	case cell.SetupTime:
		return "set-up", u
	case cell.AttachTime:
		return "attach", u
	case cell.DetachTime:
		return "detach", u
	case cell.AttachCPU:
		return "cpu", u
	case cell.OfIdeal:
		return "of ideal", u
	case cell.EarlyOfIdeal:
		return "first 2 s", u
	case cell.SteadyOfIdeal:
		return "steady", u
	case cell.LatencyAdded:
		return "added", u
	case cell.LostPackets:
		return "lost", "n"
	}
	return strings.ToLower(strings.TrimPrefix(metricName(m), "Latency ")), u
}

// commonTransport is the transport of all rows with a throughput; "" where they
// differ.
func commonTransport(rows []row) string {
	common := ""
	for _, r := range rows {
		s, ok := r.by[cell.Throughput]
		switch {
		case ok && common == "":
			common = strings.ToUpper(s.Transport)
		case ok && common != strings.ToUpper(s.Transport):
			return ""
		}
	}
	return common
}

// shortFactor is a factor's head, over two lines when it has two words.
func shortFactor(f cell.Factor) (over, head string) {
	switch f.Name {
	case "transport":
		return "", "proto"
	case "message_bytes":
		return "message", "bytes"
	}
	if over, head, ok := strings.Cut(plainName(f), " "); ok {
		return over, head
	}
	return "", plainName(f)
}

// cellLevel is a level as a column's cell, without the column's name.
func cellLevel(f cell.Factor, level string) string {
	if level == "" {
		return unset(f)
	}
	if x, ok := cell.Number(level); ok && isRate(f) {
		if x > 0 && x < 1e9 {
			return tickText(x/1e6) + "M"
		}
		return tickText(x/1e9) + "G"
	}
	if f.Name == "transport" {
		return strings.ToUpper(level)
	}
	return level
}
