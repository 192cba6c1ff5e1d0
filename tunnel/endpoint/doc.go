// Package endpoint is one end of a multipath tunnel on this machine: it makes the
// device, gives it addresses and routes, opens the paths' sockets, and follows
// devices that come and go. What moves the packets is package tunnel, which opens
// nothing itself.
//
// # Theory of operation
//
// New makes the TUN device in the caller's network namespace; it lives as long as its
// descriptor, so a process that is killed leaves nothing behind: addresses and routes
// go with the device. Run moves packets and watches. A path that names a device is
// bound to it (SO_BINDTODEVICE) and used while the device is there, up, has a carrier
// and an address of the family wanted; a path that names an address only, while the
// address is there. When any of this changes the path's socket is opened anew, or
// the path is left at once. One that is there and can't be opened, because its route comes
// after its address, is tried again each second. A path that a person has taken down stays
// down.
//
// The device's MTU is what the smallest path leaves, unless the file says another.
//
// Apply changes a running end in steps, each with its opposite, kernel's things before the
// engine's: when one fails those before it are taken back.
//
// Seal is for the process once New has returned and its listeners are open: what Run,
// Apply and the paths' methods do takes none of the rights that it gives up.
//
// # Limits
//
// Opening the device takes CAP_NET_ADMIN and /dev/net/tun; binding to devices
// CAP_NET_RAW before Linux 5.7. Run may be called once. A path that is taken back begins
// anew: what was measured of it is forgotten.
//
// Sources: Documentation/networking/tuntap.rst; socket(7), SO_BINDTODEVICE; ip(7),
// IP_MTU; rtnetlink(7); capabilities(7).
package endpoint
