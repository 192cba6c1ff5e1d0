// Package segment sends and receives packets on the network segment of a link, without using
// IP addresses: ARP, neighbour discovery and DHCP take place before a link has any.
//
// # Theory of operation
//
// A Link locates a link. Inspect asks the kernel about it: its name, its Ethernet address, and
// whether ARP and neighbour discovery work on it at all. WaitReady first waits until the link
// carries packets: a link that was just brought up loses what is sent in its first
// milliseconds.
//
// A Socket is a packet socket (packet(7)) for one link and one protocol. It is opened inside
// the namespace of the link and can be used from anywhere afterwards. The kernel adds and
// removes the Ethernet header, including VLAN tags. Frames that this host sends on the link
// don't come back: the kernel copies those only to sockets for all protocols
// (dev_queue_xmit_nit, net/core/dev.c).
//
// # Limits
//
// Only Ethernet links are supported. CAP_NET_RAW in the user namespace that owns the network
// namespace is needed. One goroutine may send on a Socket while another receives.
//
// Sources: packet(7), netdevice(7), include/uapi/linux/if_arp.h.
//
// To receive an ARP packet on link 7 of the namespace web:
//
//	s, err := segment.Open(segment.Link{NS: web, Index: 7}, unix.ETH_P_ARP, nil)
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	n, from, err := s.Receive(ctx, buf, time.Now().Add(time.Second))
package segment
