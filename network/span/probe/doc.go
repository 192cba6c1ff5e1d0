// Package probe finds out how packets between containers of two hosts can travel: whether the segment that the hosts
// share passes them as they are, how large packets on the path may be, and whether encapsulated packets arrive undamaged.
//
// # Theory of operation
//
// Every interval a Prober sends two datagrams to each Peer with which it may share a segment:
//
//   - a hello, from the address of this host to that of the other one, by the routes of the kernel;
//   - for each Way a trial: a frame that is addressed like a packet of a container, by the uplink. It leaves and is
//     received by a packet socket. So it needs no route, and no firewall of the two hosts hides it. Switches of clouds,
//     and switches with port security, drop packets whose addresses they don't know.
//
// A hello says which trials its sender has received lately. A way works if trials arrive in both directions, so both
// hosts come to the same result. Hosts send at once when something changes: a way is known to work after three
// round trips. Peers without ways get hellos until they answer. With more than sixteen peers the intervals are longer
// (rounds in probe.go), but for peers about which something is to be found out.
//
// A way stops working when hellos arrive and trials don't. When hellos don't arrive either, the other host is down,
// its node has ended, or the network is broken; a different way would not help, so the results stay as they are.
//
// # The MTU of a path
//
// A search (search.go) finds the size of the largest packets that pass to a peer, as RFC 8899 does: by datagrams of
// certain sizes with "don't fragment", which the peer answers. It does not depend on ICMP. Its steps are
//
//	begin    the largest size that the devices of both hosts have, and the smallest
//	ladder   sizes that are common, if only the smallest one passes
//	refine   halves the distance between one that passes and one that does not
//	confirm  from time to time: does the size still pass, and does the largest one by now?
//
// A size is too large if it was sent three times without an answer. A peer that does not answer even the smallest size
// is not there, and keeps its result. A size is confirmed every five seconds with few peers. With many it is every
// fifteen for those whose forwarding entry of the device was used lately, and every minute for others.
//
// With 1,000 idle peers a Prober sends 30 datagrams and 24 kB a second, gets as many answers of 56 bytes, and spends 0.25
// ms a second on the searches (BenchmarkIdle, 2 CPUs).
//
// # Encapsulated packets
//
// A check (offload.go) sends three frames by a packet socket on the device of encapsulated packets: one with a complete
// checksum, one whose checksum the kernel leaves to the network card (CHECKSUM_PARTIAL), and one that the card divides
// into three packets (GSO). The peer's packet socket sees them before its kernel would drop damaged ones, and the peer
// answers those that are undamaged. If the first one arrives and others don't, six times in a row, the card is broken
// (Broken), whichever peer showed it. If the first one never arrives, but sizes do, encapsulated packets are blocked.
//
// What was found is tried again an hour later, once no encapsulated packet was sent for a minute: it is
// forgotten, its owner switches the offloads on, and the next check finds it again. While the offloads are off, a check
// can't find anything.
//
// # Compatibility
//
// Nodes ignore messages of kinds that they don't know. Peers that know hellos and trials only have no MTU, and are not
// checked.
//
// # Authenticity
//
// A datagram counts if it repeats a random number that its receiver has sent to the other host's address. So who can't
// read what is sent to a host can't make its hellos, trials, sizes, frames or answers. Whoever is on the segment can, as
// he can answer ARP for the host.
//
// # Limits
//
// Hellos are UDP datagrams to the port of the Prober, which firewalls of the hosts have to accept. Without hellos
// nothing is found.
//
// The packet sockets run a filter of a few instructions for each packet that the uplink, or the device of encapsulated
// packets, receives. A path by other ways than VXLAN counts as idle.
//
// Sources: packet(7), RFC 768, RFC 4861 section 7, RFC 8899, Documentation/networking/checksum-offloads.rst.
package probe
