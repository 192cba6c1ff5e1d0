// Package names serves the names of named networks: networks of containers on one host. One
// process (Run) serves all networks. Others hand it sockets and names (Client).
//
// # Theory of operation
//
// Whoever creates a network or starts a container opens the sockets (Open): at the network's
// gateway address in the host's namespace, or at a loopback address in a container's. It
// passes them to the server over the control socket (Serve), with the names of the networks
// that are visible through them. The server is sealed: it has no capability, opens no
// listener, executes nothing, and reads only files in the directories of the host's
// resolv.conf. It outlives its controllers. Sockets and names stay until somebody removes
// them.
//
// A network's names are in a zone, which is never changed: a request makes a new one and
// swaps a pointer. So a change closes no socket and delays no query, and all its parts are
// in force at once, before the request is acknowledged.
//
// An entry of a zone has its records ready in wire format. The answer to a query for one is
// the query's header and question, the records, and perhaps an OPT record. Nothing is
// allocated on the way, unless the client's address is link-local. Each UDP socket has one
// goroutine. It receives up to batchSize queries in one system call and sends the answers in
// another.
//
// # Names
//
// An endpoint of a network, usually a container, has a name, aliases, addresses and ports. In
// the network NET, whose domain is DOMAIN, there are:
//
//	NAME  NAME.NET  NAME.DOMAIN    A, AAAA; the same for each alias
//	_http._tcp.NAME, and so on     SRV, with the name of the port
//	_8080._tcp.NAME, and so on     SRV, with its number
//	1.2.0.192.in-addr.arpa         PTR to NAME.DOMAIN, also in ip6.arpa
//
// An engine's programs may want all names of an address, without the domain: Network.AllReverse.
//
// Endpoints may share names and aliases. The answer has the addresses of all, and begins with
// the next one each time. Names of an address always have the same order. An SRV record leads to
// NAME.DOMAIN, and its port is the one at the endpoint's own addresses, not one that is published on the host. The name is that of RFC
// 2782, as Kubernetes has it. An existing name that has no record of the queried type gets an
// empty answer, never NXDOMAIN: programs give up on a name without AAAA otherwise
// (aardvark-dns issue 679).
//
// Names are compared as RFC 4343 says, and the answer repeats the question's spelling. The
// name localhost has the loopback addresses (RFC 6761).
//
// A socket sees the networks that it was given, and no others. If several have a name, the
// first one answers. A container on two networks that asks at the gateway of one sees the
// names of that one. For both, it needs a socket of its own, at a loopback address in its
// namespace. A client with an address of a network that the socket does not see gets
// REFUSED: containers can usually reach the gateways of other networks. The host is no
// such client.
//
// # Other names
//
// Some names exist nowhere else, so the answer is NXDOMAIN at once:
//
//   - Unknown names below a domain of the socket. Forwarded, "db.test" could return a
//     stranger's address while the container db is down.
//   - Unknown names of one label. Forwarded, each misspelled name of a container would be
//     sent to the provider's resolver, which may answer with the address of an advertiser.
//     Network.SingleLabels forwards them, for an engine inside a container whose own resolver
//     knows such names. Queries for the types NS, SOA, DS and DNSKEY are about the public
//     tree and are always forwarded.
//   - Unknown addresses in a subnet of any network.
//   - Everything if no network of the socket forwards (Network.NoForward). REFUSED would be
//     more honest, but musl ignores it and waits for the timeout. An internal network must
//     not forward at all: names in queries can carry data out (CVE-2024-29018).
//
// Every other name is forwarded by package dns, with its protection against forged answers,
// and its limits for each network. The servers are those of the first network of the socket
// that forwards: its own (Network.Upstream), or those of the host's resolv.conf at that time.
// A container finds short names of the host's search list if its resolv.conf says "search
// DOMAIN" and then that list, with the default ndots:1. Each libc then tries the network
// first. "ndots:0" without the domain, which Docker uses, turns search off in musl.
//
// A container may have a resolver of its engine, which knows names that nobody else knows: those
// of Docker's own networks. Its resolv.conf then has both servers, ours first. A socket with
// OnlyOurs refuses every other name. The resolvers of glibc and Go ask the next server after
// REFUSED, and musl's, which asks all at once, ignores it; each would take NXDOMAIN as final.
//
// A loop arises if the host uses this server as its resolver. So a resolver of the host that
// is one of the served addresses is not asked, and queries from a served address itself,
// which come from the host, are not forwarded but get REFUSED: the host's resolver then asks
// the next one.
//
// # Answers
//
// The TTL is 1 s. Docker's 600 s make caches return addresses of containers that are gone.
// aardvark-dns's 0 s are a special case to programs that resolve again when the TTL ends.
// Negative answers have an SOA record with a TTL of 0, so nobody keeps them (RFC 2308): a
// container that has just started is found.
//
// Queries of the types ANY, AXFR and IXFR, and of other classes, get REFUSED. An answer of
// ours over UDP has at most 512 bytes, or 1,232 with EDNS. A longer one has the records that
// fit, and the TC bit, since musl before 1.2.4 does not ask again over TCP. A TCP connection may have
// many queries in progress (RFC 7766).
//
// # Learned addresses
//
// A Watcher receives the addresses of forwarded names before the client does, so that rules
// by name apply to the client's first packet. The answer waits until each watcher of the
// network has acknowledged, but at most ackWithin. A watcher that is late delays no further
// answer until it has caught up. One that is maxBehind addresses behind is disconnected.
//
// # Limits
//
// A socket serves maxStreams TCP connections, and maxStreamsPerClient of one client's; they
// end after streamIdle without a query. Of each client, maxForwarded queries to the host's
// resolvers are in progress. Together the networks use at most half of the process's
// descriptors for forwarding. What exceeds a limit is dropped and counted.
//
// The sockets of a container's namespace keep the namespace alive, with its links, when the
// container has ended. Either pass a pidfd of its first process with them (ServeWhile): the server
// then closes them with the process, even if no controller is left. Or call Stop. Names have at most 255 bytes. The server keeps nothing on
// disk. After a restart, which State shows by its start time, a controller sends everything
// again. The socket file remains when the server ends, because removing it would require the
// right to remove other files; the next one replaces it.
//
// Sources: RFC 1035, 2308 (negative answers), 2782 (SRV), 4343 (case), 6761 (localhost), 6891
// (EDNS), 7766 (TCP), 8020 (NXDOMAIN), 8482 (ANY), 8552 (underscores), 9715 (fragments);
// resolv.conf(5), unix(7).
//
// # Example
//
//	c, err := names.Dial(ctx, path)
//	…
//	err = c.Replace(ctx, names.Network{Name: "shop", Subnets: []netip.Prefix{subnet}})
//	…
//	udp, tcp, err := names.Open(netip.AddrPortFrom(gateway, 53))
//	…
//	err = c.Serve(ctx, names.Socket{ID: "shop", Networks: []string{"shop"}}, udp, tcp)
//	…
//	err = c.Set(ctx, "shop", names.Change{Set: []names.Endpoint{{
//		ID: id, Name: "web", Addrs: []netip.Addr{addr}, Ports: []names.Port{{Name: "http", Port: 80}},
//	}}})
package names
