// Package policy says what a namespaced process may reach, by address and by
// name.
//
// # Theory of operation
//
// A Rule allows or denies destinations: CIDR|name[:ports][/proto]. Rules have no
// order, so that those of a file, of the command line and of a control socket
// mean the same however they come together:
//
//   - A deny beats an allow.
//   - Unless the allow is an exception to it: it speaks of nothing that the deny
//     does not speak of, and of less. "deny 10.0.0.0/8, allow 10.1.2.3" lets
//     10.1.2.3 through; "deny all:25, allow 192.0.2.1" does not let it send mail,
//     since that allow is wider in ports; "allow 192.0.2.1:25" would.
//   - What no rule speaks of is allowed, or, as soon as any rule allows
//     something, denied; "default allow|deny" in a file says which.
//
// First match, as packet filters have it, would be quicker to explain, but then
// "--deny all --allow example.com" lets nothing through and the meaning of a rule
// added at run time depends on where it is put. "Deny always wins" would have no
// exceptions at all. With this rule both --deny 10.0.0.0/8 --allow 10.1.2.3 and
// its reverse do what they say, and where two rules merely overlap the safe one
// holds.
//
// The built-in denials are denies like others, except that an allow that is as
// wide lifts them: "allow 127.0.0.1:5432" or "allow 169.254.0.0/16" do, "allow
// all" does not. A Mapping was asked for, so built-in denials don't hold for
// it; rules are tried on both of its sides.
//
// # IPv4 addresses inside of IPv6 addresses
//
// Addresses are judged unmapped (::ffff:127.0.0.1 is 127.0.0.1). A denial of an IPv4 address
// holds for every IPv6 address from which a translator or a tunnel could make it; forms.go has
// the list. An allow of such an address makes an exception to a denial, but grants nothing.
//
// The NAT64 prefixes of the network are stated by the rules (Rules.NAT64) and discovered by
// Run (RFC 7050), where a rule denies an IPv4 network or a name. nat64.go says what becomes
// of flows that begin before the first answer.
//
// # Names
//
// A name in a rule stands for the addresses it leads to. Which those are is
// known from two places only. One is our own DNS forwarder: the addresses in an
// answer are credited to the name in the guest's question (Learn), and to no
// other name the answer mentions. The other is the Policy, which looks up exact
// names itself (Prime, Run). Answers from other servers, and packets that claim
// to be answers, credit nothing; a forged one can at most make a guest connect
// somewhere else, where the rules hold for the address. So:
//
//   - "allow name" can't be stretched by the guest. It does trust whoever owns
//     the name: addresses that a rule or a built-in denial denies stay denied
//     (DNS rebinding), all others can be put behind it.
//   - "deny name" holds for a guest that resolves by itself, since our own
//     look-up finds the addresses too; so far as a name has the same addresses
//     for us as for others.
//   - "deny *.name" holds for what the guest asks us, that is for programs that
//     mean no harm. A hostile one can know an address from elsewhere: deny its
//     address, or allow what it needs instead.
//   - Names that share an address, as a CDN's do, can't be told apart.
//
// Where any rule has a name, port 53 at whatever server leads to our forwarder,
// and port 853 is refused so that programs fall back to it; a rule that allows
// such a port by number lets it out. Where nothing but names is allowed, other
// names can't be asked for (MayAsk), which closes DNS as a way to carry data out
// to whoever owns some domain. Where nothing is allowed, DNS is refused.
//
// Credits last for the TTL, at least an hour and at most a day. The table holds
// 8192 of them in about 3 MB; when it is full, names that no rule speaks of go
// first, then the oldest.
//
// # Judging
//
// Judge runs in the data path's thread: it takes no lock but that of the table
// of names, for as long as a look-up there takes, and allocates nothing. Rules
// are compiled to maps by prefix and by name, replaced as a whole.
//
// # Limits
//
// Addresses of the host's own links other than loopback are ordinary ones: what
// listens on 0.0.0.0 there can be reached, as from any machine next to it. Hints
// in HTTPS records (RFC 9460) are not credited. A NAT64 prefix that changes is noticed within
// a minute; one that no resolver announces is known only where the rules state it.
// Where nothing but names is allowed, a resolver of the guest's own that asks for
// the targets of CNAMEs, or for keys to validate answers with, is told that they
// don't exist. A flow is judged in less than a microsecond, but rules that differ
// in ports alone are tried one after the other (12 ns each).
//
// Sources: RFC 1034, 1035, 1122 section 3.2.1.3, 3056, 3879, 4291, 4343, 4380, 5214,
// 6052, 6890, 7050, 8215, 8552, 8880;
// the providers' documentation for metadata services.
package policy
