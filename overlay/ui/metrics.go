package ui

import (
	"context"
	"net/http"
	"time"

	"cleat/overlay/control"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// collectWithin bounds how long the figures of one scrape may take. Prometheus itself waits 10 s.
const collectWithin = 5 * time.Second

// Metrics returns the server of the host's own figures, at /metrics.
func Metrics(s Source) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cleat_"+name, help, labels, nil)
}

// counters are the descriptions of a control.Counters.
type counters struct{ received, sent, receivedPackets, sentPackets *prometheus.Desc }

func newCounters(of, what string, labels ...string) counters {
	return counters{
		desc(of+"_receive_bytes_total", "Bytes that "+what+" received.", labels...),
		desc(of+"_transmit_bytes_total", "Bytes that "+what+" sent.", labels...),
		desc(of+"_receive_packets_total", "Packets that "+what+" received.", labels...),
		desc(of+"_transmit_packets_total", "Packets that "+what+" sent.", labels...),
	}
}

func (c counters) send(out chan<- prometheus.Metric, v control.Counters, labels ...string) {
	one := func(d *prometheus.Desc, v uint64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	one(c.received, v.Received)
	one(c.sent, v.Sent)
	one(c.receivedPackets, v.ReceivedPackets)
	one(c.sentPackets, v.SentPackets)
}

var (
	registryUp  = desc("registry_up", "Whether the registry answers this host.")
	hostUp      = desc("host_up", "Whether a host is alive, as this host sees it.", "host")
	hostMember  = desc("host_registry_member", "Whether a host runs a member of the registry.", "host")
	hostPackets = desc("host_packet_bytes", "Size of the largest packets between containers of this host and of another one.", "host")
	corrections = desc("corrections", "What this host has corrected by itself, e.g. for a network card that breaks packets.")
	problems    = desc("problems", "How much does not work on this host.")
	netSize     = desc("network_containers", "Containers on a network and a host.", "network", "host")
	netBlocks   = desc("network_blocks", "Blocks of a network's addresses that a host has.", "network", "host")
	connections = desc("connections", "Tracked connections between this host's containers and those of a host.", "network", "host", "peer")
	container   = newCounters("container", "a container of this host", "network", "id", "container")
	between     = newCounters("between_hosts", "this host's containers, from and to those of other hosts but for plain routes,")
)

// collector makes metrics of a picture. The figures are read when Prometheus asks.
type collector struct{ source Source }

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{registryUp, hostUp, hostMember, hostPackets, corrections, problems, netSize, netBlocks, connections} {
		out <- d
	}
	for _, of := range []counters{container, between} {
		out <- of.received
		out <- of.sent
		out <- of.receivedPackets
		out <- of.sentPackets
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectWithin)
	defer cancel()
	p, err := c.source.Picture(ctx, true)
	if err != nil {
		out <- prometheus.NewInvalidMetric(registryUp, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(registryUp, number(p.Registry.Answers))
	for _, h := range p.Hosts {
		gauge(hostUp, number(h.Alive), h.Name)
		gauge(hostMember, number(h.Member), h.Name)
		if h.MTU > 0 {
			gauge(hostPackets, float64(h.MTU), h.Name)
		}
	}
	for _, n := range p.Networks {
		for host, count := range n.Endpoints {
			gauge(netSize, float64(count), n.Name, host)
		}
		for host, blocks := range p.Blocks[n.Name] {
			gauge(netBlocks, float64(len(blocks)), n.Name, host)
		}
	}
	gauge(corrections, float64(len(p.Notes)))
	own := p.Reports[p.Host]
	gauge(problems, float64(len(own.Problems)))
	for labels, count := range connectionsBy(p) {
		gauge(connections, float64(count), labels[:]...)
	}
	if own.Traffic == nil {
		return
	}
	names := map[[2]string]string{}
	for _, one := range p.Containers {
		if one.Host == p.Host {
			names[[2]string{one.Network, one.ID}] = one.Container
		}
	}
	for _, l := range own.Traffic.Links {
		if name, ok := names[[2]string{l.Network, l.ID}]; ok {
			container.send(out, l.Counters, l.Network, l.ID, name)
		}
	}
	if own.Traffic.Between != nil {
		between.send(out, *own.Traffic.Between)
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// connectionsBy returns the connections between containers by network, this host, and the host of the other end.
func connectionsBy(p control.Picture) map[[3]string]int {
	all := map[[3]string]int{}
	for _, t := range p.Talks {
		near, far := t.From, t.To
		if near.Host != p.Host {
			near, far = far, near
		}
		if near.Host == p.Host && far.Host != "" {
			all[[3]string{near.Network, p.Host, far.Host}] += t.Connections
		}
	}
	return all
}
