package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/container"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
)

// BasePort is the port of the first pair's server; pair i uses BasePort+i.
const BasePort = 5210

// MaxPairs is how many pairs one wiring can hold.
const MaxPairs = 128

// Config is what Build needs beside the description of the network.
type Config struct {
	Spec
	Pairs    int    // 1…MaxPairs
	Scratch  string // directory for sockets, databases and configurations
	Isolated bool   // build networks between whose containers nothing passes, too
	// ContainerRuntime is Spec.Runtime, opened; nil: native.
	ContainerRuntime *container.Runtime
}

// Pair is one client–server pair.
type Pair struct {
	// Congestion is the control that its sockets have to use; "": any.
	Congestion     string
	Client, Server lab.Runner
	Listen         netip.AddrPort // what the server binds
	Dial           netip.AddrPort // what the client dials
	// Device is the link that the client sends through, in ClientNode; empty
	// where there is no such node.
	Device     string
	ClientNode *lab.Node
}

// Network is a network that was built and is ready for traffic. It is used from one
// goroutine, but for Play.
type Network struct {
	Pairs []Pair
	Notes []string // what a reader of the results should know

	cfg   Config
	ctx   context.Context // bounds building
	dir   string
	nodes []*lab.Node
	procs []lab.Proc
	stops []func() error

	containerNodes []*lab.Node
	ovsPorts       []*link.Link
	preparing      time.Duration // spent on nodes and hosts

	// play lets happen to the links what is to happen in a measurement; nil:
	// nothing.
	play func(ctx context.Context, from time.Time, whole time.Duration) error

	// launch runs a command in a container made for it; nil where there are no
	// containers that a program attaches.
	launch func(context.Context, lab.Command) (*Launched, error)

	// nativeEnds says that the runtime is for the network's programs, which the
	// builder has started in it, and not for the ends.
	nativeEnds bool

	made     time.Duration // without nodes and hosts
	isolates bool          // between its containers nothing passes
}

// Nodes is how many namespaces the network holds open.
func (nw *Network) Nodes() int { return len(nw.nodes) }

// Play lets happen to the links what the experiment wants in a measurement that
// begins at from and lasts whole; most have nothing planned. It returns when the
// last has happened, or ctx ends, and leaves the links as they are then.
func (nw *Network) Play(ctx context.Context, from time.Time, whole time.Duration) error {
	if nw.play == nil {
		return nil
	}
	return nw.play(ctx, from, whole)
}

// Close ends the helper programs and lets the namespaces go.
func (nw *Network) Close() error {
	errs := []error{nw.stopPrograms()}
	for _, n := range nw.nodes {
		errs = append(errs, n.Close())
	}
	errs = append(errs, os.RemoveAll(nw.dir))
	return errors.Join(errs...)
}

// NotApplicable says that a network can't carry this traffic by design.
type NotApplicable struct{ Why string }

func (n *NotApplicable) Error() string { return "not applicable: " + n.Why }

// ErrUnknown says that no network has that name.
var ErrUnknown = errors.New("unknown network")

// Build builds the network. What the machine lacks is a *link.Lack, what can't be by
// design a *NotApplicable; on any error nothing stays behind.
func Build(ctx context.Context, cfg Config) (*Network, error) {
	entry, ok := catalog.Lookup(cfg.Network)
	build := builders[cfg.Network]
	if !ok || build == nil {
		return nil, fmt.Errorf("%w %q", ErrUnknown, cfg.Network)
	}
	barred := applicable(entry, cfg)
	if barred != nil && !(cfg.Isolated && entry.Isolates) {
		return nil, barred
	}
	if err := Available(entry); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.Scratch, cfg.Network+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %s: %w", cfg.Network, err)
	}
	if cfg.Isolated && cfg.Network == "macvlan-passthru" {
		cfg.Topology = "switched" // a parent carries one only
	}
	nw := &Network{ctx: ctx, dir: dir, cfg: cfg, isolates: barred != nil}
	began := time.Now()
	if err := build(nw); err != nil {
		return nil, errors.Join(fmt.Errorf("wire %s: %w", cfg.Network, nw.complaint(err)), nw.Close())
	}
	if err := nw.offloads(); err != nil {
		return nil, errors.Join(fmt.Errorf("wire %s: %w", cfg.Network, err), nw.Close())
	}
	nw.made = time.Since(began) - nw.preparing
	if err := nw.containEnds(); err != nil {
		return nil, errors.Join(err, nw.Close())
	}
	return nw, nil
}

// applicable refuses what the design of a network rules out.
func applicable(e catalog.Entry, cfg Config) error {
	if cfg.Pairs < 1 || cfg.Pairs > MaxPairs {
		return &link.ParamError{Kind: e.Name, Param: "pairs", Value: fmt.Sprint(cfg.Pairs), Allowed: fmt.Sprintf("1…%d", MaxPairs)}
	}
	switch {
	case cfg.switched() && e.OneHost:
		return &NotApplicable{Why: "it joins containers of one host only"}
	case cfg.switched() && e.Name == "macvlan-passthru" && cfg.Pairs > 1:
		return &NotApplicable{Why: e.Why}
	case !cfg.switched() && e.Isolates && !(e.Name == "macvlan-vepa" && cfg.Hairpin):
		return &NotApplicable{Why: e.Why}
	}
	if e.Name == "nsnet" {
		if why := nsnetCan(cfg); why != "" {
			return &NotApplicable{Why: why}
		}
	}
	return nil
}

// Check is nil when this machine can make the network of that name, a
// *link.Lack when not, and ErrUnknown when there is none.
func Check(network string) error {
	e, ok := catalog.Lookup(network)
	if !ok {
		return fmt.Errorf("%w %q", ErrUnknown, network)
	}
	return Available(e)
}

