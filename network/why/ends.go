package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/named"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// machine is a container, or the host.
type machine struct {
	label     string // for messages
	isHost    bool
	container attach.Container
	host      string    // another one, on which it is; "": this one
	ns        *netns.NS // nil: it does not run, or is on another host
	err       error     // why ns is nil
	endpoints []*named.Endpoint
}

// ref returns a word that finds the machine again, on command lines.
func (m *machine) ref() string {
	if m.isHost {
		return "1" // process 1 is in the host's network namespace
	}
	return m.container.ShortName()
}

// inside returns a command that runs another one, such as "ip", in the machine's network
// namespace.
func (m *machine) inside(command string) string {
	switch c := m.container; {
	case m.isHost:
		return command
	case c.Engine == find.Named:
		return "ip netns exec " + columns.Word(c.Name) + " " + command
	case c.PID != 0:
		return fmt.Sprintf("nsenter -t %d -n %s", c.PID, command)
	default:
		return "nsenter --net=" + columns.Word(c.Path) + " " + command
	}
}

// probed reports whether a machine can be tried to be reached; nil is one outside.
func (m *machine) probed() bool { return m == nil || m.ns != nil || m.host != "" }

// open gives a machine its namespace, under a label for messages.
func (v *investigation) open(m *machine, ns *netns.NS, label string) error {
	defer ns.Close()
	own, err := netns.OpenAs(ns.Path(), label)
	if err != nil {
		return err
	}
	m.ns = own
	v.opened = append(v.opened, own)
	return nil
}

// machineOf returns the container of endpoints.
func (v *investigation) machineOf(ctx context.Context, e *named.Endpoint) *machine {
	for _, m := range append([]*machine{v.from}, v.to...) {
		if m != nil && m.host == v.hostOf[e] && m.container.FileName() == e.Container.FileName() {
			return m
		}
	}
	m := &machine{label: e.Container.ShortName(), container: e.Container, host: v.hostOf[e]}
	for _, o := range v.endpoints {
		if v.same(o, e) {
			m.endpoints = append(m.endpoints, o)
		}
	}
	if m.host != "" {
		m.label = v.label(e)
		return m
	}
	c, ns, err := v.cfg.Attach.Find(ctx, e.Container.QualifiedName())
	if err == nil && e.Container.Manager == "" {
		m.container = c
	}
	if err == nil {
		m.container.PID = c.PID
	} else if e.Container.Manager != "" { // only its engine knows it
		ns, err = named.NamespaceOf(v.cfg, e)
	}
	if err == nil {
		err = v.open(m, ns, m.label)
	}
	m.err = err
	return m
}

// findSource finds the source. A container that is not known or not running, and on no network
// either, is an error.
func (v *investigation) findSource(ctx context.Context) error {
	all, err := v.endpointsOf(v.q.From)
	if err != nil {
		return err
	}
	if len(all) > 0 && v.hostOf[all[0]] != "" {
		return &ElsewhereError{Container: all[0].Network + "/" + all[0].Container.ShortName(), Host: v.hostOf[all[0]]}
	}
	if len(all) > 0 {
		v.from = v.machineOf(ctx, all[0])
	} else if v.from, err = v.unconnected(ctx, v.q.From); err != nil {
		return err
	}
	if v.from.ns != nil {
		return v.from.ns.Do(func() error { return nil }) // without the right to enter it, nothing can be tried
	}
	return nil
}

// unconnected finds a running container that is on no network.
func (v *investigation) unconnected(ctx context.Context, ref string) (*machine, error) {
	c, ns, err := v.cfg.Attach.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	m := &machine{label: c.ShortName(), container: c}
	return m, v.open(m, ns, m.label)
}

