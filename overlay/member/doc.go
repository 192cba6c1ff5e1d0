// Package member runs a member of the registry in this process: an embedded etcd.
//
// # Theory of operation
//
// etcd listens on two sockets of its directory, which only root can enter, and knows nothing of TLS or of hosts'
// addresses. A member's address for the others is the name of its host: on each host with a member there is a socket
// for every other one, unix://HOST:1. What connects to it is passed on to that host's gate, at the address that the
// host has at that moment. So hosts may change their addresses, all of them at once, and etcd need not be told. While
// there are connections to another member, etcd's requests whether it is there are answered on this host.
//
// etcd ends its process when it can't write. Config.Broken is called instead, and must do so in some way: what etcd
// holds is never released.
//
// # Limits
//
// etcd takes the paths of the sockets that lead to others relative to the working directory, which must be the node's
// directory. The path of a socket has 107 bytes at most.
package member
