// Package slirp4netns replaces slirp4netns(1), the helper that connects a network
// namespace to the network. It has the same command line and API socket, and uses Cleat's
// data path.
//
// # Theory of operation
//
// Parse parses the command line (package getopt) into Options, and Plan turns them into
// the configuration of a sandbox.Network; both are pure. Main attaches to the namespace,
// seals itself, writes "1" to --ready-fd when the network works, and stays in the
// foreground until the namespace is gone, --exit-fd hangs up, or a signal ends it.
//
// The namespace's network is 10.0.2.0/24, or --cidr. The guest has its hundredth address.
// The second is the gateway, which leads to the host's loopback unless
// --disable-host-loopback is given. The third is the resolver. With --enable-ipv6 the
// same applies to fd00::/64, with the guest at fd00::100.
//
// The API socket takes one JSON request a connection: add_hostfwd, list_hostfwd,
// remove_hostfwd. The manual and the program disagree about where the list is; here it is
// in both places. The socket stays in the file system at the end, as slirp4netns' does,
// because a sealed process cannot remove it. The next start replaces it.
//
// # Limits
//
// The permissions of its path decide who may connect to the API socket, as in
// slirp4netns. It serves 32 clients at once, each for 5 s, executes one request of less
// than 4096 bytes at a time, and forwards at most 4096 ports.
//
// An unused TAP of the device's name is replaced, because RootlessKit creates one
// beforehand. DHCP and, without --configure, router solicitations are answered. Packets
// from IPv4 addresses other than the guest's, and from IPv6 addresses of other prefixes,
// are dropped. --enable-sandbox and
// --enable-seccomp have no effect, because more than that is always done. Unsupported
// options are refused by name.
//
// Sources: slirp4netns(1); main.c and api.c of slirp4netns 1.3; RootlessKit's
// slirp4netns.go.
package slirp4netns
