package sandbox

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"cleat/internal/nlsock"

	"golang.org/x/sys/unix"
)

// autoEvery is how often listeners are looked for: a program that has just begun
// to listen is reachable within a second, and a dump of a handful of sockets
// takes some microseconds.
const autoEvery = time.Second

// poller follows the listeners of one namespace.
type poller struct {
	diag  *nlsock.Socket
	rules []AutoForward
	log   *slog.Logger
	apply func([]match) // all that match, each time
}

// match is a listener and one of the rules that want it followed.
type match struct {
	listening
	rule *AutoForward
}

// anyAuto tells whether one of the rules follows a protocol.
func anyAuto(rules []AutoForward, proto Protocol) bool {
	return slices.ContainsFunc(rules, func(a AutoForward) bool { return a.follows(proto) })
}

func (a *AutoForward) follows(proto Protocol) bool {
	return proto == TCP && a.TCP || proto == UDP && a.UDP
}

// automatic are the pollers that Config asks for.
func (n *Network) automatic(g *group) []*poller {
	var all []*poller
	c := &n.cfg
	if diag := n.opened.guestDiag; diag != nil {
		f := inboundAuto{n: n, open: map[autoPort]Forward{}, warned: map[autoPort]bool{}}
		all = append(all, &poller{diag, c.AutoForward, c.Log, f.apply})
	}
	if n.opened.hostDiag != nil {
		o := outwardAuto{n: n, g: g, open: map[ReverseForward]bool{}}
		all = append(all, &poller{n.opened.hostDiag, c.AutoReverseForward, c.Log, o.apply})
	}
	return all
}

