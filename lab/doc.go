// Package lab builds a network of machines inside one machine: hosts are
// network namespaces, cables are veth pairs, the switch is a bridge in a
// namespace of its own, a slow link is a token bucket filter on a veth.
//
// # Theory of operation
//
// A lab is a copy of the running program in namespaces of its own. Enter starts
// that copy: in a new network, mount and PID namespace, and, in the user
// flavour, in a new user namespace, so that no root is needed and nothing of
// the host can be touched. The copy finds itself Inside and builds nodes; its
// parent stays outside, passes signals on, and runs commands in the host's own
// namespaces for it (Host), for baselines.
//
// The copy is PID 1 of its PID namespace. When it ends, by whatever signal, the
// kernel ends every process in the namespace; with the last of them go the
// network namespaces, their links and rules, and the mounts. The copy itself
// ends with its parent: by PR_SET_PDEATHSIG, and because it holds one end of a
// socket whose other end the parent holds. There is nothing to clean up.
//
// # Limits
//
// A user lab has one user id, 0. Programs that switch users (sshd, dockerd)
// need the root flavour, which lives in the initial user namespace and needs
// root.
//
// Sources: namespaces(7), user_namespaces(7), pid_namespaces(7).
package lab
