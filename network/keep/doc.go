// Package keep keeps attachments alive: it extends their leases, and attaches them again when their
// container or the machine restarts, or when somebody removes their link.
//
// # Theory of operation
//
// All state is in the files of package attach. A keeper reads which attachments exist, and works on
// what is due, on several attachments at once, so that a silent DHCP server delays no others. It
// looks at what there is, and remembers nothing about what should be there. So a killed keeper loses
// nothing but time: the next one undoes what is incomplete (attach.Repair), and continues from the
// files.
//
// In between a keeper sleeps until the next lease is due, at most for 30 s (with more than 300
// attachments 100 ms for each), or until an event. An attachment without a lease is looked at every
// ten minutes if all that can happen to it is an event. Events are:
//
//   - Something is attached or detached: the file of an attachment changes (inotify).
//   - A container's first process ends: its descriptor becomes readable (pidfd).
//   - An engine or its files report that a container starts (Config.Listen).
//   - A link changes or vanishes: the kernel reports this for all namespaces that have a number in
//     the host's (NETLINK_LISTEN_ALL_NSID). The keeper gives containers' namespaces one. Unlike a
//     socket in a namespace, a number does not keep it alive.
//
// After each event a missing container is looked for at once, after 10 ms, and for a second every
// 40 ms, because events come a moment before the container is there. Then the intervals grow to 10 s,
// or to 2 s if its engine reports nothing.
//
// A link that somebody removes from a running container is created again; `cleat detach` is the way
// to remove it. If it is removed again and again, the pauses grow up to a minute, until it has stayed
// for five minutes. Failures are retried at such intervals, too, and as soon as a missing parent
// appears. So are settings of a lease that could not be applied; the lease is extended meanwhile. The
// last action and the failures are in attach.KeeperReport.
//
// Addresses are announced twice, 2 s apart (RFC 5227 section 2.3). The second announcement is the
// keeper's, also for what a command has just attached. For IPv6 that is within the limit of RFC 4861
// section 7.2.6, three.
//
// A keeper also runs `cleat attach`, `detach` and `net` for others (Config.Answer). The
// command connects to a Unix socket in the state directory and sends its command line
// (client.Forward). The keeper runs it if the command line means the same to both processes: they
// must be the same program, user, namespaces, root directory and capabilities. Programs that engines
// start need not be the same program (Config.Contract). Otherwise the keeper declines, and the command
// does the work itself. Many commands run at once; those that only the keeper can run wait for their
// turn (Config.Exclusive), others do the work themselves after a moment. If the client or the keeper
// ends before the command is complete, the command is undone.
//
// The socket is a file that only the owner of the state directory may connect to. The
// client trusts only a listener of its own user or root.
//
// There is one keeper for each state directory. It holds a lock on a file there, which the kernel
// releases when the keeper ends, however it ends.
//
// # Limits
//
// A process that was given by id never comes back. Without Spec.Keep nothing is attached again, but
// a lease is extended as long as its link exists. LXC, Apptainer, and Podman with unusual directories
// after the machine has restarted do not report that a container starts. If no process of a container
// is known, its end is noticed by a file of it, or within half a minute. Process descriptors need
// Linux 5.3. What else is in a container, such as other ports of its bridge or addresses that others
// set, is not maintained. The keeper runs in the host's network namespace, as root.
//
// Sources: pidfd_open(2), inotify(7), netlink(7), flock(2), unix(7), RFC 5227, RFC 4861.
//
//	err := keep.Run(ctx, keep.Config{Attach: cfg, Log: log.Printf, Listen: find.Listen})
package keep
