package dhcp

import (
	"bytes"
	"net"
	"net/netip"
	"time"

	"cleat/link"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// maxMessage is the longest message that is taken, in bytes: it fits in a packet of 1,500
// (RFC 2132 section 9.10).
const maxMessage = 1472

// wanted are the parameters that are asked for.
func wanted() dhcpv4.OptionCodeList {
	return dhcpv4.OptionCodeList{
		dhcpv4.OptionSubnetMask, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
		dhcpv4.OptionDomainName, dhcpv4.OptionInterfaceMTU, dhcpv4.OptionIPAddressLeaseTime,
		dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue,
	}
}

// asker writes one client's messages.
type asker struct {
	client    Client
	mac       link.MAC
	broadcast bool
}

// message is one of a kind, with what all kinds have in common (RFC 2131 table 5). secs is
// for how long we have been asking.
func (a asker) message(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, secs time.Duration) *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootRequest, HWType: 1, ClientHWAddr: net.HardwareAddr(a.mac[:]),
		TransactionID: xid, NumSeconds: uint16(min(secs/time.Second, 1<<16-1)), Options: dhcpv4.Options{},
	}
	m.UpdateOption(dhcpv4.OptMessageType(kind))
	if len(a.client.ID) > 0 {
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionClientIdentifier, a.client.ID))
	}
	return m
}

// ask is a message that wants an answer with parameters.
func (a asker) ask(kind dhcpv4.MessageType, xid dhcpv4.TransactionID, secs time.Duration) *dhcpv4.DHCPv4 {
	m := a.message(kind, xid, secs)
	m.UpdateOption(dhcpv4.OptMaxMessageSize(maxMessage))
	m.UpdateOption(dhcpv4.Option{Code: dhcpv4.OptionParameterRequestList, Value: wanted()})
	if a.client.HostName != "" {
		m.UpdateOption(dhcpv4.OptHostName(a.client.HostName))
	}
	if a.client.VendorClass != "" {
		m.UpdateOption(dhcpv4.OptClassIdentifier(a.client.VendorClass))
	}
	return m
}

// discover asks all servers for an address, by preference for wish.
func (a asker) discover(xid dhcpv4.TransactionID, secs time.Duration, wish netip.Addr) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeDiscover, xid, secs)
	if wish.IsValid() {
		m.UpdateOption(dhcpv4.OptRequestedIPAddress(wish.AsSlice()))
	}
	if a.broadcast {
		m.SetBroadcast()
	}
	return m
}

// request takes what a server has offered.
func (a asker) request(xid dhcpv4.TransactionID, secs time.Duration, t *terms) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeRequest, xid, secs)
	m.UpdateOption(dhcpv4.OptRequestedIPAddress(t.address.Addr().AsSlice()))
	m.UpdateOption(dhcpv4.OptServerIdentifier(t.server.AsSlice()))
	if a.broadcast {
		m.SetBroadcast()
	}
	return m
}

// extend asks for more time, from the address itself: it names no server and wishes for
// nothing (RFC 2131 section 4.3.2).
func (a asker) extend(xid dhcpv4.TransactionID, secs time.Duration, addr netip.Addr) *dhcpv4.DHCPv4 {
	m := a.ask(dhcpv4.MessageTypeRequest, xid, secs)
	m.ClientIPAddr = addr.AsSlice()
	return m
}

// decline says that somebody has the address already.
func (a asker) decline(xid dhcpv4.TransactionID, t *terms) *dhcpv4.DHCPv4 {
	m := a.message(dhcpv4.MessageTypeDecline, xid, 0)
	m.UpdateOption(dhcpv4.OptRequestedIPAddress(t.address.Addr().AsSlice()))
	m.UpdateOption(dhcpv4.OptServerIdentifier(t.server.AsSlice()))
	m.UpdateOption(dhcpv4.OptMessage("the address is in use"))
	return m
}

// release gives the address back.
func (a asker) release(xid dhcpv4.TransactionID, l *Lease) *dhcpv4.DHCPv4 {
	m := a.message(dhcpv4.MessageTypeRelease, xid, 0)
	m.ClientIPAddr = l.Address.Addr().AsSlice()
	m.UpdateOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice()))
	return m
}

// isFor tells whether a message answers this client in a transaction. On ipvlan many clients
// have one Ethernet address, so the identifier must be ours where the server returns it, as
// it should (RFC 6842).
func (a asker) isFor(m *dhcpv4.DHCPv4, xid dhcpv4.TransactionID) bool {
	id := m.Options.Get(dhcpv4.OptionClientIdentifier)
	return m.OpCode == dhcpv4.OpcodeBootReply && m.TransactionID == xid && bytes.Equal(m.ClientHWAddr, a.mac[:]) &&
		(!m.Options.Has(dhcpv4.OptionClientIdentifier) || bytes.Equal(id, a.client.ID))
}
