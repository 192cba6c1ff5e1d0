// Package catalog names every network that the benchmark knows, with its role and
// needs. It is pure data, shared by the wiring, the tables and the recommendation.
package catalog

import (
	"cmp"
	"slices"
)

// Role is the question that a network answers. Only networks of one role compete for
// a recommendation.
type Role string

// The roles.
const (
	Baseline  Role = "baseline"  // no container involved
	Container Role = "container" // container to container, one host
	Outside   Role = "outside"   // container to hosts beyond this one, and back
	Published Role = "published" // a container's port, reached from elsewhere
	Overlay   Role = "overlay"   // containers of different hosts as one network
	Rootless  Role = "rootless"  // container to other hosts without root
	Userspace Role = "userspace" // packets pass through a program
	Multipath Role = "multipath" // two hosts joined by several links
	Named     Role = "named"     // a network with a name, as an engine ships it: containers connect to it and publish ports
	Attacher  Role = "attacher"  // a program that gives a running container a link; it carries no traffic
	Existing  Role = "existing"  // a path that existed before
)

// roles are the groups of tables in their order, with their headings.
var roles = [...]struct {
	role  Role
	title string
}{
	{Container, "Container to container, one host"},
	{Overlay, "Containers of different hosts"},
	{Published, "A container's published port"},
	{Named, "Named networks, as engines ship them"},
	{Outside, "Container and the world outside"},
	{Rootless, "Container and the world, without root"},
	{Userspace, "Through a program"},
	{Multipath, "Over several links at once"},
	{Attacher, "Giving a running container a link"},
	{Existing, "Measured paths"},
	{Baseline, "Baseline, no container"},
}

// Roles returns all roles in the order of tables: networks that people choose between
// first, baselines last.
func Roles() []Role {
	var out []Role
	for _, r := range roles {
		out = append(out, r.role)
	}
	return out
}

// Title returns the role as a heading; for an unknown role, the role itself.
func (r Role) Title() string {
	for _, known := range roles {
		if known.role == r {
			return known.title
		}
	}
	return string(r)
}

// ExistingPath is the name of a path between two namespaces that the benchmark did not
// make. Lookup knows it; All does not list it.
const ExistingPath = "existing-path"

// Entry describes one network.
type Entry struct {
	Name     string
	Title    string // one line, without the name
	Role     Role
	Kinds    []string // link kinds of package link that it needs
	Programs []string // commands it runs
	OneHost  bool     // it can't reach from one host to another
	Isolates bool     // it can't carry traffic between neighbours by design
	Why      string   // the reason for Isolates
	Restless bool     // its program keeps a processor busy when idle, so it is closed after each measurement
	Cold     bool     // it learns the properties of its links from traffic, so it is rebuilt for each measurement
	RootLab  bool     // its program changes its user id or loads BPF programs, for which root has to make the lab
	FormOf   string   // the network of which it is another form, and no rival; "": none
	Cluster  bool     // programs on several hosts make it (package spanned)
	Borrows  bool     // its traffic uses the host's own sockets: faster than any network of the container
	Caveats  []string // what does not work with it
}

const (
	hostMacvlan = "host ↔ container does not work: a macvlan device can't reach its own parent"
	wifiMacvlan = "does not work over Wi-Fi: an access point accepts one MAC address per station"
	macCount    = "one MAC address per container: a NIC with a full filter goes promiscuous, a switch port may refuse"
	hostIPvlan  = "host ↔ container does not work: an ipvlan device can't reach its own parent"
	ipvlanDHCP  = "all containers share the parent's MAC address: DHCP needs a client identifier"
	noBroadcast = "no broadcast or multicast: ARP, DHCP and mDNS do not work inside"
	proxyHides  = "Docker's default; the container sees the proxy's address, not the client's"
	keeperWorks = "the keeper does most of the work, and its processor time is not counted"
	daemonWorks = "the daemon does most of the work, and its processor time is not counted"
	encap50     = "50 bytes of each packet are headers: lower the MTU inside, or raise it outside"
)

