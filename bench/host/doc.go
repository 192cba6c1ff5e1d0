// Package host describes the machine that a measurement runs on, and reports what on it distorts
// measurements or breaks networking. It changes nothing.
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
// Sources: proc(5), Documentation/ABI/testing/sysfs-class-net*,
// Documentation/admin-guide/sysctl, kernel/sched/cputime.c, ethtool(8).
package host