// endpointsOf returns the endpoints of the container that ref names: NETWORK/NAME, the container
// itself, or one of its names on any network. It is an error if ref names several containers,
// or if NETWORK exists and has no such NAME.
func (v *investigation) endpointsOf(ref string) ([]*named.Endpoint, error) {
	ref, matching, err := v.onHost(ref)
	if err != nil {
		return nil, err
	}
	if network, name, ok := strings.Cut(ref, "/"); ok && v.network(network) != nil {
		found := matching(func(e *named.Endpoint) bool {
			return e.Network == network && (hasName(e, name) || e.Container.Matches(name))
		})
		if len(found) > 0 {
			return found, nil
		}
		err := &named.NotConnectedError{Network: network, Container: name}
		for _, e := range v.matching(func(e *named.Endpoint) bool { return e.Network == network }) {
			err.Containers = append(err.Containers, e.Container.ShortName())
		}
		return nil, err
	}
	found := matching(func(e *named.Endpoint) bool { return e.Container.Matches(ref) })
	if len(found) == 0 {
		found = matching(func(e *named.Endpoint) bool { return hasName(e, ref) })
	}
	var words []string
	for _, e := range found {
		if !v.same(e, found[0]) {
			words = append(words, e.Network+"/"+v.label(e))
		}
	}
	if len(words) > 0 {
		words = append([]string{found[0].Network + "/" + v.label(found[0])}, words...)
		return nil, &attach.SpecError{Param: "CONTAINER", Value: ref, Reason: "means several containers", Allowed: words}
	}
	return found, nil
}

func (v *investigation) matching(f func(*named.Endpoint) bool) []*named.Endpoint {
	return slices.DeleteFunc(slices.Clone(v.endpoints), func(e *named.Endpoint) bool { return !f(e) })
}

func hasName(e *named.Endpoint, name string) bool {
	return slices.Contains(e.Names, strings.ToLower(name))
}

// checkEnds checks that both ends run, and that their links to networks are up.
func (v *investigation) checkEnds() {
	for i, m := range append([]*machine{v.from}, v.to...) {
		switch {
		case m.isHost || i > 0 && m == v.from:
		case m.host != "":
			v.checkOtherHost(m)
		case m.ns == nil:
			v.bad(checkEnds, finding{cause: NotRunning, because: m.label + " does not run", fact: m.downText(), try: m.start(), explains: failure})
		case len(m.endpoints) == 0:
			v.notConnected(m)
		default:
			v.checkLinks(m)
		}
	}
}

// downText says that a machine does not run, and since when it counts.
func (m *machine) downText() string {
	text := m.label + " does not run"
	var stopped *find.NotRunning
	if errors.As(m.err, &stopped) && stopped.State != "" {
		text += " (" + stopped.State + ")"
	}
	return text
}

// start returns how to start a container that does not run.
func (m *machine) start() string {
	var stopped *find.NotRunning
	if errors.As(m.err, &stopped) && stopped.Remedy != "" {
		return stopped.Remedy
	}
	switch m.container.Engine {
	case find.Docker, find.Podman:
		return m.container.Engine + " start " + columns.Word(m.container.Name)
	case find.Named:
		return "ip netns add " + columns.Word(m.container.Name)
	}
	return "start " + columns.Word(m.container.QualifiedName())
}

// notConnected adds the finding that a container is on no network.
func (v *investigation) notConnected(m *machine) {
	network := "NETWORK"
	for _, other := range append([]*machine{v.from}, v.to...) {
		if len(other.endpoints) > 0 {
			network = other.endpoints[0].Network
		}
	}
	if network == "NETWORK" && len(v.networks) == 1 {
		network = v.networks[0].Name
	}
	v.bad(checkEnds, finding{cause: NotConnected, because: m.label + " is on no network", explains: lost | untried,
		try: "cleat net connect " + network + " " + columns.Word(m.container.ShortName())})
}

// checkLinks checks the links that connect a container to its networks.
func (v *investigation) checkLinks(m *machine) {
	var facts []string
	for _, e := range m.endpoints {
		f := v.linkFault(m, e)
		if f == nil {
			facts = append(facts, fmt.Sprintf("%s on %s", linkText(e), e.Network))
			continue
		}
		if !v.concerns(e) {
			v.unknown(checkEnds, "%s; that is not its link to the other end", f.because)
			continue
		}
		v.bad(checkEnds, *f)
	}
	if len(facts) > 0 {
		v.ok(checkEnds, "%s runs: %s", m.label, strings.Join(facts, "; "))
	}
}

