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
	"cleat/tunnel/spec"
)

// metricsType is Prometheus' text format, version 0.0.4.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// MetricsHandler answers GET with the metrics.
func MetricsHandler(t Target) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metricsType)
		w.Write([]byte(metricsText(statusOf(t, time.Now())))) // a client that has gone needs no answer
	})
}

// ListenMetrics opens what a tunnel file says that metrics are asked for at; nil: the
// zero Metrics is nowhere. A Unix socket is for the user alone, takes the place of one
// that nobody listens at any more, and is removed when the listener is closed; any other
// file stays, and the error wraps fs.ErrExist.
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
			return nil, withoutAddress(err) // not a *net.UnixListener that is nil
		}
		return l, nil
	case "tcp":
		l, err := net.Listen("tcp", m.Address)
		return l, withoutAddress(err)
	}
	return nil, fmt.Errorf("network %q: want unix or tcp", m.Network)
}

// ServeMetrics answers GET /metrics, and nothing else, at l until ctx ends or l is
// closed, which is no error. It closes l.
func ServeMetrics(ctx context.Context, l net.Listener, t Target) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", MetricsHandler(t))
	if err := serve(ctx, &door{Listener: l}, mux); err != nil {
		return fmt.Errorf("serve metrics at %s: %w", l.Addr(), err)
	}
	return nil
}