// NeverSegmented are the networks over which a packet made with UDP_SEGMENT
// reaches the receiver whole: no device on the way has to segment it.
func NeverSegmented() []string {
	var names []string
	for _, e := range catalog.All() {
		switch e.Role {
		case catalog.Rootless, catalog.Overlay, catalog.Attacher:
		default:
			names = append(names, e.Name)
		}
	}
	return names
}

// Available is nil when this machine can make the network, else the *link.Lack
// of the first thing that is missing.
func Available(e catalog.Entry) error {
	for _, name := range e.Programs {
		if _, err := program.Find(name); err != nil {
			return &link.Lack{What: e.Name, Reason: fmt.Sprintf("the program %s is not installed", name), Remedy: remedy(name)}
		}
	}
	if e.RootLab {
		if err := rootLab(e.Name); err != nil {
			return err
		}
	}
	for _, kind := range e.Kinds {
		if err := link.Probe(kind); err != nil {
			return err
		}
	}
	return nil
}

// remedy says how to get a program.
func remedy(program string) string {
	if source, ok := sources[program]; ok {
		return "build " + source + " and put it on the PATH as " + program
	}
	return "apt-get install " + cmp.Or(packages[program], program)
}

// sources are where programs come from that Debian does not have.
var sources = map[string]string{
	"gvproxy":      "github.com/containers/gvisor-tap-vsock/cmd/gvproxy",
	"gvforwarder":  "github.com/containers/gvisor-tap-vsock/cmd/vm",
	"nsnet-test":   "github.com/schoentoon/nsnet/cmd/test",
	"mptsrv":       "github.com/SPYFF/mpt",
	"mlvpn":        "github.com/zehome/MLVPN",
	"glorytun":     "github.com/angt/glorytun (branch stable)",
	"bypass4netns": "github.com/rootless-containers/bypass4netns/cmd/bypass4netns",
}

// packages are Debian's, where the name is not the program's.
var packages = map[string]string{
	"busybox":      "busybox-static",
	"unshare":      "util-linux",
	"nsenter":      "util-linux",
	"pasta":        "passt",
	"ovs-vswitchd": "openvswitch-switch",
	"ovsdb-server": "openvswitch-switch",
	"ovs-vsctl":    "openvswitch-switch",
}

// builders has one function for each entry of the catalogue.
var builders = map[string]func(*Network) error{
	"host-loopback":           hostLoopback,
	"loopback":                loopback,
	"own-address":             ownAddress,
	"veth":                    vethPair,
	"ovs-veth":                openVSwitch(false),
	"ovs-internal":            openVSwitch(true),
	"wireguard":               wireguard,
	"netkit":                  netkit(link.NetkitL2),
	"netkit-l3":               netkit(link.NetkitL3),
	"bridge":                  bridged(false),
	"bridge-nf":               bridged(true),
	"bridge-vlan":             bridgeVLAN,
	"container-to-host":       containerToHost,
	"host-to-container":       hostToContainer,
	"nat-out":                 natOut,
	"published-host":          publishedHost,
	"published-loopback":      publishedLoopback(byProxy),
	"published-loopback-nat":  publishedLoopback(byNAT),
	"published-container":     publishedContainer(byProxy),
	"published-container-nat": publishedContainer(byNAT),
	"published-hairpin":       publishedHairpin(byProxy),
	"published-hairpin-nat":   publishedHairpin(byNAT),
	"published-outside":       publishedOutside,
	"macvlan-bridge":          macvlan("bridge"),
	"macvlan-private":         macvlan("private"),
	"macvlan-vepa":            macvlan("vepa"),
	"macvlan-passthru":        macvlan("passthru"),
	"macvlan-source":          macvlan("source"),
	"ipvlan-l2":               ipvlan("l2", "bridge"),
	"ipvlan-l2-private":       ipvlan("l2", "private"),
	"ipvlan-l2-vepa":          ipvlan("l2", "vepa"),
	"ipvlan-l3":               ipvlan("l3", "bridge"),
	"ipvlan-l3s":              ipvlan("l3s", "bridge"),
	"ipvlan-l3-private":       ipvlan("l3", "private"),
	"ipvlan-l3-vepa":          ipvlan("l3", "vepa"),
	"ipvlan-l3s-private":      ipvlan("l3s", "private"),
	"ipvlan-l3s-vepa":         ipvlan("l3s", "vepa"),
	"vlan":                    vlan,
	"vxlan":                   vxlan(pointToPoint, false),
	"vxlan-multicast":         vxlan(multicast, false),
	"vxlan-fdb":               vxlan(filledIn, false),
	"vxlan-bridge":            vxlan(pointToPoint, true),
	"vxlan-multicast-bridge":  vxlan(multicast, true),
	"vxlan-fdb-bridge":        vxlan(filledIn, true),
	"geneve":                  geneve,
	"ipip":                    ipip,
	"gre":                     gre,
	"tun":                     relayed("tun"),
	"tap":                     relayed("tap"),
	"cleat":                   cleatRun("auto"),
	"cleat-tun":               cleatRun("tun"),
	"cleat-seccomp":           cleatSupervised,
	"pasta":                   pasta,
	"slirp4netns":             slirp4netns,
	"gvproxy":                 gvproxy,
	"nsnet":                   nsnet,
	"bypass4netns":            bypass4netns,
	"single":                  single,
	"mptcp":                   mptcp,
	"tunnel":                  cleatTunnel,
	"mpt":                     mpt,
	"mlvpn":                   mlvpn,
	"glorytun":                glorytun,
}

// Names are the networks that can be wired, in the catalogue's order.
func Names() []string {
	var names []string
	for _, e := range catalog.All() {
		if builders[e.Name] != nil {
			names = append(names, e.Name)
		}
	}
	return slices.Clip(names)
}