// concerns reports whether an endpoint's network is common to both ends, or they have none.
func (v *investigation) concerns(e *named.Endpoint) bool {
	common := v.common()
	return len(common) == 0 || slices.Contains(common, e.Network)
}

func linkText(e *named.Endpoint) string {
	words := []string{e.Interface}
	for _, a := range e.Addresses {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

const repairCommand = "cleat net check --repair"

// linkFault returns what is wrong with a container's link; nil if nothing is.
func (v *investigation) linkFault(m *machine, e *named.Endpoint) *finding {
	fault := func(format string, args ...any) *finding {
		return &finding{cause: LinkDown, because: fmt.Sprintf(format, args...), try: repairCommand, explains: failure}
	}
	a, err := v.store.Attachment(e.AttachmentID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault("the link of %s to %s was detached", m.label, e.Network)
	case err != nil:
		return fault("%s", err)
	}
	st, err := attach.StatusOf(v.store.Store, a)
	switch {
	case err != nil:
		return fault("%s", err)
	case st.State == attach.Down:
		return fault("somebody brought %s of %s down, its link to %s", e.Interface, m.label, e.Network)
	case st.State == attach.Missing:
		return fault("somebody removed %s of %s, its link to %s", e.Interface, m.label, e.Network)
	case st.State == attach.Gone || st.State == attach.Wanted:
		return fault("%s has restarted, and its link to %s was not attached again", m.label, e.Network)
	case st.State != attach.Attached && st.State != attach.Unknown:
		return fault("the link of %s to %s is %s", m.label, e.Network, cmp.Or(strings.Join(st.Notes, "; "), string(st.State)))
	}
	return v.addressFault(m, e)
}

// addressFault returns a finding if a container's link has lost an address.
func (v *investigation) addressFault(m *machine, e *named.Endpoint) *finding {
	has, err := addresses(m.ns)
	if err != nil {
		return nil // it is not known
	}
	for _, a := range e.Addresses {
		if slices.Contains(has, a) {
			continue
		}
		bits := a.BitLen()
		if n := v.network(e.Network); n != nil && n.Driver != named.Routed && subnetOf(n, a).IsValid() {
			bits = subnetOf(n, a).Bits()
		}
		return &finding{cause: AddressMissing, because: fmt.Sprintf("somebody removed the address %s from %s of %s", a, e.Interface, m.label), explains: failure,
			try: m.inside(fmt.Sprintf("ip addr add %s/%d dev %s", a, bits, columns.Word(e.Interface)))}
	}
	return nil
}

// addresses returns the addresses of a namespace, without those of loopback devices and
// link-local ones.
func addresses(ns *netns.NS) ([]netip.Addr, error) {
	h, err := link.Handle(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", ns, err)
	}
	var all []netip.Addr
	for _, one := range list {
		a, ok := addrOf(one.IP)
		if ok && !a.IsLoopback() && !a.IsLinkLocalUnicast() && one.Flags&unix.IFA_F_DADFAILED == 0 {
			all = append(all, a)
		}
	}
	return all, nil
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

// on returns the endpoint of a machine on a network; nil if it is not on it.
func (m *machine) on(network string) *named.Endpoint {
	i := slices.IndexFunc(m.endpoints, func(e *named.Endpoint) bool { return e.Network == network })
	if i < 0 {
		return nil
	}
	return m.endpoints[i]
}

// common returns the networks that the source and any destination are on.
func (v *investigation) common() []string {
	var all []string
	for _, e := range v.from.endpoints {
		if slices.ContainsFunc(v.to, func(m *machine) bool { return m.on(e.Network) != nil }) {
			all = append(all, e.Network)
		}
	}
	return all
}
