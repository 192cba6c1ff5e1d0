// Package tunneltest holds fakes for both seams of a Tunnel, for tests without root: a
// Device that is a pair of sockets, and a Path over loopback, through a relay that can
// lose, delay, record and inject packets.
//
//	Device ── Tunnel ── socket ══ relay ══ socket ── Tunnel ── Device
//
// # Limits
//
// A relay's sockets have the kernel's default buffers: a test that sends faster than the
// relay runs loses packets unintentionally.
package tunneltest
