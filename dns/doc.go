// Package dns answers the guest's DNS questions with the host's resolvers.
//
// # Theory of operation
//
// A Forwarder is a server without a socket: each guest flow to the resolver's
// address is a net.Conn (Packets, Stream) that the data path reads and writes.
// The Forwarder checks a question, asks it anew from the host's side, and passes
// the answer back as it came, under the guest's id. Before the guest sees an
// answer, Config.Learn gets its addresses under the name that was asked for, so
// rules by name hold from the first packet of the connection that follows.
//
// The servers are those of the host's resolv.conf. The file is read again when a
// question comes a second or more after the last look, so a VPN that comes up or a
// laptop that moves changes nothing for the guest, which always sees the same
// resolver. A file that can't be read leaves the servers as they were. The host's
// queries start in the host's own namespace, so stub resolvers (127.0.0.53),
// IPv6-only and link-local resolvers work as for any program there.
//
// # Failover
//
// Clients wait 5 s for an answer and give up after two tries, so the Forwarder may
// not spend 5 s on a dead server. When a server has not answered after hedgeAfter,
// the next is asked too, or the same one again from another socket, and the first
// good answer wins. A server that was overtaken several times, or at whose port
// nobody listens, is asked last; now and then it gets a question beside the others,
// and returns to its place when it answers that. SERVFAIL, REFUSED and NOTIMP make
// the next server's turn come at once; if none has anything better, the guest gets
// the first such answer. A later server may not know the names of an earlier one (a
// VPN's), so its "no such name" waits a little for the earlier one to object. When
// nobody answers, the guest gets SERVFAIL, not silence.
//
// # Whom to believe
//
// Each try has a socket of its own, connected to the server, with a source port
// of the kernel's choice and a random id, not the guest's: the guest must not
// help somebody outside to guess. An answer counts when address, port, id,
// question and the kind of message are right and all of it can be parsed. Other
// messages are counted, and after maxForged of them the server is asked by TCP.
// Of an answer, only the addresses at the end of the chain of CNAMEs from the
// question's name are reported.
//
// Somebody who can send packets with the server's address, and whom the guest helps
// by asking again and again, has maxForged guesses of 65,536 for each socket, and
// must hit its port too. Questions that are equal but for id and case are asked
// once, however often the guest sends them, so it can't add sockets to guess at (RFC
// 5452 section 5). Letters keep the case that the guest gave them: small servers in
// use compare it, so a random one (0x20) would break them. Servers are told to send
// at most 1,232 bytes over UDP, which no path fragments.
//
// A server gets a message that the Forwarder makes, not the guest's: the question,
// the flags RD, AD and CD, and of EDNS the size and the DO bit. Records, options and
// whatever else the guest sends stay here. Another parser could read something in
// them that was not judged, and they could carry data out where names are allowed
// by name alone.
//
// # Limits
//
// Config.Queries questions are under way, four times as many wait, and the rest is dropped
// and counted: clients ask again. There are at most 4096 conversations over UDP, which end
// half a second after their last answer, and 512 over TCP, which end when the guest asks
// nothing, or does not take an answer, for 10 s. Answers that wait to be read have at most
// 4 MiB together (maxHeld). A question whose answer does not fit is answered with SERVFAIL,
// or its conversation ends.
//
// Conversations, questions, answers and sockets are charged to Config.Ledger as well, and
// refunded when they end; a refused charge counts as a limit that is reached. Lookup is for
// the helper itself: it charges nobody, has limits of its own (LookupDescriptors), and
// nothing that the guest asks for delays it.
//
// The Forwarder has no cache: the host's resolver has one, an answer must not outlive a
// change of resolv.conf, and the policy keeps the names that rules need. Zone transfers are
// refused. Answers longer than the guest takes over UDP, at most 4096 bytes, are cut (TC).
// Only DNS: /etc/hosts and mDNS of the host are not consulted.
//
// Sources: RFC 1035, 4343 (case), 5452 (forgery), 6891 (EDNS), 7766 (TCP), 8020, 9715
// (fragments); resolv.conf(5).
package dns
