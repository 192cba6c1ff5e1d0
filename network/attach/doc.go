// Package attach gives a running container a link to any network, takes it away
// again, and knows at any time what is attached: what pipework did, all or
// nothing.
//
// # Theory of operation
//
// A Spec is data. Attach finds the container, looks at what is there, and makes a
// list of Steps from both: a plan, which Preview returns without doing it, unless a
// step can tell that somebody else has what it would take. A step that changes what
// would outlast the container's link has written down, before, how to be rid of that
// (Undo) in the operation's journal (package journal). When all steps are taken, what
// is wanted is written to a file of its own, and the journal becomes the attachment's,
// by one rename: from then on it is what Detach undoes.
//
// So an operation that fails, is interrupted or is killed leaves a journal. The
// first undoes its own at once; what a killed one leaves is undone by the next
// command that changes wiring (Repair), which knows it by the lock that nobody
// holds. Undoing looks at what is there: a link is removed only if it has the
// address or the name that was chosen at random for it, or its number together
// with one of them; a namespace is entered only if it has the cookie that the
// kernel gave it. Undoing twice is harmless, so it can be killed, too.
//
// What several attachments use — a bridge made by us, its address, forwarding, the
// rule that masquerades, a VLAN of a parent, the host's shim — is made by the
// first and removed with the last (shared.go). A bridge that somebody else made
// stays, as does one of ours that has ports of somebody else's.
//
// A lock on the state directory is held only while what was left is repaired and
// an operation's journal is made; operations then run side by side. Nothing that
// attaching does depends on how many attachments there are.
//
// A journal that somebody cut or emptied is known by its missing end, one that he removed by
// what else there is of the attachment, which tells under which kernel it was made. Nothing
// is made in the place of such an attachment; Detach looks for what there is of it by other
// files, by names that no other link has, and by kind, parent and addresses (mend.go). A
// file of what is wanted that can't be read is in nobody's way: its journal says the same,
// nothing takes its name, and whoever lists says so.
//
// What is done lives in the kernel and ends with it, and so do the journals, which
// are kept by boot id: after the machine was started anew, what is wanted is still
// known, and Detach just forgets it.
//
// Addresses can be used at once: IPv6 does without the kernel's duplicate address
// detection. Neighbours are told of them while the last steps are taken. Where the
// parent leads out of the machine, or where it is wanted, they are asked before
// whether an address is theirs, which takes a third of a second.
//
// A lease (GetLease) is a file beside the journals, written before a server is asked
// for the address, so that what it grants to one who is killed is given back, too.
// What it brings is set by steps that are planned when it is there; undoing gives it
// back before its address goes. MaintainLease replaces the file, and sets what a renewed lease
// says otherwise: its steps' records go to the end of the attachment's journal, and the
// file is replaced when they are taken, so that who finds them half done takes them
// again. What can't be set is kept in the file, too, and is set by a later MaintainLease. The
// host's route to a leased address, by its shim, is on no record: the file tells which it
// is, and that of an address that somebody else got meanwhile is his.
//
// When a lease is over its file says so first, then the address goes, then another
// lease is asked for, and until that is whole on the link its file says that it is over,
// too; the link stays what it is. An address that is missing is put back with what came
// with it.
//
// # Limits
//
// CAP_NET_ADMIN and CAP_SYS_ADMIN over both namespaces are needed: root, mostly.
// A device that was moved comes back with name, MTU, address, addresses, state,
// routes and the queueing discipline at its root, with HTB's classes and what hangs from
// them, and filters of kind u32 in one table and without actions. Where there is anything
// else (clsact, other kinds) nothing of it comes back, which the plan says. If the
// container's namespace ends first, the kernel puts the device into its first
// namespace, and the next command gives it its name there.
//
// Before Linux 5.14 namespaces have no cookies: one that got the inode number of
// another is taken for it. Between a restart of the machine and the next command
// a resolv.conf that was written stays as it is, as the container's files outlive
// the journal.
//
// Forwarding that the first attachment switched on is switched off again with the
// last: whoever relies on it meanwhile must have switched it on himself.
//
// An address, route or MTU that a renewed lease does not have any more goes; name servers
// stay until there are others.
//
// Sources: rtnetlink(7), netns(7), veth(4), net/bridge/br_if.c,
// drivers/net/macvlan.c, net/core/dev.c (default_device_exit_net), tc-tbf(8),
// tc-mirred(8), nft(8), CNI's bridge plugin for what people expect of a bridge.
//
//	store, err := attach.OpenStore("")
//	if err != nil {
//		return err
//	}
//	cfg := attach.Config{Store: store, Find: find}
//	_, err = attach.Attach(ctx, cfg, "web", attach.Spec{
//		Kind: "macvlan", Parent: "eth0",
//		IPs:      []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")},
//		Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
//	})
package attach
