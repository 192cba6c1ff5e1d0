// Package sandbox gives a process a network of its own, without root: a TUN or TAP device in a network
// namespace, whose packets this process carries over ordinary sockets of the host. It decides
// what the namespaced process may reach, and opens the descriptors between which package
// usernet moves packets.
//
// A program runs a command with a network of its own as follows. Its main calls Init first.
//
//	network, err := sandbox.New(sandbox.Config{})
//	if err != nil {
//		return err
//	}
//	return network.Exec(ctx, exec.Command("curl", "https://example.com"))
//
// # Theory of operation
//
// A Network has two sides. The host side is this process. In the namespace is the guest: the
// command and all that it starts. Before it starts, a setup process prepares the namespace from
// inside. There are three ways to get one:
//
//   - Wrap is for any command. It executes this program again in new user, network and mount
//     namespaces. Init recognizes the setup process, does its work, and executes the command in
//     its place. The command never runs without its network.
//   - Attach is for a program that knows about this package, such as a container's first
//     process. It calls Open before it changes its root, and Guest.SetupNetwork after.
//   - Join is for an existing namespace. A process with several threads can't enter a user
//     namespace, and a Go program always has several. So a forked child enters and executes
//     this program again; it exits when the namespace is set up.
//
// The two sides exchange messages over a Unix socket pair that keeps message boundaries:
//
//	host → setup   the plan; it waits in the socket before the setup process starts
//	setup → host   "device", with the descriptors of the TUN or TAP device
//	setup → host   "sockets", with sockets that were opened in the namespace
//	setup → host   "network": the set-up is complete; or "failed", with step and cause
//	host → setup   "go": packets are being moved
//	setup → host   end of file: the command runs, or the process has ended
//
// All descriptors of the setup process close on exec, and it drops its capabilities before it
// executes the command: an ordinary user's command has none, not even over its own namespace.
// resolv.conf is a file on a tmpfs in the command's own mount namespace. So there is nothing to
// clean up, and nothing is left if either side is killed: the device disappears with the last
// of its descriptors, which the host side holds, and the mount with its namespace.
//
// For the splice tier the setup process also opens a transparent listener, and installs rules
// that steer to it the connections that the host side allows (splice.go and doc/adr/0006). The
// rules belong to a netlink socket that the host side holds, and disappear with it.
//
// For the seccomp tier the setup process installs a filter on itself before it becomes the
// command, and hands over the descriptor of the filter's notifications. Package supervisor
// answers them (doc/adr/0007).
//
// Run owns all goroutines: the data path, which has threads of its own; the resolver; the
// rules, which look up names again; a watch on the command or the namespace; and for automatic
// forwards one that once a second lists listeners, by a sock_diag socket that was opened in the
// namespace. When one ends, all end. Reverse forwards listen on sockets that were opened in the
// namespace and bound by the host side; their connections are spliced.
//
// A new flow is judged by the rules (package policy), which know the mappings, the resolver and
// the default denials; then by Config.Policy, if that is another one; then by Config.Hook,
// which may block. The names of a destination are those that the guest asked the network's
// resolver for.
//
// Seal reduces this process's rights to those that moving packets requires: no capabilities, no
// new files, programs, processes or namespaces, and no sockets but IPv4 and IPv6 ones. Prepare
// has opened before what needs more.
//
// # Trust
//
// The guest is hostile. The only descriptors that it gets from the host side are those sockets
// which the seccomp tier connects or binds on its behalf. It has no right to inspect the host
// side, which is in another user namespace even if both have the same user id. It may send any
// packet, and open any number of flows up to Limits.
//
// The guest shares the file system, and with it the Unix sockets there. To keep a program from,
// for instance, Docker's socket, give it a mount namespace without it. Wrap covers the sockets
// by which programs on the host resolve names.
//
// # Limits
//
// The package requires Linux 5.3 with user namespaces, TUN, and /proc. UDP segmentation offload
// requires Linux 6.2; the device works without it. The network is IPv4 and IPv6 only. With
// DeviceTAP, ARP, NDP and DHCP are answered; there is no other broadcast or multicast.
//
// A command of root is in a user namespace, too, in which all ids are the same as outside. It
// is root over files, but not over the host's network, mounts and kernel. An ordinary user's
// command has one user id and one group id.
//
// AutoForward leaves out listeners on the guest's loopback, and UDP sockets on ephemeral ports
// unless Only includes them. AutoReverseForward opens up to 64 ports of each protocol and
// family. They stay open.
//
// # Sources
//
// user_namespaces(7), network_namespaces(7), mount_namespaces(7), capabilities(7),
// rtnetlink(7), sock_diag(7), seccomp(2), landlock(7), Documentation/networking/tuntap.rst,
// drivers/net/tun.c, kernel/user_namespace.c.
package sandbox
