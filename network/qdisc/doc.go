// Package qdisc saves the queueing disciplines of a device and restores them.
//
// # Theory of operation
//
// When a device moves to another network namespace, the kernel drops the queueing discipline
// at its root and everything attached to that: classes, inner queueing disciplines and
// filters (dev_shutdown, net/sched/sch_generic.c). Save copies them in the form in which the
// kernel dumps them. Restore sends them back. This works for what the kernel accepts in the
// same form as it dumps it; where a few fields differ they are converted.
//
// Defaults that the kernel installs itself have no handle and are ignored.
//
// # Limits
//
// A tree is restored as a whole or not at all. Save returns none, but the kinds on the
// device, if it has a kind other than HTB and the classless ones listed in tree.go, a
// queueing discipline beside the one at the root (clsact, ingress), a size table, a shared
// filter block, or filters other than u32 in a single table without actions.
//
// CAP_NET_ADMIN over the device's namespace is needed.
//
// Sources: tc(8), tc-htb(8), tc-u32(8), include/uapi/linux/pkt_sched.h, net/sched/.
//
//	tree, lost, err := qdisc.Save(ns, index)
//	if err != nil || tree == nil {
//		return lost, err
//	}
//	// move the device away and back …
//	return nil, tree.Restore(ns, index)
package qdisc
