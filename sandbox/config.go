package sandbox

import (
	"io"
	"log/slog"
	"net"
	"net/netip"

	"cleat/packet"
	"cleat/policy"
)

// Config describes a network. The zero Config is useful: the guest has IPv4, IPv6, DNS and
// ping, and reaches all public and private addresses but nothing of the host itself.
type Config struct {
	// Interface is the name of the guest's device; "": "cleat0".
	Interface string
	// Device is the kind of the guest's device; "": DeviceTUN.
	Device Device
	// Ethernet configures the link of a DeviceTAP.
	Ethernet Ethernet
	// MTU of the device in bytes, 576 (with IPv6: 1280) to 65520; 0: 65520.
	MTU int
	// Queues is the number of the device's queues, 1 to 64. Each has a thread that moves
	// packets; all but the first are idle while there are few connections. 0: one less than
	// GOMAXPROCS, 1 to 4. A busy queue occupies a processor, and other goroutines need one.
	Queues int
	// Tier selects how TCP connections are carried. TierSplice and TierSeccomp are errors if
	// the kernel or the namespace doesn't support them. They can't be combined with Pcap,
	// which sees only packets of the device. TierSeccomp is for Wrap, and for Join with
	// RuntimeListener.
	Tier Tier
	// RuntimeListener is the Unix socket to which OCI runtimes bring the seccomp
	// notifications of containers that they start (see SeccompProfile). Open it with
	// ListenForRuntimes; Run closes it. It requires TierSeccomp and Join. It accepts
	// connections only from the caller's user and root, and only from this process's network
	// namespace, the host's: no program of a container is in there.
	RuntimeListener *net.UnixListener
	// Addr4 and Addr6 are the guest's addresses with the prefix lengths of their networks;
	// zero: 10.0.2.100/24 and fd63:6c65:6174::100/64.
	Addr4, Addr6 netip.Prefix
	// Gateway4 and Gateway6 are the guest's routers; zero: the second address of the guest's
	// network (10.0.2.2), or the third if the second is the guest's own. They may lie outside
	// the network.
	Gateway4, Gateway6 netip.Addr
	// NoIPv4 and NoIPv6 disable an address family. At most one may be set.
	NoIPv4, NoIPv6 bool
	// NoConfigure creates the device and leaves its addresses, routes and state to others: the
	// container's own set-up, or a parent such as RootlessKit.
	NoConfigure bool
	// ReplaceTUN removes an existing TUN or TAP device with the name Interface. A link of
	// another kind with that name is an error.
	ReplaceTUN bool

	DNS DNS

	// HostLoopback4 and HostLoopback6 are addresses that lead to the host's 127.0.0.1 and ::1.
	// The resolver returns them for host.cleat.internal and host.containers.internal. Zero:
	// the host's loopback can't be reached.
	HostLoopback4, HostLoopback6 netip.Addr
	// Mappings are further addresses that lead elsewhere, for instance to an address of the
	// host that the guest has a copy of. A client on the host with such an address appears to
	// the guest with the address that leads to it.
	Mappings []Mapping

	// Forwards are ports of the host that lead to the guest from the start.
	Forwards []Forward
	// AutoForward forwards ports of the host to listeners of the guest as they come and go. A
	// listener is forwarded by each element that matches it.
	AutoForward []AutoForward
	// ReverseForwards are ports of the guest that lead to the host.
	ReverseForwards []ReverseForward
	// AutoReverseForward adds reverse forwards for listeners on the host's loopback.
	AutoReverseForward []AutoForward

	// Outbound4 and Outbound6 are the source addresses of the host's sockets;
	// OutboundInterface is the link that they are bound to. Zero: the host's routes decide.
	Outbound4, Outbound6 netip.Addr
	OutboundInterface    string

	// Pcap receives all packets of the device in pcap format; nil: none.
	Pcap io.Writer

	// Limits bound what the guest can cost.
	Limits Limits

	// Policy judges flows that the default denials let through; nil: all are allowed. The
	// default denials are loopback, link-local, unspecified, multicast and broadcast
	// addresses, cloud metadata services, and the IPv6 forms of them.
	Policy Policy
	// Hook is asked about flows that Policy allows; nil: none.
	Hook Hook
	// OnRefused is called for each flow that is refused or dropped, with the rule that
	// decided; nil: none. A name that the resolver does not look up is reported as a flow to
	// the resolver without a source. It is called by several goroutines at once, one of which
	// moves packets, and must not block.
	OnRefused func(Flow, Decision)
	// NoDefaultDenials disables the default denials. Policy alone then protects, among other
	// things, the host's loopback.
	NoDefaultDenials bool

	// MapRoot makes an ordinary user's command appear to itself as root. Otherwise it keeps
	// its ids. A command of root is always root.
	MapRoot bool

	// Log receives warnings, for instance about an automatic forward whose port is taken on
	// the host; nil: slog.Default.
	Log *slog.Logger
}

