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

// planner turns a spec, and what exists on the host and in the container, into steps.
type planner struct {
	*session
	spec      Spec // with the link's name
	container Container
	id        string
	cont      *namespace // of the container
	mode      string
	steps     []Step
	notes     []string
	peer      string // name of the link's other end on the host, if it is a pair
	mtu       int    // of a pair, in bytes

	unannounced bool // Config.Unannounced
}

func (p *planner) add(s ...Step) { p.steps = append(p.steps, s...) }

func (p *planner) note(format string, a ...any) { p.notes = append(p.notes, fmt.Sprintf(format, a...)) }

// plan makes the plan. Spec.Validate has passed.
func (p *planner) plan() error {
	k, err := findKind(p.spec.Kind)
	if err != nil {
		return err
	}
	p.mode = p.spec.mode()
	for _, part := range []func() error{p.claims, func() error { return k.plan(p) }, p.checkParams, p.configure} {
		if err := part(); err != nil {
			return err
		}
	}
	if p.spec.Keep {
		if err := p.container.checkCanKeep(); err != nil {
			return err
		}
		if !p.container.CanReturn() {
			p.note("a process can't be restarted under its id, so only its lease is kept")
		}
	}
	if p.container.SilentEngines != "" {
		p.note("%s", p.container.silenceNote())
	}
	if p.container.SharedWith != "" {
		p.note("the container shares its network with %s, which also get the link", p.container.SharedWith)
	}
	p.noteNeighbourTables()
	p.add(Keep{Path: p.store.file(p.id)})
	return nil
}

// checkParams finds mistakes in the link's parameters before anything is changed.
func (p *planner) checkParams() error {
	for _, s := range p.steps {
		m, ok := s.(MakeLink)
		if !ok {
			continue
		}
		_, err := m.parse(cmp.Or(m.Peer, m.Name))
		var bad *link.ParamError
		if errors.As(err, &bad) && bad.ValidParams != nil {
			allowed := slices.DeleteFunc(bad.ValidParams, func(name string) bool { _, reserved := reservedParams()[name]; return reserved })
			return &SpecError{Param: "set", Value: bad.Param, Reason: "kind " + p.spec.Kind + " has no such parameter", Allowed: allowed}
		}
		if err != nil {
			return err
		}
		if (m.Kind == "vxlan" || m.Kind == "geneve") && m.Params["vni"] == "" && m.Params["external"] == "" {
			return &SpecError{Param: "set", Reason: "kind " + m.Kind + " needs a network identifier (VNI), 0…16777215, e.g. --set vni=42"}
		}
	}
	return nil
}

// configure plans what all kinds have in common.
func (p *planner) configure() error {
	spec := p.spec
	if spec.HandOver {
		p.configureHost()
		return nil
	}
	if err := p.ipv6(); err != nil {
		return err
	}
	p.add(Up{Link: spec.Name})
	for _, ip := range spec.Addresses {
		if err := p.noteSameNetwork(ip); err != nil {
			return err
		}
	}
	if err := p.addresses(); err != nil {
		return err
	}
	if spec.DHCP {
		p.planLease()
	}
	for _, r := range spec.Routes {
		p.add(AddRoute{Link: spec.Name, Route: r, MTU: p.routeMTU(r)})
	}
	for _, g := range spec.Gateways {
		if err := p.gateway(g); err != nil {
			return err
		}
	}
	p.sourceGateways()
	if in, out := spec.rates(); in > 0 || out > 0 {
		p.shape()
	}
	if len(spec.DNS) > 0 {
		path, err := p.container.ResolvConf()
		if err != nil {
			return err
		}
		p.add(WriteDNS{Path: path, Servers: spec.DNS})
	}
	return nil
}

// hostDevice returns the name for a device of this attachment on the host. It is unique, and
// the same for as long as the container's namespace exists.
func (p *planner) hostDevice(prefix string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s\n%s", p.id, p.cont.ref.key(), p.store.Path())
	const digits = 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36 * 36
	return fmt.Sprintf("%s%011s", prefix, strconv.FormatUint(h.Sum64()%digits, 36))
}

