package lan

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"cleat/packet"
)

// DefaultMAC is the default address of all stations but the guest: that of pasta
// (MAC_OUR_LAA, passt.h).
var DefaultMAC = packet.MAC{0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55}

// AnswerBytes is the size of the longest answer: an Ethernet header and the MTU that every
// IPv6 link has (RFC 8200 section 5).
const AnswerBytes = packet.EthernetBytes + minMTU6

const minMTU6 = 1280

// Config configures a LAN. The zero value of each field is useful.
type Config struct {
	// MAC is the address of all stations but the guest; zero: DefaultMAC.
	MAC packet.MAC
	// MTU in bytes is announced by DHCP and router advertisements; 0: it is not.
	MTU int
	// Addr4 and Addr6 are the guest's addresses and networks. An invalid one disables its
	// family.
	Addr4, Addr6 netip.Prefix
	// Gateway4 and Gateway6 are the guest's routers. A Gateway6 that is not link-local is not
	// announced: the router of an advertisement is its link-local sender.
	Gateway4, Gateway6 netip.Addr
	// NoDHCP, NoDHCPv6, NoNDP and NoRA disable the server of DHCP, of DHCPv6, all answers to
	// NDP, and those to router solicitations. Requests are dropped then.
	NoDHCP, NoDHCPv6, NoNDP, NoRA bool

	// DNS are servers to announce, and Search are search domains. Those that don't fit into a
	// message are left out.
	DNS    []netip.Addr
	Search []string
	// Hostname is the guest's name for DHCP, and FQDN is its full name for DHCP and DHCPv6. "":
	// none.
	Hostname, FQDN string
}

// LAN answers a guest's requests. It is safe for concurrent use.
type LAN struct {
	cfg       Config
	linkLocal netip.Addr // of the router and the DHCPv6 server
	serverID  []byte     // DUID
	search    [][]byte   // encoded
	fqdn      []byte     // encoded
}

// New checks the configuration.
func New(cfg Config) (*LAN, error) {
	if cfg.MAC == (packet.MAC{}) {
		cfg.MAC = DefaultMAC
	}
	if !cfg.MAC.Unicast() {
		return nil, fmt.Errorf("MAC address %s: want that of one station", cfg.MAC)
	}
	if len(cfg.Hostname) > maxHostname {
		return nil, fmt.Errorf("host name %q: want at most %d bytes", cfg.Hostname, maxHostname)
	}
	l := &LAN{cfg: cfg}
	l.linkLocal = cfg.MAC.LinkLocal()
	if cfg.Gateway6.IsLinkLocalUnicast() {
		l.linkLocal = cfg.Gateway6
	}
	l.serverID = append([]byte{0, duidLL, 0, hardwareEthernet}, cfg.MAC[:]...)
	var err error
	if cfg.FQDN != "" {
		if l.fqdn, err = encodeName(nil, cfg.FQDN); err != nil {
			return nil, fmt.Errorf("full host name: %w", err)
		}
	}
	for _, s := range cfg.Search {
		if strings.Trim(s, ".") == "" {
			continue // the root, which is always searched
		}
		name, err := encodeName(nil, s)
		if err != nil {
			return nil, fmt.Errorf("search domain: %w", err)
		}
		l.search = append(l.search, name)
	}
	return l, nil
}

// maxHostname bounds a host name in bytes: an option of DHCP has a length of one byte.
const maxHostname = 255

// MAC returns the address of all stations but the guest.
func (l *LAN) MAC() packet.MAC { return l.cfg.MAC }

// AutoPrefix returns the prefix in which the guest may choose addresses for itself, because
// router advertisements say so. It is invalid if there is none.
func (l *LAN) AutoPrefix() netip.Prefix {
	if l.cfg.NoNDP || l.cfg.NoRA || l.cfg.Addr6.Bits() != autoBits {
		return netip.Prefix{}
	}
	return l.cfg.Addr6.Masked()
}

// autoBits is the prefix length with which guests configure themselves on Ethernet (RFC 2464
// section 4).
const autoBits = 64

// Concerns reports whether a packet is a request to the LAN, which IP answers or drops: DHCP,
// DHCPv6 or NDP.
func Concerns(ip *packet.IP) bool {
	switch ip.Protocol {
	case packet.UDP:
		server := uint16(dhcp4Server)
		if ip.Src.Is6() {
			server = dhcp6Server
		}
		return len(ip.Payload) >= packet.UDPBytes && uint16(ip.Payload[2])<<8|uint16(ip.Payload[3]) == server
	case packet.ICMPv6:
		return ip.Src.Is6() && len(ip.Payload) > 0 && ip.Payload[0] >= RouterSolicitation && ip.Payload[0] <= redirect
	}
	return false
}

// IP answers a packet from the guest for which Concerns is true. The packet is whole and its
// checksum is correct. The answer, an Ethernet frame to the address guest, is written into
// b, which has AnswerBytes. IP returns its size; 0: there is no answer.
func (l *LAN) IP(b []byte, guest packet.MAC, ip *packet.IP) int {
	if ip.IsFragment() {
		return 0
	}
	r := reply{l: l, b: b[:AnswerBytes], mac: guest}
	var err error
	switch {
	case ip.Protocol == packet.ICMPv6:
		err = r.ndp(ip)
	case ip.Src.Is4():
		err = r.dhcp4(ip)
	default:
		err = r.dhcp6(ip)
	}
	if err != nil {
		return 0
	}
	return r.size
}

// errIgnore: the request has no answer.
var errIgnore = errors.New("no answer")

// reply is an answer that is being written.
type reply struct {
	l    *LAN
	b    []byte
	mac  packet.MAC // the guest's
	size int        // 0: there is none yet
}

// body returns the space for what follows the IP header, at most an MTU of 1280 bytes
// altogether.
func (r *reply) body(is4 bool) []byte {
	header := packet.IPv6Bytes
	if is4 {
		header = packet.IPv4Bytes
	}
	return r.b[packet.EthernetBytes+header:]
}

// send completes the answer, whose IP payload of n bytes lies in body.
func (r *reply) send(to packet.MAC, src, dst netip.Addr, proto packet.Protocol, n int) {
	e := packet.Ethernet{Dst: to, Src: r.l.cfg.MAC, Type: packet.EtherTypeIPv6}
	if src.Is4() {
		e.Type = packet.EtherTypeIPv4
	}
	at := e.Put(r.b)
	ip := packet.PutIP(r.b[at:], src, dst, proto, 0, n)
	if proto == packet.ICMPv6 {
		const hopLimit = 7 // offset in the header
		r.b[at+hopLimit] = maxHops
		packet.PutICMPChecksum(r.b[at+ip:at+ip+n], src, dst)
	}
	r.size = at + ip + n
}

// sendUDP completes the answer, whose datagram's payload of n bytes lies in body after the
// UDP header.
func (r *reply) sendUDP(to packet.MAC, src, dst netip.AddrPort, n int) {
	d := r.body(src.Addr().Is4())[:packet.UDPBytes+n]
	packet.PutUDP(d, src.Port(), dst.Port(), n)
	sum := packet.TransportChecksum(src.Addr(), dst.Addr(), packet.UDP, d)
	if sum == 0 {
		sum = 0xffff // 0 means that there is no checksum
	}
	d[packet.UDPChecksumOffset], d[packet.UDPChecksumOffset+1] = byte(sum>>8), byte(sum)
	r.send(to, src.Addr(), dst.Addr(), packet.UDP, len(d))
}
