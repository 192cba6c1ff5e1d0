// Package host says what kind of machine a measurement ran on, what on it will
// spoil a measurement or a network, and which way packets take between two
// network namespaces. It reads; it never changes anything.
//
// # Theory of operation
//
// Fingerprint collects everything known to move a network measurement, from
// /proc, /sys, netlink and ethtool, into one Host that is written to
// environment.json. It needs no privilege: a fact that this machine does not
// have is left out, and a fact that exists but may not be read is listed in
// Host.Unreadable. What could identify a person or a site (host name, addresses,
// the whole kernel command line) is left out on purpose, because reports get
// shared.
//
// Diagnose turns a Host into findings: pure functions of the facts, one a check.
//
// A CPUMeter splits the machine's processor time over a run. The kernel's
// totals in /proc/stat are for the whole machine, in every namespace. From them
// the time of our own process tree is subtracted; what is left is foreign. See
// CPUMeter for what that can and can't tell.
//
// Trace reads every namespace it can find once, and then walks from one to
// another: the route says which link a packet leaves by, the link's kind says
// where it comes out again (IFLA_LINK and IFLA_LINK_NETNSID name the peer of a
// veth and the parent of a macvlan), a bridge's forwarding table says which port
// is next, and so on until the packet is in the other namespace. Rules are run
// over what is known of the packet, with three answers: no, maybe, yes.
//
// For example, what spoils a measurement here:
//
//	_, findings := host.Doctor(ctx)
//	host.WriteFindings(os.Stdout, findings, nil)
//
// # Limits
//
// Settings under /proc/sys/net belong to the network namespace of the reader;
// /sys/class/net to the one of whoever mounted /sys. Interfaces are therefore
// read by netlink, and queue settings from /sys only where it shows the same
// link.
//
// Trace knows what is in this machine and in namespaces that it may enter. It
// does not look inside programs (TUN, TAP), flow tables (Open vSwitch), BPF,
// WireGuard or traffic control, takes one link of a bond for all, and does not
// weigh the VLAN filter of a bridge. Of rules it knows addresses and devices, not
// ports and states: a rule about those may match. It follows the address of the
// destination, not what destination NAT makes of it. Rules of the old iptables
// can't be listed by nftables: Trace says where there are any.
//
// Sources: proc(5), Documentation/ABI/testing/sysfs-class-net*,
// Documentation/admin-guide/sysctl, kernel/sched/cputime.c, ethtool(8).
package host