// withoutAddress is an error without the address, which is in the message already.
func withoutAddress(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// prefix begins the name of every metric.
const prefix = "cleat_tunnel_"

// page collects metrics in the text format.
type page struct {
	b      strings.Builder
	tunnel string
}

// head begins a metric.
func (p *page) head(name, kind, help string) {
	fmt.Fprintf(&p.b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, kind)
}

// sample writes a value. labels are names and values, one after the other, behind
// the tunnel's.
func (p *page) sample(name string, value float64, labels ...string) {
	fmt.Fprintf(&p.b, "%s%s{tunnel=%s", prefix, name, quote(p.tunnel))
	for i := 0; i+1 < len(labels); i += 2 {
		fmt.Fprintf(&p.b, ",%s=%s", labels[i], quote(labels[i+1]))
	}
	fmt.Fprintf(&p.b, "} %s\n", strconv.FormatFloat(value, 'g', -1, 64))
}

// quote makes a label's value: of what else is in it only these three are special.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// metric is a value of a tunnel's, or of each path's.
type metric[T any] struct {
	name, kind, help string
	value            func(T) float64
}

const (
	gauge   = "gauge"
	counter = "counter"
)

// metricsText is the metrics page of a tunnel.
func metricsText(s Status) string {
	p := page{tunnel: s.Name}
	p.head("info", gauge, "What the tunnel is; always 1.")
	p.sample("info", 1, "device", s.Device, "form", string(s.Used), "cipher", s.Cipher, "scheduler", string(s.Scheduler), "version", s.Version)
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

// tunnelMetrics are those of the tunnel as a whole.
func tunnelMetrics() []metric[Status] {
	count := func(name, help string, of func(Counters) uint64) metric[Status] {
		return metric[Status]{name, counter, help, func(s Status) float64 { return float64(of(s.Counters)) }}
	}
	now := func(name, help string, of func(Counters) int) metric[Status] {
		return metric[Status]{name, gauge, help, func(s Status) float64 { return float64(of(s.Counters)) }}
	}
	return []metric[Status]{
		{"up", gauge, "Whether the other end has answered.", func(s Status) float64 { return bit(s.Up) }},
		{"start_time_seconds", gauge, "When the tunnel was started, since the epoch.", func(s Status) float64 { return float64(s.Started.UnixMilli()) / 1000 }},
		{"may_send_bytes_per_second", gauge, "What all live paths together may be sent.", func(s Status) float64 { return s.MaySendBitsPerSec / 8 }},
		count("read_packets_total", "Packets read from the device.", func(c Counters) uint64 { return c.Read }),
		count("read_bytes_total", "Bytes read from the device.", func(c Counters) uint64 { return c.ReadBytes }),
		count("queue_dropped_packets_total", "Packets dropped because the paths were full.", func(c Counters) uint64 { return c.QueueDropped }),
		count("queue_marked_packets_total", "Packets marked (ECN) because the paths were full.", func(c Counters) uint64 { return c.QueueMarked }),
		count("too_big_packets_total", "Packets refused because no path carries packets of that size.", func(c Counters) uint64 { return c.TooBig }),
		count("sent_packets_total", "Packets sent on paths.", func(c Counters) uint64 { return c.Sent }),
		count("resent_packets_total", "Packets sent again because a path lost them.", func(c Counters) uint64 { return c.Resent }),
		count("send_errors_total", "Sends that the kernel refused.", func(c Counters) uint64 { return c.SendErrors }),
		count("received_packets_total", "Packets received on paths.", func(c Counters) uint64 { return c.Received }),
		count("received_bytes_total", "Bytes received on paths.", func(c Counters) uint64 { return c.ReceivedBytes }),
		count("strange_packets_total", "Packets dropped that were not understood, not authentic, or of another life.", func(c Counters) uint64 { return c.Strange }),
		count("foreign_packets_total", "Packets dropped because they came from an address outside the tunnel's networks.", func(c Counters) uint64 { return c.Foreign }),
		count("missing_packets_total", "Packets that the other end's paths passed over.", func(c Counters) uint64 { return c.Missing }),
		count("device_writes_total", "Super-packets written to the device.", func(c Counters) uint64 { return c.Writes }),
		count("device_write_errors_total", "Super-packets that the device refused.", func(c Counters) uint64 { return c.WriteErrors }),
		count("reports_sent_total", "Reports sent to the other end.", func(c Counters) uint64 { return c.ReportsSent }),
		now("queue_bytes", "Bytes that wait for a path.", func(c Counters) int { return c.QueueBytes }),
		now("kept_bytes", "Memory of packets that may have to be sent again.", func(c Counters) int { return c.KeptBytes }),
		count("order_delivered_packets_total", "Packets put in order and delivered.", func(c Counters) uint64 { return c.Ordering.Delivered }),
		count("order_held_packets_total", "Packets that had to wait for others.", func(c Counters) uint64 { return c.Ordering.Held }),
		count("order_lost_packets_total", "Packets given up.", func(c Counters) uint64 { return c.Ordering.Lost }),
		count("order_late_packets_total", "Packets that came after they had been given up.", func(c Counters) uint64 { return c.Ordering.Late }),
		count("order_duplicate_packets_total", "Packets that came more than once.", func(c Counters) uint64 { return c.Ordering.Duplicates }),
		count("order_old_packets_total", "Packets dropped because they were behind the window.", func(c Counters) uint64 { return c.Ordering.Old }),
		count("order_forced_packets_total", "Packets given up for want of room or time, not on evidence.", func(c Counters) uint64 { return c.Ordering.Forced }),
		now("order_waiting_packets", "Packets that wait for others.", func(c Counters) int { return c.Ordering.Waiting }),
		now("order_waiting_bytes", "Bytes of packets that wait for others.", func(c Counters) int { return c.Ordering.WaitBytes }),
		now("order_most_waiting_packets", "The most packets that waited for others at once.", func(c Counters) int { return c.Ordering.MaxWaiting }),
	}
}

// pathMetrics are those of each path.
func pathMetrics() []metric[Path] {
	return []metric[Path]{
		{"path_live", gauge, "Whether packets get through on the path.", func(p Path) float64 { return bit(p.State == Live) }},
		{"path_enabled", gauge, "Whether the path is to be used.", func(p Path) float64 { return bit(p.State != Down) }},
		{"path_open", gauge, "Whether the path has a socket: it is enabled, and its device and address are there.", func(p Path) float64 { return bit(p.State != Down && p.State != Absent) }},
		{"path_delivered_bytes_total", counter, "Bytes that the other end has got on the path.", func(p Path) float64 { return float64(p.DeliveredBytes) }},
		{"path_delivered_packets_total", counter, "Packets that the other end has got on the path.", func(p Path) float64 { return float64(p.DeliveredPackets) }},
		{"path_lost_packets_total", counter, "Packets that the path lost.", func(p Path) float64 { return float64(p.LostPackets) }},
		{"path_loss_ratio", gauge, "Packets that the path lost lately, of those sent.", func(p Path) float64 { return p.LossRatio }},
		{"path_delivered_bytes_per_second", gauge, "What the path has delivered lately.", func(p Path) float64 { return p.BitsPerSec / 8 }},
		{"path_may_send_bytes_per_second", gauge, "What the path may be sent.", func(p Path) float64 { return p.MaySendBitsPerSec / 8 }},
		{"path_share_ratio", gauge, "The path's share of what all paths deliver.", func(p Path) float64 { return p.ShareRatio }},
		{"path_rtt_seconds", gauge, "Round-trip time of the path.", func(p Path) float64 { return p.RTTSeconds }},
		{"path_delay_seconds", gauge, "One-way delay of the path against the fastest live one.", func(p Path) float64 { return p.DelaySeconds }},
		{"path_queue_seconds", gauge, "The queue that stands in the path.", func(p Path) float64 { return p.QueueSeconds }},
		{"path_inflight_bytes", gauge, "Bytes on their way that nobody has acknowledged.", func(p Path) float64 { return float64(p.InflightBytes) }},
		{"path_mtu_bytes", gauge, "MTU of the path, headers included.", func(p Path) float64 { return float64(p.MTUBytes) }},
	}
}

// bit is 1 for true.
func bit(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
