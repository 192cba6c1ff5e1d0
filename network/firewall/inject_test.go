package firewall_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/packet"

	"golang.org/x/sys/unix"
)

// inject sends a datagram as it is from eth0 of a node to the host, whatever the node's own
// addresses and routes.
func inject(t testing.TB, from *lab.Node, hostNode *lab.Node, hostDevice string, src, dst netip.AddrPort, payload string) {
	t.Helper()
	mac := macOf(t, hostNode, hostDevice)
	out, err := link.Find(from.NS, "eth0")
	must(t, err)
	etherType := uint16(unix.ETH_P_IP)
	if src.Addr().Is6() {
		etherType = unix.ETH_P_IPV6
	}
	must(t, from.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrLinklayer{Protocol: etherType>>8 | etherType<<8, Ifindex: out.Index(), Halen: 6}
		copy(to.Addr[:], mac)
		return unix.Sendto(fd, datagram(src, dst, payload), 0, &to)
	}))
}

// datagram returns an IP packet with a UDP datagram.
func datagram(src, dst netip.AddrPort, payload string) []byte {
	udp := make([]byte, 8+len(payload))
	packet.PutUDP(udp, src.Port(), dst.Port(), len(payload))
	copy(udp[8:], payload)
	sum := packet.TransportChecksum(src.Addr(), dst.Addr(), packet.UDP, udp)
	udp[6], udp[7] = byte(sum>>8), byte(sum)
	ip := make([]byte, packet.IPBytes(src.Addr()))
	packet.PutIP(ip, src.Addr(), dst.Addr(), packet.UDP, 0, len(udp))
	return append(ip, udp...)
}

func macOf(t testing.TB, n *lab.Node, device string) net.HardwareAddr {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	return l.Attrs().HardwareAddr
}

// collect receives datagrams at a node's address.
func collect(t testing.TB, n *lab.Node, address string) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	must(t, n.NS.Do(func() (err error) {
		c, err = net.ListenPacket("udp", address)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// next returns the payload of the next datagram.
func next(t testing.TB, c net.PacketConn) string {
	t.Helper()
	buf := make([]byte, 1<<16)
	c.SetReadDeadline(time.Now().Add(patience))
	n, _, err := c.ReadFrom(buf)
	must(t, err)
	return string(buf[:n])
}
