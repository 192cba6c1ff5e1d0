// Package segment sends packets to, and hears packets from, the network segment
// that a link is on, below the addresses of its namespace: ARP, neighbour discovery
// and DHCP happen before a link has any.
//
// # Theory of operation
//
// A Link says where a link is. Look asks the kernel what it is: the name, the
// Ethernet address, and whether neighbours are found by ARP and neighbour discovery
// on it at all. Ready waits until the link carries packets first: a link that was brought
// up just now loses what is sent in its first milliseconds.
//
// A Socket is a packet socket (packet(7)) of one link and one protocol. It is
// opened inside of the link's namespace and may be used from anywhere afterwards.
// The kernel writes and removes the Ethernet header, VLAN tags included. Frames that
// this host sends by the same link don't come back: the kernel copies those to
// sockets of all protocols only (dev_queue_xmit_nit, net/core/dev.c).
//
// # Limits
//
// Ethernet links only. CAP_NET_RAW in the user namespace that owns the link's
// namespace is needed. A Socket may be used by one sender and one receiver at a time.
//
// Sources: packet(7), netdevice(7), include/uapi/linux/if_arp.h.
//
// Who is on the segment of link 7 of the namespace web?
//
//	s, err := segment.Open(segment.Link{NS: web, Index: 7}, unix.ETH_P_ARP, nil)
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	n, from, err := s.Receive(ctx, buf, time.Now().Add(time.Second))
package segment
