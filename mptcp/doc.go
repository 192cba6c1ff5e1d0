// Package mptcp configures the kernel's MPTCP for several links: which addresses it may
// use, how many subflows a connection may have, and routes by which the packets of each
// address leave by its own link.
//
// # Theory of operation
//
// An endpoint in the kernel (ip-mptcp(8)) is an address from which it opens further
// subflows, or which it announces to the peer. That alone does not choose a link: routes
// depend on the destination, so subflows from all addresses would leave by the same link.
// Each address therefore gets a rule "from ADDRESS lookup TABLE", and the table of its
// link holds the part of the main table that uses this link: its subnets, its gateway.
// Without a gateway, everything else is unreachable, so that a subflow that would use
// another link fails at once instead of counting. If the whole main table uses one link,
// no rule is needed.
//
// New compares the wanted with the actual state and returns a Plan: a list of steps, each
// with its inverse. Removing what an earlier plan made and this one does not want is a
// step, too. So a plan made after an address has changed repairs the configuration, a
// repeated plan is empty, and Undo is the plan for no devices. Apply carries out a plan;
// when a step fails, it undoes the earlier ones, last first.
//
// Rules are recognized as ours by priority and protocol number, routes by protocol number
// and by tables that are numbered after links. Endpoints and limits carry no mark. Before
// the first step they are written to a file, one for each network namespace, named by the
// cookie that the kernel never reuses (SO_NETNS_COOKIE). If a run is killed, the next
// one, or an undo, finds what it left. An endpoint counts as ours if its id and address
// are those in the file; limits that somebody else has changed stay. The file of a
// namespace that no longer exists is removed by the next setup or undo that can see all
// processes.
//
// FindMost asks the kernel how many subflows and endpoints it permits, in a network
// namespace made for that. A link has one endpoint for each address family: more would
// use up the few places without adding a link. If there are more links than places, the
// link on which connections start is left out first, because the first subflow uses it
// anyway.
//
// # Limits
//
// Routes are copied when a plan is applied. After a gateway or an address has changed,
// make and apply a new plan. A response from one link's address to another link's subnet
// leaves by the first link's gateway, or not at all; without the rule it would take the
// direct way. The package needs CAP_NET_ADMIN, Linux 5.16, and the kernel's own path
// manager.
//
// Sources: Documentation/networking/mptcp.rst, mptcp-sysctl.rst, net/mptcp/pm_kernel.c,
// ip-rule(8), RFC 8684.
package mptcp
