package lan

import (
	"encoding/binary"
	"net/netip"

	"cleat/packet"
)

// Ports of DHCPv6 (RFC 8415 section 7.2).
const (
	dhcp6Server = 547
	dhcp6Client = 546
)

// Types of messages, codes of options and of status (RFC 8415 sections 7.3 and 21, RFC 3646,
// RFC 4704).
const (
	dhcp6Solicit     = 1
	dhcp6Advertise   = 2
	dhcp6Request     = 3
	dhcp6Confirm     = 4
	dhcp6Renew       = 5
	dhcp6Rebind      = 6
	dhcp6Reply       = 7
	dhcp6Release     = 8
	dhcp6Decline     = 9
	dhcp6Information = 11

	dhcp6ClientID = 1
	dhcp6ServerID = 2
	dhcp6IANA     = 3 // an identity association for addresses
	dhcp6IAAddr   = 5
	dhcp6Status   = 13
	dhcp6DNS      = 23
	dhcp6Search   = 24
	dhcp6FQDN     = 39

	dhcp6Success   = 0
	dhcp6NotOnLink = 4
)

const (
	dhcp6Header = 4   // type and transaction
	duidLL      = 3   // DUID-LL (RFC 8415 section 11.4)
	maxDUID     = 130 // bytes, with the type (RFC 8415 section 11.1)
	iaNABytes   = 12  // identifier, T1, T2
	iaAddrBytes = 24  // address and lifetimes
)

// dhcp6Message is what a client's message holds.
type dhcp6Message struct {
	kind             byte
	transaction      [3]byte
	client, server   []byte // DUIDs; nil: none
	association      []byte // the first IA_NA; nil: none
	fqdnFlags        byte
	fqdn, wrongAddrs bool // a client's FQDN option; an address that is not the guest's
}

// dhcp6 answers a message of a DHCPv6 client.
func (r *reply) dhcp6(ip *packet.IP) error {
	c := &r.l.cfg
	var u packet.UDPHeader
	// Clients send to the group of all servers (RFC 8415 section 16).
	if c.NoDHCPv6 || !c.Addr6.IsValid() || !ip.Dst.IsMulticast() || packet.ParseUDP(ip.Payload, &u) != nil {
		return errIgnore
	}
	m, err := r.l.parseDHCP6(u.Payload)
	if err != nil {
		return err
	}
	b, err := r.l.answerDHCP6(r.body(false)[packet.UDPBytes:][:0], &m)
	if err != nil {
		return err
	}
	r.sendUDP(r.mac, netip.AddrPortFrom(r.l.linkLocal, dhcp6Server), netip.AddrPortFrom(ip.Src, dhcp6Client), len(b))
	return nil
}

