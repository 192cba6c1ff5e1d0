package lan

import (
	"net"
	"net/netip"

	"cleat/packet"
)

// Ports of DHCP (RFC 2131 section 4.1).
const (
	dhcp4Server = 67
	dhcp4Client = 68
)

// The fixed part of a DHCP message (RFC 2131 section 2), with the magic cookie at its end.
const (
	dhcp4Flags   = 10
	dhcp4Yours   = 16 // the address that the client gets
	dhcp4Server4 = 20
	dhcp4Name    = 44 // the server's name and the boot file, both unused
	dhcp4Cookie  = 236
	dhcp4Fixed   = 240

	bootRequest, bootReply = 1, 2
	dhcp4Broadcast         = 0x80 // in the first byte of the flags
)

var dhcp4Magic = [4]byte{99, 130, 83, 99}

// maxDHCP4 bounds a message in bytes: every client accepts 576 in an IP packet (RFC 2131
// section 2).
const maxDHCP4 = 576 - packet.IPv4Bytes - packet.UDPBytes

// minDHCP4 is the least size that old clients accept: that of a BOOTP message (RFC 951 section
// 3).
const minDHCP4 = 300

// Codes of options (RFC 2132, 3397, 3442, 4039, 4702).
const (
	dhcp4Pad       = 0
	dhcp4Mask      = 1
	dhcp4Router    = 3
	dhcp4DNS       = 6
	dhcp4Hostname  = 12
	dhcp4MTU       = 26
	dhcp4Lease     = 51
	dhcp4Type      = 53
	dhcp4ServerID  = 54
	dhcp4Rapid     = 80
	dhcp4FQDN      = 81
	dhcp4Search    = 119
	dhcp4Routes    = 121
	dhcp4End       = 255
	dhcp4Discover  = 1
	dhcp4Offer     = 2
	dhcp4Request   = 3
	dhcp4ACK       = 5
	dhcp4NoType    = 0 // a BOOTP client
	maxOptionBytes = 255
)

// dhcp4 answers a DHCPDISCOVER with an offer, or with rapid commit with a lease, and a
// DHCPREQUEST or a BOOTP request with a lease.
func (r *reply) dhcp4(ip *packet.IP) error {
	c := &r.l.cfg
	var u packet.UDPHeader
	if c.NoDHCP || !c.Addr4.IsValid() || !c.Gateway4.IsValid() || packet.ParseUDP(ip.Payload, &u) != nil {
		return errIgnore
	}
	m := u.Payload
	// Operation, hardware type and the length of its addresses.
	if len(m) < dhcp4Fixed || m[0] != bootRequest || m[1] != hardwareEthernet || m[2] != 6 || [4]byte(m[dhcp4Cookie:]) != dhcp4Magic {
		return errIgnore
	}
	kind, rapid, err := dhcp4Asks(m[dhcp4Fixed:])
	if err != nil {
		return err
	}
	answer := byte(dhcp4ACK)
	switch kind {
	case dhcp4Discover:
		if !rapid {
			answer = dhcp4Offer
		}
	case dhcp4Request, dhcp4NoType:
		rapid = false
	default:
		return errIgnore
	}
	b := r.body(true)[packet.UDPBytes:][:dhcp4Fixed]
	copy(b, m[:dhcp4Fixed])
	b[0], b[3] = bootReply, 0           // hops
	clear(b[dhcp4Flags-2 : dhcp4Flags]) // seconds
	clear(b[dhcp4Server4 : dhcp4Server4+4])
	clear(b[dhcp4Name:dhcp4Cookie])
	own := c.Addr4.Addr().As4()
	copy(b[dhcp4Yours:dhcp4Yours+4], own[:])
	b = r.l.dhcp4Options(b, answer, rapid)
	to, mac := c.Addr4.Addr(), r.mac
	if m[dhcp4Flags]&dhcp4Broadcast != 0 {
		to, mac = netip.AddrFrom4([4]byte{255, 255, 255, 255}), packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	r.sendUDP(mac, netip.AddrPortFrom(c.Gateway4, dhcp4Server), netip.AddrPortFrom(to, dhcp4Client), len(b))
	return nil
}

// dhcp4Asks returns the type of a message with these options, and whether it allows rapid
// commit.
func dhcp4Asks(options []byte) (kind byte, rapid bool, err error) {
	for len(options) > 0 && options[0] != dhcp4End {
		if options[0] == dhcp4Pad {
			options = options[1:]
			continue
		}
		if len(options) < 2 || len(options) < 2+int(options[1]) {
			return 0, false, errIgnore
		}
		value := options[2 : 2+int(options[1])]
		switch options[0] {
		case dhcp4Type:
			if len(value) != 1 || value[0] == dhcp4NoType {
				return 0, false, errIgnore
			}
			kind = value[0]
		case dhcp4Rapid:
			rapid = true
		}
		options = options[2+len(value):]
	}
	return kind, rapid, nil
}

// dhcp4Options appends the options of an answer to its fixed part. The type comes first, since
// some clients expect it there. An option that does not fit is left out.
func (l *LAN) dhcp4Options(b []byte, kind byte, rapid bool) []byte {
	c := &l.cfg
	add := func(code byte, value ...byte) {
		if len(value) <= maxOptionBytes && len(b)+2+len(value)+1 <= maxDHCP4 {
			b = append(append(b, code, byte(len(value))), value...)
		}
	}
	gateway := c.Gateway4.As4()
	mask := [4]byte(net.CIDRMask(c.Addr4.Bits(), 32))
	add(dhcp4Type, kind)
	add(dhcp4ServerID, gateway[:]...)
	add(dhcp4Lease, 0xff, 0xff, 0xff, 0xff) // for ever
	if rapid {
		add(dhcp4Rapid)
	}
	add(dhcp4Mask, mask[:]...)
	add(dhcp4Router, gateway[:]...)
	if !c.Addr4.Contains(c.Gateway4) {
		// A route to the gateway itself, and the default route (RFC 3442).
		add(dhcp4Routes, 32, gateway[0], gateway[1], gateway[2], gateway[3], 0, 0, 0, 0,
			0, gateway[0], gateway[1], gateway[2], gateway[3])
	}
	if c.MTU > 0 {
		add(dhcp4MTU, byte(c.MTU>>8), byte(c.MTU))
	}
	var servers [4 * maxServers]byte
	if s, n := l.appendServers(servers[:0], true); n > 0 {
		add(dhcp4DNS, s...)
	}
	if c.Hostname != "" {
		add(dhcp4Hostname, []byte(c.Hostname)...)
	}
	var long [maxOptionBytes]byte
	if len(l.fqdn) > 0 && len(l.fqdn)+3 <= len(long) {
		const encoded = 0x04 // flag E: the name is in DNS encoding
		add(dhcp4FQDN, append(append(long[:0], encoded, 0xff, 0xff), l.fqdn...)...)
	}
	if names, size := fitNames(l.search, min(maxOptionBytes, maxDHCP4-len(b)-3)); size > 0 {
		list := long[:0]
		for _, n := range names {
			list = append(list, n...)
		}
		add(dhcp4Search, list...)
	}
	b = append(b, dhcp4End)
	if short := minDHCP4 - len(b); short > 0 {
		b = append(b, make([]byte, short)...)
	}
	return b
}
