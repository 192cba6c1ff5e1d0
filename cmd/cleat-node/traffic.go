package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"cleat/fastpath"
	"cleat/link"
	"cleat/network/firewall"
	"cleat/network/keep"
	"cleat/network/span"
	"cleat/overlay/control"
	"cleat/packet"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	maxFlows  = 1000            // that are reported
	keepFlows = 4 * maxFlows    // that are remembered
	keepIdle  = 5 * time.Minute // how long a flow is remembered after its last connection
)

// accounting is the setting by which the kernel counts the bytes of connections.
const accounting = "/proc/sys/net/netfilter/nf_conntrack_acct"

// Traffic implements overlay.Dataplane. The kernel counts the bytes of a container's link and of the device to
// other hosts in any case, so these cost nothing. Flows are read from the table of tracked connections, in which
// bytes are counted only if the host's administrator wants it.
func (d *dataplane) Traffic(ctx context.Context) (control.Traffic, error) {
	t := control.Traffic{At: time.Now(), Links: []control.Link{}}
	networks, err := d.store.Networks()
	if err != nil {
		return t, err
	}
	owners := map[netip.Addr]control.Link{}
	var inside []netip.Prefix
	for _, n := range networks {
		if !n.Spans {
			continue
		}
		for _, s := range n.Subnets {
			inside = append(inside, s.Prefix)
		}
		endpoints, err := d.store.Endpoints(n.Name)
		if err != nil {
			return t, err
		}
		for _, e := range endpoints {
			for _, a := range e.Addresses {
				owners[a] = control.Link{Network: n.Name, ID: e.Container.FileName()}
			}
		}
	}
	var fast fastpath.Counters // without a keeper all packets go the kernel's way
	if err := keep.FastCounters(ctx, d.cfg.Attach.Store, &fast); err == nil {
		d.fast.count(fast)
	}
	if err := d.links(&t, owners); err != nil {
		return t, err
	}
	on, err := os.ReadFile(accounting)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("see whether the kernel counts bytes of connections: %w", err)
	}
	t.Counted = bytes.HasPrefix(on, []byte("1"))
	t.Flows, t.Left, err = d.meter.read(t.At, inside, func(each func(firewall.Tracked)) error { return firewall.EachTracked(d.host, each) })
	return t, err
}

// links adds the counters of the links to the owners of addresses. The host has a route for each, which leads to
// the link's end on the host: what that end sends, the container receives. The kernel does not count what goes the fast
// way.
func (d *dataplane) links(t *control.Traffic, owners map[netip.Addr]control.Link) error {
	h, err := link.Handle(d.host)
	if err != nil {
		return err
	}
	defer h.Close()
	devices, err := link.Dump(h.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	counters := map[int]control.Counters{}
	for _, l := range devices {
		s := l.Attrs().Statistics
		if s == nil {
			continue
		}
		index := l.Attrs().Index
		sent, received := d.fast.of(index), fastpath.Counter{}
		if l.Attrs().Name == span.Device {
			sent, received = d.fast.of(sealedKey), d.fast.of(unsealedKey)
		}
		s.TxBytes, s.TxPackets = s.TxBytes+sent.Bytes, s.TxPackets+sent.Packets
		s.RxBytes, s.RxPackets = s.RxBytes+received.Bytes, s.RxPackets+received.Packets
		c := control.Counters{Received: s.TxBytes, Sent: s.RxBytes, ReceivedPackets: s.TxPackets, SentPackets: s.RxPackets}
		counters[index] = c
		if name := l.Attrs().Name; span.IsDevice(name) || isTunnel(name) { // as the host sees them
			t.Between = cmp.Or(t.Between, &control.Counters{})
			t.Between.Received, t.Between.Sent = t.Between.Received+s.RxBytes, t.Between.Sent+s.TxBytes
			t.Between.ReceivedPackets, t.Between.SentPackets = t.Between.ReceivedPackets+s.RxPackets, t.Between.SentPackets+s.TxPackets
		}
	}
	routes, err := link.Dump(func() ([]netlink.Route, error) { return h.RouteList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	found := map[[2]string]bool{} // a container has an address of each family
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		if bits, size := r.Dst.Mask.Size(); bits != size {
			continue
		}
		c, ok := counters[r.LinkIndex]
		of, known := owners[a.Unmap()]
		if key := [2]string{of.Network, of.ID}; ok && known && !found[key] {
			found[key] = true
			of.Counters = c
			t.Links = append(t.Links, of)
		}
	}
	slices.SortFunc(t.Links, func(a, b control.Link) int { return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.ID, b.ID)) })
	return nil
}

