package sandbox

import (
	"io"
	"log/slog"
	"net"
	"net/netip"

	"cleat/policy"
)

// Config says what a network is like. The zero Config is useful: IPv4, IPv6,
// DNS and ping, all public and private addresses, and nothing of the host's own.
type Config struct {
	// Interface is the device's name inside; "": "cleat0".
	Interface string
	// MTU of the device in bytes, 576 (IPv6: 1280) to 65520; 0: 65520.
	MTU int
	// Queues of the device, each with a thread that moves bytes; all but the
	// first rest while there are few connections. 0: one less than Go processors
	// (GOMAXPROCS), 1 to 4: who is busy keeps one, and other goroutines need one.
	Queues int
	// Tier is how TCP connections move. TierSplice and TierSeccomp are errors where
	// the kernel or the namespace can't, and together with Pcap, which sees packets
	// of the device alone. TierSeccomp is for Wrap, and for Join with Runtimes.
	Tier Tier
	// RuntimeListener is the Unix socket to which OCI runtimes bring the seccomp
	// notifications of the containers that they start (see SeccompProfile).
	// ListenForRuntimes opens it; Run closes it. It requires TierSeccomp and Join.
	RuntimeListener *net.UnixListener
	// Addr4 and Addr6 are the guest's addresses with the length of their
	// networks; zero: 10.0.2.100/24 and fd63:6c65:6174::100/64.
	Addr4, Addr6 netip.Prefix
	// Gateway4 and Gateway6 are the routers that the guest sees; zero: the
	// second address of the guest's network (10.0.2.2), or the third where the
	// guest has that one. They need not lie within the network.
	Gateway4, Gateway6 netip.Addr
	// NoIPv4 and NoIPv6 switch a family off. Not both.
	NoIPv4, NoIPv6 bool
	// NoConfigure makes the device and leaves its addresses, routes and state to
	// others: the container's own set-up, or a parent such as RootlessKit.
	NoConfigure bool
	// Replace removes a TUN or TAP by the name of Interface that is already there.
	// Another kind of link by that name is an error.
	ReplaceTUN bool

	DNS DNS

	// HostLoopback4 and HostLoopback6 are addresses that lead to the host's
	// 127.0.0.1 and ::1. Zero: the host's loopback can't be reached. The resolver
	// knows them as host.cleat.internal and host.containers.internal.
	HostLoopback4, HostLoopback6 netip.Addr
	// Map are further addresses that lead elsewhere, for instance to an address
	// of the host that the guest has a copy of. A forward's client with that
	// address appears as the one that leads to it.
	Mappings []Mapping

	// Forwards are ports of the host that lead inside from the start.
	Forwards []Forward
	// AutoForward forwards what starts to listen inside, by each that matches.
	AutoForward []AutoForward
	// Outward are ports inside that lead to the host's loopback.
	ReverseForwards []ReverseForward
	// AutoOutward does so for what listens on the host's loopback.
	AutoReverseForward []AutoForward

	// Outbound4 and Outbound6 are source addresses of the host's sockets, and
	// OutboundInterface the link they are bound to; zero: the host's routes
	// decide.
	Outbound4, Outbound6 netip.Addr
	OutboundInterface    string

	// Pcap receives all packets of the device in pcap format; nil: none.
	Pcap io.Writer

	Limits Limits

	// Policy judges flows; nil: everything that the default denials leave.
	// Those hold unless NoDefaultDenials is set: loopback, link-local,
	// unspecified, multicast and broadcast addresses, cloud metadata services,
	// and IPv6 forms of them.
	Policy Policy
	// Hook is asked after Policy; nil: nobody.
	Hook Hook
	// Refused is told of each flow that was refused or dropped, and by what rule;
	// nil: nobody. So it is of each name that the resolver does not look up, as a
	// flow to the resolver without a source. Several goroutines call it at once,
	// the one that carries bytes too: it must not block.
	OnRefused func(Flow, Decision)
	// NoDefaultDenials leaves every destination to Policy, which then is what
	// keeps the guest from the host's loopback.
	NoDefaultDenials bool

	// MapRoot lets an ordinary user's command see itself as root. Otherwise it
	// keeps its ids. A command of root always does.
	MapRoot bool

	// Log takes warnings, e.g. about an automatic forward whose port is taken on
	// the host; nil: slog.Default.
	Log *slog.Logger
}

// DNS is the resolver that the guest sees, which passes queries on to the
// host's.
type DNS struct {
	// Off: no resolver, and resolv.conf stays as it is.
	Off bool
	// Listen are the resolver's addresses as the guest sees them, at port 53;
	// nil: the third address of the guest's network (10.0.2.3), of IPv4 unless
	// that is off.
	Listen []netip.Addr
	// Servers are asked; nil: those of the host's /etc/resolv.conf, read again
	// when it changes.
	Servers []netip.AddrPort
	// Search is the list of domains for resolv.conf; nil: the host's.
	Search []string
	// KeepResolvConf leaves /etc/resolv.conf as the guest finds it.
	KeepResolvConf bool
}

// Mapping makes one address mean another one of the same family: Guest as the
// guest writes it, and Host, what it leads to.
type Mapping = policy.Mapping

// AutoForward says which listeners are forwarded as they come and go. The zero
// value forwards none.
type AutoForward struct {
	TCP, UDP bool
	// Listen is where on the host (or, outward, inside); invalid: all addresses
	// (or, outward, loopback).
	Listen netip.Addr
	// Interface limits the host's listeners to one link; "": any.
	Interface string
	// Only are the ports considered; nil: all from 1 to 65535, but for UDP none
	// of 32768 to 60999, which the kernel gives to clients.
	Only []PortRange
	// Except are ports left alone.
	Except []PortRange
	// Shift moves ports: the host's is the guest's plus Shift[guest's].
	Shift map[uint16]int
}

// PortRange is First to Last, both included.
type PortRange = policy.PortRange

// Outward makes a port inside lead to a port of the host.
type ReverseForward struct {
	Protocol Protocol // TCP or UDP
	// Listen is where inside; an invalid address means loopback of both
	// families.
	Listen netip.AddrPort
	// To is the host's; an invalid address means loopback of the client's
	// family, port 0 that of Listen.
	To netip.AddrPort
}
