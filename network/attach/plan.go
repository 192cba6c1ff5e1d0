package attach

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// planner makes the list of steps from what is wanted and what is there.
type planner struct {
	want  Spec // with the name filled in
	c     Container
	id    string
	host  *side
	cont  *side
	store *Store
	mode  string
	steps []Step
	notes []string
	peer  string // the other end's name on the host, of a pair

}

func (p *planner) add(s ...Step)                { p.steps = append(p.steps, s...) }
func (p *planner) note(format string, a ...any) { p.notes = append(p.notes, fmt.Sprintf(format, a...)) }

// plan is all of it. want.Check has passed, and want.Name is set.
func (p *planner) plan() error {
	k, err := findKind(p.want.Kind)
	if err != nil {
		return err
	}
	p.mode = p.want.Mode
	if p.mode == "" && len(k.modes) > 0 {
		p.mode = k.modes[0]
	}
	if err := p.claims(); err != nil {
		return err
	}
	if err := k.plan(p); err != nil {
		return err
	}
	if err := p.dryParse(); err != nil {
		return err
	}
	if err := p.configure(); err != nil {
		return err
	}
	if p.want.Keep {
		if err := p.c.checkReturns(); err != nil {
			return err
		}
	}
	if p.want.Keep && !p.c.CanReturn() {
		p.note("a process never comes back: what is kept of it is its lease alone")
	}
	if p.c.SilentEngines != "" {
		p.note("%s", p.c.waited())
	}
	if p.c.SharedWith != "" {
		p.note("it has its network together with %s: they have the link, too", p.c.SharedWith)
	}
	p.crowded()
	p.add(Keep{Path: p.store.wanted(p.id)})
	return nil
}

// claims gives the addresses to this attachment alone.
func (p *planner) claims() error {
	if p.want.Parent == "" {
		return nil
	}
	network := p.want.Parent
	if p.want.VLAN != 0 {
		network += "." + strconv.Itoa(p.want.VLAN)
	}
	for _, ip := range p.want.Addresses {
		if err := p.notTheHosts(ip.Addr()); err != nil {
			return err
		}
		p.add(ClaimAddress{Network: network, Addr: ip.Addr().String()})
	}
	if mac := p.want.MAC; mac != (link.MAC{}) && slices.Contains(ethernets, p.want.Kind) {
		p.add(ClaimAddress{Network: network, Addr: mac.String(), Ethernet: true})
	}
	return nil
}

// ethernets are the kinds whose PARENT is the Ethernet that they are on. Of two with the same
// address there none works.
var ethernets = []string{"bridge", "ovs", "macvlan", "netkit"}

// notTheHosts refuses an address that the host itself has, unless it moves with
// the device.
func (p *planner) notTheHosts(a netip.Addr) error {
	if p.want.Kind == "phys" || p.want.Kind == "ipoib" || a.IsLinkLocalUnicast() {
		return nil
	}
	if hasAddress(p.host, a) {
		return &TakenError{Resource: "address", Name: a.String(), Owner: "the host itself"}
	}
	return nil
}

