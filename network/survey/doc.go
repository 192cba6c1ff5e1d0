// Package survey finds out what is wired to what on this host, as data: network
// namespaces, what runs in them, their links, and which link is the other end,
// the port, the child or the underlay of which.
//
// # Theory of operation
//
// Take looks in three passes and changes nothing.
//
// Find: /proc/PID/ns/net of every process, the names under /run/netns and
// /run/docker/netns, and mounts of namespaces (/proc/self/mountinfo) each stand
// for a namespace, which is its inode number (on the one file system nsfs).
// Namespaces that only a descriptor holds are looked for in /proc/PID/fd when a
// link leads to a namespace that was not found otherwise, or when asked for.
//
// Read: each namespace is opened and held open, so that it stays what it is
// while the processes that led to it come and go, and entered once by a few
// threads at a time: links with their counters, addresses, routes and queueing
// disciplines are one dump each.
//
// Resolve: a link that leads elsewhere has the number of the other link
// (IFLA_LINK) and, where that is in another namespace, a number by which its own
// namespace knows that one (IFLA_LINK_NETNSID). Such a number means nothing
// elsewhere, so the namespace it stands for is found by asking the kernel, from
// inside, by what number it knows each of the namespaces that are open
// (RTM_GETNSID); those that know a number of ours come first, and most questions
// are answered by the first.
//
// Open vSwitch's database tells which ports are of which bridge.
//
// Whatever vanishes in between is left out, and what may not be read is said: a
// Namespace with Unread, a line of Survey.Notes.
//
// # Limits
//
// Entering a namespace takes CAP_SYS_ADMIN over it: without root only the
// caller's own is read, of others what runs there. Threads that are in another
// namespace than their process are not seen. A descriptor in flight between
// processes hides a namespace. Routes are dumped whole, though only default
// routes are kept. Of Open vSwitch, what netlink shows, the ports of all its bridges
// on "ovs-system", unless its database at the usual place can be read. Peers of WireGuard, and which process holds a
// TUN device, are not looked for.
//
// The kernel does not record when a link was made, and so since when it counts;
// Namespace.Since is when the oldest process there began, for the host when it
// was booted.
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
