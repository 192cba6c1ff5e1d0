// Package dns answers a guest's DNS queries with the host's resolvers.
//
// # Theory of operation
//
// A Forwarder is a server without a socket: each guest flow to the resolver's address is
// a net.Conn (Packets, Stream) that the data path reads and writes. The Forwarder checks
// a query, sends a query of its own from the host's side, and passes the answer back
// unchanged except for the id. Before the guest sees an answer, Config.Learn receives its
// addresses with the queried name, so that rules with names apply from the first packet
// of the following connection.
//
// A server with sockets of its own, and several clients, passes each query to Submit
// instead, and learns which client's answer has which addresses.
//
// The servers are those in the host's resolv.conf. The file is read again when a query
// arrives a second or more after the last check. When a VPN comes up or a laptop moves,
// the guest keeps the same resolver address. If the file cannot be read, the servers
// stay. Queries are sent from the host's own namespace, so stub resolvers (127.0.0.53),
// IPv6-only and link-local resolvers work as for any program there.
//
// # Failover
//
// Clients wait 5 s for an answer and give up after two tries, so the Forwarder must not
// spend 5 s on a dead server. If a server has not answered after hedgeAfter, the next one
// is asked as well (with a single server, the same one from another socket), and the
// first good answer is used. A server that was overtaken several times, or on whose port
// nobody listens, is asked last. From time to time it receives a query besides the
// others, and returns to its place when it answers. After SERVFAIL, REFUSED or NOTIMP the
// next server is asked at once; if none has a better answer, the guest gets the first of
// these. A later server may not know names that an earlier one knows (a VPN's), so its
// negative answer waits a little for the earlier one. If nobody answers, the guest gets
// SERVFAIL, not silence.
//
// # Forged answers
//
// Each try has its own socket, connected to the server, with a source port chosen by the
// kernel and a random id, not the guest's: the guest must not help an attacker to guess.
// An answer counts only if address, port, id, question and message type are right and all
// of it can be parsed. Other messages are counted, and after maxForged of them the server
// is asked over TCP. Of an answer, only the addresses at the end of the chain of CNAMEs
// from the queried name are reported.
//
// An attacker who can send packets with the server's address, helped by a guest that
// repeats queries, has maxForged guesses out of 65,536 for each socket, and must guess
// its port too. Queries that differ only in id and case are sent once at a time, however
// often the guest repeats them, so that it cannot add sockets to guess at (RFC 5452
// section 5). Letters keep the guest's case: some small servers compare it, so random
// case (0x20) would break them. Servers are told to send at most 1,232 bytes over UDP,
// which no path fragments.
//
// A server receives a message made by the Forwarder, not the guest's: the question, the
// flags RD, AD and CD, and of EDNS the size and the DO bit. Records, options and
// everything else the guest sends are dropped. Another parser could read something into
// them that was not checked, and they could carry data out where only names are allowed.
//
// # Limits
//
// Config.Queries queries are in progress, four times as many wait, and the rest is
// dropped and counted: clients ask again. There are at most 4096 conversations over UDP,
// which end half a second after their last answer, and 512 over TCP, which end when the
// guest sends no query, or reads no answer, for 10 s. Answers that wait to be read hold
// at most 4 MiB together (maxHeld). A query whose answer does not fit gets SERVFAIL, or
// its conversation ends.
//
// Conversations, queries, answers and sockets are also charged to Config.Ledger, and
// refunded when they end; a refused charge counts as a reached limit. Lookup is for the
// helper itself: it charges nobody, has its own limits (LookupDescriptors), and no query
// of the guest delays it.
//
// The Forwarder has no cache: the host's resolver has one, an answer must not outlive a
// change of resolv.conf, and the policy keeps the names that rules need. Zone transfers
// are refused. Answers longer than the guest accepts over UDP, at most 4096 bytes, are
// truncated (TC). Only DNS is used: /etc/hosts and mDNS of the host are not consulted.
//
// Sources: RFC 1035, 4343 (case), 5452 (forgery), 6891 (EDNS), 7766 (TCP), 8020, 9715
// (fragments); resolv.conf(5).
package dns
