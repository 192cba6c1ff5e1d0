// Package gate is the one port at which a host of a cluster is reached by the others. It speaks TLS with
// both ends' certificates, and passes connections on by what they are for.
//
// # Theory of operation
//
// A client says by ALPN (RFC 7301) what it wants:
//
//	cleat-registry   the registry, for hosts that are not members of it
//	h2               the registry, for etcdctl
//	cleat-peer       the registry's member, for the other members
//	cleat-host       this host's node, for the others
//	cleat-join       to join the cluster, without a certificate
//
// All but the last need a certificate of the cluster's authority, and the key that the registry has for the
// host named in it (Config.Admit). A host that is removed is evicted: its connections are closed, and it can
// make no other. The gate tells clients of cleat-registry, cleat-peer and cleat-host in a first byte whether they are
// admitted, so that a host that was removed learns it (RemovedError). The registry itself listens on sockets in a
// directory of root's and does not know of TLS.
//
// # What strangers can do
//
// The port takes part in the TLS handshake of anybody, for handshakeWithin at most. A connection needs a place
// until its other end is known to be a host, or has joined. Strangers have maxStrangers of these, and
// maxPerAddress from one address. The places of hosts are others (Config.Known), so strangers can't lock hosts
// out. The log has a line of strangers every logEvery at most.
//
// # Limits
//
// Strangers see the certificate of the host, which has its name and the id of the cluster.
//
// A gate knows of a removed host what its registry's followers know. One that can't reach the registry admits a
// removed host until it can.
//
// Connections end when one end closes its half of them. They last beyond the end of their certificates.
//
// Sources: RFC 7301 (ALPN), RFC 8446 (TLS 1.3), RFC 9266 (channel bindings).
package gate
