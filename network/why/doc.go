// Package why finds out why a container does or does not reach another container, the host, or
// an address outside.
//
// # Theory of operation
//
// Ask has four steps.
//
// It finds both ends (ends.go, destination.go): what networks know of them, their network
// namespaces, and the addresses of the destination, which are the targets.
//
// It tries (probe.go, resolver.go): from inside the source it queries the name server that the
// source's resolv.conf names, and connects to each target. Without a port it sends a ping.
//
// It checks all that a packet and its name need, in that order, and each check adds a line to the
// answer and perhaps a finding:
//
//	ends       containers run, and their links have their addresses and are up   ends.go
//	hosts      another host, on which an end is, is alive, and how it is reached hosts.go
//	name       the name leads to the destination                                name.go
//	published  where a port of the host leads                                   published.go
//	networks   both ends have a network in common, or a rule makes up for it     networks.go
//	rules      which rule of a network decides (named.Store.Decide)             networks.go
//	kernel     what networks want exists; routes, neighbours, duplicate addresses,
//	           ports of bridges, links, rules of other programs, full-size packets
//	           kernel.go, route.go, neighbours.go, ports.go, firewall.go, size.go
//	listener   a program waits for what arrives                                 sockets.go
//	probe      what the targets answered                                        probe.go
//
// It concludes (verdict.go). The probe is the truth. If each machine is reached at one of its
// addresses at least, the verdict is that it is, unless a finding counts all the same: the name
// leads elsewhere, or full-size packets are lost. If one is not reached, the verdict is the first
// finding that explains the outcome: a refusal comes from a machine that the packet has reached,
// so a rule that drops packets does not explain it.
//
// A rule of another program whose conditions are not all known may or may not match. If it has a
// counter, the probe is repeated: the rule whose counter rises is the one.
//
// On a network that spans hosts the source's host tries: Ask returns an *ElsewhereError where that is another one. The
// destination's host is asked (Cluster.Ask, AskEnd) for what only it can see: whether the container runs, its link, its
// way back, and who listens.
//
// # Limits
//
// Between hosts full-size packets are not tried, and rules of other programs on the way are only looked for on the
// destination's host if nothing is answered.
//
// Nothing is changed, but a probe is seen by the destination: a connection that is closed at
// once, an empty datagram, a ping, an ARP request, and for port 53 a DNS query. A datagram
// without an answer counts as received if nothing is known to be in the way.
//
// The rules of other programs are examined as far as package trace knows them: not those of the
// old iptables, BPF and traffic control. On the way to addresses outside the host only chains
// whose policy is drop are looked for. Package trace follows packets to one address of a
// container, which is an IPv4 address if there is one.
//
// Duplicate addresses are found by ARP, so for IPv4 only. That a socket at :: does not take IPv4
// is concluded from a refusal.
//
// It needs root: to enter namespaces, and to send pings and ARP requests.
//
// Sources: resolv.conf(5), hosts(5), proc(5), RFC 792, 826, 1035 and 4443,
// include/net/tcp_states.h, include/uapi/linux/if_bridge.h.
//
//	to, err := why.ParseDestination("api:5432")
//	if err != nil {
//		return err
//	}
//	a, err := why.Ask(ctx, cfg, why.Question{From: "front", To: to})
//	if err != nil {
//		return err
//	}
//	return a.WriteText(os.Stdout)
package why
