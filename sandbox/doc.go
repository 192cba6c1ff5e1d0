// Package sandbox gives a process a network of its own, without root: a device
// in a network namespace, whose packets this process carries over ordinary
// sockets of the host. It decides what the namespaced process may reach, and
// opens everything that package usernet then moves bytes between.
//
// # Theory of operation
//
// A Network has two sides. The host's side is this process. The inside is a
// process in the namespace, which prepares it; there are three kinds:
//
//   - Wrap: any command. This program is executed again in new user, network and
//     mount namespaces; Init finds out that it is the inside, does its work, and
//     executes the command in its place. The command never runs without its
//     network.
//   - Attach: a program that knows about it, such as a container's first process.
//     It calls Open before it changes its root, and SetupNetwork after.
//   - Join: a namespace that exists already. A process with threads can't enter a
//     user namespace, and a Go program always has threads; so a forked child
//     enters, and executes this program again, which ends when the namespace is
//     set up.
//
// Both sides talk over a Unix socket pair that keeps messages apart:
//
//	host → inside   the plan: waits in the socket before the inside begins
//	inside → host   "device", with the TUN's descriptor
//	inside → host   "sockets", with sockets that were made inside
//	inside → host   "network": everything is there; or "failed", step and cause
//	host → inside   "go": bytes are moved from now on
//	inside → host   end of file: the command runs, or the process has ended
//
// The inside configures loopback, addresses and routes by one write of netlink
// messages. All its descriptors close on exec, and it gives up its capabilities
// before it executes the command: an ordinary user's command has none, not even
// over its own namespace. resolv.conf is a file on a tmpfs that is mounted in the
// command's own mount namespace. So nothing has to be cleaned up, and nothing is
// left when one side is killed: the device goes with the last of its
// descriptors, which is the host's, and the mount with its namespace.
//
// For the splice tier the inside also makes a transparent listener, and rules that
// lead to it what the host's side lets through (divert.go, and doc/adr/0006). The
// rules belong to a netlink socket that the host's side holds, and go with it.
//
// For the seccomp tier the inside puts a filter on itself before it becomes the
// command, and hands over the descriptor of its notifications, which package
// supervisor answers (doc/adr/0007).
//
// Run owns all goroutines: the data path, which has a thread of its own; the
// resolver; the rules, which look names up again; a watch on the command or the
// namespace; and for each automatic forward one that asks the kernel once a
// second what listens, by a sock_diag socket that was opened in there. When one
// ends, all end. Outward ports are listened on with sockets that were made inside
// and bound here; connections are passed on with splice(2).
//
// A new flow is judged by the rules (package policy), which know the mappings,
// the resolver and the built-in denials; then by Config.Policy, where that is
// another one; then by Config.Hook, which may block. Names are those that the
// guest asked our own resolver for.
//
// Seal makes a process that does nothing but this harmless: no capabilities, no
// new files, programs, processes, namespaces, or sockets but those of IPv4 and
// IPv6. What it needs privilege or files for has been opened by Prepare.
//
// # Trust
//
// The namespaced process is hostile. It gets no descriptor of ours, and no right
// to look into this process, which is in another user namespace even where both
// have the same user id. It may send us any packet, and hold any number of flows
// up to Limits. It shares the file system, though, and with it the sockets in it:
// who wants to keep a program from, say, Docker's socket needs a mount namespace
// with less in it. Sockets by which programs of the host resolve names are
// covered by Wrap.
//
// # Limits
//
// Linux 5.3 with user namespaces, TUN, and /proc. UDP segmentation by the device
// needs Linux 6.2; the device works without. The inside is IPv4 and IPv6 only,
// without Ethernet: no ARP, no DHCP, no broadcast.
//
// A command of root's is in a user namespace as well, in which all ids are the
// same as outside: it is root over files, but not over the host's network,
// mounts and kernel. An ordinary user's command has one user and one group id.
//
// AutoForward leaves out what listens on loopback inside, and UDP sockets on
// ephemeral ports unless told otherwise. A port that AutoOutward opened stays
// open; it has room for 64 ports of each protocol and family.
//
// Sources: user_namespaces(7), network_namespaces(7), mount_namespaces(7),
// capabilities(7), rtnetlink(7), sock_diag(7), seccomp(2), landlock(7),
// Documentation/networking/tuntap.rst, drivers/net/tun.c, kernel/user_namespace.c.
//
// A command with a network of its own, in a program whose main calls Init first:
//
//	network, err := sandbox.New(sandbox.Config{})
//	if err != nil {
//		return err
//	}
//	return network.Exec(ctx, exec.Command("curl", "https://example.com"))
package sandbox
