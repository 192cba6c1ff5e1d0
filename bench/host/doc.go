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
// Trace walks from one namespace to another: the route says which link a packet
// leaves by, the link's kind says where it comes out again, and so on until it
// is in the other namespace.
//
// # Limits
//
// Settings under /proc/sys/net belong to the network namespace of the reader;
// /sys/class/net to the one of whoever mounted /sys. Interfaces are therefore
// read by netlink, and queue settings from /sys only where it shows the same
// link.
//
// Sources: proc(5), Documentation/ABI/testing/sysfs-class-net*,
// Documentation/admin-guide/sysctl, kernel/sched/cputime.c, ethtool(8).
package host
