// Package experiment says what to measure. An experiment is data, read from a YAML file
// or from a preset, which is such a file embedded in the program.
//
// # Theory of operation
//
// An Experiment is a list of groups. A Group lists networks, kinds of work and the levels
// of each factor; Jobs crosses them in full, one Job for each combination. These rules
// leave out what is impossible:
//
//   - Baselines, paths between a node and its own containers, ports published by the
//     node and reached from it, veth and netkit pairs, and TUN and TAP pairs exist
//     within one node only: never "switched".
//   - The work decides the transport: tcp, rr and crr run over TCP or MPTCP, udp, udprr
//     and packets over UDP.
//   - iperf3 and iperf measure tcp and udp only, not MPTCP, without GSO and without
//     searching for a rate.
//   - The MTU of the host's own loopback is not changed, since a lab changes nothing of
//     the host.
//   - GSO needs datagrams that fit the MTU: the kernel refuses others
//     (net/ipv4/udp.c, udp_send_skb).
//   - The peer of a rootless container may be the host itself. Then both are on one
//     node, and outbound the host is reached by the one address that the network has
//     for it.
//   - Only rootless and named networks have programs whose memory is measured, and only
//     rootless ones are built together with a command ("start"). The command without a network, on loopback, is
//     the baseline of "start". Both kinds of work are measured outbound.
//   - Attachers do the work "attach" and no other. Named networks do it, too, and
//     "burst", but not "setup". docker-connect only attaches the first endpoint, and
//     docker-bridge at most 100, since each takes a container of Docker's.
//   - The peer of a container on a named network is another one, or reaches it by a
//     published port, or the container asks one outside. A port of docker-bridge takes two processes, so at most 100 are
//     published. Engines choose the MTU.
//   - Programs on several hosts make cleat-overlay, docker-overlay, weave, bird-routes and flannel's networks. Only
//     these do the work "event", of which docker-overlay has no address, and weave, bird-routes and flannel have no
//     name, death, move and address. They do the work "attach" on two hosts of their own, docker-overlay with at most 100 endpoints.
//   - Rootless networks carry traffic outbound or inbound, the others in one direction,
//     which their name tells.
//   - Networks over several links have a topology of their own, "links", and their own
//     transport: MPTCP for mptcp, TCP for the others. Only traffic with a duration is
//     measured over them. "single" has one link. The variants rates, delays, blackhole
//     and flap need two links or more; blackhole and flap happen at fixed times, which a
//     search for a rate does not have. MPTCP carries no datagrams, and other programs'
//     tunnels run over IPv4 only.
//
// The runtime is that of traffic's ends: setup, start, memory, attach, burst and event are
// always native.
//
// A factor is not crossed for work or a network for which it has no meaning: TCP has no
// offered rate, UDP no congestion control, only VXLAN has a VXLAN port, only macvlan-vepa
// cares for a hairpin switch, only our tunnel has a scheduler and a key, and setup does
// not depend on factors of traffic. Equal jobs of two groups are one job.
//
// Reading is strict. An unknown key, network or value is an *Error with the place in the
// file and the nearest valid word. It is found before anything starts.
//
// # Limits
//
// 1…128 pairs, 1…1024 streams, 1…64 links. Rates and sizes are decimal (10G is 10¹⁰
// bit/s). Whether this machine can build a network is not checked here; package wiring
// does that.
//
// A short experiment:
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
