package dhcp

import (
	"bytes"
	"net"
	"net/netip"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// maxMessage is the largest message in bytes that a server may send: it fits into a
// packet of 1,500 (RFC 2132 section 9.10).
const maxMessage = 1472

type requester struct {
	client    Client
	mac       link.MAC
	broadcast bool
}

// message returns a message with what all types have in common (RFC 2131 table 5).
// elapsed is the time since the client began.
func (a requester) message(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, elapsed time.Duration) *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootRequest, HWType: 1, ClientHWAddr: net.HardwareAddr(a.mac[:]),
		TransactionID: xid, NumSeconds: uint16(min(elapsed/time.Second, 1<<16-1)), Options: dhcpv4.Options{},
	}
	m.UpdateOption(dhcpv4.OptMessageType(kind))
	if len(a.client.ID) > 0 {
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientIdentifier, a.client.ID))
	}
	return m
}

func (a requester) ask(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, elapsed time.Duration) *dhcpv4.DHCPv4 {
	m := a.message(kind, xid, elapsed)
	m.UpdateOption(dhcpv4.OptMaxMessageSize(maxMessage))
	m.UpdateOption(dhcpv4.OptParameterRequestList(
		dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
		dhcpv4.OptionDomainName, dhcpv4.OptionInterfaceMTU, dhcpv4.OptionIPAddressLeaseTime,
		dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue,
	))
	if a.client.HostName != "" {
		m.UpdateOption(dhcpv4.OptHostName(a.client.HostName))
	}
	if a.broadcast {
		m.SetBroadcast()
	}
	return m
}

// discover asks all servers for an address, preferably the requested one.
func (a requester) discover(xid dhcpv4.TransactionID, elapsed time.Duration, requested netip.Addr) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeDiscover, xid, elapsed)
	if requested.IsValid() {
		m.UpdateOption(dhcpv4.OptRequestedIPAddress(requested.AsSlice()))
	}
	return m
}

// request accepts an offer.
func (a requester) request(xid dhcpv4.TransactionID, elapsed time.Duration, t *terms) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeRequest, xid, elapsed)
	m.UpdateOption(dhcpv4.OptRequestedIPAddress(t.Address.Addr().AsSlice()))
	m.UpdateOption(dhcpv4.OptServerIdentifier(t.Server.AsSlice()))
	return m
}

// extend asks for more time. It is sent from the address itself, so it names neither a
// server nor an address (RFC 2131 section 4.3.2).
func (a requester) extend(xid dhcpv4.TransactionID, elapsed time.Duration, addr netip.Addr) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeRequest, xid, elapsed)
	m.ClientIPAddr = addr.AsSlice()
	return m
}

// decline rejects an address that somebody else uses.
func (a requester) decline(xid dhcpv4.TransactionID, t *terms) *dhcpv4.DHCPv4 {
	m := a.message(dhcpv4.MessageTypeDecline, xid, 0)
	m.UpdateOption(dhcpv4.OptRequestedIPAddress(t.Address.Addr().AsSlice()))
	m.UpdateOption(dhcpv4.OptServerIdentifier(t.Server.AsSlice()))
	m.UpdateOption(dhcpv4.OptMessage("the address is in use"))
	return m
}

func (a requester) release(xid dhcpv4.TransactionID, l *Lease) *dhcpv4.DHCPv4 {
	m := a.message(dhcpv4.MessageTypeRelease, xid, 0)
	m.ClientIPAddr = l.Address.Addr().AsSlice()
	m.UpdateOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice()))
	return m
}

// answers reports whether m answers this client in a transaction. Many clients on ipvlan
// have one Ethernet address, so the identifier must match if the server returns it, as it
// should (RFC 6842).
func (a requester) answers(m *dhcpv4.DHCPv4, xid dhcpv4.TransactionID) bool {
	id := m.Options.Get(dhcpv4.OptionClientIdentifier)
	return m.OpCode == dhcpv4.OpcodeBootReply && m.TransactionID == xid && bytes.Equal(m.ClientHWAddr, a.mac[:]) &&
		(!m.Options.Has(dhcpv4.OptionClientIdentifier) || bytes.Equal(id, a.client.ID))
}
