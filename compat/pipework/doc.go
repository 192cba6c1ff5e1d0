// Package pipework takes the place of pipework, the shell script that put running
// containers on bridges and cards: the same command line, and package
// network/attach underneath. So what it makes is made whole or not at all, is
// listed by `cleat ls` and undone by `cleat detach`.
//
// # Theory of operation
//
// Parse reads the command line into Options. Options.Plan decides, by the host's
// devices, which kind of link is meant: a bridge's port on a Linux or Open vSwitch
// bridge, which is made if its name begins with br or ovs; a macvlan, ipvlan or
// VLAN on any other device, or the device itself; a dummy. Both are pure. Main
// attaches what came of it, announces the address, and is silent, as the script
// is. What has to be known goes to standard error. A DHCP client's name asks for an
// address by our own client, whichever it is (lease.go); the keeper extends the lease.
//
// route, rule and tc become ip(8) and tc(8) in the container's network namespace:
// this process is replaced by them. --wait looks until the link is up.
//
// # Limits
//
// An option may stand anywhere before GUEST; the script demands an order. The
// device below a macvlan is brought up, as by the script; detaching leaves it so.
// InfiniBand devices are moved, with --direct-phys alone: the script's later
// versions make a child of them, which package link can't. Wireless devices move
// with their radio only (iw phy), which is not done here; they are known by /sys.
// What the script does and this does not is refused by name, with exit code 2.
//
// Sources: the script at github.com/jpetazzo/pipework, commit 9ba97f1 (2020), and
// its README; its variant with --ipvlan and -H in J. Claassen, Container Network
// Solutions (2015), appendix C; md5sum(1) for addresses from words.
//
//	os.Exit(pipework.Main(os.Args[1:], version, pipework.Host{Open: openStore, Keep: startKeeper}))
package pipework
