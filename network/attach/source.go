package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A container on several networks has one default route, but its packets must leave by the network
// of their source address: the gateway of another network drops them, or knows nothing of their
// connection. A source gateway has, for each address of the link,
//
//	rule 30000 from ADDRESS lookup main suppress_prefixlength 0   what is near stays near
//	rule 30001 from ADDRESS lookup TABLE                          the rest goes to the gateway
//
// and a default route in TABLE. Routes go with the link, the rules don't. A second default route, in
// the main table and behind all others, counts once the link of the first one is gone.
const (
	nearPriority   = 30000 // before the main table, 32766
	sourcePriority = 30001
	sourceTable    = 0x636c0000 // "cl"; the link's index is added
	lastMetric     = 0x636c0000 // of default routes; the link's index is added, as no two may be equal
)

// sourceGateways plans to route packets with the link's addresses by gateways of the link, beside the
// default route that the container has.
func (p *planner) sourceGateways() {
	for _, g := range p.spec.SourceGateways {
		p.add(SourceGateway{Link: p.spec.Name, Via: g, MTU: p.gatewayMTU(g)})
		for _, a := range p.spec.Addresses {
			if a.Addr().Is4() == g.Is4() {
				p.add(SourceRule{From: a.Addr()})
			}
		}
	}
}

// SourceGateway adds default routes through the link to the container that count for few packets.
type SourceGateway struct {
	Link string     `json:"link"`
	Via  netip.Addr `json:"via"`
	MTU  int        `json:"mtu,omitempty"` // of the routes, in bytes; 0: the link's
}

func (s SourceGateway) String() string {
	return fmt.Sprintf("route packets from the addresses of %s via %s", s.Link, s.Via)
}

// do records nothing, because the routes go with the link.
func (s SourceGateway) do(r *run) error {
	to := routeRecord{To: defaultPrefix(familyOf(s.Via)), Via: s.Via, Index: r.linkIndex, MTU: s.MTU}
	source, last := to, to
	source.Table = sourceTable + r.linkIndex
	last.Metric = lastMetric + r.linkIndex
	for _, t := range []routeRecord{source, last} {
		if err := r.cont.RouteAdd(t.netlink()); err != nil {
			return err
		}
	}
	return nil
}

// SourceRule makes packets from an address of the link take its source gateway.
type SourceRule struct {
	From netip.Addr `json:"from"`
}

func (s SourceRule) String() string {
	return fmt.Sprintf("let packets from %s leave by the link", s.From)
}

func (s SourceRule) do(r *run) error {
	for _, rule := range []sourceRule{
		{From: s.From, Table: unix.RT_TABLE_MAIN, Priority: nearPriority},
		{From: s.From, Table: sourceTable + r.linkIndex, Priority: sourcePriority},
	} {
		if err := r.record(Undo{SourceRule: &undoSourceRule{NS: r.cont.ref, Rule: rule}}); err != nil {
			return err
		}
		err := r.cont.RuleAdd(rule.netlink())
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			r.notes = append(r.notes, fmt.Sprintf("packets from %s take the container's default route: the kernel was built without CONFIG_IP_MULTIPLE_TABLES", s.From))
			return nil
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule: %w", err)
		}
	}
	return nil
}

// sourceRule is a routing rule in a journal.
type sourceRule struct {
	From     netip.Addr `json:"from"`
	Table    int        `json:"table"`
	Priority int        `json:"priority"`
}

// netlink returns the rule for the netlink library. A rule that leads to the main table ignores
// the default route there.
func (s sourceRule) netlink() *netlink.Rule {
	r := netlink.NewRule()
	r.Family = familyOf(s.From)
	r.Src = ipNet(netip.PrefixFrom(s.From, s.From.BitLen()))
	r.Table, r.Priority = s.Table, s.Priority
	if s.Table == unix.RT_TABLE_MAIN {
		r.SuppressPrefixlen = 0
	}
	return r
}

type undoSourceRule struct {
	NS   nsRef      `json:"where"`
	Rule sourceRule `json:"rule"`
}

func (m *undoSourceRule) undo(u *undoer) error {
	n, err := u.namespace(m.NS)
	if n == nil {
		return err
	}
	err = n.RuleDel(m.Rule.netlink())
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return u.failed(n, fmt.Errorf("remove the rule for packets from %s: %w", m.Rule.From, err))
	}
	return nil
}
