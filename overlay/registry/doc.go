// Package registry has the records of a cluster in etcd: its hosts, its networks, and which host has which of
// their addresses and endpoints.
//
// # Keys
//
// Values are JSON. A person can read all of it with etcdctl:
//
//	/cleat/v1/cluster                       the Cluster
//	/cleat/v1/hosts/HOST                    a Host that has joined
//	/cleat/v1/alive/HOST                    that it runs: an Alive, with a lease
//	/cleat/v1/networks/NETWORK              a Network
//	/cleat/v1/blocks/NETWORK/ADDRESS/BITS   a Block of the network's addresses, and whose it is
//	/cleat/v1/endpoints/NETWORK/HOST/ID     an Endpoint
//	/cleat/v1/tokens/ID                     an invitation, with a lease
//	/cleat/v1/removed/PIN                   a Tombstone: a host that was removed
//	/cleat/v1/progress/HOST                 the Progress of the host's member
//
// The number in the keys is the version of their layout. A record has a version of its own; readers ignore
// fields that they don't know, and refuse records of later versions.
//
// # Consistency
//
// What must be unique is a key that is only made if it does not exist: the name of a host or of a network, and
// a block. A host gives out addresses of its own blocks without asking anybody, so a lost registry stops no
// container from starting, and two hosts can't give out the same address.
//
// Follow notices a registry that was restored from an older copy: its history lacks the newest record that the
// follower has seen. Followers keep what they have of records that they can't read.
//
// # Limits
//
// An etcd that was restored with a higher revision than it had (etcdutl snapshot restore --bump-revision
// --mark-compacted), and with the same cluster token, is not noticed by a follower whose newest record it lacks.
//
// A registry that was restored has the hosts that were removed since the copy was made, and lacks those that joined
// since then. Package overlay corrects both, from what hosts know.
//
// A program that changes a record keeps fields that it does not know, but drops them within others, such as a
// network's subnets.
package registry
