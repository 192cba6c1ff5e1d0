package announce

import (
	"encoding/binary"
	"net/netip"

	"cleat/link"

	"golang.org/x/sys/unix"
)

// arpBytes is the size of an ARP packet for IPv4 over Ethernet (RFC 826).
const arpBytes = 28

// Operations of ARP (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

type arp struct {
	op        uint16
	senderMAC link.MAC
	sender    netip.Addr
	targetMAC link.MAC
	target    netip.Addr
}

// arpProbe returns a probe for addr: a request without a sender address (RFC 5227 section
// 2.1.1).
func arpProbe(mac link.MAC, addr netip.Addr) []byte {
	return arp{op: arpRequest, senderMAC: mac, sender: netip.IPv4Unspecified(), target: addr}.bytes()
}

// arpAnnouncement returns an announcement that addr is at mac (RFC 5227 section 2.3).
func arpAnnouncement(mac link.MAC, addr netip.Addr) []byte {
	return arp{op: arpRequest, senderMAC: mac, sender: addr, target: addr}.bytes()
}

func (a arp) bytes() []byte {
	b := make([]byte, 0, arpBytes)
	b = binary.BigEndian.AppendUint16(b, unix.ARPHRD_ETHER)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, byte(len(a.senderMAC)), 4)
	b = binary.BigEndian.AppendUint16(b, a.op)
	b = append(b, a.senderMAC[:]...)
	b = append(b, a.sender.AsSlice()...)
	b = append(b, a.targetMAC[:]...)
	return append(b, a.target.AsSlice()...)
}

// parseARP parses an ARP packet. ok is false if it is not for IPv4 over Ethernet. Bytes
// behind the packet are padding of the frame and ignored.
func parseARP(b []byte) (a arp, ok bool) {
	if len(b) < arpBytes || binary.BigEndian.Uint16(b) != unix.ARPHRD_ETHER ||
		binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP || b[4] != 6 || b[5] != 4 {
		return a, false
	}
	a.op = binary.BigEndian.Uint16(b[6:])
	a.senderMAC = link.MAC(b[8:14])
	a.sender = netip.AddrFrom4([4]byte(b[14:18]))
	a.targetMAC = link.MAC(b[18:24])
	a.target = netip.AddrFrom4([4]byte(b[24:28]))
	return a, a.op == arpRequest || a.op == arpReply
}
