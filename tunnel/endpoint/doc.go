// Package endpoint is one end of a multipath tunnel on this machine: it creates the
// device, sets its addresses and routes, opens the paths' sockets, and follows devices
// that come and go. Package tunnel moves the packets and opens nothing itself.
//
// # Theory of operation
//
// New creates the TUN device in the caller's network namespace. The device lives as long
// as its descriptor, and addresses and routes go with the device, so a killed process
// leaves nothing behind. Run moves packets and watches devices. A path with a device is
// bound to it (SO_BINDTODEVICE) and used while the device exists, is up, and has a
// carrier and an address of the right family. A path with only an address is used while
// the address exists. When any of this changes, the path's socket is reopened, or the
// path is taken out of use at once. If its socket can't be opened, because a route comes
// after its address, that is retried each second. A path that the user has disabled stays
// disabled.
//
// A path without a remote has listeners, at its local address or at all, and gets a
// connected socket beside them when the engine has learned where the other end is.
//
// The device's MTU is what the smallest path leaves, unless the file sets another.
//
// Apply changes a running end in steps, each of which can be undone, first in the kernel,
// then in the engine: if a step fails, those before it are undone.
//
// Seal drops privileges once New has returned and the process's listeners are open. Run,
// Apply and the methods that change paths need none of the privileges that it drops.
//
// # Limits
//
// Creating the device takes CAP_NET_ADMIN and /dev/net/tun; binding to devices takes
// CAP_NET_RAW before Linux 5.7. Run may be called once. A path that is reopened starts
// over: what was measured of it is forgotten.
//
// Sources: Documentation/networking/tuntap.rst; socket(7), SO_BINDTODEVICE; ip(7),
// IP_MTU; rtnetlink(7); capabilities(7).
package endpoint
