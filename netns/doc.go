// Package netns creates network namespaces, enters them, finds the one of a process, and
// starts commands inside one.
//
// # Theory of operation
//
// A network namespace exists as long as a thread is in it, a mount refers to it or a
// descriptor is open on it. An NS is such a descriptor. Namespaces created by New have no
// name and no mount: when the last descriptor is closed, they vanish with every link in
// them. The kernel closes descriptors however a process ends, so nothing has to be
// cleaned up after a kill.
//
// The namespace is a property of a thread (setns(2)). Do runs its function on a locked
// thread and returns the thread to its original namespace. If that fails, the thread ends
// with its goroutine, so that no other code ever runs in the wrong namespace. Sockets and
// netlink handles that are opened inside stay in that namespace and may be used from
// anywhere afterwards.
//
// # Limits
//
// Entering needs CAP_SYS_ADMIN in the user namespace that owns the network namespace and
// in the caller's own, except for the namespace that the caller is in.
//
// Sources: network_namespaces(7), setns(2), net/core/net_namespace.c.
package netns
