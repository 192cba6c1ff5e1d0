package attach

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	"cleat/internal/columns"
	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// planner makes the list of steps from what is wanted and what is there.
type planner struct {
	spec      Spec // with the name filled in
	container Container
	id        string
	host      *namespace
	cont      *namespace
	store     *Store
	mode      string
	steps     []Step
	notes     []string
	peer      string // the other end's name on the host, of a pair

}

func (p *planner) add(s ...Step) { p.steps = append(p.steps, s...) }

func (p *planner) note(format string, a ...any) { p.notes = append(p.notes, fmt.Sprintf(format, a...)) }

// plan is all of it. want.Check has passed, and want.Name is set.
func (p *planner) plan() error {
	k, err := findKind(p.spec.Kind)
	if err != nil {
		return err
	}
	p.mode = p.spec.Mode
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
	if p.spec.Keep {
		if err := p.container.checkReturns(); err != nil {
			return err
		}
	}
	if p.spec.Keep && !p.container.CanReturn() {
		p.note("a process never comes back: what is kept of it is its lease alone")
	}
	if p.container.SilentEngines != "" {
		p.note("%s", p.container.silenceNote())
	}
	if p.container.SharedWith != "" {
		p.note("it has its network together with %s: they have the link, too", p.container.SharedWith)
	}
	p.noteNeighbourTables()
	p.add(Keep{Path: p.store.file(p.id)})
	return nil
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
		if errors.As(err, &bad) && bad.ValidParams != nil {
			allowed := slices.DeleteFunc(bad.ValidParams, func(name string) bool { _, has := reservedParams()[name]; return has })
			return &SpecError{Param: "set", Value: bad.Param, Reason: "kind " + p.spec.Kind + " has no such parameter", Allowed: allowed}
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
	w := p.spec
	p.add(Up{Link: w.Name})
	for _, ip := range w.Addresses {
		if err := p.noteSameNetwork(ip); err != nil {
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
		p.planLease()
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
		path, err := p.container.resolvConf()
		if err != nil {
			return err
		}
		p.add(WriteDNS{Path: path, Servers: w.DNS})
	}
	return nil
}

// hostName is a name for a device of this attachment's on the host: always the
// same as long as the container's namespace is, and nobody else's.
func (p *planner) hostName(prefix string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s\n%s", p.id, p.cont.ref.key(), p.store.Path())
	const digits = 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36
	return fmt.Sprintf("%s%011s", prefix, strconv.FormatUint(h.Sum64()%digits, 36))
}

func shorten(name string) string { return name[:min(len(name), 15)] }

// params are the link's parameters: those set, the mode and the MTU.
func (p *planner) params(more ...string) map[string]string {
	out := maps.Clone(p.spec.Params)
	if out == nil {
		out = map[string]string{}
	}
	if p.spec.MTU != 0 {
		out["mtu"] = strconv.Itoa(p.spec.MTU)
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
	if p.spec.MAC != (link.MAC{}) {
		return p.spec.MAC
	}
	return randomMAC(unicast)
}

// parent is the device of the host's that must be there.
func (p *planner) parent() (netlink.Link, error) {
	l, err := p.host.find(p.spec.Parent)
	if err != nil {
		return nil, fmt.Errorf("find %q: %w", p.spec.Parent, err)
	}
	if l == nil {
		return nil, &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "the host has no such device", Allowed: p.candidates()}
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

// notLoopback refuses the device that no other can stand on.
func notLoopback(a *netlink.LinkAttrs) error {
	if a.RawFlags&unix.IFF_LOOPBACK == 0 {
		return nil
	}
	return &SpecError{Param: "PARENT", Value: a.Name, Reason: "is the loopback device, which leads nowhere"}
}

// noteDown says so of a device that the link stands on or is a port of.
func (p *planner) noteDown(l netlink.Link) {
	if a := l.Attrs(); a.RawFlags&unix.IFF_UP == 0 {
		p.note("%s is down: nothing passes before `ip link set %s up`", a.Name, columns.Word(a.Name))
	}
}

// detour tells whether the kernel would look for the link's name in the wrong
// namespace, and find it (before 6.15). A link is then made under another name,
// and in the right place.
func (p *planner) needsTempName() bool {
	if !kernelBefore(6, 15) {
		return false
	}
	l, err := p.host.find(p.spec.Name)
	return err == nil && l != nil
}

// kernelBefore compares the running kernel's version.
func kernelBefore(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return n == 2 && (a < major || a == major && b < minor)
}

// peerFree refuses a name for the other end that a link of the host has.
func (p *planner) peerFree() error {
	if p.spec.Peer == "" {
		return nil
	}
	l, err := p.host.find(p.spec.Peer)
	if l != nil {
		err = &TakenError{Resource: "link", Name: p.spec.Peer, Owner: "a link of the host"}
	}
	return err
}

// pair makes two ends, each with an address of its own.
func (p *planner) pair(kind string, mtu int, more ...string) {
	p.peer = cmp.Or(p.spec.Peer, p.hostName("veth"))
	params := p.params(more...)
	if mtu != 0 {
		params["mtu"], params["peer_mtu"] = strconv.Itoa(mtu), strconv.Itoa(mtu)
	}
	p.add(MakeLink{Kind: kind, Name: p.spec.Name, Params: params, MAC: p.mac(), Peer: p.peer, PeerMAC: randomMAC(portSide)})
}
