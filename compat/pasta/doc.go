// Package pasta takes the place of pasta(1), the helper that connects rootless
// containers to the network: the same command line, the same behaviour toward
// who starts it, and our own data path underneath.
//
// # Theory of operation
//
// Parse reads the command line (package getopt) into Options. Plan turns them,
// together with what the Host is like, into the configuration of a
// sandbox.Network; it is a pure function and knows all that is decided. Main
// does the rest.
//
// With a PID or --netns the namespace exists. Main then leaves the work to a
// copy of this program in a session of its own, and waits for it to say that
// the network works: only then does it exit, with 0. Whatever goes wrong before
// is printed by Main, which exits with 1. The copy has given its standard
// streams back by then, for who started us reads them to the end. It ends with
// the namespace. With --foreground there is no copy.
//
// Otherwise a command, or a shell, runs in namespaces of its own. That is always
// in the foreground, and its exit status is ours: 128 and the signal's number
// where a signal ended it.
//
// Started as root, the work is done as nobody unless --runas says otherwise;
// inside a user namespace root is left as it is. Files (--pid, --log-file,
// --pcap) are opened before, and handed over.
//
// # Limits
//
// The device is a TUN, not a TAP: no MAC addresses, no ARP, and the pcap holds
// IP packets. Nothing answers DHCP. One address of each family is set and a
// default route, which lead to the same place as copies of all of the host's.
// Loopback ports of the namespace are never reached from the host's loopback:
// such connections arrive at the namespace's own address, from its gateway or
// --map-host-loopback.
// 'all' follows listeners as 'auto' does, so ports nobody listens on stay free
// on the host. Link-local and metadata addresses can't be reached, except the
// host's resolvers there. What can't be honoured is refused by name.
//
// Sources: passt(1); conf.c of passt 2026-04; the callers: Podman's pasta_linux.go,
// RootlessKit's pasta.go.
package pasta
