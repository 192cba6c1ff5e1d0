package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// iperf3 runs ESnet's iperf 3. It serves one client at a time and measures whole seconds.
type iperf3 struct{}

func (iperf3) program() string { return "iperf3" }

func (iperf3) servers(host, port string) [][]string {
	args := []string{"--server", "--port", port}
	if host != "" {
		args = append(args, "--bind", host)
	}
	return [][]string{args}
}

func (iperf3) client(cfg Config, host, port string) ([]string, error) {
	args := []string{"--client", host, "--port", port, "--json", "--time", wholeSeconds(cfg.Duration),
		"--parallel", strconv.Itoa(cfg.Streams), "--length", strconv.Itoa(cfg.MessageBytes)}
	if cfg.MessageBytes > 1<<20 {
		return nil, &ConfigError{Field: "message", Value: fmt.Sprint(cfg.MessageBytes), Want: "at most 1 MiB for iperf3"}
	}
	if cfg.Work == UDP {
		args = append(args, "--udp", "--bitrate", perStream(cfg))
	}
	if cfg.Omit > 0 {
		args = append(args, "--omit", wholeSeconds(cfg.Omit))
	}
	if cfg.MSS > 0 {
		args = append(args, "--set-mss", strconv.Itoa(cfg.MSS))
	}
	if cfg.BufferBytes > 0 {
		args = append(args, "--window", strconv.Itoa(cfg.BufferBytes))
	}
	if cfg.Congestion != "" && cfg.Work == TCP {
		args = append(args, "--congestion", cfg.Congestion)
	}
	if cfg.Reverse {
		args = append(args, "--reverse")
	}
	return args, nil
}

// perStream returns the offered rate of one stream, as both iperfs expect it.
func perStream(cfg Config) string {
	return strconv.FormatFloat(math.Ceil(cfg.BitsPerSecond/float64(cfg.Streams)), 'f', 0, 64)
}

// wholeSeconds rounds up, because iperf3 accepts whole seconds only.
func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(int(math.Ceil(d.Seconds())))
}

// iperf3Output is the part of iperf3's JSON that is used.
type iperf3Output struct {
	Error string `json:"error"`
	Start struct {
		MSS int `json:"tcp_mss_default"`
	} `json:"start"`
	End struct {
		Sum         *iperf3Sum `json:"sum"` // datagrams
		SumSent     *iperf3Sum `json:"sum_sent"`
		SumReceived *iperf3Sum `json:"sum_received"`
		Congestion  string     `json:"sender_tcp_congestion"`
	} `json:"end"`
}

type iperf3Sum struct {
	Seconds       float64 `json:"seconds"`
	Bytes         uint64  `json:"bytes"`
	BitsPerSecond float64 `json:"bits_per_second"`
	Retransmits   uint64  `json:"retransmits"`
	JitterMillis  float64 `json:"jitter_ms"`
	LostPackets   int64   `json:"lost_packets"` // negative after duplicates
	Packets       uint64  `json:"packets"`
}

func (iperf3) parse(out []byte, r *Result) error {
	var o iperf3Output
	if err := json.Unmarshal(out, &o); err != nil {
		return fmt.Errorf("parse iperf3's output: %w", err)
	}
	if o.Error != "" {
		return errors.New(o.Error)
	}
	sent, received := o.End.SumSent, o.End.SumReceived
	if sent == nil || received == nil {
		return errors.New("parse iperf3's output: no sums")
	}
	r.DurationSeconds = received.Seconds
	r.BytesReceived = received.Bytes
	r.BitsPerSecond = received.BitsPerSecond
	r.SentBitsPerSecond = sent.BitsPerSecond
	r.Retransmits = sent.Retransmits
	r.Congestion = o.End.Congestion
	if r.Work == string(TCP) {
		r.MSSBytes = o.Start.MSS
		return nil
	}
	if o.End.Sum == nil {
		return errors.New("parse iperf3's output: no sum of datagrams")
	}
	lost := uint64(max(o.End.Sum.LostPackets, 0))
	r.setDatagrams(o.End.Sum.Packets, lost, time.Duration(o.End.Sum.JitterMillis*1e6))
	// Before 3.17 or so, bytes received equal bytes sent: compute what arrived.
	r.BytesReceived = r.PacketsReceived * uint64(r.MessageBytes)
	if r.DurationSeconds > 0 {
		r.BitsPerSecond = 8 * float64(r.BytesReceived) / r.DurationSeconds
		r.PacketsPerSecond = float64(r.PacketsReceived) / r.DurationSeconds
	}
	return nil
}

// setDatagrams fills in the results of an engine that reports only these counts.
func (r *Result) setDatagrams(total, lost uint64, jitter time.Duration) {
	r.PacketsSent = total
	r.Lost = min(lost, total)
	r.PacketsReceived = total - r.Lost
	r.Jitter = jitter
	if total > 0 {
		r.LossFraction = float64(r.Lost) / float64(total)
	}
}
