// Package tunneltest holds fakes for both seams of a Tunnel, for tests without root: a
// Device that is a pair of sockets, and a Network whose paths lead over loopback, through
// a relay that can lose, delay, record and invent packets.
//
//	Device ── Tunnel ── socket ══ relay ══ socket ── Tunnel ── Device
//
// # Limits
//
// A relay's sockets have the buffers that the kernel gives everybody: a test that sends
// faster than the relay runs loses packets that nobody wanted to lose.
package tunneltest
