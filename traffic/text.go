package traffic

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"cleat/internal/columns"
)

// FormatRate formats a rate in bit/s with three digits and a decimal unit.
func FormatRate(bitsPerSecond float64) string {
	return formatSI(bitsPerSecond, "bit/s")
}

func formatSI(v float64, unit string) string {
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T"} {
		if v < 999.5 {
			break
		}
		v /= 1000
		prefix = p
	}
	digits := 0
	switch {
	case v == 0:
	case v < 10:
		digits = 2
	case v < 100:
		digits = 1
	}
	if prefix == "" && v == float64(int64(v)) {
		digits = 0
	}
	return fmt.Sprintf("%.*f %s%s", digits, v, prefix, unit)
}

func formatTime(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return d.String()
	case d < 100*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < 100*time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Text returns the result as text: a few lines of at most 80 columns, each with a
// newline.
func (r Result) Text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s %s\n", name, fmt.Sprintf(format, args...))
	}
	if r.Work == string(Probe) {
		r.probeText(line)
	} else {
		r.trafficText(line)
	}
	if r.CPU != nil && r.CPU.Wall > 0 {
		busy := r.CPU.User + r.CPU.System + r.CPU.SoftIRQ
		line("cpu", "%.2f cores (user %.2f, system %.2f, softirq %.2f), by %s", busy/r.CPU.Wall,
			r.CPU.User/r.CPU.Wall, r.CPU.System/r.CPU.Wall, r.CPU.SoftIRQ/r.CPU.Wall, r.CPUAccounting)
	}
	if c := r.CoresPerGbit; c != nil {
		line("cost", "%.3f cores per Gbit/s", c.User+c.System+c.SoftIRQ)
	}
	for _, w := range r.Warnings {
		b.WriteString(columns.Paragraph("warning: ", "  ", w, 80))
	}
	return b.String()
}

func (r Result) trafficText(line func(name, format string, args ...any)) {
	switch Work(r.Work) {
	case RR, UDPRR, CRR:
		line("rate", "%s over %.3f s, %d failed or lost", formatSI(r.TransactionsPerSecond, "/s"), r.DurationSeconds, r.Failures+r.Lost)
		if r.P50 > 0 {
			line("latency", "p50 %s  p99 %s  p99.9 %s", formatTime(r.P50), formatTime(r.P99), formatTime(r.P999))
		}
		if r.LagP99 > 0 {
			line("generator", "late by %s at p99", formatTime(r.LagP99))
		}
		return
	}
	line("received", "%s over %.3f s", FormatRate(r.BitsPerSecond), r.DurationSeconds)
	if r.EarlySeconds > 0 {
		line("early", "%s in the first %.3g s, %s after it", FormatRate(r.EarlyBitsPerSecond), r.EarlySeconds, FormatRate(r.SteadyBitsPerSecond))
		line("pause", "%s at most", formatTime(r.Outage))
	}
	if r.PacketsSent > 0 {
		line("datagrams", "%s of %d bytes, %d of %d lost (%.3g %%)", formatSI(r.PacketsPerSecond, "/s"), r.MessageBytes,
			r.Lost, r.PacketsSent, 100*r.LossFraction)
		line("order", "%d reordered, %d duplicated, jitter %s", r.Reordered, r.Duplicated, formatTime(r.Jitter))
		if len(r.Trials) > 0 {
			line("search", "%d trials, loss bound %.3g %%", len(r.Trials), 100*r.LossBound)
		}
		return
	}
	if r.Fairness > 0 {
		line("fairness", "%.3f (Jain's index of %d streams)", r.Fairness, r.Streams)
	}
	line("tcp", "%s, MSS %d, %d segments retransmitted", cmp.Or(columns.Plain(r.Congestion), "unknown"), r.MSSBytes, r.Retransmits)
}

func (r Result) probeText(line func(name, format string, args ...any)) {
	line("link mtu", "%d bytes", r.LinkMTU)
	line("path mtu", "%d bytes", r.PathMTU)
	if r.BlackHole {
		line("black hole", "small packets arrive, full-size ones do not")
	}
	if r.ProbeError != "" {
		line("failed", "%s", strings.Join(columns.Break(r.ProbeError, 66), "\n"+strings.Repeat(" ", 14)))
	}
}