// meter adds up tracked connections to flows. The kernel forgets the bytes of a connection with it; the meter
// keeps those that it has seen, so that the counters of a flow only grow.
type meter struct {
	mu    sync.Mutex
	conns map[connection]counted // what is in flows already
	flows map[flowKey]*flow
}

type connection struct {
	id uint32
	flowKey
}

type flowKey struct {
	from, to netip.Addr
	protocol packet.Protocol
	port     uint16
}

type flow struct {
	control.Volume
	seen time.Time // its last connection
}

type counted struct{ requests, answers, packets uint64 }

// read returns the flows from or to addresses inside, and how many were left out.
func (m *meter) read(now time.Time, inside []netip.Prefix, connections func(each func(firewall.Tracked)) error) ([]control.Flow, int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flows == nil {
		m.flows = map[flowKey]*flow{}
	}
	for _, f := range m.flows {
		f.Connections, f.Counted = 0, 0
	}
	conns := map[connection]counted{}
	err := connections(func(t firewall.Tracked) {
		k := flowKey{only(t.Client, inside), only(t.Server, inside), t.Protocol, t.Port}
		if !k.from.IsValid() && !k.to.IsValid() {
			return
		}
		f := m.flows[k]
		if f == nil {
			if len(m.flows) >= keepFlows {
				return
			}
			f = &flow{}
			m.flows[k] = f
		}
		f.seen = now
		f.Connections++
		if !t.Counted {
			return
		}
		f.Counted++
		c := connection{t.ID, k}
		before := m.conns[c]
		f.Requests += since(t.Requests, before.requests)
		f.Answers += since(t.Answers, before.answers)
		f.Packets += since(t.Packets, before.packets)
		conns[c] = counted{t.Requests, t.Answers, t.Packets}
	})
	m.conns = conns
	if err != nil {
		return nil, 0, err
	}
	maps.DeleteFunc(m.flows, func(_ flowKey, f *flow) bool { return now.Sub(f.seen) > keepIdle })
	all := make([]control.Flow, 0, len(m.flows))
	for k, f := range m.flows {
		all = append(all, control.Flow{From: k.from, To: k.to, Protocol: protocolName(k.protocol), Port: k.port, Volume: f.Volume})
	}
	slices.SortFunc(all, func(a, b control.Flow) int {
		return cmp.Or(cmp.Compare(b.Requests+b.Answers, a.Requests+a.Answers), cmp.Compare(b.Connections, a.Connections),
			a.From.Compare(b.From), a.To.Compare(b.To), cmp.Compare(a.Port, b.Port))
	})
	shown := min(len(all), maxFlows)
	return all[:shown], len(all) - shown, nil
}

// since returns how much a counter has grown. A counter that shrank is one of another connection with the same ID.
func since(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// only returns an address if one of the prefixes contains it.
func only(a netip.Addr, inside []netip.Prefix) netip.Addr {
	a = a.Unmap()
	if slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return a
	}
	return netip.Addr{}
}

func protocolName(p packet.Protocol) string {
	switch p {
	case packet.TCP:
		return "tcp"
	case packet.UDP:
		return "udp"
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return "icmp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return fmt.Sprint(uint8(p))
}

// fastSums adds up what went the fast way with one keeper after the other. It is safe for concurrent use.
type fastSums struct {
	mu          sync.Mutex
	ended, last map[int]fastpath.Counter // of keepers that have ended, and of the one that runs; by index of a device to a container
}

// Keys of the VXLAN device's counters, beside the indexes of devices to containers.
const (
	sealedKey   = -1
	unsealedKey = -2
)

// count takes the counters of the keeper that runs. Those of a new one, and of devices that it had left out meanwhile,
// begin again.
func (f *fastSums) count(c fastpath.Counters) {
	now := maps.Clone(c.ToContainers)
	if now == nil {
		now = map[int]fastpath.Counter{}
	}
	now[sealedKey], now[unsealedKey] = c.Sealed, c.Unsealed
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, last := range f.last {
		if now[key].Packets < last.Packets {
			if f.ended == nil {
				f.ended = map[int]fastpath.Counter{}
			}
			f.ended[key] = f.ended[key].Plus(last)
		}
	}
	f.last = now
}

// of returns what went the fast way, by a key.
func (f *fastSums) of(key int) fastpath.Counter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[key].Plus(f.last[key])
}
