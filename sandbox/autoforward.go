package sandbox

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/nlsock"
)

// pollInterval is how often listeners are listed: a new one is reachable within a second, and
// a dump of a handful of sockets takes some microseconds.
const pollInterval = time.Second

// match is a listener and an AutoForward that selects it.
type match struct {
	listener
	auto *AutoForward
}

func anyFollows(all []AutoForward, proto Protocol) bool {
	return slices.ContainsFunc(all, func(a AutoForward) bool { return a.follows(proto) })
}

// poll calls apply with all listeners that are selected, again and again until ctx ends. diag
// is a socket of their namespace.
func (n *Network) poll(ctx context.Context, diag *nlsock.Socket, selected []AutoForward, apply func([]match)) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if found, err := findMatches(diag, selected); err != nil {
			n.cfg.Log.Warn("list listeners", "error", err)
		} else {
			apply(found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func findMatches(diag *nlsock.Socket, selected []AutoForward) (all []match, err error) {
	for _, proto := range []Protocol{TCP, UDP} {
		if !anyFollows(selected, proto) {
			continue
		}
		found, err := listListeners(diag, proto)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			for i := range selected {
				if a := &selected[i]; a.follows(proto) && a.matches(l) {
					all = append(all, match{l, a})
				}
			}
		}
	}
	return all, nil
}

// ephemeral are the ports that the kernel assigns to sockets without a port
// (net.ipv4.ip_local_port_range). A UDP socket there may be a server or a client.
var ephemeral = []PortRange{{First: 32768, Last: 60999}}

func (a *AutoForward) matches(l listener) bool {
	port := l.addr.Port()
	switch {
	case port == 0 || anyContains(a.Except, port):
		return false
	case a.Only != nil:
		return anyContains(a.Only, port)
	}
	return l.proto != UDP || !anyContains(ephemeral, port)
}

func anyContains(all []PortRange, port uint16) bool {
	return slices.ContainsFunc(all, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

// shifted applies Shift to a port. It returns 0 if the result is no port.
func (a *AutoForward) shifted(port uint16) uint16 {
	if to := int(port) + a.Shift[port]; to > 0 && to <= 0xffff {
		return uint16(to)
	}
	return 0
}

type autoKey struct {
	proto Protocol
	port  uint16 // of the guest
	auto  *AutoForward
}

// autoForwarder forwards ports of the host to the guest's listeners.
type autoForwarder struct {
	n      *Network
	open   map[autoKey]Forward
	warned map[autoKey]bool
}

func (a *autoForwarder) apply(found []match) {
	want := a.wanted(found)
	for key, f := range a.open {
		if w, ok := want[key]; ok && w.Listen.Addr() == f.Listen.Addr() && w.To == f.To {
			continue
		}
		if err := a.n.res.stack.Unforward(f); err == nil {
			delete(a.open, key)
		}
	}
	for key, f := range want {
		if _, ok := a.open[key]; ok {
			continue
		}
		at, err := a.n.res.stack.Forward(f)
		if err != nil {
			if !a.warned[key] {
				a.n.cfg.Log.Warn("forward a port automatically", "protocol", key.proto.String(), "port", key.port, "error", err)
			}
			a.warned[key] = true
			continue
		}
		f.Listen = at
		a.open[key] = f
		delete(a.warned, key)
	}
	for key := range a.warned {
		if _, ok := want[key]; !ok {
			delete(a.warned, key)
		}
	}
}

// wanted returns one forward for each port and AutoForward. Listeners on the guest's loopback
// are not forwarded.
func (a *autoForwarder) wanted(found []match) map[autoKey]Forward {
	c := &a.n.cfg
	want := map[autoKey]Forward{}
	for _, m := range found {
		key := autoKey{m.proto, m.addr.Port(), m.auto}
		hostPort := m.auto.shifted(key.port)
		if m.addr.Addr().IsLoopback() || hostPort == 0 || c.configured(m.proto, hostPort, key.port) {
			continue
		}
		hostAddr := m.auto.Listen
		if !hostAddr.IsValid() && m.addr.Addr().Is4() {
			hostAddr = netip.IPv4Unspecified() // otherwise the invalid address: both families
		}
		f := Forward{Protocol: m.proto, Interface: m.auto.Interface,
			Listen: netip.AddrPortFrom(hostAddr, hostPort), To: netip.AddrPortFrom(netip.Addr{}, key.port)}
		if !m.addr.Addr().IsUnspecified() {
			f.To = m.addr
		}
		if have, ok := want[key]; ok {
			// The port has several listeners, for instance one of each family: serve all.
			if !m.auto.Listen.IsValid() && have.Listen.Addr() != f.Listen.Addr() {
				have.Listen = netip.AddrPortFrom(netip.Addr{}, hostPort)
			}
			if have.To != f.To {
				have.To = netip.AddrPortFrom(netip.Addr{}, key.port)
			}
			f = have
		}
		want[key] = f
	}
	return want
}

// configured reports whether Config uses a port of the host for a forward, or a port of the
// guest for a reverse forward.
func (c *Config) configured(proto Protocol, host, guest uint16) bool {
	return slices.ContainsFunc(c.Forwards, func(f Forward) bool { return f.Protocol == proto && f.Listen.Port() == host }) ||
		slices.ContainsFunc(c.ReverseForwards, func(r ReverseForward) bool { return r.Protocol == proto && r.Listen.Port() == guest })
}

// autoReverser adds reverse forwards for listeners on the host's loopback. They stay when the
// host's listener is gone: connecting then fails until it is back.
type autoReverser struct {
	n     *Network
	g     *group
	tried map[ReverseForward]bool
}

func (a *autoReverser) apply(found []match) {
	for _, m := range found {
		for _, r := range a.wanted(m) {
			if a.tried[r] {
				continue
			}
			a.tried[r] = true
			relay, err := a.n.openReverse(r)
			if err != nil {
				a.n.cfg.Log.Warn("forward a port of the namespace to the host", "protocol", r.Protocol.String(), "port", r.Listen.Port(), "error", err)
			} else if relay != nil {
				a.g.run(relay.run)
			}
		}
	}
}

// wanted returns a reverse forward for each family that the host's listener serves.
func (a *autoReverser) wanted(m match) []ReverseForward {
	port, addr := m.auto.shifted(m.addr.Port()), m.addr.Addr()
	if port == 0 || !addr.IsUnspecified() && !addr.IsLoopback() || a.isForward(m.listener) {
		return nil
	}
	var hosts []netip.Addr
	if addr.Is4() || addr == netip.IPv6Unspecified() && !m.ipv6Only {
		hosts = append(hosts, loopback4)
	}
	if addr.Is6() {
		hosts = append(hosts, netip.IPv6Loopback())
	}
	var all []ReverseForward
	for _, host := range hosts {
		inside := host
		if m.auto.Listen.IsValid() {
			inside = m.auto.Listen
		}
		if inside.Is4() == host.Is4() {
			all = append(all, ReverseForward{m.proto, netip.AddrPortFrom(inside, port), netip.AddrPortFrom(host, m.addr.Port())})
		}
	}
	return all
}

// isForward reports whether the host's listener belongs to a forward of this network.
func (a *autoReverser) isForward(l listener) bool {
	return slices.ContainsFunc(a.n.Forwards(), func(f Forward) bool {
		return f.Protocol == l.proto && f.Listen.Port() == l.addr.Port()
	})
}
