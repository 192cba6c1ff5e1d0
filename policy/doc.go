// Package policy decides what a namespaced process may reach, by address and by name.
//
// # Theory of operation
//
// A Rule allows or denies destinations: CIDR|name[:ports][/proto]. Rules have no order,
// so that rules from a file, the command line and a control socket mean the same however
// they are combined:
//
//   - A deny beats an allow,
//   - unless the allow is an exception to it: the deny matches everything that the allow matches, and more. "deny 10.0.0.0/8, allow 10.1.2.3" allows 10.1.2.3. "deny all:25, allow 192.0.2.1" does not open port 25 of 192.0.2.1, because that allow covers more ports than the deny; "allow 192.0.2.1:25" would.
//   - What no rule matches is allowed, or denied as soon as there is any allow rule; "default allow|deny" in a file overrides that.
//
// First match, as in packet filters, would be simpler to explain. But then "--deny all
// --allow example.com" allows nothing, and the meaning of a rule added at run time
// depends on its position. "Deny always wins" would permit no exceptions. With the rule
// above, both --deny 10.0.0.0/8 --allow 10.1.2.3 and its reverse do what they say, and
// where two rules merely overlap the safer one decides.
//
// The built-in denials are denies like others, except that an allow as wide as the denial
// lifts it: "allow 127.0.0.1:5432" and "allow 169.254.0.0/16" do, "allow all" does not. A
// Mapping was requested explicitly, so built-in denials do not apply to it; rules are
// checked on both of its sides.
//
// ParseRule (parse.go) reads a rule wherever one is written: command lines, files, control
// sockets. A new form of destination is a field of Rule (rule.go). ParseRule reads it and
// Rule.String writes it, Rule.within decides to which rules it is an exception, and set.add
// compiles it for set.decide (set.go).
//
// # IPv4 addresses inside IPv6 addresses
//
// Addresses are judged unmapped (::ffff:127.0.0.1 is 127.0.0.1). A denial of an IPv4
// address applies to every IPv6 address from which a translator or a tunnel could derive
// it; appendForms lists the forms. An allow of an IPv4 address makes an exception to a
// denial for these forms, but allows nothing by itself.
//
// The NAT64 prefixes of the network are stated in the rules (Rules.NAT64), and discovered
// by Run (RFC 7050) where a rule denies an IPv4 network or a name. nat64.go describes
// what happens to flows that begin before the first answer.
//
// # Names
//
// A name in a rule stands for its addresses. They are learned from two sources only. One
// is our DNS forwarder: the addresses in an answer are credited to the name in the
// guest's question (Learn), and to no other name in the answer. The other is the Policy
// itself, which looks up exact names (Prime, Run). Answers from other servers, and
// packets that claim to be answers, credit nothing; a forged one can at most make a guest
// connect to another address, where the rules for that address apply. So:
//
//   - The guest cannot extend "allow name". The rule does trust the owner of the name: addresses that a rule or a built-in denial denies stay denied (DNS rebinding), but the owner can put any other address behind the name.
//   - "deny name" holds even for a guest that resolves names by itself, because our own look-up finds the addresses too, as far as the name has the same addresses for us as for others.
//   - "deny *.name" holds for what the guest asks us, that is, for programs without bad intent. A hostile one can learn an address elsewhere: deny the address, or allow only what it needs.
//   - Names that share an address, as a CDN's do, cannot be told apart.
//
// Where any rule has a name, port 53 of any server leads to our forwarder, and port 853
// is refused so that programs fall back to it. A rule that allows such a port by number
// opens it. Where only names are allowed, other names cannot be queried (MayAsk), which
// closes DNS as a way to carry data out to the owner of some domain. Where nothing is
// allowed, DNS is refused.
//
// A credit lasts for the TTL, but at least an hour and at most a day. The table holds
// 8192 credits in about 3 MB. When it is full, names that no rule mentions are evicted
// first, then the oldest.
//
// # Judging
//
// Judge runs on the data path's thread. It takes no lock but that of the table of names,
// for the duration of a look-up, and allocates nothing. Rules are compiled to maps by
// prefix and by name, and replaced as a whole.
//
// # Limits
//
// Addresses of the host's links other than loopback are ordinary addresses: what listens
// on 0.0.0.0 there can be reached, as from a neighbouring machine. Hints in HTTPS records
// (RFC 9460) are not credited. A changed NAT64 prefix is noticed within a minute; one
// that no resolver announces is known only if the rules state it. Where only names are
// allowed, a resolver run by the guest that asks for the targets of CNAMEs, or for keys
// to validate answers, is told that they do not exist. A flow is judged in less than a
// microsecond, but rules that differ only in ports are tried one by one (12 ns each).
//
// Sources: RFC 1034, 1035, 1122 section 3.2.1.3, 3056, 3879, 4291, 4343, 4380, 5214,
// 6052, 6890, 7050, 8215, 8552, 8880; the providers' documentation of metadata services.
package policy
