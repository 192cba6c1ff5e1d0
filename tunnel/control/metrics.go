package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cleat/internal/localsock"
	"cleat/tunnel"
	"cleat/tunnel/spec"
)

// metricsType is Prometheus' text format, version 0.0.4.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// MetricsHandler serves the metrics.
func MetricsHandler(t Target) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metricsType)
		w.Write([]byte(metricsText(statusOf(t, time.Now())))) // an error means that the client has gone
	})
}

// ListenMetrics opens the listener for the address that a tunnel file sets. It returns
// nil for the zero Metrics. A Unix socket is for its user only, replaces one that nobody
// listens on any more, and is removed when the listener is closed; any other file stays,
// and the error wraps fs.ErrExist.
func ListenMetrics(m spec.Metrics) (net.Listener, error) {
	if m == (spec.Metrics{}) {
		return nil, nil
	}
	l, err := listenMetrics(m)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics at %s: %w", m.Address, err)
	}
	return l, nil
}

func listenMetrics(m spec.Metrics) (net.Listener, error) {
	switch m.Network {
	case "unix":
		l, err := localsock.ListenFile(m.Address)
		if err != nil {
			return nil, withoutAddress(err) // not a nil *net.UnixListener
		}
		return l, nil
	case "tcp":
		l, err := net.Listen("tcp", m.Address)
		return l, withoutAddress(err)
	}
	return nil, fmt.Errorf("network %q: want unix or tcp", m.Network)
}

// ServeMetrics serves GET /metrics, and nothing else, at l until ctx ends or l is closed,
// which is no error. It closes l.
func ServeMetrics(ctx context.Context, l net.Listener, t Target) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", MetricsHandler(t))
	if err := serve(ctx, l, mux); err != nil {
		return fmt.Errorf("serve metrics at %s: %w", l.Addr(), err)
	}
	return nil
}

