// Package guesttest is a scripted guest for tests: the far end of a TUN device. It
// writes the packets that a test gives it, however malformed, and checks every
// packet that it receives.
//
// # Theory of operation
//
// New makes a pair of sockets that keep message boundaries. One end stands for the
// TUN device of a network under test, and a Guest has the other. Each message is a
// packet behind a virtio header of 12 bytes, as with IFF_VNET_HDR. After OnTAP the device
// is a TAP, whose Ethernet headers a script does not see.
//
// A Guest has no goroutine and no clock. When Send returns, the packet is in the
// device's queue. What the network sends waits in the socket until the script reads
// it. So a script can check that nothing else came, without waiting: Settle calls
// Fence, which returns when the network has handled everything that was sent, and
// then reads what is there. If a packet depends on the host's kernel, Await waits
// for it. Its timeout is a safety net and not part of any script.
//
// Every packet received is checked as the guest's kernel would check it: lengths,
// checksums, and the claims of the virtio header. A Conn keeps the sequence numbers
// of one TCP connection. Its fields may be changed at any time.
//
// # Limits
//
// The socket holds 8 MiB toward the guest or, without CAP_NET_ADMIN, what
// net.core.wmem_max allows: a few hundred KiB, less than the queue of a TUN device.
// Other packets are lost, as they would be there. A script that receives much must
// read in between.
//
// # Example
//
// A connection of the guest that sends a word and gets one:
//
//	c := g.Conn(netip.MustParseAddrPort("192.0.2.2:40000"), server, 1000)
//	c.Open()
//	c.Send(packet.ACK|packet.PSH, []byte("hello"))
//	answer := c.Expect(5)
package guesttest
