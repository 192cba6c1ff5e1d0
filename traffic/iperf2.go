package traffic

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// iperf2 drives iperf 2 by its command line. Over TCP it counts what was
// written, not what arrived.
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
	args := []string{"--client", host, "--port", port, "--reportstyle", "C", "--time", seconds(cfg.Duration),
		"--parallel", strconv.Itoa(cfg.Streams), "--len", strconv.Itoa(cfg.MessageBytes)}
	if isIPv6(host) {
		args = append(args, "--ipv6_domain")
	}
	if cfg.Work == UDP {
		rate := perStream(cfg)
		if cfg.BitsPerSecond == 0 {
			rate = "100G" // iperf 2 has no "as fast as possible"
		}
		args = append(args, "--udp", "--bandwidth", rate)
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

// The columns of iperf's comma-separated report; the last ones only of the
// server's report about datagrams.
const (
	iperfID = 5 + iota
	iperfInterval
	iperfBytes
	iperfBits
	iperfJitter
	iperfLost
	iperfTotal
)

// parse adds up the lines of the streams. Of datagrams only the lines that the
// server sent back count: those with a total.
func (iperf2) parse(out []byte, r *Result) error {
	var total, lost uint64
	var jitter float64
	lines := 0
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
		if r.Work == string(UDP) {
			t, isReport := iperfReport(f)
			if !isReport {
				continue
			}
			total += t.total
			lost += t.lost
			jitter += t.jitterMillis
		}
		lines++
		r.BytesReceived += n
		r.DurationSeconds = max(r.DurationSeconds, took)
	}
	if lines == 0 || r.DurationSeconds == 0 {
		return errors.New("iperf printed no report")
	}
	r.BitsPerSecond = 8 * float64(r.BytesReceived) / r.DurationSeconds
	if r.Work == string(UDP) {
		r.setDatagrams(total, lost, time.Duration(jitter/float64(lines)*1e6))
		r.PacketsPerSecond = float64(r.PacketsReceived) / r.DurationSeconds
		return nil
	}
	r.SentBitsPerSecond = r.BitsPerSecond
	r.Warnings = append(r.Warnings, "iperf counts what was written, not what arrived")
	return nil
}

type iperfDatagrams struct {
	total, lost  uint64
	jitterMillis float64
}

func iperfReport(f []string) (d iperfDatagrams, ok bool) {
	if len(f) <= iperfTotal {
		return d, false
	}
	total, err := strconv.ParseInt(f[iperfTotal], 10, 64)
	if err != nil || total <= 0 {
		return d, false
	}
	lost, err := strconv.ParseInt(f[iperfLost], 10, 64)
	if err != nil {
		return d, false
	}
	jitter, err := strconv.ParseFloat(f[iperfJitter], 64)
	return iperfDatagrams{total: uint64(total), lost: uint64(max(lost, 0)), jitterMillis: jitter}, err == nil
}
