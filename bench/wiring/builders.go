package wiring

import (
	"cmp"
	"fmt"
	"slices"

	"cleat/bench/catalog"
	"cleat/bench/named"
	"cleat/bench/spanned"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/link"
)

// builders has one function for each network of the catalogue. A builder adds nodes,
// links, programs and pairs to the Network. It cleans up nothing: Build closes the
// Network after an error.
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
	"container-to-host":       outbound(false),
	"host-to-container":       hostToContainer,
	"nat-out":                 outbound(true),
	"published-host":          published(userlandProxy, hostAddr(1), fromHost("lo")),
	"published-loopback":      published(userlandProxy, localhost, fromHost("lo")),
	"published-loopback-nat":  published(kernelNAT, localhost, fromHost("lo")),
	"published-container":     published(userlandProxy, hostAddr(1), fromContainer),
	"published-container-nat": published(kernelNAT, hostAddr(1), fromContainer),
	"published-hairpin":       published(userlandProxy, hostAddr(1), fromItself),
	"published-hairpin-nat":   published(kernelNAT, hostAddr(1), fromItselfHairpin),
	"published-outside":       published(userlandProxy, hostAddr(1), fromOutside),
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
	"vxlan":                   vxlan(oneRemote, false),
	"vxlan-multicast":         vxlan(multicastGroup, false),
	"vxlan-fdb":               vxlan(staticEntries, false),
	"vxlan-bridge":            vxlan(oneRemote, true),
	"vxlan-multicast-bridge":  vxlan(multicastGroup, true),
	"vxlan-fdb-bridge":        vxlan(staticEntries, true),
	"geneve":                  geneve,
	"ipip":                    keyless(ipip),
	"gre":                     keyless(gre),
	"cleat-overlay":           spannedNetwork,
	"flannel-vxlan":           spannedNetwork,
	"flannel-host-gw":         spannedNetwork,
	"docker-overlay":          spannedNetwork,
	"bird-routes":             spannedNetwork,
	"weave":                   spannedNetwork,
	"tun":                     relayed("tun"),
	"tap":                     relayed("tap"),
	"cleat":                   cleatRun("auto"),
	"cleat-tun":               cleatRun("tun"),
	"cleat-seccomp":           cleatSeccomp,
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
	"cleat-bridge":            namedNetwork,
	"cleat-routed":            namedNetwork,
	"docker-bridge":           namedNetwork,
	"netavark-bridge":         namedNetwork,
	"cni-bridge":              namedNetwork,
	"cleat-cni":               namedNetwork,
	"cleat-docker":            namedNetwork,
	"cleat-docker-direct":     namedNetwork,
	"cleat-netavark":          namedNetwork,
}

// Check reports whether this machine can build the network of that name. The error is a
// *link.Lack for the first thing that is missing, or wraps ErrUnknown.
func Check(network string) error {
	e, ok := catalog.Lookup(network)
	if !ok {
		return fmt.Errorf("%w %q", ErrUnknown, network)
	}
	return checkAvailable(e)
}

func checkAvailable(e catalog.Entry) error {
	if e.Role == catalog.Named {
		return named.Check(e.Name)
	}
	if e.Cluster {
		if err := spanned.Check(e.Name); err != nil {
			return err
		}
	}
	for _, name := range e.Programs {
		if _, err := program.Find(name); err != nil {
			remedy := "apt-get install " + cmp.Or(packages[name], name)
			if source, ok := sources[name]; ok {
				remedy = "build " + source + " and put it on the PATH as " + name
			}
			return &link.Lack{What: e.Name, Reason: fmt.Sprintf("the program %s is not installed", name), Remedy: remedy}
		}
	}
	// A user lab has only one user id.
	if f, inside := lab.Inside(); e.RootLab && (!inside || f == lab.User) {
		return &link.Lack{What: e.Name, Reason: "its program switches users, which needs a lab made by root", Remedy: "run the command with sudo, and not with --lab user"}
	}
	for _, kind := range e.Kinds {
		if err := link.Probe(kind); err != nil {
			return err
		}
	}
	return nil
}

// sources are the repositories of programs that Debian does not package.
var sources = map[string]string{
	"gvproxy":      "github.com/containers/gvisor-tap-vsock/cmd/gvproxy",
	"gvforwarder":  "github.com/containers/gvisor-tap-vsock/cmd/vm",
	"nsnet-test":   "github.com/schoentoon/nsnet/cmd/test",
	"mptsrv":       "github.com/SPYFF/mpt",
	"mlvpn":        "github.com/zehome/MLVPN",
	"glorytun":     "github.com/angt/glorytun (branch stable)",
	"bypass4netns": "github.com/rootless-containers/bypass4netns/cmd/bypass4netns",
}

// packages are the Debian packages whose name differs from the program's.
var packages = map[string]string{
	"busybox":      "busybox-static",
	"unshare":      "util-linux",
	"nsenter":      "util-linux",
	"pasta":        "passt",
	"ovs-vswitchd": "openvswitch-switch",
	"ovsdb-server": "openvswitch-switch",
	"ovs-vsctl":    "openvswitch-switch",
}

// CrossesWhole reports whether a packet made with UDP_SEGMENT reaches the receiver of
// the named network whole, since no device on the way has to segment it.
func CrossesWhole(network string) bool {
	return !slices.Contains([]catalog.Role{catalog.Rootless, catalog.Overlay, catalog.Attacher, catalog.Existing}, catalog.RoleOf(network))
}
