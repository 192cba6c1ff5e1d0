package packet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// EthernetBytes is the size of an Ethernet header in bytes.
const EthernetBytes = 14

// The types of Ethernet frames and of GRE payloads (include/uapi/linux/if_ether.h).
const (
	EtherTypeIPv4 = 0x0800 // ETH_P_IP
	EtherTypeARP  = 0x0806 // ETH_P_ARP
	EtherTypeIPv6 = 0x86dd // ETH_P_IPV6
)

// MAC is an Ethernet address.
type MAC [6]byte

// ParseMAC parses an address such as 02:00:5e:10:00:01.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("MAC address %q: want six hexadecimal bytes, e.g. 02:00:5e:10:00:01", s)
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Unicast reports whether the address can be that of one station: it is neither a group's
// (IEEE 802, the first byte's lowest bit) nor zero.
func (m MAC) Unicast() bool { return m[0]&1 == 0 && m != MAC{} }

// LinkLocal returns the link-local IPv6 address with the address's modified EUI-64 identifier
// (RFC 4291 section 2.5.6 and appendix A).
func (m MAC) LinkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// Ethernet is an Ethernet header.
type Ethernet struct {
	Dst, Src MAC
	Type     uint16 // EtherTypeIPv4, …
}

// Parse reads the header at the start of b.
func (e *Ethernet) Parse(b []byte) error {
	if len(b) < EthernetBytes {
		return ErrShort
	}
	*e = Ethernet{Dst: MAC(b), Src: MAC(b[6:]), Type: binary.BigEndian.Uint16(b[12:])}
	return nil
}

// Put writes the header into b and returns its size.
func (e *Ethernet) Put(b []byte) int {
	b = b[:EthernetBytes]
	copy(b, e.Dst[:])
	copy(b[6:], e.Src[:])
	binary.BigEndian.PutUint16(b[12:], e.Type)
	return EthernetBytes
}
