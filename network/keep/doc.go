// Package keep has attachments stay: it extends their leases, and attaches them again
// when their container or the machine began anew, or when somebody removed their link.
//
// # Theory of operation
//
// All that is known is in the files of package attach. A keeper reads what is wanted,
// and works at what is due, at several attachments at once: a DHCP server that does not
// answer holds nobody up. Each look is at what there is; nothing is remembered of what
// should be there. So whoever kills a keeper loses nothing but time: the next one
// undoes what is half done (attach.Repair) and goes on from the files.
//
// In between it sleeps until the next lease is due, 30 s at most, or until
//
//   - something is attached or detached: a file of what is wanted changes (inotify);
//   - a container's first process ends: a descriptor of it becomes readable (pidfd);
//   - an engine says that a container begins, or its files do (Config.Listen);
//   - a link changes or goes: the kernel says so for all namespaces that have a number
//     in the host's (NETLINK_LISTEN_ALL_NSID). Containers are given one. Unlike a socket
//     in a namespace, it does not keep that alive.
//
// After each event a container that is missing is looked for at once, after 10 ms, and for
// a second every 40 ms: events come a moment before what they are of. Then it is looked
// for less and less, at last every 10 s, where engines say nothing every 2 s.
//
// A link that somebody removed in a container that runs is made again, as keeping says;
// detaching is how to be rid of it. Whoever removes it again and again meets longer and
// longer pauses, a minute at most, until it has stayed for five. What can't be done is
// tried again at such intervals, too, and once the parent that it waits for appears. So is
// what a lease says and can't be set; the lease is extended meanwhile.
// What was done last and what can't be done is in attach.Report.
//
// Neighbours are told of addresses twice, 2 s apart (RFC 5227 section 2.3): the second
// time is the keeper's, also of what somebody has just attached. For IPv6 that is
// within what RFC 4861 section 7.2.6 allows (three).
//
// A keeper also runs `cleat attach` and `cleat detach` for others (Config.Answer). The
// command connects to a Unix socket in the state directory and sends its command line
// (Forward). The keeper runs it if the command line means the same to both processes: they
// must be the same program, user, namespaces, root directory and capabilities. Otherwise
// it declines, and the command does the work itself. If the client or the keeper ends
// before the command is complete, the command is undone.
//
// The socket is a file that only the owner of the state directory may connect to. The
// client trusts only a listener of its own user or root.
//
// There is one keeper for each state directory: it holds a lock on a file there,
// which the kernel frees when it ends, however it does.
//
// # Limits
//
// A process of its own, given by number, never comes back. Without Spec.Keep nothing is
// attached again; its lease is extended as long as its link is there. Of LXC and
// Apptainer nobody says that a container begins, nor of a Podman with other directories
// than usual after the machine began anew. Where no process of the container is known,
// its end is noticed by a file of it, or within half a minute. Before Linux 5.3 there
// are no descriptors of processes. What is in the container and not ours (its bridge's
// other ports, addresses that others set) is not looked after. The keeper runs in the
// host's network namespace, as root.
//
// Sources: pidfd_open(2), inotify(7), netlink(7), flock(2), unix(7), RFC 5227, RFC 4861.
//
//	err := keep.Run(ctx, keep.Config{Attach: cfg, Log: log.Printf, Listen: find.Listen})
package keep
