package firewall

import (
	"net"
	"slices"

	"github.com/google/nftables/expr"

	"golang.org/x/sys/unix"
)

// Names of chains.
const (
	chainSources     = "sources"
	chainCheckSource = "check-source"
	chainForward     = "forward"
	chainFromDevices = "from-devices"
	chainInput       = "input"
	chainHost        = "host"
	chainGateway     = "gateway"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPublished   = "published"
	chainPostrouting = "postrouting"
)

// Priorities of chains (enum nf_ip_hook_priorities, include/uapi/linux/netfilter_ipv4.h).
const (
	priorityRaw    = -300
	priorityDstNAT = -100
	priorityFilter = 0
	prioritySrcNAT = 100
)

const (
	dnsPort      = 53
	loopbackByte = 127 // the first byte of 127.0.0.0/8
)

// chains returns the chains of a table, in an order in which those that are jumped to come
// first. They are the same whatever the State.
func (f family) chains() []chain {
	return []chain{
		{name: chainCheckSource, rules: f.checkSource()},
		{name: chainSources, base: &hook{"filter", unix.NF_INET_PRE_ROUTING, priorityRaw}, rules: []rule{
			when("from our endpoints", in(setDevices, iifname()), jumpTo(chainCheckSource)),
		}},
		{name: chainFromDevices, rules: f.fromDevices()},
		{name: chainForward, base: &hook{"filter", unix.NF_INET_FORWARD, priorityFilter}, rules: []rule{
			when("known connections", state(stateEstablished|stateRelated), accept()),
			when("from our endpoints", in(setDevices, iifname()), jumpTo(chainFromDevices)),
			when("to our endpoints, by rule", in(setDevices, oifname()), f.flow(setInbound)),
			when("to published ports", in(setDevices, oifname()), translated(), accept()),
			when("to our endpoints", in(setDevices, oifname()), drop()),
		}},
		{name: chainGateway, rules: []rule{
			when("to the gateway", in(setGateways, iifname(), f.destination()), accept()),
			when("to other addresses", drop()),
		}},
		{name: chainHost, rules: f.host()},
		{name: chainInput, base: &hook{"filter", unix.NF_INET_LOCAL_IN, priorityFilter}, rules: []rule{
			when("from our endpoints", in(setDevices, iifname()), jumpTo(chainHost)),
		}},
		{name: chainPublished, rules: []rule{
			when("published at one address", f.dnat(setPorts, l4proto(), f.destination(), dport())),
			when("published at all addresses", toLocal(), f.dnat(setPortsAnywhere, l4proto(), dport())),
		}},
		{name: chainPrerouting, base: &hook{"nat", unix.NF_INET_PRE_ROUTING, priorityDstNAT}, rules: []rule{
			when("from elsewhere", jumpTo(chainPublished)),
		}},
		{name: chainOutput, base: &hook{"nat", unix.NF_INET_LOCAL_OUT, priorityDstNAT}, rules: []rule{
			when("from the host", jumpTo(chainPublished)),
		}},
		{name: chainPostrouting, base: &hook{"nat", unix.NF_INET_POST_ROUTING, prioritySrcNAT}, rules: []rule{
			when("replies would not pass the host", translated(), in(setHairpin, f.source(), oifname()), masquerade()),
			when("from the host's loopback", f.fromLoopback(), in(setDevices, oifname()), masquerade()),
			when("from our endpoints to elsewhere", in(setMasquerade, iifname()), notIn(setDevices, oifname()), masquerade()),
		}},
	}
}

// checkSource returns the rules for all packets of endpoints. Devices of endpoints have
// route_localnet set, so the kernel itself does not drop packets to 127.0.0.0/8.
func (f family) checkSource() (rules []rule) {
	if f.id == unix.NFPROTO_IPV4 {
		rules = append(rules, when("loopback", is(payload(expr.PayloadBaseNetworkHeader, f.daddr, 1), loopbackByte), drop()))
	}
	return append(rules, when("spoofed source", spoofed(), drop()))
}

// fromLoopback matches packets from the host's loopback addresses.
func (f family) fromLoopback() []expr.Any {
	if f.id == unix.NFPROTO_IPV4 {
		return is(payload(expr.PayloadBaseNetworkHeader, f.saddr, 1), loopbackByte)
	}
	return is(f.source(), net.IPv6loopback...)
}

// fromDevices returns the rules for new connections of endpoints to other machines. Bridges may
// pass their packets through these chains as well (br_netfilter).
func (f family) fromDevices() []rule {
	return append(f.toNeighbours(),
		when("of no connection", state(stateInvalid), drop()),
		when("by rule", f.flow(setFlows)),
		when("to the same network, or an allowed one", in(setDevices, oifname()), vmap(setAllowed, f.source(), f.destination())),
		when("from internal networks", notIn(setOpen, iifname()), drop()),
		when("to published ports", translated(), accept()),
		when("to other networks", in(setDevices, oifname()), drop()),
		when("to elsewhere", accept()),
	)
}

// toNeighbours returns rules that accept packets to addresses that stay on a link: groups, all
// hosts, and for IPv6 link-local addresses. The host does not route them.
func (f family) toNeighbours() []rule {
	if f.id == unix.NFPROTO_IPV4 {
		return []rule{when("to groups and all hosts", masked(f.destination(), []byte{0xe0, 0, 0, 0}, []byte{0xe0, 0, 0, 0}), accept())} // 224.0.0.0/3
	}
	mask, linkLocal := make([]byte, f.addrBytes), make([]byte, f.addrBytes)
	copy(mask, []byte{0xff, 0xc0})
	copy(linkLocal, []byte{0xfe, 0x80})
	return []rule{
		when("to groups", is(payload(expr.PayloadBaseNetworkHeader, f.daddr, 1), 0xff), accept()), // ff00::/8
		when("to link-local addresses", masked(f.destination(), mask, linkLocal), accept()),       // fe80::/10
	}
}

// flow gives a connection the verdict of the flow that it belongs to, if any.
// Where keys are ranges, nft converts the byte order of the protocol, although that is one byte.
func (f family) flow(set string) []expr.Any {
	const protocolAt = 2 // of the parts of the key
	exprs := vmap(set, f.source(), f.destination(), l4proto(), dport())
	loaded := exprs[protocolAt].(*expr.Meta).Register
	return slices.Insert(exprs, protocolAt+1, expr.Any(&expr.Byteorder{SourceRegister: loaded, DestRegister: loaded, Op: expr.ByteorderHton, Len: 1, Size: 2}))
}

// host returns the rules for connections of endpoints to the host itself.
func (f family) host() []rule {
	rules := []rule{when("known connections", state(stateEstablished|stateRelated), accept())}
	if f.id == unix.NFPROTO_IPV6 {
		rules = append(rules, when("neighbour discovery", is(l4proto(), unix.IPPROTO_ICMPV6), in(setNeighbours, payload(expr.PayloadBaseTransportHeader, 0, 1)), accept()))
	}
	return append(rules,
		when("DNS", in(setGateways, iifname(), f.destination()), toPort(unix.IPPROTO_UDP, dnsPort), accept()),
		when("DNS", in(setGateways, iifname(), f.destination()), toPort(unix.IPPROTO_TCP, dnsPort), accept()),
		when("as far as the network permits", vmap(setAccess, iifname())),
		when("from unknown devices", drop()),
	)
}