// parseDHCP6 parses a message and checks that it is to this server (RFC 8415 section 16).
func (l *LAN) parseDHCP6(b []byte) (m dhcp6Message, err error) {
	if len(b) < dhcp6Header {
		return m, errIgnore
	}
	m.kind, m.transaction = b[0], [3]byte(b[1:])
	err = eachOption(b[dhcp6Header:], func(code uint16, value []byte) error {
		switch {
		case (code == dhcp6ClientID || code == dhcp6ServerID) && len(value) > maxDUID,
			code == dhcp6IANA && len(value) < iaNABytes:
			return errIgnore
		case code == dhcp6ClientID:
			m.client = value
		case code == dhcp6ServerID:
			m.server = value
		case code == dhcp6IANA:
			if m.association == nil {
				m.association = value
			}
			return eachOption(value[iaNABytes:], func(code uint16, value []byte) error {
				m.wrongAddrs = m.wrongAddrs || code == dhcp6IAAddr && len(value) >= iaAddrBytes && netip.AddrFrom16([16]byte(value)) != l.cfg.Addr6.Addr()
				return nil
			})
		case code == dhcp6FQDN && len(value) > 0:
			m.fqdn, m.fqdnFlags = true, value[0]
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	named, wanted := m.server != nil, false
	switch m.kind {
	case dhcp6Solicit, dhcp6Confirm, dhcp6Rebind:
	case dhcp6Request, dhcp6Renew, dhcp6Release, dhcp6Decline:
		wanted = true
	case dhcp6Information:
		wanted = named // it may name a server
		if m.association != nil {
			return m, errIgnore
		}
	default:
		return m, errIgnore
	}
	if named != wanted || named && string(m.server) != string(l.serverID) || m.client == nil && m.kind != dhcp6Information {
		return m, errIgnore
	}
	return m, nil
}

// eachOption calls f with each option. It returns f's first error, or errIgnore for options
// that are cut short.
func eachOption(b []byte, f func(code uint16, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return errIgnore
		}
		code, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if b = b[4:]; len(b) < n {
			return errIgnore
		}
		if err := f(code, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// answerDHCP6 appends the answer to a message.
func (l *LAN) answerDHCP6(b []byte, m *dhcp6Message) ([]byte, error) {
	kind := byte(dhcp6Reply)
	if m.kind == dhcp6Solicit {
		kind = dhcp6Advertise
	}
	b = append(append(b, kind), m.transaction[:]...)
	b = appendOption(b, dhcp6ServerID, l.serverID)
	if m.client != nil {
		b = appendOption(b, dhcp6ClientID, m.client)
	}
	switch m.kind {
	case dhcp6Confirm:
		if m.association == nil {
			return b, errIgnore // RFC 8415 section 18.3.3
		}
		status := byte(dhcp6Success)
		if m.wrongAddrs {
			status = dhcp6NotOnLink
		}
		return appendOption(b, dhcp6Status, []byte{0, status}), nil
	case dhcp6Release, dhcp6Decline:
		return appendOption(b, dhcp6Status, []byte{0, dhcp6Success}), nil
	}
	if m.association != nil {
		b = l.appendAssociation(b, [4]byte(m.association))
	}
	return l.appendNames(b, m), nil
}

func appendOption(b []byte, code uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// appendAssociation appends the guest's address, for ever, for the identity association id.
func (l *LAN) appendAssociation(b []byte, id [4]byte) []byte {
	b = binary.BigEndian.AppendUint16(b, dhcp6IANA)
	b = binary.BigEndian.AppendUint16(b, iaNABytes+4+iaAddrBytes)
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint32(b, infinite) // T1
	b = binary.BigEndian.AppendUint32(b, infinite) // T2
	b = binary.BigEndian.AppendUint16(b, dhcp6IAAddr)
	b = binary.BigEndian.AppendUint16(b, iaAddrBytes)
	own := l.cfg.Addr6.Addr().As16()
	b = append(b, own[:]...)
	b = binary.BigEndian.AppendUint32(b, infinite) // preferred
	return binary.BigEndian.AppendUint32(b, infinite)
}

// maxDHCP6 bounds a message in bytes.
const maxDHCP6 = minMTU6 - packet.IPv6Bytes - packet.UDPBytes

// appendNames appends DNS servers, the guest's name, and the search domains that fit.
func (l *LAN) appendNames(b []byte, m *dhcp6Message) []byte {
	var servers [16 * maxServers]byte
	if s, n := l.appendServers(servers[:0], false); n > 0 {
		b = appendOption(b, dhcp6DNS, s)
	}
	if len(l.fqdn) > 0 {
		const clientAsks, serverOverrides = 0x01, 0x02 // flags S and O (RFC 4704 section 4.1)
		var flags byte
		if m.fqdn && m.fqdnFlags&clientAsks != 0 {
			flags = serverOverrides
		}
		b = binary.BigEndian.AppendUint16(b, dhcp6FQDN)
		b = binary.BigEndian.AppendUint16(b, uint16(1+len(l.fqdn)))
		b = append(append(b, flags), l.fqdn...)
	}
	if names, size := fitNames(l.search, maxDHCP6-len(b)-4); size > 0 {
		b = binary.BigEndian.AppendUint16(b, dhcp6Search)
		b = binary.BigEndian.AppendUint16(b, uint16(size))
		for _, n := range names {
			b = append(b, n...)
		}
	}
	return b
}
