// Package gate is the one port at which a host of a cluster is reached by the others. It speaks TLS with
// both ends' certificates, and passes connections on by what they are for.
//
// # Theory of operation
//
// A client says by ALPN (RFC 7301) what it wants:
//
//	cleat-registry   the registry, for hosts that are not members of it, and for etcdctl ("h2")
//	cleat-peer       the registry's member, for the other members
//	cleat-host       this host's node, for the others
//	cleat-join       to join the cluster, without a certificate
//
// All but the last need a certificate of the cluster's authority, and the key that the registry has for the
// host named in it (Config.Admit). A host that is removed is evicted: its connections are closed, and it can
// make no other. The registry itself listens on sockets in a directory of root's and does not know of TLS.
//
// The port takes part in the TLS handshake of anybody. There are at most maxHandshakes at a time, each of at
// most handshakeWithin.
package gate
