// Package pasta replaces pasta(1), the helper that connects rootless containers to the
// network. It has the same command line and the same behaviour toward its caller, and
// uses Cleat's data path.
//
// # Theory of operation
//
// Parse parses the command line (package getopt) into Options. Plan turns them, together
// with a description of the Host, into the configuration of a sandbox.Network; it is a
// pure function and makes all decisions. Main does the rest.
//
// With a PID or --netns, the namespace exists. Main then starts a copy of this program in
// a new session and waits until the copy reports that the network works; only then does
// it exit, with 0. If something fails before, Main prints the error and exits with 1. The
// copy has closed its standard streams by then, because the caller reads them to the end.
// It ends with the namespace. With --foreground there is no copy.
//
// Otherwise a command, or a shell, runs in new namespaces. That is always in the
// foreground, with the command's exit status: 128 plus the number of a signal that ended
// it.
//
// Started as root, the program continues as nobody, unless --runas says otherwise; root
// of a user namespace stays root. Files (--pid, --log-file, --pcap) are opened before,
// and passed on.
//
// # Limits
//
// The namespace gets one address of each family and a default route, which lead to the same
// place as copies of all of the host's. It may use no IPv4 address but that one, and no IPv6
// address but that one and, without --config-net and --no-ra, others of its prefix. All
// stations but the namespace have one MAC address. Connections
// from the host's loopback never reach the namespace's loopback: they arrive at the
// namespace's own address, from its gateway or --map-host-loopback. 'all' follows
// listeners as 'auto' does, so ports without a listener stay free on the host. Link-local
// and metadata addresses cannot be reached, except resolvers of the host there.
// Unsupported options are refused by name.
//
// Sources: passt(1); conf.c of passt 2026-04; the callers: Podman's pasta_linux.go,
// RootlessKit's pasta.go.
package pasta
