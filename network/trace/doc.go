// Package trace follows packets from one network namespace of this machine to another, and says
// what stops them, shrinks them or drops some of them on the way. It changes nothing.
//
// # Theory of operation
//
// There are three steps, each in files of its own.
//
// Observe reads (observe.go, rules.go): a survey.Survey with the links of every namespace and
// where they lead, and from inside each namespace neighbours, forwarding entries, settings and
// the rules of nftables.
//
// Observation.Trace judges (walk.go, tunnel.go, rules.go, path.go) what was read. Only routes
// are still asked of the kernel, through a socket that the observation holds in each namespace.
// A walk goes from link to link: the route says which link a packet leaves by, the link's kind
// says where it comes out again, a bridge's forwarding table says which port is next, and so on
// until the packet is in the other namespace. Then the answer walks back. A rule is run over
// what is known of the packet, and matches all packets, some, or none.
//
// Path.WriteText prints the result (text.go).
//
//	o, err := trace.Observe(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer o.Close()
//	p, err := o.Trace(a, b)
//	if err != nil {
//		return err
//	}
//	return p.WriteText(os.Stdout)
//
// # Limits
//
// A trace knows what is in this machine and in namespaces that it may enter. It does not look
// inside programs (TUN, TAP), flow tables (Open vSwitch), BPF, WireGuard or traffic control. It
// takes one link of a bond for all, and ignores the VLAN filter of a bridge. Of rules it knows
// addresses and devices, but not ports and states: a rule about those may match. It follows the
// address of the destination, not what destination NAT makes of it. nftables can't list the
// rules of the old iptables: the trace says where there are any.
//
// Sources: net/bridge/br_forward.c, net/bridge/br_netfilter_hooks.c, drivers/net/macvlan.c,
// drivers/net/ipvlan/ipvlan_core.c, net/netfilter/nf_tables_core.c, RFC 3704 and 7348.
package trace
