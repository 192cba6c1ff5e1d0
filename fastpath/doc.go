// Package fastpath forwards packets of containers by BPF programs, once the kernel has shown how it forwards them.
//
// # Theory of operation
//
// A packet from a container passes much of the kernel until it leaves the host: bridge or routes, connection tracking,
// the rules of nftables, translation of addresses, VXLAN. For the packets of one flow all that has the same result. So
// the programs look at the first packets of a flow as they come in and as they leave, remember what was done with
// them, and do the same with the next ones:
//
//	container ─ veth ─ from_container ─→ the kernel ─→ to_wire ─ eth0     a packet that the kernel forwards
//	container ─ veth ─ from_container ─────────────────────────→ eth0     one that goes the fast way
//	eth0 ─ from_wire ─→ the kernel ─→ to_container ─ veth ─ container
//	eth0 ─ from_wire ───────────────────────────────────→ container       bpf_redirect_peer
//
// Nothing is decided here. What the kernel has done with a packet is a judgement of its flow, which holds for 50 ms.
// Then packets of the flow take the kernel's way, until one of them leaves. So a new rule, another route, a removed
// port or an ended connection holds for all packets within 50 ms and a tick of the kernel's clock, whoever has made
// the change, and whether the process that loaded the programs still runs or not.
//
// A judgement is about a flow in one direction: addresses, ports and protocol, the device by which packets come in, their
// type of service, and their size, which is at most that of the largest packet of the flow, or to the same destination by
// the same next hop, that the kernel has forwarded in these 50 ms. It is made when
//
//   - the packet that leaves is the one that came in: it has the token that it got then (in tc_index), and has changed in
//     nothing but time to live, addresses and ports. A packet that leaves twice makes none;
//   - connection tracking knows the flow in both directions, and translates it in just this way. It need not know a flow
//     whose packets a bridge forwards;
//   - no helper of connection tracking reads the flow's packets (FTP, SIP).
//
// All other packets take the kernel's way: those that begin a connection of TCP, fragments, packets with options, other
// protocols than TCP and UDP, those whose time to live ends, and those with a mark. A flow of TCP is remembered from its
// handshake on, others after a dozen packets.
//
// # Connection tracking
//
// It sees the first two packets of a connection of TCP, and then some each 50 ms. So it does not know windows, nor ends.
// It has to take packets whatever their place in a connection is (nf_conntrack_tcp_be_liberal and
// nf_conntrack_tcp_ignore_invalid_rst, which package network/named sets): without the first, flows of TCP stay on the
// kernel's way. The programs set the time after which it forgets a connection: when a connection is established, and
// when it ends. A connection between the ports of one that has ended is judged anew.
//
// # VXLAN
//
// to_wire sees packets of containers with the headers that the kernel has put in front, and the next packets get the same
// ones (bpf_skb_adjust_room). So peers need no BPF, and large segments of TCP stay whole until the network card. The outer
// UDP checksum is 0, as RFC 7348 section 5 recommends.
//
// Packets that come in VXLAN wait in a queue of the kernel (gro_cells), where later ones of the same flow could overtake
// them. So their payload is counted as they come in and as they leave, and the fast way is taken only while there is
// nothing in between. Because of that queue they have no token either. Only packets from the addresses of hosts
// (Settings.Peers) are looked at, and only what leaves after it came by the VXLAN device makes a judgement.
//
// # A process that is killed
//
// The programs of wires end with it (tcx links), so flows with other hosts take the kernel's way after 50 ms. Those of
// containers' devices stay (classifiers), and go on with flows between containers of the host, as the kernel judges
// them. The next Path replaces them, or Clear removes them. Before Linux 6.6, which has tcx, wires have classifiers as
// well.
//
// # Files
//
//	flow.c     the programs          packet.h   reading packets
//	judge.h    seeing what the kernel does       send.h     the fast way
//	flow.h     the maps              kernel.h   what they use of the kernel
//
// The objects that bpf2go makes of them are committed. scripts/bpf makes them again; it needs clang.
//
// # Limits
//
// Counters of rules, of connection tracking and of devices lack the packets that go the fast way (Counters). Rules that
// limit or sample packets see few. Programs that capture packets see them come in by a device, and not leave by it.
//
// A packet with a wrong checksum of TCP or UDP is dropped by the container instead of by the host.
//
// Packets that go the fast way don't meet programs, filters and queueing disciplines that others have on a
// container's device. A device with programs or filters of others is left out (Sync), those with queueing disciplines
// are up to the caller.
//
// VXLAN over IPv6 takes the kernel's way, and before Linux 6.3 IPv6 packets that come in VXLAN.
// The kernel needs kfuncs of connection tracking (Linux 6.1 has what is used here); New says what is missing.
//
// Sources: include/uapi/linux/bpf.h; net/core/filter.c (bpf_skb_adjust_room, bpf_redirect_peer);
// net/netfilter/nf_conntrack_bpf.c and nf_conntrack_proto_tcp.c; RFC 7348, RFC 6040. Remembering what the kernel did with
// the first packets is also the idea of ONCache (Lin et al., NSDI 2025).
//
// # Example
//
//	p, err := fastpath.New()
//	if err != nil {
//		return err // *fastpath.UnsupportedError
//	}
//	defer p.Close()
//	settings := fastpath.Settings{VNI: 7790, Port: 4789, Device: vxlan, Peers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
//	err = p.Sync(settings, []fastpath.Device{
//		{Index: veth, Role: fastpath.Container}, {Index: eth0, Role: fastpath.Wire},
//	})
package fastpath