// entries is the catalogue, in the order of tables.
var entries = []Entry{
	{Name: "host-loopback", Title: "127.0.0.1 of the host itself", Role: Baseline, OneHost: true},
	{Name: "loopback", Title: "127.0.0.1 inside the lab", Role: Baseline, OneHost: true},
	{Name: "own-address", Title: "a host's own address on another interface", Role: Baseline, OneHost: true, Kinds: []string{"veth"}},
	{Name: "veth", Title: "a veth pair between two containers", Role: Container, OneHost: true, Kinds: []string{"veth"},
		Caveats: []string{"joins exactly two containers; more need a bridge or routes"}},
	{Name: "bridge", Title: "veth pairs on a Linux bridge, bridge netfilter off", Role: Container, Kinds: []string{"veth", "bridge"}},
	{Name: "bridge-nf", Title: "the same with bridge netfilter on and Docker-like rules", Role: Container, Kinds: []string{"veth", "bridge"},
		Caveats: []string{"every bridged packet passes the host's firewall rules"}},
	{Name: "container-to-host", Title: "container → the host's own address, over the bridge", Role: Outside, OneHost: true, Kinds: []string{"veth", "bridge"}},
	{Name: "host-to-container", Title: "host → the container's address, over the bridge", Role: Outside, OneHost: true, Kinds: []string{"veth", "bridge"}},
	{Name: "nat-out", Title: "container → outside, bridge and masquerade", Role: Outside, Kinds: []string{"veth", "bridge"},
		Caveats: []string{"the outside sees the host's address, not the container's"}},
	{Name: "published-host", Title: "published port, reached by the host's address", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{"published ports bypass the host firewall's input rules"}},
	{Name: "published-loopback", Title: "published port, by the host's loopback: a proxy program", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{proxyHides}},
	{Name: "published-loopback-nat", Title: "the same by destination NAT, without the proxy", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{"the host must route loopback addresses (route_localnet)"}},
	{Name: "published-container", Title: "published port, from another container: a proxy program", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{proxyHides}},
	{Name: "published-container-nat", Title: "the same by destination NAT and bridge netfilter", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{"bridge netfilter must be on, or the answer takes another way back"}},
	{Name: "published-hairpin", Title: "published port, from its own container: a proxy program", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"},
		Caveats: []string{proxyHides}},
	{Name: "published-hairpin-nat", Title: "the same by destination NAT and a hairpin port", Role: Published, OneHost: true, Kinds: []string{"veth", "bridge"}},
	{Name: "published-outside", Title: "published port, reached from outside", Role: Published, Kinds: []string{"veth", "bridge"}},

	{Name: "macvlan-bridge", Title: "macvlan, mode bridge", Role: Container, Kinds: []string{"macvlan"}, Caveats: []string{hostMacvlan, wifiMacvlan, macCount}},
	{Name: "macvlan-private", Title: "macvlan, mode private", Role: Container, Kinds: []string{"macvlan"}, Isolates: true,
		Why: "private macvlan devices of one parent do not receive each other's broadcasts, such as ARP, not even through a hairpin switch", Caveats: []string{hostMacvlan, wifiMacvlan, macCount}},
	{Name: "macvlan-vepa", Title: "macvlan, mode vepa", Role: Container, Kinds: []string{"macvlan"}, Isolates: true,
		Why: "vepa sends neighbours' packets to the switch, which must hairpin them back (802.1Qbg)", Caveats: []string{hostMacvlan, wifiMacvlan, macCount}},
	{Name: "macvlan-passthru", Title: "macvlan, mode passthru", Role: Container, Kinds: []string{"macvlan"}, Isolates: true,
		Why: "a parent carries one passthru device only", Caveats: []string{hostMacvlan, wifiMacvlan}},
	{Name: "macvlan-source", Title: "macvlan, mode source", Role: Container, Kinds: []string{"macvlan"}, Isolates: true,
		Why: "source macvlan devices of one parent do not switch between themselves: they accept only frames of listed senders outside", Caveats: []string{hostMacvlan, wifiMacvlan, macCount}},

	{Name: "ipvlan-l2", Title: "ipvlan, mode l2", Role: Container, Kinds: []string{"ipvlan"}, Caveats: []string{hostIPvlan, ipvlanDHCP}},
	{Name: "ipvlan-l3", Title: "ipvlan, mode l3", Role: Container, Kinds: []string{"ipvlan"}, Caveats: []string{hostIPvlan, noBroadcast}},
	{Name: "ipvlan-l3s", Title: "ipvlan, mode l3s (with the host's netfilter)", Role: Container, Kinds: []string{"ipvlan"}, Caveats: []string{hostIPvlan, noBroadcast}},
	{Name: "ipvlan-l2-private", Title: "ipvlan, mode l2, flag private", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "private ipvlan devices of one parent never reach each other", Caveats: []string{hostIPvlan, ipvlanDHCP}},
	{Name: "ipvlan-l2-vepa", Title: "ipvlan, mode l2, flag vepa", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "vepa sends neighbours' packets to the switch, which must hairpin them back", Caveats: []string{hostIPvlan, ipvlanDHCP}},
	{Name: "ipvlan-l3-private", Title: "ipvlan, mode l3, flag private", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "private ipvlan devices of one parent never reach each other", Caveats: []string{hostIPvlan, noBroadcast}},
	{Name: "ipvlan-l3-vepa", Title: "ipvlan, mode l3, flag vepa", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "vepa sends neighbours' packets out of the parent, to a router that must send them back", Caveats: []string{hostIPvlan, noBroadcast}},
	{Name: "ipvlan-l3s-private", Title: "ipvlan, mode l3s, flag private", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "private ipvlan devices of one parent never reach each other", Caveats: []string{hostIPvlan, noBroadcast}},
	{Name: "ipvlan-l3s-vepa", Title: "ipvlan, mode l3s, flag vepa", Role: Container, Kinds: []string{"ipvlan"}, Isolates: true,
		Why: "vepa sends neighbours' packets out of the parent, to a router that must send them back", Caveats: []string{hostIPvlan, noBroadcast}},

	{Name: "vlan", Title: "802.1Q sub-interfaces", Role: Container, Kinds: []string{"vlan"}},
	{Name: "bridge-vlan", Title: "VLAN-filtering bridge, both ports in one VLAN", Role: Container, Kinds: []string{"veth", "bridge-vlan"}},
	{Name: "ovs-veth", Title: "Open vSwitch with veth ports", Role: Container, Kinds: []string{"veth", "openvswitch"}, Programs: []string{"ovs-vswitchd", "ovsdb-server", "ovs-vsctl"}},
	{Name: "ovs-internal", Title: "Open vSwitch with internal ports", Role: Container, Kinds: []string{"openvswitch"}, Programs: []string{"ovs-vswitchd", "ovsdb-server", "ovs-vsctl"},
		Caveats: []string{"an internal port moved into a container is lost from it when the switch restarts"}},
	{Name: "netkit", Title: "a netkit pair, mode l2", Role: Container, OneHost: true, Kinds: []string{"netkit"}},
	{Name: "netkit-l3", Title: "a netkit pair, mode l3", Role: Container, OneHost: true, Kinds: []string{"netkit"}, Caveats: []string{noBroadcast}},

	{Name: "vxlan", Title: "VXLAN, point to point", Role: Overlay, Kinds: []string{"vxlan"}, Caveats: []string{encap50}},
	{Name: "vxlan-multicast", Title: "VXLAN, multicast group", Role: Overlay, Kinds: []string{"vxlan"}, Caveats: []string{encap50, "the underlay must route multicast"}},
	{Name: "vxlan-fdb", Title: "VXLAN, forwarding and neighbour entries filled in", Role: Overlay, Kinds: []string{"vxlan"}, Caveats: []string{encap50, "something must fill in and remove the entries"}},
	{Name: "vxlan-bridge", Title: "VXLAN, point to point, under a bridge", Role: Overlay, Kinds: []string{"vxlan", "bridge", "veth"}, Caveats: []string{encap50}},
	{Name: "vxlan-multicast-bridge", Title: "VXLAN, multicast group, under a bridge", Role: Overlay, Kinds: []string{"vxlan", "bridge", "veth"}, Caveats: []string{encap50, "the underlay must route multicast"}},
	{Name: "vxlan-fdb-bridge", Title: "VXLAN, entries filled in, under a bridge", Role: Overlay, Kinds: []string{"vxlan", "bridge", "veth"}, Caveats: []string{encap50, "something must fill in and remove the entries"}},
	{Name: "geneve", Title: "Geneve, point to point", Role: Overlay, Kinds: []string{"geneve"}, Caveats: []string{encap50}},
	{Name: "wireguard", Title: "WireGuard (encrypted)", Role: Overlay, Kinds: []string{"wireguard"}, Caveats: []string{"60 to 80 bytes of each packet are headers"}},
	{Name: "ipip", Title: "IP in IP", Role: Overlay, Kinds: []string{"ipip"}, Caveats: []string{"IPv4 unicast only"}},
	{Name: "gre", Title: "GRE", Role: Overlay, Kinds: []string{"gre"}, Caveats: []string{"many firewalls and NATs drop IP protocol 47"}},

	{Name: "cleat-overlay", Title: "cleat-node: a network of several hosts", Role: Overlay, Cluster: true, Kinds: []string{"veth", "vxlan"}, RootLab: true,
		Caveats: []string{"no broadcast or multicast between hosts"}},
	{Name: "flannel-vxlan", Title: "flannel, backend vxlan, with the CNI plugin bridge", Role: Overlay, Cluster: true, Kinds: []string{"veth", "bridge", "vxlan"}, Programs: []string{"flanneld", "etcd"}, RootLab: true,
		Caveats: []string{encap50, "each host has a subnet of its own, so a container can't keep its address on another host", "serves no names"}},
	{Name: "flannel-host-gw", Title: "flannel, backend host-gw, with the CNI plugin bridge", Role: Overlay, Cluster: true, Kinds: []string{"veth", "bridge"}, Programs: []string{"flanneld", "etcd"}, RootLab: true,
		Caveats: []string{"all hosts must be on one segment", "each host has a subnet of its own, so a container can't keep its address on another host", "serves no names"}},
	{Name: "docker-overlay", Title: "docker network create -d overlay, on a Swarm of the hosts", Role: Overlay, Cluster: true, Kinds: []string{"veth", "bridge", "vxlan"}, RootLab: true,
		Caveats: []string{encap50, "for Docker's own containers", daemonWorks}},
	{Name: "weave", Title: "Weave Net, with its CNI plugin", Role: Overlay, Cluster: true, Kinds: []string{"veth", "bridge", "dummy"}, RootLab: true,
		Caveats: []string{"no release since 2021", "without Open vSwitch in the kernel, packets between hosts pass through its program", "it serves names of Docker's containers only"}},
	{Name: "bird-routes", Title: "BIRD: routes to each host's block of addresses by BGP, as Calico's without encapsulation", Role: Overlay, Cluster: true, Kinds: []string{"veth"}, RootLab: true,
		Caveats: []string{"all hosts must be on one segment, or routers must know the routes", "each host has blocks of its own, so a container can't keep its address on another host", "serves no names", "the benchmark stands for Calico's own programs: it attaches containers by ip(8)"}},

	{Name: "tun", Title: "two TUN devices joined by a small relay", Role: Userspace, OneHost: true, Kinds: []string{"tun"}},
	{Name: "tap", Title: "two TAP devices joined by a small relay", Role: Userspace, OneHost: true, Kinds: []string{"tun"}},
	{Name: "cleat", Title: "cleat run, user-mode network", Role: Rootless, Kinds: []string{"tun"}},
	{Name: "cleat-tun", Title: "cleat run --tier tun: everything through the device", Role: Rootless, FormOf: "cleat", Kinds: []string{"tun"}},
	{Name: "cleat-seccomp", Title: "cleat run --tier seccomp: host sockets", Role: Rootless, FormOf: "cleat", Kinds: []string{"tun"},
		Caveats: []string{"only for commands that cleat itself starts", "needs Linux 6.7 with Landlock"}},
	{Name: "pasta", Title: "pasta (passt), user-mode network", Role: Rootless, Kinds: []string{"tun"}, Programs: []string{"pasta"}},
	{Name: "slirp4netns", Title: "slirp4netns, user-mode network", Role: Rootless, Kinds: []string{"tun"}, Programs: []string{"slirp4netns"}},
	{Name: "gvproxy", Title: "gvproxy and gvforwarder, user-mode network", Role: Rootless, Kinds: []string{"tun"}, Programs: []string{"gvproxy", "gvforwarder"}},
	{Name: "nsnet", Title: "nsnet's test program, user-mode network", Role: Rootless, Kinds: []string{"tun"}, Programs: []string{"nsnet-test", "busybox", "unshare"},
		Caveats: []string{"ports can't be published"}},
	{Name: "bypass4netns", Title: "bypass4netns: host sockets through seccomp", Role: Rootless, Kinds: []string{"tun"}, Programs: []string{"bypass4netns", "runc", "slirp4netns", "unshare"}, Borrows: true, Restless: true,
		Caveats: []string{"needs the OCI runtime's help", "UDP goes through slirp4netns", "continues the original connect(), whose address another thread can change after the check"}},

	{Name: "single", Title: "one of the links, nothing in between", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf"},
		Caveats: []string{"the other links carry nothing"}},
	{Name: "mptcp", Title: "the kernel's MPTCP, an endpoint on every link", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf", "mptcp"},
		Caveats: []string{"TCP only, for programs that ask for it", "the kernel uses at most nine links for a connection"}},
	{Name: "tunnel", Title: "cleat tunnel over all links", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf", "tun"}, RootLab: true},
	{Name: "mpt", Title: "MPT, GRE in UDP over all links", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf", "tun"}, Programs: []string{"mptsrv"},
		Caveats: []string{"its weights are set by hand", "takes seconds to leave a dead link"}},
	{Name: "mlvpn", Title: "MLVPN over all links", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf", "tun"}, Programs: []string{"mlvpn", "unshare"}, RootLab: true,
		Caveats: []string{"its rates are set by hand", "takes seconds to leave a dead link"}},
	{Name: "glorytun", Title: "glorytun over all links", Role: Multipath, Cold: true, Kinds: []string{"veth", "tbf", "tun"}, Programs: []string{"glorytun", "unshare", "nsenter"},
		Caveats: []string{"it always encrypts", "the rates of its links, or a limit, are set by hand"}},

	{Name: "cleat-bridge", Title: "cleat net create, driver bridge", Role: Named, OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{keeperWorks}},
	{Name: "cleat-routed", Title: "cleat net create --driver routed: no bridge", Role: Named, FormOf: "cleat-bridge", OneHost: true, Kinds: []string{"veth"}, RootLab: true,
		Caveats: []string{keeperWorks, "no broadcast or multicast between containers"}},
	{Name: "docker-bridge", Title: "docker network create", Role: Named, OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{"for Docker's own containers", "the host's loopback reaches a published port through a proxy program", daemonWorks}},
	{Name: "netavark-bridge", Title: "netavark and aardvark-dns, as Podman runs them", Role: Named, OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{"Podman chooses the addresses"}},
	{Name: "cleat-cni", Title: "cleat-cni: a network of cleat, by CNI", Role: Named, FormOf: "cleat-bridge", OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{keeperWorks}},
	{Name: "cleat-netavark", Title: "cleat called netavark: a network of cleat, as Podman makes it", Role: Named, FormOf: "cleat-bridge", OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{keeperWorks, "Podman chooses the addresses"}},
	{Name: "cleat-docker", Title: "docker network create --driver cleat: a network of cleat", Role: Named, FormOf: "cleat-bridge", OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{keeperWorks, "for Docker's own containers", "the daemon does work as well, and its processor time is not counted", "other endpoints beside the measured one are network namespaces"}},
	{Name: "cleat-docker-direct", Title: "docker network create --driver cleat -o cleat.direct=true", Role: Named, FormOf: "cleat-docker", OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{keeperWorks, "for Docker's own containers", "the daemon does work as well, and its processor time is not counted", "other endpoints beside the measured one are network namespaces", "the link's name in a running container is eth100"}},
	{Name: "cni-bridge", Title: "the reference CNI plugins bridge, portmap and firewall", Role: Named, OneHost: true, Kinds: []string{"veth", "bridge"}, RootLab: true,
		Caveats: []string{"serves no names", "does not roll back a partial attach"}},

	{Name: "cleat-attach", Title: "cleat attach", Role: Attacher, Kinds: []string{"veth", "bridge", "macvlan"}, RootLab: true},
	{Name: "cleat-keeper", Title: "cleat attach with cleat keep running", Role: Attacher, FormOf: "cleat-attach", Kinds: []string{"veth", "bridge", "macvlan"}, RootLab: true,
		Caveats: []string{keeperWorks}},
	{Name: "cni-plugins", Title: "the reference CNI plugins, addresses by host-local", Role: Attacher, Kinds: []string{"veth", "bridge", "macvlan"}, RootLab: true,
		Caveats: []string{"does not roll back a partial attach"}},
	{Name: "docker-connect", Title: "docker network connect", Role: Attacher, Kinds: []string{"veth", "bridge", "macvlan"}, RootLab: true,
		Caveats: []string{"for Docker's own containers and networks", "the network is made beforehand, and the daemon does most of the work"}},
}

// All returns every entry in the order of tables.
func All() []Entry { return slices.Clone(entries) }

// Lookup returns the entry of a name.
func Lookup(name string) (Entry, bool) {
	if name == ExistingPath {
		return Entry{Name: ExistingPath, Title: "a path that existed before", Role: Existing}, true
	}
	if i := position(name); i < len(entries) {
		return entries[i], true
	}
	return Entry{}, false
}

// RoleOf returns a network's role. Networks that the catalogue does not know were not
// made by the benchmark: they are Existing.
func RoleOf(network string) Role {
	if e, ok := Lookup(network); ok {
		return e.Role
	}
	return Existing
}

// Compare orders networks as All does. Networks that All does not list come last, by
// name.
func Compare(a, b string) int {
	return cmp.Or(cmp.Compare(position(a), position(b)), cmp.Compare(a, b))
}

// position returns a network's position in All, or the place after the last.
func position(network string) int {
	if i := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == network }); i >= 0 {
		return i
	}
	return len(entries)
}