// run looks at once, and then again and again.
func (p *poller) run(ctx context.Context) error {
	tick := time.NewTicker(autoEvery)
	defer tick.Stop()
	for {
		p.look()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *poller) look() {
	var all []match
	for _, proto := range []Protocol{TCP, UDP} {
		if !anyAuto(p.rules, proto) {
			continue
		}
		found, err := listeners(p.diag, proto)
		if err != nil {
			p.log.Warn("look for listeners", "error", err)
			return
		}
		for _, l := range found {
			for i := range p.rules {
				if a := &p.rules[i]; a.follows(proto) && a.matches(l) {
					all = append(all, match{l, a})
				}
			}
		}
	}
	p.apply(all)
}

// ephemeral are the ports that the kernel gives to sockets that ask for none
// (net.ipv4.ip_local_port_range). Of UDP sockets there nobody can tell a server
// from a client.
var ephemeral = PortRange{First: 32768, Last: 60999}

func (a *AutoForward) matches(l listening) bool {
	port := l.at.Port()
	switch {
	case port == 0 || anyHas(a.Except, port):
		return false
	case a.Only != nil:
		return anyHas(a.Only, port)
	}
	return l.proto != UDP || !has(ephemeral, port)
}

func has(r PortRange, port uint16) bool { return r.First <= port && port <= r.Last }

func anyHas(all []PortRange, port uint16) bool {
	return slices.ContainsFunc(all, func(r PortRange) bool { return has(r, port) })
}

// shifted is a port after Shift; 0 where that leads nowhere.
func (a *AutoForward) shifted(port uint16) uint16 {
	if to := int(port) + a.Shift[port]; to > 0 && to <= 0xffff {
		return uint16(to)
	}
	return 0
}

// autoPort is a port inside that wants a forward.
type autoPort struct {
	proto Protocol
	port  uint16
	rule  *AutoForward
}

// inboundAuto forwards ports of the host to what listens inside.
type inboundAuto struct {
	n      *Network
	open   map[autoPort]Forward
	warned map[autoPort]bool
}

func (a *inboundAuto) apply(found []match) {
	want := a.wanted(found)
	for key, f := range a.open {
		if w, ok := want[key]; ok && w.Listen.Addr() == f.Listen.Addr() && w.To == f.To {
			continue
		}
		if err := a.n.opened.stack.Unforward(f); err == nil {
			delete(a.open, key)
		}
	}
	for key, f := range want {
		if _, ok := a.open[key]; ok {
			continue
		}
		at, err := a.n.opened.stack.Forward(f)
		if err != nil {
			if !a.warned[key] {
				a.n.cfg.Log.Warn("forward automatically", "protocol", key.proto.String(), "port", key.port, "error", err)
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

// wanted is one forward for each port and rule. What listens on loopback is for inside
// alone.
func (a *inboundAuto) wanted(found []match) map[autoPort]Forward {
	c := &a.n.cfg
	want := map[autoPort]Forward{}
	for _, l := range found {
		key := autoPort{l.proto, l.at.Port(), l.rule}
		host := l.rule.shifted(key.port)
		if l.at.Addr().IsLoopback() || host == 0 || c.taken(l.proto, host, key.port) {
			continue
		}
		f := Forward{Protocol: l.proto, Interface: l.rule.Interface,
			Listen: netip.AddrPortFrom(l.hostAddr(l.rule.Listen), host), To: netip.AddrPortFrom(netip.Addr{}, key.port)}
		if !l.at.Addr().IsUnspecified() {
			f.To = l.at
		}
		if have, ok := want[key]; ok {
			// Two sockets, say one of each family: both are served.
			if !l.rule.Listen.IsValid() && have.Listen.Addr() != f.Listen.Addr() {
				have.Listen = netip.AddrPortFrom(netip.Addr{}, host)
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

// hostAddr is where the host listens for l.
func (l listening) hostAddr(listen netip.Addr) netip.Addr {
	switch {
	case listen.IsValid():
		return listen
	case l.at.Addr().Is4() && !l.dual():
		return netip.IPv4Unspecified()
	}
	return netip.Addr{} // both families
}

// dual tells whether the socket takes IPv4 and IPv6.
func (l listening) dual() bool { return l.at.Addr() == netip.IPv6Unspecified() && !l.only6 }

// taken tells whether a port of the host or of the inside is spoken for by the
// configuration.
func (c *Config) taken(proto Protocol, host, guest uint16) bool {
	for _, f := range c.Forwards {
		if f.Protocol == proto && f.Listen.Port() == host {
			return true
		}
	}
	for _, o := range c.ReverseForwards {
		if o.Protocol == proto && o.Listen.Port() == guest {
			return true
		}
	}
	return false
}

// outwardAuto makes ports inside lead to what listens on the host's loopback.
// They stay when the host's listener goes: connecting then fails, and works
// again when it is back.
type outwardAuto struct {
	n    *Network
	g    *group
	open map[ReverseForward]bool // false: tried in vain
}

func (a *outwardAuto) apply(found []match) {
	for _, l := range found {
		for _, o := range a.wanted(l) {
			if _, tried := a.open[o]; tried {
				continue
			}
			r, err := a.n.lead(o)
			a.open[o] = err == nil
			if err != nil {
				a.n.cfg.Log.Warn("lead a port inside to the host", "protocol", o.Protocol.String(), "port", o.Listen.Port(), "error", err)
				continue
			}
			if r != nil {
				a.g.run(r.run)
			}
		}
	}
}

// wanted are the ports inside, of each family that the host's socket serves.
func (a *outwardAuto) wanted(l match) []ReverseForward {
	c := l.rule
	port := c.shifted(l.at.Port())
	addr := l.at.Addr()
	if port == 0 || !addr.IsUnspecified() && !addr.IsLoopback() || a.ours(l.listening) {
		return nil
	}
	var all []ReverseForward
	add := func(host netip.Addr) {
		inside := host
		if c.Listen.IsValid() {
			inside = c.Listen
		}
		if inside.Is4() == host.Is4() {
			all = append(all, ReverseForward{l.proto, netip.AddrPortFrom(inside, port), netip.AddrPortFrom(host, l.at.Port())})
		}
	}
	if addr.Is4() || l.dual() {
		add(loopback(unix.AF_INET))
	}
	if addr.Is6() {
		add(loopback(unix.AF_INET6))
	}
	return all
}

// ours tells whether the host's listener is a forward to inside.
func (a *outwardAuto) ours(l listening) bool {
	for _, f := range a.n.Forwards() {
		if f.Protocol == l.proto && f.Listen.Port() == l.at.Port() {
			return true
		}
	}
	return false
}

func loopback(family int) netip.Addr {
	if family == unix.AF_INET6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
