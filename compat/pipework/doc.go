// Package pipework replaces pipework, the shell script that puts running containers on
// bridges and network cards. It has the same command line and uses package
// network/attach, so each attachment is atomic, is listed by `cleat ls` and undone by
// `cleat detach`.
//
// # Theory of operation
//
// Parse parses the command line into Options. Options.Plan decides, by the host's
// devices, which kind of link is meant: a port of a Linux or Open vSwitch bridge, which
// is created if its name begins with br or ovs; a macvlan, ipvlan or VLAN on any other
// device, or the device itself; a dummy. Both are pure. Main attaches the result,
// announces the address, and prints nothing, as the script does. Notes go to standard
// error. The name of a DHCP client requests an address, always through Cleat's own client
// (lease.go); the keeper renews the lease.
//
// route, rule and tc run ip(8) and tc(8) in the container's network namespace, in place
// of this process. --wait waits until the link is up.
//
// # Limits
//
// An option may stand anywhere before GUEST; the script requires an order. The device
// below a macvlan is set up, as by the script, and detaching leaves it up. InfiniBand
// devices can only be moved, with --direct-phys: later versions of the script create a
// child of them, which package link cannot. Wireless devices move only with their radio
// (iw phy), which is not supported; they are recognized by /sys. What the script supports
// and this package does not is refused by name, with exit code 2.
//
// Sources: the script at github.com/jpetazzo/pipework, commit 9ba97f1 (2020), and its
// README; its variant with --ipvlan and -H in J. Claassen, Container Network Solutions
// (2015), appendix C; md5sum(1) for addresses from words.
//
//	os.Exit(pipework.Main(ctx, os.Args[1:], version, pipework.Host{Open: openStore, Keep: startKeeper}))
package pipework
