// Package survey finds out what is wired to what on this host, and returns it as data: network
// namespaces, the processes in them, their links, and for each link its peer, bridge, parent or
// underlay.
//
// # Theory of operation
//
// Take makes three passes and changes nothing.
//
// Find: /proc/PID/ns/net of every process, the names under /run/netns and /run/docker/netns, and
// mounts of namespaces (/proc/self/mountinfo) each stand for a namespace. A namespace is
// identified by its inode number on nsfs. If a link leads to a namespace that was not found this
// way, or if Config asks for it, the descriptors in /proc/PID/fd are searched as well.
//
// Read: each namespace is opened, and stays open so that it outlives the processes that led to
// it. A few threads at a time enter the namespaces, each once. Links with their counters,
// addresses, routes and queueing disciplines take one netlink dump each.
//
// Resolve: a link that leads elsewhere has the index of the other link (IFLA_LINK). If that is
// in another namespace, it also has the number by which its own namespace knows that one
// (IFLA_LINK_NETNSID). Such a number has no meaning elsewhere. To find the namespace, the kernel
// is asked, from inside, by which number it knows each of the open namespaces (RTM_GETNSID).
// Those that refer to ours are asked for first, so most lookups take one question.
//
// The database of Open vSwitch has the bridge of each port.
//
// Whatever vanishes meanwhile is left out. What may not be read is reported by
// Namespace.UnreadReason and Survey.Notes.
//
// # Limits
//
// Entering a namespace takes CAP_SYS_ADMIN over it. Without root only the caller's own namespace
// is read; of others only the processes are known. Threads in another namespace than their
// process are not seen, nor is a namespace that only a descriptor in flight between processes
// holds. Routes are dumped whole, though only default routes are kept. If the database of Open
// vSwitch can't be read, its ports are those that netlink shows, all on "ovs-system". WireGuard
// peers, and the process that holds a TUN device, are not looked for.
//
// The kernel does not record when a link was created, and so since when it counts.
// Namespace.Since is when the oldest process there started, and for the host when it booted.
//
// Sources: network_namespaces(7), rtnetlink(7), proc(5), net/core/rtnetlink.c
// (rtnl_fill_link_netnsid), net/core/net_namespace.c (rtnl_net_getid), RFC 7047 and
// ovs-vswitchd.conf.db(5).
//
//	s, err := survey.Take(ctx, survey.Config{})
//	if err != nil {
//		return err
//	}
//	for _, n := range s.Namespaces {
//		fmt.Println(n.Label, len(n.Links))
//	}
package survey
