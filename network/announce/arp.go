package announce

import (
	"encoding/binary"
	"net/netip"

	"cleat/link"

	"golang.org/x/sys/unix"
)

// arpBytes is an ARP packet for IPv4 over Ethernet (RFC 826).
const arpBytes = 28

// Operations of ARP (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

// arp is an ARP packet for IPv4 over Ethernet.
type arp struct {
	op           uint16
	senderMAC    link.MAC
	sender       netip.Addr
	targetMAC    link.MAC
	targetedAddr netip.Addr
}

// arpProbe asks whether somebody has addr, without saying so of the sender (RFC 5227
// section 2.1.1).
func arpProbe(mac link.MAC, addr netip.Addr) []byte {
	return arp{op: arpRequest, senderMAC: mac, sender: netip.IPv4Unspecified(), targetedAddr: addr}.bytes()
}

// arpAnnouncement says that addr is at mac (RFC 5227 section 2.3).
func arpAnnouncement(mac link.MAC, addr netip.Addr) []byte {
	return arp{op: arpRequest, senderMAC: mac, sender: addr, targetedAddr: addr}.bytes()
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
	return append(b, a.targetedAddr.AsSlice()...)
}

// parseARP reads an ARP packet; what is not for IPv4 over Ethernet is not ok. Frames
// are padded: bytes behind it are ignored.
func parseARP(b []byte) (a arp, ok bool) {
	if len(b) < arpBytes || binary.BigEndian.Uint16(b) != unix.ARPHRD_ETHER ||
		binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP || b[4] != 6 || b[5] != 4 {
		return a, false
	}
	a.op = binary.BigEndian.Uint16(b[6:])
	a.senderMAC = link.MAC(b[8:14])
	a.sender = netip.AddrFrom4([4]byte(b[14:18]))
	a.targetMAC = link.MAC(b[18:24])
	a.targetedAddr = netip.AddrFrom4([4]byte(b[24:28]))
	return a, a.op == arpRequest || a.op == arpReply
}
