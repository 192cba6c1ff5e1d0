// Package lab builds a network of machines inside one machine. Hosts are network
// namespaces, cables are veth pairs, the switch is a bridge in a namespace of its own, and
// a slow link is a token bucket filter on a veth.
//
// # Theory of operation
//
// A lab is a copy of the running program in namespaces of its own. Enter starts that copy
// in a new network, mount and PID namespace. In the user flavour it also has a new user
// namespace, so it needs no root and can change nothing on the host. The copy sees that it
// is Inside and builds nodes. Its parent stays outside, forwards signals, and runs
// commands in the host's own namespaces for it (Host), as baselines. The copy keeps the parent's
// /proc open, which shows the kernel's threads (HostProc).
//
// The copy is PID 1 of its PID namespace. When it ends, by any signal, the kernel kills
// every process in the namespace. The network namespaces, with their links and rules, and
// the mounts vanish with the last of these. The copy itself ends with its parent: by
// PR_SET_PDEATHSIG, and because it watches a socket to the parent. There is nothing to
// clean up.
//
// The copy's PATH also has the directories of administrators' programs (package program).
//
// # Limits
//
// A user lab has one user id, 0. Programs that switch users (sshd, dockerd) need the root
// flavour, which lives in the initial user namespace and needs root.
//
// Sources: namespaces(7), user_namespaces(7), pid_namespaces(7).
package lab
