// Package trust has the keys by which the hosts of a cluster know each other: a certification authority, an
// identity for each host, and the tokens by which hosts join.
//
// # Theory of operation
//
// Every host makes a key of its own, which never leaves it. The cluster's authority signs a certificate for
// it whose subject is the host's name. Hosts prove their names to each other by TLS with these certificates.
//
// A certificate alone admits nobody. The registry has the pin of each host's key, a hash, and a connection is
// accepted only if its key has the pin of the host that it names (package gate). So removing a host from the
// registry is enough to lock it out, and a copy of the authority's key, which members of the registry have,
// does not help a host that was removed.
//
// A Token has what a new host needs to join: addresses of the cluster, the pin of its authority, by which the
// new host knows that it speaks with that cluster, and a secret, by which the cluster knows that the new host
// was invited. The registry has only a hash of the secret. Both ends prove that they know it (Proof), and
// neither sends it. So a host that was removed, which still has a certificate of the authority, can neither
// learn the secret from a host that joins nor pretend to be the cluster.
//
// # Limits
//
// All hosts of a cluster trust each other: each can write the registry. Whoever can read the registry can join
// hosts with the tokens in it, until they expire.
//
// Certificates are valid from a day before they are made, for clocks that are late, for a year. A host gets a
// new one when a third of that is left.
//
// Sources: RFC 2104 (HMAC), RFC 5280 (certificates), RFC 7469 section 2.4 (pins), RFC 8446 (TLS 1.3).
package trust
