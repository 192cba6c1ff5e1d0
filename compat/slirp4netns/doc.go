// Package slirp4netns takes the place of slirp4netns(1), the helper that connects
// a network namespace to the network: the same command line and API socket, and
// our own data path underneath.
//
// # Theory of operation
//
// Parse reads the command line (package getopt) into Options, Plan turns them
// into the configuration of a sandbox.Network; both are pure. Main attaches to
// the namespace, seals itself, writes "1" to --ready-fd when the network works,
// and stays in the foreground until the namespace is gone, --exit-fd hangs up,
// or a signal ends it.
//
// The namespace's network is 10.0.2.0/24, or --cidr: the guest has the hundredth
// address, the second is the gateway and leads to the host's loopback unless
// --disable-host-loopback, the third resolves names. With --enable-ipv6 the same
// holds for fd00::/64, the guest being fd00::100.
//
// The API socket takes one JSON request a connection: add_hostfwd, list_hostfwd,
// remove_hostfwd. The manual and the program differ about where the list is;
// here it is in both places. The socket stays in the file system when we end, as
// slirp4netns' does: sealed as we are we can't remove it. The next start replaces
// it.
//
// # Limits
//
// Who may connect to the API socket is up to the permissions of its path, as with
// slirp4netns. It serves 32 clients at once, each for 5 s, carries out one request of
// less than 4096 bytes at a time, and forwards at most 4096 ports.
//
// The device is a TUN, not a TAP: no MAC address, no ARP. A TAP by the device's
// name that nobody uses is replaced, since RootlessKit makes one beforehand.
// Nothing answers DHCP or router solicitations: --configure, or who started us,
// sets the device up, with the addresses above; packets from others are dropped.
// --enable-sandbox and --enable-seccomp ask for less than what is done always.
// What can't be honoured is refused by name.
//
// Sources: slirp4netns(1); main.c and api.c of slirp4netns 1.3; RootlessKit's
// slirp4netns.go.
package slirp4netns
