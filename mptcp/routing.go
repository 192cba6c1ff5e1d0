package mptcp

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Marks of our entries in the kernel's routing.
const (
	// protocol marks rules and routes. Nobody has registered this number
	// (include/uapi/linux/rtnetlink.h, /etc/iproute2/rt_protos).
	protocol = 162
	// priority is that of our rules: before the main table's (32766), and after those of
	// VPNs that count up from 5000.
	priority = 26200
	// Tables are numbered tables plus the link's index.
	tables     = 2620000000
	tablesPast = 3000000000
)

func tableOf(index int) int { return tables + index }

func isOurTable(table int) bool { return table > tables && table < tablesPast }

// rule is "from ADDRESS lookup TABLE". It is comparable.
type rule struct {
	from  netip.Addr
	table int
}

func (r rule) String() string {
	return fmt.Sprintf("from %s table %d priority %d protocol %d", r.from, r.table, priority, protocol)
}

func (r rule) netlink() *netlink.Rule {
	n := netlink.NewRule()
	n.Family, n.Table, n.Priority, n.Protocol = nl.GetIPFamily(r.from.AsSlice()), r.table, priority, protocol
	n.Src = ipNet(netip.PrefixFrom(r.from, r.from.BitLen()))
	return n
}

// route uses one link, or is unreachable. It is comparable.
type route struct {
	table  int
	to     netip.Prefix
	via    netip.Addr // zero: directly connected
	device string     // "": unreachable
	index  int
	metric int
	onLink bool
}

func (r route) String() string {
	var b strings.Builder
	if r.device == "" {
		b.WriteString("unreachable ")
	}
	if r.to.Bits() == 0 {
		b.WriteString("default")
	} else {
		b.WriteString(r.to.String())
	}
	if r.via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.via)
	}
	if r.device != "" {
		fmt.Fprintf(&b, " dev %s", r.device)
	}
	if r.onLink {
		b.WriteString(" onlink")
	}
	if r.metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.metric)
	}
	fmt.Fprintf(&b, " table %d proto %d", r.table, protocol)
	return b.String()
}

func (r route) netlink() *netlink.Route {
	n := &netlink.Route{
		Table: r.table, Dst: ipNet(r.to), Family: nl.GetIPFamily(r.to.Addr().AsSlice()), Protocol: protocol, Priority: r.metric,
		LinkIndex: r.index, Scope: netlink.SCOPE_UNIVERSE,
	}
	switch {
	case r.device == "":
		n.Type, n.LinkIndex = unix.RTN_UNREACHABLE, 0
	case r.via.IsValid():
		n.Gw = r.via.AsSlice()
	default:
		n.Scope = netlink.SCOPE_LINK
	}
	if r.onLink {
		n.Flags = int(netlink.FLAG_ONLINK)
	}
	return n
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n == nil {
		if family == unix.AF_INET {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	ip, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if family == unix.AF_INET {
		ip = ip.Unmap()
	}
	return netip.PrefixFrom(ip, bits)
}

// metric6 is the kernel's default metric for IPv6 (IP6_RT_PRIO_USER,
// include/net/ip6_route.h).
const metric6 = 1024

// routesOf splits a route of the kernel into one for each link it uses.
func routesOf(n netlink.Route, family int, names map[int]string) []route {
	r := route{table: n.Table, to: prefixOf(n.Dst, family), metric: n.Priority}
	if family == unix.AF_INET6 && r.metric == 0 {
		r.metric = metric6
	}
	if n.Type == unix.RTN_UNREACHABLE {
		return []route{r}
	}
	hops := n.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: n.LinkIndex, Gw: n.Gw, Flags: n.Flags}}
	}
	var all []route
	for _, h := range hops {
		one := r
		one.via, _ = netip.AddrFromSlice(h.Gw)
		one.via = one.via.Unmap()
		one.index, one.device = h.LinkIndex, names[h.LinkIndex]
		one.onLink = h.Flags&int(netlink.FLAG_ONLINK) != 0
		all = append(all, one)
	}
	return all
}

// routing is the kernel's routing, with our part of it.
type routing struct {
	names map[int]string
	main  map[int][]route // main table by address family, without link-local and multicast routes
	rules []rule
	ours  []route
}

func readRouting(h *netlink.Handle) (*routing, error) {
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	g := &routing{names: map[int]string{}, main: map[int][]route{}}
	for _, l := range links {
		g.names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := g.readRules(h, family); err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		if err := g.readRoutes(h, family); err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
	}
	return g, nil
}

func (g *routing) readRules(h *netlink.Handle, family int) error {
	all, err := h.RuleList(family)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Priority != priority || r.Protocol != protocol || !isOurTable(r.Table) || r.Src == nil {
			continue
		}
		g.rules = append(g.rules, rule{prefixOf(r.Src, family).Addr(), r.Table})
	}
	return nil
}

func (g *routing) readRoutes(h *netlink.Handle, family int) error {
	all, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, n := range all {
		ours := n.Protocol == protocol && isOurTable(n.Table)
		usable := n.Table == unix.RT_TABLE_MAIN && n.Type == unix.RTN_UNICAST
		for _, r := range routesOf(n, family, g.names) {
			switch {
			case ours:
				g.ours = append(g.ours, r)
			case usable && !r.to.Addr().IsLinkLocalUnicast() && !r.to.Addr().IsMulticast():
				g.main[family] = append(g.main[family], r)
			}
		}
	}
	return nil
}

// needsTable reports whether any route of the main table uses another link.
func (g *routing) needsTable(family, index int) bool {
	return slices.ContainsFunc(g.main[family], func(r route) bool { return r.index != index })
}

// table returns the wanted content of a link's table, subnets first, because gateways are
// looked up in them.
func (g *routing) table(family, index int) []route {
	var all []route
	for _, r := range g.main[family] {
		if r.index != index {
			continue
		}
		r.table = tableOf(index)
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b route) int {
		if a.via.IsValid() != b.via.IsValid() {
			return map[bool]int{false: -1, true: 1}[a.via.IsValid()]
		}
		return cmp.Compare(b.to.Bits(), a.to.Bits())
	})
	if !slices.ContainsFunc(all, func(r route) bool { return r.to.Bits() == 0 }) {
		none := route{table: tableOf(index), to: prefixOf(nil, family)}
		if family == unix.AF_INET6 {
			none.metric = metric6
		}
		all = append(all, none)
	}
	return all
}

// defaultLink returns the index of the link of the default route, on which connections to the
// outside start, or 0.
func (g *routing) defaultLink(family int) int {
	best := route{metric: -1}
	for _, r := range g.main[family] {
		if r.to.Bits() == 0 && (best.metric < 0 || r.metric < best.metric) {
			best = r
		}
	}
	return best.index
}