// withoutAddress removes the address from an error, because the message has it already.
func withoutAddress(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

const prefix = "cleat_tunnel_"

// page collects metrics in the text format.
type page struct {
	b      strings.Builder
	tunnel string
}

func (p *page) head(name, kind, help string) {
	fmt.Fprintf(&p.b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, kind)
}

// sample writes a value. labels are names and values in turn, after the tunnel's label.
func (p *page) sample(name string, value float64, labels ...string) {
	fmt.Fprintf(&p.b, "%s%s{tunnel=%s", prefix, name, quote(p.tunnel))
	for i := 0; i+1 < len(labels); i += 2 {
		fmt.Fprintf(&p.b, ",%s=%s", labels[i], quote(labels[i+1]))
	}
	fmt.Fprintf(&p.b, "} %s\n", strconv.FormatFloat(value, 'g', -1, 64))
}

// quote quotes the value of a label. Only these three characters are special.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// metric is a metric of a tunnel, or of each path.
type metric[T any] struct {
	name, kind, help string
	value            func(T) float64
}

const (
	gauge   = "gauge"
	counter = "counter"
)

func metricsText(s Status) string {
	p := page{tunnel: s.Name}
	p.head("info", gauge, "The tunnel's settings; always 1.")
	p.sample("info", 1, "device", s.Device, "form", string(s.FormInUse), "cipher", s.Cipher, "scheduler", string(s.Scheduler), "version", s.Version)
	for _, m := range tunnelMetrics() {
		p.head(m.name, m.kind, m.help)
		p.sample(m.name, m.value(s))
	}
	for _, m := range pathMetrics() {
		p.head(m.name, m.kind, m.help)
		for _, path := range s.Paths {
			p.sample(m.name, m.value(path), "path", path.Name)
		}
	}
	return p.b.String()
}

func tunnelMetrics() []metric[Status] {
	count := func(name, help string, of func(tunnel.Stats) uint64) metric[Status] {
		return metric[Status]{name, counter, help, func(s Status) float64 { return float64(of(s.Counters)) }}
	}
	level := func(name, help string, of func(tunnel.Stats) int) metric[Status] {
		return metric[Status]{name, gauge, help, func(s Status) float64 { return float64(of(s.Counters)) }}
	}
	return []metric[Status]{
		{"up", gauge, "Whether the other end answers.", func(s Status) float64 { return boolValue(s.Up) }},
		{"no_answer_since_seconds", gauge, "When the other end last answered, since the epoch, if it does not answer any more; otherwise 0.", func(s Status) float64 { return epochSeconds(s.NoAnswerSince) }},
		{"start_time_seconds", gauge, "When the tunnel was started, since the epoch.", func(s Status) float64 { return epochSeconds(s.Started) }},
		{"direct", gauge, "Whether the kernel sends packets without the program.", func(s Status) float64 { return boolValue(s.Direct.On) }},
		{"direct_sent_bytes_total", counter, "Bytes that arrived without the programs, since the session began.", func(s Status) float64 { return float64(s.Direct.SentBytes) }},
		{"direct_received_bytes_total", counter, "Bytes received without the program, since the session began.", func(s Status) float64 { return float64(s.Direct.ReceivedBytes) }},
		{"may_send_bytes_per_second", gauge, "Sum of the rates at which the live paths may be sent to.", func(s Status) float64 { return s.MaySendBitsPerSec / 8 }},
		count("read_packets_total", "Packets read from the device.", func(c tunnel.Stats) uint64 { return c.Read }),
		count("read_bytes_total", "Bytes read from the device.", func(c tunnel.Stats) uint64 { return c.ReadBytes }),
		count("queue_dropped_packets_total", "Packets dropped because the paths were full.", func(c tunnel.Stats) uint64 { return c.QueueDrops }),
		count("queue_marked_packets_total", "Packets marked (ECN) because the paths were full.", func(c tunnel.Stats) uint64 { return c.QueueMarks }),
		count("too_big_packets_total", "Packets refused because no path carries packets of that size.", func(c tunnel.Stats) uint64 { return c.TooBig }),
		count("sent_packets_total", "Packets sent on paths.", func(c tunnel.Stats) uint64 { return c.Sent }),
		count("resent_packets_total", "Packets sent again because a path lost them.", func(c tunnel.Stats) uint64 { return c.Resent }),
		count("late_resend_packets_total", "Lost packets that were not sent again because the other end had given them up.", func(c tunnel.Stats) uint64 { return c.LateResends }),
		count("send_errors_total", "Sends that the kernel refused.", func(c tunnel.Stats) uint64 { return c.SendErrors }),
		count("received_packets_total", "Packets received on paths.", func(c tunnel.Stats) uint64 { return c.Received }),
		count("received_bytes_total", "Bytes received on paths.", func(c tunnel.Stats) uint64 { return c.ReceivedBytes }),
		count("strange_packets_total", "Packets dropped because they were malformed, not authentic, or of another session.", func(c tunnel.Stats) uint64 { return c.Invalid }),
		count("foreign_packets_total", "Packets dropped because they came from an address outside the tunnel's networks.", func(c tunnel.Stats) uint64 { return c.WrongSource }),
		count("missing_packets_total", "Packets missing from the other end's paths.", func(c tunnel.Stats) uint64 { return c.Missing }),
		count("device_writes_total", "Super-packets written to the device.", func(c tunnel.Stats) uint64 { return c.Written }),
		count("device_write_errors_total", "Super-packets that the device refused.", func(c tunnel.Stats) uint64 { return c.WriteErrors }),
		count("reports_sent_total", "Reports sent to the other end.", func(c tunnel.Stats) uint64 { return c.Reports }),
		level("queue_bytes", "Bytes waiting for a path.", func(c tunnel.Stats) int { return c.QueueBytes }),
		level("kept_bytes", "Memory of packets that may have to be sent again.", func(c tunnel.Stats) int { return c.KeptBytes }),
		count("order_delivered_packets_total", "Packets put in order and delivered.", func(c tunnel.Stats) uint64 { return c.Order.Delivered }),
		count("order_held_packets_total", "Packets that had to wait for others.", func(c tunnel.Stats) uint64 { return c.Order.Held }),
		count("order_lost_packets_total", "Packets given up as lost.", func(c tunnel.Stats) uint64 { return c.Order.Lost }),
		count("order_late_packets_total", "Packets that arrived after they had been given up.", func(c tunnel.Stats) uint64 { return c.Order.Late }),
		count("order_duplicate_packets_total", "Packets that arrived more than once.", func(c tunnel.Stats) uint64 { return c.Order.Duplicates }),
		count("order_old_packets_total", "Packets dropped because they were behind the window.", func(c tunnel.Stats) uint64 { return c.Order.TooOld }),
		count("order_forced_packets_total", "Packets given up for lack of space or time, without evidence.", func(c tunnel.Stats) uint64 { return c.Order.Forced }),
		level("order_waiting_packets", "Packets waiting for others.", func(c tunnel.Stats) int { return c.Order.Waiting }),
		level("order_waiting_bytes", "Bytes of packets waiting for others.", func(c tunnel.Stats) int { return c.Order.WaitingBytes }),
		level("order_most_waiting_packets", "The most packets that ever waited for others at once.", func(c tunnel.Stats) int { return c.Order.MaxWaiting }),
	}
}

func pathMetrics() []metric[Path] {
	return []metric[Path]{
		{"path_live", gauge, "Whether what the path carries is answered.", func(p Path) float64 { return boolValue(p.State == Live) }},
		{"path_in_use", gauge, "Whether data is sent on the path; it may be dead if no path is live.", func(p Path) float64 { return boolValue(p.InUse) }},
		{"path_no_answer_since_seconds", gauge, "When a dead path was last answered, since the epoch; 0 if the path is not dead or was never answered.", func(p Path) float64 { return epochSeconds(p.NoAnswerSince) }},
		{"path_enabled", gauge, "Whether the path is enabled.", func(p Path) float64 { return boolValue(p.State != Down) }},
		{"path_open", gauge, "Whether the path has a socket: it is enabled, and its device and address exist.", func(p Path) float64 { return boolValue(p.State != Down && p.State != Absent) }},
		{"path_remote_since_seconds", gauge, "When the path learned the remote that it has, since the epoch; 0 if the remote is configured or not known.", func(p Path) float64 { return epochSeconds(p.RemoteSince) }},
		{"path_delivered_bytes_total", counter, "Bytes delivered on the path.", func(p Path) float64 { return float64(p.DeliveredBytes) }},
		{"path_delivered_packets_total", counter, "Packets delivered on the path.", func(p Path) float64 { return float64(p.DeliveredPackets) }},
		{"path_lost_packets_total", counter, "Packets lost on the path.", func(p Path) float64 { return float64(p.LostPackets) }},
		{"path_marked_packets_total", counter, "Packets that arrived on the path with a congestion mark (ECN).", func(p Path) float64 { return float64(p.MarkedPackets) }},
		{"path_loss_ratio", gauge, "Recent share of packets lost on the path.", func(p Path) float64 { return p.LossRatio }},
		{"path_delivered_bytes_per_second", gauge, "Recent delivery rate of the path.", func(p Path) float64 { return p.BitsPerSec / 8 }},
		{"path_may_send_bytes_per_second", gauge, "Rate at which the path may be sent to.", func(p Path) float64 { return p.MaySendBitsPerSec / 8 }},
		{"path_share_ratio", gauge, "Share of the path in what all paths deliver.", func(p Path) float64 { return p.ShareRatio }},
		{"path_rtt_seconds", gauge, "Round-trip time of the path.", func(p Path) float64 { return p.RTTSeconds }},
		{"path_delay_seconds", gauge, "One-way delay of the path beyond that of the fastest live one.", func(p Path) float64 { return p.DelaySeconds }},
		{"path_queue_seconds", gauge, "Queue standing in the path, others' included.", func(p Path) float64 { return p.QueueSeconds }},
		{"path_contended", gauge, "Whether others keep a queue in the path, beside whom it takes a share.", func(p Path) float64 { return boolValue(p.Contended) }},
		{"path_inflight_bytes", gauge, "Bytes sent on the path and not yet acknowledged.", func(p Path) float64 { return float64(p.InflightBytes) }},
		{"path_tripped", gauge, "Whether the path loses so much that nothing is sent again and its rate is at the minimum.", func(p Path) float64 { return boolValue(p.Tripped) }},
		{"path_trips_total", counter, "How often the path has lost so much.", func(p Path) float64 { return float64(p.Trips) }},
		{"path_metered", gauge, "Whether the path is metered.", func(p Path) float64 { return boolValue(p.Metered) }},
		{"path_measuring_bytes_total", counter, "Bytes of padding and probes sent on the path, headers included.", func(p Path) float64 { return float64(p.MeasuringBytes) }},
		{"path_padding_limit_bytes", gauge, "Most bytes of padding that the path may send while it exists.", func(p Path) float64 { return float64(p.PaddingLimitBytes) }},
		{"path_mtu_bytes", gauge, "MTU of the path, headers included.", func(p Path) float64 { return float64(p.MTUBytes) }},
	}
}

// epochSeconds returns a time in seconds since the epoch, and 0 for the zero Time.
func epochSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
