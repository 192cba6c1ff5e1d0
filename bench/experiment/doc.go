// Package experiment says what to measure: an experiment is data, read from a
// YAML file or from one of the presets, which are such files inside the
// program.
//
// # Theory of operation
//
// An Experiment is a list of groups. A Group lists networks, kinds of work and
// the levels of each factor; Jobs crosses them in full: one Job for each
// combination. What can't be is left out by these rules:
//
//   - Baselines, the node's own container-to-host paths, published ports
//     reached from the node, veth and netkit pairs, and TUN and TAP pairs exist
//     within one node only: never "switched".
//   - The work decides the transport: tcp, rr and crr run over TCP or MPTCP,
//     udp, udprr and packets over UDP.
//   - iperf3 and iperf measure tcp and udp only, not MPTCP, and never with GSO
//     or searching for a rate.
//   - The host's own loopback keeps its MTU, since nothing of the host is
//     touched.
//   - UDP_SEGMENT wants each datagram to fit the MTU: GSO with larger ones is
//     refused by the kernel (net/ipv4/udp.c, udp_send_skb).
//   - The peer of a rootless container may be the host itself. Then both are on
//     one node; outbound the host is reached by the one address that the network
//     has for it.
//   - Only rootless networks have programs whose memory is measured, and are made
//     together with a command; the same command without a network is the
//     baseline loopback's "start". Both are measured outbound.
//   - What attaches containers does the work "attach" and no other, and nothing
//     else does that. Docker only attaches the first endpoint: each takes a
//     container of its own.
//   - Rootless networks carry traffic outbound or inbound, the others in one
//     direction that their name already says.
//   - Networks over several links have a topology of their own, "links", and
//     their own transport: MPTCP for mptcp, TCP for the others. Only traffic for
//     a time is measured over them. "single" has one link. The variants rates,
//     delays, blackhole and flap need two links or more; blackhole and flap
//     happen at moments that a search for a rate does not have. MPTCP carries no
//     datagrams, and other programs' tunnels are run over IPv4 only.
//
// The runtime is that of traffic's ends: setup, start, memory and attach are
// always native.
//
// A factor that has no meaning for some work is not crossed there: TCP has no
// offered rate, UDP no congestion control, only VXLAN has a VXLAN port, only
// vepa takes note of a switch with a hairpin, only our tunnel has a scheduler and
// a key, and setup depends on nothing that is only about traffic. The jobs of two groups that
// come out equal are one job.
//
// Reading is strict. An unknown key, network or value is an *Error that names
// the place in the file and the nearest word that would be valid; nothing has
// been started by then.
//
// # Limits
//
// 1…128 pairs, 1…1024 streams, 1…64 links. Rates and sizes are decimal (10G is 10¹⁰ bit/s).
// Whether this machine can make a network is not asked here; package link
// probes that.
//
// An experiment in brief:
//
//	name: mine
//	title: two ways out, three MTUs
//	repeat: 10
//	groups:
//	  - networks: [bridge, macvlan-bridge]
//	    topologies: [local]
//	    mtu: [1280, 1500, 9000]
//	    work:
//	      - {kind: tcp, duration: 2s}
//	      - {kind: udp, duration: 2s, message_bytes: [1200]}
//	    factors:
//	      offered: [1G, unlimited]
package experiment