// Device is a kind of network device.
type Device string

// The kinds of the guest's device.
const (
	// DeviceTUN carries IP packets.
	DeviceTUN Device = "tun"
	// DeviceTAP carries Ethernet frames. The guest finds its neighbours by ARP and NDP, and
	// may configure itself by DHCP, or with NoConfigure by router advertisements. Programs
	// that expect a network card find one.
	DeviceTAP Device = "tap"
)

// MAC is an Ethernet address.
type MAC = packet.MAC

// ParseMAC parses an address such as 02:00:5e:10:00:01.
func ParseMAC(s string) (MAC, error) { return packet.ParseMAC(s) }

// Ethernet configures the link of a DeviceTAP. The zero value is useful.
type Ethernet struct {
	// MAC is the guest's address; zero: a random one.
	MAC MAC
	// GatewayMAC is the address of all other stations; zero: 9a:55:9a:55:9a:55, as in pasta.
	GatewayMAC MAC
	// NoDHCP, NoDHCPv6 and NoRA disable the answers to DHCP, to DHCPv6 and to router
	// solicitations. NoNDP disables the last and those to neighbour solicitations, without
	// which the guest reaches nothing by IPv6. Router solicitations are answered only with
	// NoConfigure: a configured guest needs no second address.
	NoDHCP, NoDHCPv6, NoRA, NoNDP bool
	// DNS are servers to announce to the guest; nil: the network's resolver. Search are
	// search domains to announce.
	DNS    []netip.Addr
	Search []string
	// Hostname is the guest's name, and FQDN its full name, for DHCP; "": none.
	Hostname, FQDN string
}

// DNS configures the guest's resolver, which forwards queries to those of the host.
type DNS struct {
	// Off disables the resolver and leaves resolv.conf as it is.
	Off bool
	// Listen are the resolver's addresses as the guest sees them, at port 53; nil: the third
	// address of the guest's IPv4 network (10.0.2.3), or of its IPv6 network without IPv4.
	Listen []netip.Addr
	// Servers are the servers to forward to; nil: those of the host's /etc/resolv.conf, which
	// is read again when it changes.
	Servers []netip.AddrPort
	// Search is the list of search domains for resolv.conf; nil: the host's.
	Search []string
	// KeepResolvConf leaves the guest's /etc/resolv.conf as it is.
	KeepResolvConf bool
}

// Mapping makes one address lead to another one of the same family: Guest is the address that
// the guest uses, Host the one it leads to.
type Mapping = policy.Mapping

// AutoForward selects listeners to forward as they come and go. The zero value selects none.
type AutoForward struct {
	TCP, UDP bool
	// Listen is the address to listen on; invalid: all addresses of the host, or loopback of
	// the guest for a reverse forward.
	Listen netip.Addr
	// Interface limits listening on the host to one link; "": any.
	Interface string
	// Only are the ports considered; nil: 1 to 65535, but for UDP without 32768 to 60999,
	// which the kernel assigns to clients.
	Only []PortRange
	// Except are ports to leave out.
	Except []PortRange
	// Shift moves ports: a listener's port P is forwarded from P plus Shift[P].
	Shift map[uint16]int
}

func (a *AutoForward) follows(proto Protocol) bool {
	return proto == TCP && a.TCP || proto == UDP && a.UDP
}

// PortRange is the range of ports from First to Last, both included.
type PortRange = policy.PortRange

// ReverseForward makes a port of the guest lead to a port of the host.
type ReverseForward struct {
	Protocol Protocol // TCP or UDP
	// Listen is the address in the guest's namespace; an invalid address means loopback of
	// both families.
	Listen netip.AddrPort
	// To is the host's address; an invalid one means loopback of the client's family, and
	// port 0 the port of Listen.
	To netip.AddrPort
}
