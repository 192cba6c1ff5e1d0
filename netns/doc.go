// Package netns creates network namespaces, enters them, finds the one of a
// process, and starts commands inside one.
//
// # Theory of operation
//
// A network namespace lives as long as a thread is in it, a mount refers to it
// or a descriptor is open on it. An NS is such a descriptor. Namespaces made by
// New have no name and no mount: they vanish, with every link in them, when the
// last descriptor is closed, which the kernel does for us however the process
// ends. That is why nothing here needs to clean up after a kill.
//
// Entering a namespace is a property of a thread (setns(2)). Do therefore runs
// its function on a fresh goroutine locked to its thread, and returns the
// thread to where it was; if that fails the thread is left to die with the
// goroutine, so that no other code ever runs in the wrong namespace. Sockets
// and netlink handles opened inside stay in that namespace for life and may be
// used from anywhere afterwards.
//
// # Limits
//
// Entering needs CAP_SYS_ADMIN in the user namespace that owns the network
// namespace and in the caller's own, but for the one that the caller is in.
//
// Sources: network_namespaces(7), setns(2), net/core/net_namespace.c.
package netns
