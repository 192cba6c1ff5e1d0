// Package attach gives a running container a link to any network, removes it again, and
// knows at any time what is attached. It does what pipework did, but completely or not at
// all.
//
// # Theory of operation
//
// A Spec is data that describes one link. Attach finds the container, looks at the host and
// at the container, and turns the Spec into a plan: a list of Steps. Preview returns the plan
// without changing anything. It also reports steps that would fail because a name, an
// address or a route is in use.
//
// Before a step creates the link, or makes a change that outlasts it, the step records in
// the operation's journal (package journal) how to undo the change: an Undo. After the last step
// the Spec is stored in a file of its own, and one rename turns the operation's journal into
// the attachment's journal. That is what Detach undoes.
//
// An operation that fails or is interrupted undoes its own journal at once. The journal of
// an operation that was killed is found by the next command that changes networking
// (Repair), because no process holds the lock on it. Undoing checks that what it removes is
// what the journal describes: names and indexes may be somebody else's by now. A link is
// identified by the random name or Ethernet address that it was given, or by its index
// together with its name, address or parent; a namespace by the kernel's cookie. Undoing
// twice is harmless, so it can be killed as well.
//
// Some resources are used by several attachments: a bridge that we created, its address,
// forwarding, masquerading, a VLAN device on a parent, the shim (a macvlan device through which
// the host reaches macvlan containers). The first attachment creates them and the last one
// removes them (shared.go). A bridge of somebody else stays, as does one of ours that has other
// ports. An address belongs to one attachment, which claims it on the parent's network
// (claim.go).
//
// Attach and Detach hold the lock on the state directory only while they repair leftovers and
// create or take over their journal. After that, they run in parallel. Attaching takes no longer
// when there are many attachments. MaintainLease holds the lock while it changes an attachment.
// Whoever needs the lock on RUN/shared as well takes it second.
//
// A journal that somebody has truncated lacks its last record. A missing journal is noticed
// because the attachment's file names the boot in which the link was made. The name of such an
// attachment is not reused. Detach then finds what exists by other files, by names that only this
// attachment uses, and by kind, parent and addresses (recover.go). If the file of the Spec
// can't be read, its journal still has the Spec, its name is not reused, and List reports it.
//
// The changes live in the kernel and end with it. Journals are therefore kept per boot id.
// After a restart of the machine the Spec is still stored, and Detach only deletes its file.
// A keeper (package keep) calls Reattach after a restart of the container or the machine, and
// MaintainLease, for attachments that need it.
//
// Addresses can be used at once, because the kernel does not check IPv6 addresses for
// duplicates. They are announced to the neighbours while the last steps run. If the parent
// leads out of the machine, or on request, the neighbours are asked before whether they use
// an address. That takes a third of a second.
//
// # One attachment, step by step
//
// For `cleat attach web bridge br0 --ip 192.0.2.10/24`, Attach does this:
//
//   - open validates the Spec, finds the container, and opens both namespaces.
//   - reserve takes the lock on the state directory, repairs what others left, chooses the name
//     eth0, and creates the journal RUN/ops/docker.web.eth0, on which it holds a lock until the end.
//   - planner.plan calls the method of the kind (planner.bridge) and configure. Each adds Steps.
//   - run.attach appends the header, takes the Steps in order, appends the outcome, and renames
//     the journal to RUN/live/docker.web.eth0.
//
// These are the Steps, and what each records before it changes something:
//
//	ClaimAddress   Undo.Claim
//	UseBridge      Undo.Use; undoing the bridge itself is in RUN/shared/KEY/made
//	MakeLink       Undo.Link twice: first with name and MAC address, then with the index as well
//	Port, NoLinkLocal, Up, Address, Announce   nothing: the changes go with the link
//	Keep           Undo.File
//
// After kill -9 in one of the Steps the journal is still in RUN/ops, and the kernel has released
// the lock on it. The next command that changes networking opens the journal in
// session.repair and undoes it from the end: the file, the link, the use of the bridge, the
// claim. With its last user the bridge goes as well (undoUse). After the rename, repair does
// not touch the journal; Detach does (takeJournal).
//
// # Files
//
//	spec.go, validate.go, errors.go   what is requested, and what is wrong with it
//	attach.go, detach.go              the operations; reserve.go names and locks them
//	plan.go                           from a Spec to Steps: what all kinds have in common
//	kinds.go                          the kinds; bridge.go, macvlan.go, … plan one each
//	address.go, route.go, source.go, neighbours.go, dns.go, shape.go, shim.go, masquerade.go
//	                                  Steps of one option each, for every kind
//	claim.go, macaddress.go           whether an address is in use already
//	neighbourtable.go                 the note of a plan that a neighbour table is nearly full
//	step.go, makelink.go              what a Step is; the Step that creates a link
//	undo.go, journal.go, repair.go, recover.go   undo Steps, also after a kill
//	device.go                         restores a device that was moved into the container
//	store.go, attachment.go, shared.go   files of attachments and of what they share
//	container.go, namespace.go, session.go   the two ends, open and identified
//	lookup.go, list.go                what commands and the keeper ask
//	lease.go, leasechanges.go, maintainlease.go   DHCP
//	testbed_test.go, export_test.go   a host and a container in a lab; a hook that fails or
//	                                  kills an operation at each checkpoint
//
// A new kind is a row of kindTable and a method of planner, in a file of its own unless it is
// short. hasNeighbours, duplicateCheck, ethernetKinds, claims, chooseName, lowerDevice,
// missingKinds, both functions checkParams, checkCombination and finder.matchesSpec name the
// kinds that they treat differently. The link itself is created by package link.
//
// # Leases
//
// A lease (GetLease) is a file beside the journals. It is written before a server is asked for
// the address, so that the lease of a killed process is released as well. The address, the
// routes, the MTU and the name servers are configured by steps that are planned when the lease
// is there. Undoing releases the lease before it removes the address.
//
// MaintainLease renews the lease, applies what the server has changed, and then replaces the
// file. Its steps append to the attachment's journal. If it is killed before it replaces the
// file, the next call takes the steps again. Changes that fail are stored in the file and
// tried again by later calls. The host's route to a leased address through the shim is in no
// journal, because the file says which one it is. If another attachment has the address by
// now, the route belongs to that one.
//
// When a lease expires, its file says so first. Then the address is removed and another lease
// is requested, which the file also calls expired until it is configured. The link stays.
// An address that somebody has removed is added again, with its routes.
//
// An address, a route or an MTU that a renewed lease lacks is removed. Name servers stay until
// the server sends others.
//
// # Limits
//
// The process needs CAP_NET_ADMIN and CAP_SYS_ADMIN over both namespaces, which usually means
// root.
//
// A moved device gets back its name, MTU, Ethernet address, addresses, state, routes and the
// queueing discipline at its root: with HTB's classes, the disciplines below them, and u32
// filters in one table without actions. If there is anything else (clsact, other kinds), no
// queueing discipline is restored, and the plan says so. If the container's namespace ends
// first, the kernel moves the device to the initial namespace, where the next command gives it
// its name.
//
// Before Linux 5.14 namespaces have no cookies, so one that reuses the inode number of
// another is mistaken for it. After a restart of the machine a container's resolv.conf keeps
// our name servers, unless its engine writes it anew: the file outlives the journal.
//
// Forwarding that the first attachment enabled is disabled with the last one, even if another
// program has come to rely on it.
//
// Sources: rtnetlink(7), netns(7), veth(4), net/bridge/br_if.c, drivers/net/macvlan.c,
// net/core/dev.c (default_device_exit_net), tc-tbf(8), tc-mirred(8), nft(8), and CNI's bridge
// plugin for what people expect of a bridge.
//
//	store, err := attach.OpenStore("")
//	if err != nil {
//		return err
//	}
//	cfg := attach.Config{Store: store, Find: find}
//	_, err = attach.Attach(ctx, cfg, "web", attach.Spec{
//		Kind: "macvlan", Parent: "eth0",
//		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")},
//		Gateways:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
//	})
package attach
