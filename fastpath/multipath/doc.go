// Package multipath sends the packets of a tunnel by several paths, and receives those of the other end, by BPF programs.
//
// # Theory of operation
//
// A packet that leaves by the tunnel's device gets headers in front, and leaves by the device of a path. At the other end
// the headers are taken off, and the packet comes out of that tunnel's device. Segments of TCP stay as large as they
// are (GSO), no byte is copied, and no process is woken:
//
//	tunnel's device ─ to_paths ─→ eth0, eth1 ═══ eth0, eth1 ─ from_paths ─→ the other tunnel's device
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	| IPv4 and UDP, as the path's socket has them; no UDP checksum  |
//	+-------------------------------+-------------------------------+
//	| GRE: bits K and S             | 0x0800 or 0x86DD              |
//	| tag of the session (GRE key)                                  |
//	| path      | bytes that the path has carried before            |
//	+-----------+---------------------------------------------------+
//	| inner packet                                                  |
//
// The paths take turns: each carries some bytes in a row, as many as its share says. By the position in the header the
// receiver finds out what is missing, and what comes late. It is the same in all packets into which a large segment is
// divided.
//
// Nothing is measured, put in order or sent again. Package tunnel decides when this is good enough, and does all that
// itself otherwise; programs of package endpoint declare which paths there are.
//
// # Limits
//
// Paths over IPv4, by Ethernet devices. It needs Linux 6.6 (tcx). Nothing is encrypted, and the tag alone distinguishes
// the other end's packets from those of an attacker off the path. Packets don't pass the host's rules about the outer
// packets, nor the connection tracking of them.
//
// Sources: RFC 8086 (GRE in UDP), RFC 2784 and 2890 (GRE), RFC 6040 (ECN); net/core/filter.c (bpf_skb_adjust_room,
// bpf_redirect_neigh); net/ipv4/udp_offload.c (skb_udp_tunnel_segment).
package multipath
