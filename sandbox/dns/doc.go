// Package dns answers the guest's DNS questions with the host's resolvers.
//
// # Theory of operation
//
// A Forwarder is a server without a socket: each guest flow to the resolver's
// address is a net.Conn (Packets, Stream) that the data path reads and writes.
// A question is checked, asked again from the host's side, and the answer goes
// back as it came, under the guest's id. Before the guest sees an answer, its
// addresses are reported by the name that was asked for (Config.Learn), so that
// rules by name hold from the first packet of the connection that follows.
//
// The servers are those of the host's resolv.conf, which is read again when a
// question comes a second or more after the last look: a VPN that comes up or a
// laptop that moves changes nothing for the guest, which always sees the same
// resolver. A file that can't be read leaves the servers as they were. That the
// host's queries start in the host's own namespace makes stub resolvers
// (127.0.0.53), IPv6-only and link-local resolvers work as for any program there.
//
// # Failover
//
// Clients wait 5 s for an answer and give up after two tries, so we may not
// spend 5 s on a dead server. A server that has not answered after hedgeAfter
// gets company: the next is asked too, or the same one again from another
// socket, and the first good answer wins. A server that was overtaken several
// times, or that nobody listens at, is asked last; now and then it gets a
// question beside the others, and returns to its place when it answers that.
// SERVFAIL, REFUSED and NOTIMP make the
// next server's turn come at once; if none has anything better the first such
// answer is passed on. Since a later server may not know the names of an earlier
// one (a VPN's), "no such name" from it waits a little for the earlier one to
// object. When nobody answers, the guest gets SERVFAIL, not silence.
//
// # Whom to believe
//
// Each try has a socket of its own, connected to the server, with a source port
// of the kernel's choice and an id of ours, not the guest's: the guest must not
// help somebody outside to guess. An answer counts when address, port, id,
// question and the kind of message are right and all of it can be parsed; what
// else arrives is counted, and after maxForged the server is asked by TCP. Of an
// answer, only addresses that the chain of CNAMEs from the question's name leads
// to are reported.
//
// # Limits
//
// Config.Queries questions are under way, four times as many wait, and what
// comes beyond is dropped and counted: clients ask again. Conversations are
// bounded, too, and those over UDP end lingers after their last answer. There is
// no cache: the host's resolver has one, an answer must not outlive a change of
// resolv.conf, and the names that the rules need are kept by the policy. Zone
// transfers are refused. Answers longer than the guest said it takes are cut
// (TC). Only DNS: /etc/hosts and mDNS of the host are not consulted.
//
// Sources: RFC 1035, 5452 (forgery), 6891 (EDNS), 7766 (TCP), 8020;
// resolv.conf(5).
package dns
