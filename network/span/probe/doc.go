// Package probe finds out whether packets between containers of two hosts pass the segment that the hosts share, as
// they are, without encapsulation. Switches of clouds, and switches with port security, drop packets whose
// addresses they don't know.
//
// # Theory of operation
//
// Every interval a Prober sends two datagrams to each Peer:
//
//   - a hello, from the address of this host to that of the other one, by the routes of the kernel;
//   - for each Way a trial: a frame that is addressed like a packet of a container, by the uplink. It leaves and is
//     received by a packet socket. So it needs no route, and no firewall of the two hosts hides it.
//
// A hello says which trials its sender has received lately. A way works if trials arrive in both directions, so both
// hosts come to the same result. Hosts send at once when something changes: a way is known to work after three
// round trips.
//
// A way stops working when hellos arrive and trials don't. When hellos don't arrive either, the other host is down,
// its node has ended, or the network is broken; a different way would not help, so the results stay as they are.
//
// # Authenticity
//
// A datagram counts if it repeats a random number that its receiver has sent to the other host's address. So who can't
// read what is sent to a host can't make its hellos or trials. Whoever is on the segment can, as he can answer ARP
// for the host.
//
// # Limits
//
// Hellos are UDP datagrams to the port of the Prober, which firewalls of the hosts have to accept. Without hellos no
// way works.
//
// The packet sockets run a filter of a few instructions for each packet that the uplink receives.
//
// Sources: packet(7), RFC 768, RFC 4861 section 7.
package probe
