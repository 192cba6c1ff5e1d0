// Package guesttest is a guest that follows a script: the far end of a TUN
// device, which writes the packets it is told to, however senseless, and looks
// at every packet that comes.
//
// # Theory of operation
//
// New makes a pair of sockets that keep message boundaries. One end passes for
// the TUN device of a network under test; a Guest has the other. Each message
// is a packet behind a virtio header of 12 bytes, as IFF_VNET_HDR has it.
//
// A Guest has no goroutine and no clock. What it sends is in the device's queue
// when Send returns; what it receives waits in the socket until it looks. So a
// script can say "and nothing else came" without waiting: Settle asks the
// network by Fence whether it has dealt with all that was sent, and then takes
// what is there. Where a packet depends on the host's kernel, Await waits for
// it; its deadline is a safety net and not part of any script.
//
// Every packet that comes is checked as the guest's kernel would check it:
// lengths, checksums, the virtio header's promises. A Conn keeps the sequence
// numbers of one TCP connection; its fields may be changed at will.
//
// # Limits
//
// The socket holds a few hundred KiB toward the guest, less than a TUN device's
// queue. What finds no room is lost, as it would be there. A script that is sent
// much must look in between.
package guesttest