// hasAddress tells whether a namespace has an address: packets to it are for
// itself then.
func hasAddress(s *side, a netip.Addr) bool {
	routes, err := s.RouteGet(a.AsSlice())
	if err != nil {
		return false // it has not even a way there
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
}

// dryParse finds mistakes in the parameters before anything is done.
func (p *planner) dryParse() error {
	for _, s := range p.steps {
		m, ok := s.(MakeLink)
		if !ok {
			continue
		}
		params := maps.Clone(m.Params)
		for k, v := range params {
			text, err := contents(v)
			if err != nil {
				return err
			}
			params[k] = text
		}
		if params == nil {
			params = map[string]string{}
		}
		params["name"] = m.Name
		if m.Peer != "" {
			params["name"], params["peer"] = m.Peer, m.Name
		}
		var bad *link.ParamError
		_, err := link.Parse(m.Kind, params)
		if errors.As(err, &bad) && bad.Known != nil {
			allowed := slices.DeleteFunc(bad.Known, func(name string) bool { _, has := setOtherwise()[name]; return has })
			return &SpecError{Param: "set", Value: bad.Param, Reason: "kind " + p.want.Kind + " has no such parameter", Allowed: allowed}
		}
		if err != nil {
			return err
		}
		if (m.Kind == "vxlan" || m.Kind == "geneve") && params["vni"] == "" && params["external"] == "" {
			return &SpecError{Param: "set", Reason: "kind " + m.Kind + " needs the number of its network, 0…16777215, e.g. --set vni=42"}
		}
	}
	return nil
}

// configure is what all kinds have in common.
func (p *planner) configure() error {
	w := p.want
	p.add(Up{Link: w.Name})
	for _, ip := range w.Addresses {
		if err := p.besides(ip); err != nil {
			return err
		}
	}
	if err := p.ipv6(); err != nil {
		return err
	}
	if err := p.addresses(); err != nil {
		return err
	}
	if w.DHCP {
		p.lease()
	}
	for _, r := range w.Routes {
		p.add(AddRoute{Link: w.Name, Route: r})
	}
	for _, g := range w.Gateways {
		if err := p.gateway(g); err != nil {
			return err
		}
	}
	if w.RateBitsPerSec > 0 {
		p.shape()
	}
	if len(w.DNS) > 0 {
		path, err := p.c.resolvConf()
		if err != nil {
			return err
		}
		p.add(WriteDNS{Path: path, Servers: w.DNS})
	}
	return nil
}

// gateway is a default route, in the place of one that is there.
func (p *planner) gateway(g netip.Addr) error {
	family := familyOf(g)
	old, err := defaultRoute(p.cont, family)
	if err != nil {
		return err
	}
	if old != nil {
		via := viaText(old)
		p.add(TakeRoute{Family: map[int]int{unix.AF_INET: 4, unix.AF_INET6: 6}[family], Via: via, route: *old})
		p.note("the container has a default route already (%s): it goes, and comes back when this is detached", via)
	}
	p.add(AddRoute{Link: p.want.Name, Route: Route{To: anywhere(family), Via: g}})
	return nil
}

func (p *planner) shape() {
	s := Shape{Link: p.want.Name, Via: shorten("ifb-" + p.want.Name), Rate: p.want.RateBitsPerSec, Burst: p.want.BurstBytes}
	if p.peer != "" {
		s.Link, s.Via, s.Host = p.peer, p.hostName("ifb"), true
	}
	p.add(s)
}

func shorten(name string) string { return name[:min(len(name), 15)] }

// hostName is a name for a device of this attachment's on the host: always the
// same as long as the container's namespace is, and nobody else's.
func (p *planner) hostName(prefix string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s\n%s", p.id, p.cont.place.name(), p.store.Path())
	const digits = 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36
	return fmt.Sprintf("%s%011s", prefix, strconv.FormatUint(h.Sum64()%digits, 36))
}

// params are the link's parameters: those set, the mode and the MTU.
func (p *planner) params(more ...string) map[string]string {
	out := maps.Clone(p.want.Params)
	if out == nil {
		out = map[string]string{}
	}
	if p.want.MTU != 0 {
		out["mtu"] = strconv.Itoa(p.want.MTU)
	}
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] != "" {
			out[more[i]] = more[i+1]
		}
	}
	return out
}

// mac is the address wanted, or one of its own.
func (p *planner) mac() link.MAC {
	if p.want.MAC != (link.MAC{}) {
		return p.want.MAC
	}
	return randomMAC(unicast)
}

// parent is the device of the host's that must be there.
func (p *planner) parent() (netlink.Link, error) {
	l, err := p.host.find(p.want.Parent)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", p.want.Parent, err)
	}
	if l == nil {
		return nil, &SpecError{Param: "PARENT", Value: p.want.Parent, Reason: "the host has no such device", Allowed: p.candidates()}
	}
	return l, nil
}

// candidates are the devices of the host's that could be a parent.
func (p *planner) candidates() []string {
	all, err := p.host.LinkList()
	if err != nil {
		return nil
	}
	var names []string
	for _, l := range all {
		if l.Attrs().RawFlags&unix.IFF_LOOPBACK == 0 && l.Type() != "ifb" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}
