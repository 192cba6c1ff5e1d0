// Package mptcp has the kernel's MPTCP use several links: which addresses it may use,
// how many subflows a connection may have, and routes by which each address's packets
// leave by its own link.
//
// # Theory of operation
//
// An endpoint of the kernel's (ip-mptcp(8)) is an address from which it opens further
// subflows, or of which it tells the other end. That alone does not choose a link:
// routes go by destination, so subflows from all addresses would leave by the same. For
// each address there is a rule "from ADDRESS lookup TABLE", and the table of its link
// has the part of the main table that leads by this link: its subnets, its gateway.
// Where there is no gateway everything else is unreachable, so that a subflow that
// would take another link's place fails at once instead of counting. Where the whole
// main table leads by one link, there is nothing to separate.
//
// New compares what should be with what is, and makes a Plan: a list of steps, each
// with its opposite. What we made before and is not wanted any more is a step too, so
// that a plan after an address has changed repairs, one for the same devices is empty,
// and Undo is the plan for no device at all. Apply carries it out, and when a step
// fails takes back what was done, last first.
//
// What is ours is known by marks in the kernel where there is room for them: rules
// have our priority and protocol number, routes our protocol number and tables that
// are numbered after links. Endpoints and limits have none. They are written to a file,
// one for each network namespace by the cookie that the kernel never uses again
// (SO_NETNS_COOKIE), before the first step: whatever kills a run, the next one or an
// undo finds what it left. An endpoint counts as ours if id and address are
// those of the file; limits that are no longer what was set stay as they are. A file whose
// namespace is no more goes with the next setup or undo that can see all processes.
//
// How many subflows and endpoints there can be the kernel is asked (FindMost), in a
// namespace made for that. A link has one address of each family among the endpoints:
// more would fill the few places and add no link. Where there are more links than
// places, the one by which connections begin is left out first, since the first subflow
// is there anyhow.
//
// # Limits
//
// Routes are copied when a plan is applied. After a gateway has changed, or an address,
// apply it again. An answer from a link's address to another link's subnet leaves by
// the first link's gateway, or not at all; without the rule it would take the short
// way. It takes CAP_NET_ADMIN, Linux 5.16, and the kernel's own path manager.
//
// Sources: Documentation/networking/mptcp.rst, mptcp-sysctl.rst, net/mptcp/pm_kernel.c,
// ip-rule(8), RFC 8684.
package mptcp
