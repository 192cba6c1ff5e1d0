// Package member runs a member of the registry in this process: an embedded etcd. It listens on two sockets
// in a directory that only root can enter, without TLS. Other hosts reach them through package gate.
//
// # Limits
//
// etcd takes the path of the socket for other members relative to the working directory, so the process must
// be in the directory of the sockets.
package member
