package firewall

import (
	"math"
	"net"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names of chains.
const (
	chainForward       = "forward"
	chainSegments      = "segments"
	chainFromEndpoints = "from-endpoints"
	chainFromHosts     = "from-hosts"
	chainOfHosts       = "from-hosts-to-host"
	chainFromVRF       = "from-endpoints-vrf"
	chainToEndpoints   = "to-endpoints"
	chainOthers        = "other-sources"
	chainInput         = "input"
	chainHost          = "to-host"
	chainHostVRF       = "to-host-vrf"
	chainGateway       = "to-gateway"
	chainJudged        = "judged"
	chainPrerouting    = "prerouting"
	chainOutput        = "output"
	chainPublished     = "published"
	chainPostrouting   = "postrouting"
	chainDuplicates    = "duplicates"
)

// Priorities of chains (enum nf_ip_hook_priorities, include/uapi/linux/netfilter_ipv4.h).
const (
	priorityDstNAT = -100
	priorityFilter = 0
	prioritySrcNAT = 100
	// priorityLast is that of the last chain before the kernel confirms new connections, which
	// it does with IPv6 at NF_IP6_PRI_LAST - 1 (net/netfilter/nf_conntrack_proto.c).
	priorityLast = math.MaxInt32 - 2
)

const (
	dnsPort      = 53
	loopbackByte = 127 // the first byte of 127.0.0.0/8
)

// chains returns the chains of a table, in an order in which those that are jumped to come
// first. They depend on the table's layout, but not on the State.
func (f family) chains(l layout) []chain {
	all := slices.DeleteFunc(f.allChains(l.doorway), func(c chain) bool { return !l.has(c.needs) })
	for i := range all {
		all[i].rules = slices.DeleteFunc(all[i].rules, func(r rule) bool { return !l.has(r.needs) })
	}
	return all
}

// allChains returns the chains of a table with all features.
func (f family) allChains(d doorway) []chain {
	return []chain{
		{name: chainOthers, rules: append(f.toNeighbours(), when("spoofed sources", drop()))},
		{name: chainFromEndpoints, rules: f.fromEndpoints(iifname())},
		{name: chainFromVRF, needs: inVRFs, rules: f.fromEndpoints(sdifname())},
		{name: chainToEndpoints, rules: []rule{
			when("ended connections", ended(), drop()),
			when("known connections", state(stateEstablished|stateRelated), accept()),
			when("through the doorway", isDevice(iifname(), d.out), clearMark(d.mark)),
			when("by rule", f.flow(setInbound, f.source(), f.destination(), dport())),
			when("to published ports", translated(), accept()),
			when("to our endpoints", drop()),
		}},
		{name: chainFromHosts, needs: ofSeveral, rules: f.fromHosts()},
		{name: chainSegments, needs: ofSeveral, rules: []rule{
			when("to other hosts' endpoints", in(setRemote, oifname(), f.destination()), fitSegments()),
			when("from other hosts' endpoints", in(setRemote, iifname(), f.source()), fitSegments()),
		}},
		{name: chainForward, base: &hook{"filter", unix.NF_INET_FORWARD, priorityFilter}, rules: []rule{
			when("from other hosts' endpoints, by another way", in(setSealed, l4proto(), f.source()), notIn(setRemote, iifname(), f.source()), drop()).ifSealed(),
			when("to other hosts' endpoints, by another way", in(setSealed, l4proto(), f.destination()), notIn(setRemote, oifname(), f.destination()), drop()).ifSealed(),
			when("TCP connections that begin", begins(), callTo(chainSegments)).ifSeveral(),
			when("from our endpoints", in(setSources, iifname(), f.source()), jumpTo(chainFromEndpoints)),
			when("from our endpoints in a VRF", fromVRF(), in(setSources, sdifname(), f.source()), jumpTo(chainFromVRF)).ifVRFs(),
			when("from other hosts' endpoints", in(setRemote, iifname(), f.source()), jumpTo(chainFromHosts)).ifSeveral(),
			when("others from other hosts", in(setOverlays, iifname()), drop()).ifSeveral(),
			when("of other sources", in(setDevices, iifname()), jumpTo(chainOthers)),
			when("of other sources in a VRF", fromVRF(), in(setDevices, sdifname()), jumpTo(chainOthers)).ifVRFs(),
			when("to our endpoints", in(setDevices, oifname()), jumpTo(chainToEndpoints)),
			when("to other hosts' endpoints", in(setRemote, oifname(), f.destination()), jumpTo(chainToEndpoints)).ifSeveral(),
		}},
		{name: chainGateway, rules: []rule{
			when("to the gateway", in(setGateways, iifname(), f.destination()), accept()),
			when("to the gateway in a VRF", in(setGateways, sdifname(), f.destination()), accept()).ifVRFs(),
			when("to other addresses", drop()),
		}},
		{name: chainHost, rules: f.host(iifname(), f.judgedAnywhere(), f.judgedAtOne())},
		{name: chainHostVRF, needs: inVRFs, rules: f.host(sdifname(), f.judgedAnywhereInVRF(), f.judgedAtOneInVRF())},
		{name: chainOfHosts, needs: ofSeveral, rules: []rule{
			when("known connections of other hosts' endpoints", in(setRemote, iifname(), f.source()), state(stateEstablished|stateRelated), accept()),
			when("of other hosts' endpoints", in(setRemote, iifname(), f.source()), drop()),
			when("others from other hosts", in(setOverlays, iifname()), drop()),
		}},
		{name: chainInput, base: &hook{"filter", unix.NF_INET_LOCAL_IN, priorityFilter}, rules: []rule{
			when("of other hosts' endpoints, by another way", in(setSealed, l4proto(), f.source()), notIn(setRemote, iifname(), f.source()), drop()).ifSealed(),
			when("from our endpoints", in(setDevices, iifname()), jumpTo(chainHost)),
			when("from our endpoints in a VRF", fromVRF(), in(setDevices, sdifname()), jumpTo(chainHostVRF)).ifVRFs(),
			when("from where other hosts' endpoints are", in(setWays, iifname()), jumpTo(chainOfHosts)).ifSeveral(),
			when("no longer published", isDevice(iifname(), d.out), drop()),
		}},
		{name: chainJudged, base: &hook{"filter", unix.NF_INET_LOCAL_IN, priorityLast}, rules: f.judged(d)},
		{name: chainDuplicates, base: &hook{"filter", unix.NF_INET_LOCAL_OUT, priorityLast}, rules: f.duplicates(d)},
		{name: chainPublished, rules: []rule{
			when("published at one address", f.dnat(setPorts, l4proto(), f.destination(), dport())),
			when("published at all addresses", toLocal(), f.dnat(setPortsAnywhere, l4proto(), dport())),
		}},
		{name: chainPrerouting, base: &hook{"nat", unix.NF_INET_PRE_ROUTING, priorityDstNAT}, rules: f.prerouting(d)},
		{name: chainOutput, base: &hook{"nat", unix.NF_INET_LOCAL_OUT, priorityDstNAT}, rules: []rule{
			when("from the host", jumpTo(chainPublished)),
		}},
		{name: chainPostrouting, base: &hook{"nat", unix.NF_INET_POST_ROUTING, prioritySrcNAT}, rules: []rule{
			when("replies would not pass the host", translated(), in(setSources, oifname(), f.source()), masquerade()),
			when("from the host's loopback", f.fromLoopback(), in(setDevices, oifname()), masquerade()),
			when("by a published port to another host's endpoint, which answers by itself", translated(), in(setRemote, oifname(), f.destination()), vmap(setAllowed, f.source(), f.destination())).ifSeveral(),
			when("by a published port to another host's endpoint", translated(), in(setRemote, oifname(), f.destination()), f.snat(setRelays, f.destination())).ifSeveral(),
			when("to other hosts' endpoints", in(setRemote, oifname(), f.destination()), accept()).ifSeveral(),
			when("from our endpoints to elsewhere, by a fixed address", notIn(setDevices, oifname()), f.snat(setOutbound, iifname(), f.source())),
			when("from our endpoints to elsewhere", in(setMasquerade, iifname()), notIn(setDevices, oifname()), masquerade()),
			when("from our endpoints in a VRF to elsewhere", in(setMasqueradeVRF, iifname(), f.source()), notIn(setDevices, oifname()), masquerade()).ifVRFs(),
		}},
	}
}

// fromEndpoints returns the rules for forwarded packets of endpoints, which came in by their device.
func (f family) fromEndpoints(device load) []rule {
	known := []rule{
		when("ended connections", ended(), drop()),
		when("known connections", state(stateEstablished|stateRelated), accept()),
	}
	return slices.Concat(known, f.toNeighbours(), []rule{
		when("of no connection", state(stateInvalid), drop()),
		when("by rule", f.flow(setFlows, f.source(), f.destination(), dport())),
		when("replies of unknown connections, by rule", midstream(), f.flow(setFlows, f.destination(), f.source(), sport())),
		when("to the same network, or an allowed one", in(setDevices, oifname()), vmap(setAllowed, f.source(), f.destination())),
		when("to the same network on another host, or an allowed one", in(setRemote, oifname(), f.destination()), vmap(setAllowed, f.source(), f.destination())).ifSeveral(),
		when("from internal networks", notIn(setOpen, device), f.reject()),
		when("to published ports", translated(), accept()),
		when("to other networks", in(setDevices, oifname()), drop()),
		when("to other networks on another host", in(setRemote, oifname(), f.destination()), drop()).ifSeveral(),
		when("to elsewhere", accept()),
	})
}

// fromHosts returns the rules for forwarded packets of other hosts' endpoints. Their hosts have looked at the
// sources.
func (f family) fromHosts() []rule {
	return []rule{
		when("ended connections", ended(), drop()),
		when("known connections", state(stateEstablished|stateRelated), accept()),
		when("of no connection", state(stateInvalid), drop()),
		when("of other hosts themselves", in(setHosts, f.source()), in(setDevices, oifname()), vmap(setAllowed, f.source(), f.destination())),
		when("by rule", f.flow(setFlows, f.source(), f.destination(), dport())),
		when("replies of unknown connections, by rule", midstream(), f.flow(setFlows, f.destination(), f.source(), sport())),
		when("to the same network, or an allowed one", in(setDevices, oifname()), vmap(setAllowed, f.source(), f.destination())),
		when("to other networks, and elsewhere", drop()),
	}
}

// toNeighbours returns rules that accept packets to addresses that stay on a link: groups, all
// hosts, and for IPv6 link-local addresses. The host does not route them, but bridges may pass
// their packets through chain forward as well (br_netfilter).
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

// flow gives a connection the verdict of the flow that it belongs to, if any. nft would convert
// the byte order of the protocol, which is one byte. That changes nothing, and Linux 6.12.117
// rejects it.
func (f family) flow(set string, from, to, port load) []expr.Any {
	return vmap(set, from, to, l4proto(), port)
}

// host returns the rules for packets of endpoints to the host itself, which came in by a device. anywhere and
// atOne match published ports at all addresses and at one. The devices of endpoints may have route_localnet
// set, so the kernel does not drop packets to 127.0.0.0/8.
func (f family) host(device load, anywhere, atOne []expr.Any) (rules []rule) {
	if f.id == unix.NFPROTO_IPV6 {
		rules = append(rules, when("neighbour discovery", is(l4proto(), unix.IPPROTO_ICMPV6), in(setNeighbours, payload(expr.PayloadBaseTransportHeader, 0, 1)), accept()))
	}
	rules = append(rules,
		when("spoofed sources", notIn(setSources, device, f.source()), drop()),
		when("ended connections", ended(), drop()),
		when("known connections", state(stateEstablished|stateRelated), accept()),
	)
	if f.id == unix.NFPROTO_IPV4 {
		rules = append(rules, when("the host's loopback", is(payload(expr.PayloadBaseNetworkHeader, f.daddr, 1), loopbackByte), drop()))
	}
	return append(rules,
		when("published at all addresses", in(setOpen, device), anywhere, accept()),
		when("published at one address", in(setOpen, device), atOne, accept()),
		when("DNS", in(setGateways, device, f.destination()), toPort(unix.IPPROTO_UDP, dnsPort), accept()),
		when("DNS", in(setGateways, device, f.destination()), toPort(unix.IPPROTO_TCP, dnsPort), accept()),
		when("as far as the network permits", vmap(setAccess, device)),
		when("from unknown devices", drop()),
	)
}

// The following match packets to published ports that obey the host's firewall. Those of a network in a
// VRF are published there, and those of others elsewhere.

func (f family) judgedAnywhere() []expr.Any { return in(setJudgedAnywhere, l4proto(), dport()) }
func (f family) judgedAtOne() []expr.Any {
	return in(setJudged, l4proto(), f.destination(), dport())
}
func (f family) judgedAnywhereInVRF() []expr.Any {
	return in(setJudgedAnywhereVRF, iifname(), l4proto(), dport())
}
func (f family) judgedAtOneInVRF() []expr.Any {
	return in(setJudgedVRF, iifname(), l4proto(), f.destination(), dport())
}

// judged returns the rules for packets to the host that all other chains have accepted. New
// connections to published ports go through the doorway.
func (f family) judged(d doorway) []rule {
	through := slices.Concat(setMark(d.mark), duplicate(d.router(f)), drop())
	return []rule{
		when("known connections", notNew(), accept()),
		when("broadcasts", isNot(meta(expr.MetaKeyPKTTYPE, 1), unix.PACKET_HOST), accept()),
		when("from the host itself in a VRF", in(setVRFs, sdifname()), accept()).ifVRFs(),
		when("published at all addresses of a VRF", f.judgedAnywhereInVRF(), through).ifVRFs(),
		when("published at one address of a VRF", f.judgedAtOneInVRF(), through).ifVRFs(),
		when("in a VRF", fromVRF(), accept()),
		when("published at all addresses", f.judgedAnywhere(), through),
		when("published at one address", f.judgedAtOne(), through),
	}
}

// duplicates returns the rules for what leaves for the doorway. If it is not there, duplicates
// must not leave elsewhere. The kernel has set "don't fragment" in duplicates of IPv4 packets,
// and would refuse to send those of datagrams that it has reassembled.
func (f family) duplicates(d doorway) []rule {
	rules := []rule{when("not through the doorway", marked(d.mark), isNotDevice(oifname(), d.in), drop())}
	if f.id == unix.NFPROTO_IPV4 {
		rules = append(rules, when("may be fragmented", isDevice(oifname(), d.in), clearFragmentOffset()))
	}
	return rules
}

// prerouting returns the rules for the first packets of connections. What is to obey the
// host's firewall is translated only behind the doorway. There an address of a VRF is none of the
// host's (toLocal), but only packets that came in by that VRF get there.
func (f family) prerouting(d doorway) (rules []rule) {
	behind := isDevice(iifname(), d.out)
	rules = append(rules,
		when("through the doorway, published at all addresses of a VRF", behind, f.dnat(setPortsAnywhereVRF, l4proto(), dport())).ifVRFs(),
		when("through the doorway, published at one address of a VRF", behind, f.dnat(setPortsVRF, l4proto(), f.destination(), dport())).ifVRFs(),
		when("through the doorway", behind, jumpTo(chainPublished)),
	)
	if f.id == unix.NFPROTO_IPV4 {
		rules = append(rules, when("the host's loopback", is(payload(expr.PayloadBaseNetworkHeader, f.daddr, 1), loopbackByte), accept()))
	}
	return append(rules,
		when("DNS that a gateway answers", in(setDevices, iifname()), f.dnat(setResolvers, f.source(), f.destination(), l4proto(), dport())),
		when("published at one address", f.dnat(setDirect, l4proto(), f.destination(), dport())),
		when("published at all addresses", toLocal(), f.dnat(setDirectAnywhere, l4proto(), dport())),
	)
}

// fromLoopback matches packets from the host's loopback addresses.
func (f family) fromLoopback() []expr.Any {
	if f.id == unix.NFPROTO_IPV4 {
		return is(payload(expr.PayloadBaseNetworkHeader, f.saddr, 1), loopbackByte)
	}
	return is(f.source(), net.IPv6loopback...)
}