// DeviceName makes a device name (at most 15 bytes, IFNAMSIZ) of a longer one: its beginning
// and a hash of it, so that names with the same beginning stay apart. A shorter name stays as it is.
func DeviceName(name string) string {
	const longest, digits = 15, 4
	if len(name) <= longest {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%s~%0*s", name[:longest-digits-1], digits, strconv.FormatUint(h.Sum64()%(36*36*36*36), 36))
}

// params returns the link's parameters: those of the spec, the MTU, and the pairs of name and
// value in more. An empty value removes a parameter.
func (p *planner) params(more ...string) map[string]string {
	params := map[string]string{}
	maps.Copy(params, p.spec.Params)
	if p.spec.MTU != 0 {
		params["mtu"] = strconv.Itoa(p.spec.MTU)
	}
	for pair := range slices.Chunk(more, 2) {
		if params[pair[0]] = pair[1]; pair[1] == "" {
			delete(params, pair[0])
		}
	}
	return params
}

// mac returns the link's Ethernet address: that of the spec or a random one.
func (p *planner) mac() link.MAC { return cmp.Or(p.spec.MAC, randomMAC(unicast)) }

// parent returns the parent, which must exist.
func (p *planner) parent() (netlink.Link, error) {
	l, err := p.host.find(p.spec.Parent)
	if l != nil || err != nil {
		return l, err
	}
	bad := &SpecError{Param: "PARENT", Value: p.spec.Parent, Reason: "the host has no such device"}
	all, _ := p.host.LinkList() // for the hint
	for _, l := range all {
		if l.Attrs().RawFlags&unix.IFF_LOOPBACK == 0 && l.Type() != "ifb" {
			bad.Allowed = append(bad.Allowed, l.Attrs().Name)
		}
	}
	return nil, bad
}

// notLoopback rejects the loopback device, on which no other device can stand.
func notLoopback(a *netlink.LinkAttrs) error {
	if a.RawFlags&unix.IFF_LOOPBACK == 0 {
		return nil
	}
	return &SpecError{Param: "PARENT", Value: a.Name, Reason: "is the loopback device, which has no network"}
}

func (p *planner) noteDown(l netlink.Link) {
	if a := l.Attrs(); a.RawFlags&unix.IFF_UP == 0 {
		p.note("%s is down; no packets pass before `ip link set %s up`", a.Name, columns.Word(a.Name))
	}
}

// needsTempName reports whether the link must be created under a temporary name because the
// host has a link of its name: kernels before 6.15 look for the name in the wrong namespace.
func (p *planner) needsTempName() bool {
	if !kernelBefore(6, 15) {
		return false
	}
	l, err := p.host.find(p.spec.Name)
	return err == nil && l != nil
}

// kernelBefore reports whether the running kernel is older than this version.
func kernelBefore(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return n == 2 && (a < major || a == major && b < minor)
}

// checkPeer rejects a name for the other end that a link of the host has.
func (p *planner) checkPeer() error {
	if p.spec.Peer == "" {
		return nil
	}
	l, err := p.host.find(p.spec.Peer)
	if l != nil {
		err = &TakenError{Resource: "link", Name: p.spec.Peer, Owner: "a link of the host"}
	}
	return err
}

// pair plans a pair of links, each with a MAC address of its own.
func (p *planner) pair(kind string, mtu int, more ...string) {
	p.peer = cmp.Or(p.spec.Peer, p.hostDevice("veth"))
	params := p.params(more...)
	if mtu != 0 {
		params["mtu"], params["peer_mtu"] = strconv.Itoa(mtu), strconv.Itoa(mtu)
	}
	p.mtu = cmp.Or(mtu, ethernetMTU)
	p.largeSegments(params)
	p.add(MakeLink{Kind: kind, Name: p.spec.Name, Params: params, MAC: p.mac(), Peer: p.peer, PeerMAC: randomMAC(portSide), HandOver: p.spec.HandOver})
}
