// Package host describes the machine that a measurement runs on, and reports what on it distorts
// measurements or breaks networking. It changes nothing.
//
// # Theory of operation
//
// Fingerprint collects everything known to change a network measurement, from /proc, /sys, netlink
// and ethtool, into a Host, which is written to environment.json. It needs no privilege: a fact
// that this machine does not have is left out, and a fact that exists but may not be read is
// listed in Host.Unreadable. What could identify a person or a site (addresses, the whole kernel
// command line) is left out on purpose, because reports are shared. The host name is not in a Host
// either; package bench records it, for the title of the report.
//
// Diagnose turns a Host into findings. Each check is a pure function of the facts. A new check is
// a function in one of check_*.go and a row of that file's table, such as linkChecks.
//
// A CPUMeter splits the machine's processor time over a run. The totals in /proc/stat are those of
// the whole machine, in every namespace. The time of our own processes, and of kernel threads that
// may do a network's work (networkThreads), is subtracted from them. The rest is foreign. The comment of CPUMeter says what that can and can't tell.
//
// To print what distorts measurements on this machine:
//
//	host.WriteFindings(os.Stdout, host.Diagnose(host.Fingerprint(ctx)), nil)
//
// # Limits
//
// Settings under /proc/sys/net are those of the reader's network namespace, but /sys/class/net
// shows the namespace in which /sys was mounted. Interfaces are therefore read by netlink, and
// queue settings from /sys only if it shows the same link.
//
// Sources: proc(5), Documentation/ABI/testing/sysfs-class-net*,
// Documentation/admin-guide/sysctl, kernel/sched/cputime.c, ethtool(8).
package host
