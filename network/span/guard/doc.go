// Package guard protects the hosts of a cluster from packets of others that the kernel would take for a host's.
//
// # Theory of operation
//
// A VXLAN device accepts each datagram with its network identifier, whoever has sent it, and the Geneve device of package
// span each one with any identifier (geneve_lookup in drivers/net/geneve.c: it takes the metadata from routes).
// Containers can send such datagrams too, and their host then gives them its own address (masquerading), so that other
// hosts can't tell them from its own. Two nftables tables, "ip NAME" and "ip6 NAME", drop
//
//   - VXLAN and Geneve datagrams with the cluster's identifier that don't come from the address of a host, or are not
//     for this host's own address; where hosts use Geneve (Config.Geneve), Geneve datagrams with any identifier,
//   - the same where this host forwards them to a host,
//   - whatever this host's containers send to the ports of nodes (Config.Port, Host.Port), on any host.
//
// Other VXLAN datagrams belong to other programs, and pass. So do other Geneve datagrams in a cluster without
// Geneve. Containers are known by the names of their devices: how those of package named begin, and Config.Devices.
//
// Those datagrams between hosts are not tracked as connections: the containers' packets in them are. Otherwise each
// connection of a container would be three on both hosts (VXLAN takes its source port from the connection).
//
// The rules are before those of package firewall, and accept nothing: what they don't drop still meets those. They look
// hosts up in sets, so their number does not depend on how many there are. Sync compares the tables with what is wanted
// and replaces them, in one transaction, if they differ. The kernel numbers the states of a namespace's rules: as long
// as the number is the same, Sync knows what the tables are.
//
// # Limits
//
// Whoever can send packets with the source address of a host, as on most segments their other machines can, is taken for
// that host. Only encryption helps against them.
//
// Sources: nft(8), RFC 7348, RFC 8926.
//
// # Example
//
//	var tables guard.Tables
//	changed, err := tables.Sync(ns, guard.Config{
//		Name: "cleat-node", VNI: 7790, Local: netip.MustParseAddr("192.0.2.1"), Port: 7790,
//		Hosts: []guard.Host{{Address: netip.MustParseAddr("192.0.2.2"), Port: 7790}},
//	})
package guard
