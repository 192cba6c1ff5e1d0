package lan

import (
	"bytes"
	"encoding/binary"

	"cleat/packet"
)

// arpBytes is the size of an ARP packet for IPv4 over Ethernet (RFC 826).
const arpBytes = 28

// Fields of an ARP packet for IPv4 over Ethernet, and their values.
const (
	arpOperation = 6
	arpSender    = 8  // Ethernet address
	arpSenderIP  = 14 //
	arpTarget    = 18 // Ethernet address
	arpTargetIP  = 24

	hardwareEthernet = 1 // ARPHRD_ETHER (include/uapi/linux/if_arp.h)
	arpRequest       = 1 // ARPOP_REQUEST
	arpReply         = 2 // ARPOP_REPLY
)

// ARP answers an ARP packet from the guest with the address of the LAN's stations, whatever
// address is asked for, except:
//
//   - the guest's own, so that the guest's probes find it free (RFC 5227 section 2.1),
//   - the sender's, since that is an announcement.
//
// The request is the payload of an Ethernet frame. The answer, an Ethernet frame, is written
// into b, which has AnswerBytes. ARP returns its size; 0: there is no answer.
func (l *LAN) ARP(b, request []byte) int {
	// Hardware type, protocol, and the lengths of their addresses.
	kind := [arpOperation]byte{0, hardwareEthernet, packet.EtherTypeIPv4 >> 8, packet.EtherTypeIPv4 & 0xff, 6, 4}
	if len(request) < arpBytes || !bytes.Equal(request[:arpOperation], kind[:]) || binary.BigEndian.Uint16(request[arpOperation:]) != arpRequest {
		return 0
	}
	sender, senderIP := packet.MAC(request[arpSender:]), [4]byte(request[arpSenderIP:])
	target := [4]byte(request[arpTargetIP:])
	if senderIP == target || !l.cfg.Addr4.IsValid() || target == l.cfg.Addr4.Addr().As4() || !sender.Unicast() {
		return 0
	}
	e := packet.Ethernet{Dst: sender, Src: l.cfg.MAC, Type: packet.EtherTypeARP}
	n := e.Put(b)
	a := b[n : n+arpBytes]
	copy(a, kind[:])
	binary.BigEndian.PutUint16(a[arpOperation:], arpReply)
	copy(a[arpSender:], l.cfg.MAC[:])
	copy(a[arpSenderIP:], target[:])
	copy(a[arpTarget:], sender[:])
	copy(a[arpTargetIP:], senderIP[:])
	return n + arpBytes
}
