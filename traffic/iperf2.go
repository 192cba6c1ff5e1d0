package traffic

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// iperf2 runs iperf 2. Over TCP, iperf 2 counts what was written, not what arrived.
type iperf2 struct{}

func (iperf2) program() string { return "iperf" }

func (iperf2) servers(host, port string) [][]string {
	args := []string{"--server", "--port", port}
	if strings.Contains(host, ":") {
		args = append(args, "--ipv6_domain")
	}
	if host != "" {
		args = append(args, "--bind", host)
	}
	return [][]string{args, append(append([]string{}, args...), "--udp")}
}

func (iperf2) client(cfg Config, host, port string) ([]string, error) {
	if cfg.Reverse {
		return nil, &ConfigError{Field: "reverse", Value: "true", Want: "engine cleat or iperf3"}
	}
	if cfg.Omit > 0 {
		return nil, &ConfigError{Field: "omit", Value: cfg.Omit.String(), Want: "0 for iperf, which counts from the start"}
	}
	args := []string{"--client", host, "--port", port, "--time", fmt.Sprintf("%g", max(cfg.Duration.Seconds(), 0.1)),
		"--parallel", strconv.Itoa(cfg.Streams), "--len", strconv.Itoa(cfg.MessageBytes)}
	if isIPv6(host) {
		args = append(args, "--ipv6_domain")
	}
	if cfg.Work == UDP {
		rate := perStream(cfg)
		if cfg.BitsPerSecond == 0 {
			rate = "100G" // iperf 2 has no "as fast as possible"
		}
		// The comma-separated style omits the server's report (2.1.8).
		args = append(args, "--udp", "--bandwidth", rate, "--format", "b")
	} else {
		args = append(args, "--reportstyle", "C")
	}
	if cfg.MSS > 0 {
		args = append(args, "--mss", strconv.Itoa(cfg.MSS))
	}
	if cfg.BufferBytes > 0 {
		args = append(args, "--window", strconv.Itoa(cfg.BufferBytes))
	}
	if cfg.Congestion != "" && cfg.Work == TCP {
		args = append(args, "--linux-congestion", cfg.Congestion)
	}
	return args, nil
}

// Columns of iperf's comma-separated report.
const (
	iperfID = 5 + iota
	iperfInterval
	iperfBytes
	iperfBits
)

// parse adds up the lines of the streams.
func (iperf2) parse(out []byte, r *Result) error {
	if r.Work == string(UDP) {
		return parseIperfDatagrams(string(out), r)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) <= iperfBits || strings.HasPrefix(f[iperfID], "-") { // -1: the sum of all
			continue
		}
		n, err := strconv.ParseUint(f[iperfBytes], 10, 64)
		if err != nil {
			return fmt.Errorf("parse iperf's output %q: %w", line, err)
		}
		_, end, _ := strings.Cut(f[iperfInterval], "-")
		took, err := strconv.ParseFloat(end, 64)
		if err != nil {
			return fmt.Errorf("parse iperf's output %q: %w", line, err)
		}
		r.BytesReceived += n
		r.DurationSeconds = max(r.DurationSeconds, took)
	}
	if r.DurationSeconds == 0 {
		return errNoIperfReport
	}
	r.BitsPerSecond = 8 * float64(r.BytesReceived) / r.DurationSeconds
	r.SentBitsPerSecond = r.BitsPerSecond
	r.Warnings = append(r.Warnings, "iperf counts what was written, not what arrived")
	return nil
}

var errNoIperfReport = errors.New("iperf printed no report")

// iperfDatagramLine matches the server's report of one stream, as the client prints it:
// [ID] start-end sec, bytes, bits/sec, jitter, lost/total.
var iperfDatagramLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\[ *\d+\] +[\d.]+-([\d.]+) sec +(\d+) Bytes +\d+ bits/sec +([\d.]+) ms +(-?\d+)/ *(\d+) `)
})

// parseIperfDatagrams adds up the server's reports in the human-readable output.
func parseIperfDatagrams(out string, r *Result) error {
	var total, lost uint64
	var jitter float64
	reports := iperfDatagramLine().FindAllStringSubmatch(out, -1)
	for _, m := range reports {
		var took, millis float64
		var n, t uint64
		var l int64
		if _, err := fmt.Sscan(strings.Join(m[1:], " "), &took, &n, &millis, &l, &t); err != nil {
			return fmt.Errorf("parse iperf's output %q: %w", m[0], err)
		}
		total += t
		lost += uint64(max(l, 0)) // reordered datagrams count as found again
		jitter += millis
		r.BytesReceived += n
		r.DurationSeconds = max(r.DurationSeconds, took)
	}
	if len(reports) == 0 || r.DurationSeconds == 0 {
		return errNoIperfReport
	}
	r.BitsPerSecond = 8 * float64(r.BytesReceived) / r.DurationSeconds
	r.setDatagrams(total, lost, time.Duration(jitter/float64(len(reports))*1e6))
	r.PacketsPerSecond = float64(r.PacketsReceived) / r.DurationSeconds
	return nil
}
