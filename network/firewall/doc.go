// Package firewall puts networks of containers and their published ports into nftables rules.
// No nft program is needed.
//
// # Theory of operation
//
// A Table is a pair of nftables tables of a network namespace, "ip NAME" and "ip6 NAME". Both
// have the same chains, and the rules are the same whatever the State: networks, endpoints and
// ports are elements of sets and maps, which the rules look up. So the number of rules that a
// packet meets does not depend on how much there is, and a change is a few elements in one
// transaction.
//
// Rules for each packet:
//
//   - What comes from a device of a network has the address of an endpoint there.
//   - Forwarded packets of known connections pass. New connections pass from an endpoint to its
//     own network, to networks in State.Allow and, unless the network is internal, to the rest
//     of the world; and from anywhere to published ports. All else that comes from or goes to a
//     device of a network is dropped.
//   - Connections of endpoints to the host pass as far as HostAccess permits.
//
// A change of rules leaves known connections alone. EndConnections ends those that it denies: it
// compares what two States permit to each tracked connection (judge.go), marks those of TCP, whose
// packets the rules then drop, and makes the kernel forget the others.
//
// Other packets are none of the table's business. An accepted packet still meets the chains of
// other tables. ForeignDrops lists those that drop by default, and AcceptInIptables makes exceptions.
//
// Rules for the first packet of a connection: its destination is translated if it is a
// published port or a name server in State.Resolvers, and its source if it leaves the
// networks of the table, or if the reply would otherwise not pass the host: within a
// network whose endpoints share a device, and from a published port to an endpoint of another
// host (State.Relays).
//
// State is compared with the kernel as elements. Sync reads both tables, and replaces them
// altogether if anything but elements differs. Apply reads nothing. The kernel refuses what
// Sync sends if anybody has changed any rule since it has read the tables, and Sync starts
// again.
//
// # VRFs
//
// For rules, a packet that comes in by a device in a VRF comes from the VRF (vrf_ip_rcv, drivers/net/vrf.c),
// once it is routed. So a table with networks in a VRF has copies of two chains that look at the other
// device. Tables without such networks have none of these chains, rules and sets.
//
// A port of a network in a VRF is published in that VRF: for packets that the VRF delivers to the host.
// These go through the doorway, BypassFirewall or not: chain prerouting, where the destination of others is
// translated, sees the device and not the VRF. What comes out of the doorway is in no VRF, so a routing rule
// for each prefix leads to the VRF's table. The host's own programs don't reach these ports. A port of another
// network is published outside of VRFs.
//
// # Limits
//
// Prefixes of networks must not overlap. Published ports are not reachable at ::1 where a
// bridge passes packets through netfilter (br_netfilter).
//
// Without privileges in the initial user namespace, net.core.wmem_max bounds a transaction: 4
// MiB are some 40,000 ports.
//
// Linux 5.7 is needed: sets with ranges of several fields, and the device by which a packet came into a
// VRF (both 5.6), and the incoming device in postrouting chains.
//
// Sources: nft(8), include/uapi/linux/netfilter/nf_tables.h, net/netfilter/nf_tables_api.c.
//
//	table := firewall.Table{NS: host, Name: "cleat-net"}
//	web := firewall.Network{Devices: []string{"br0"}, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, MasqueradeIPv4: true}
//	err := table.Sync(firewall.State{Networks: []firewall.Network{web}})
//	if err != nil {
//		return err
//	}
//	http := firewall.Port{Protocol: packet.TCP, HostPort: 80, To: netip.MustParseAddrPort("192.0.2.2:8080")}
//	return table.Apply(firewall.Change{Add: firewall.State{Ports: []firewall.Port{http}}})
package firewall
