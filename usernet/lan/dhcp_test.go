package lan

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/packet"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// datagram returns a UDP datagram.
func datagram(from, to uint16, payload []byte) []byte {
	b := make([]byte, packet.UDPBytes, packet.UDPBytes+len(payload))
	packet.PutUDP(b, from, to, len(payload))
	return append(b, payload...)
}

func fromClient4(m *dhcpv4.DHCPv4) []byte { return datagram(dhcp4Client, dhcp4Server, m.ToBytes()) }

// discover returns a DHCPDISCOVER, as an independent client sends it.
func discover(t testing.TB, change ...dhcpv4.Modifier) []byte {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(guestMAC[:], change...)
	if err != nil {
		t.Fatal(err)
	}
	return fromClient4(m)
}

// offered parses an answer to a client with an independent implementation.
func offered(t testing.TB, a *answer) *dhcpv4.DHCPv4 {
	t.Helper()
	var u packet.UDPHeader
	if a == nil {
		t.Fatal("no answer")
		return nil
	}
	if err := packet.ParseUDP(a.Payload, &u); err != nil || u.SrcPort != dhcp4Server || u.DstPort != dhcp4Client {
		t.Fatalf("got %+v, %v", u, err)
	}
	m, err := dhcpv4.FromBytes(u.Payload)
	if err != nil {
		t.Fatalf("answer %x: %v", u.Payload, err)
	}
	if len(u.Payload) < minDHCP4 || len(u.Payload) > maxDHCP4 {
		t.Errorf("message of %d bytes", len(u.Payload))
	}
	return m
}

func TestDHCP(t *testing.T) {
	l := newLAN(t, func(c *Config) {
		c.DNS = []netip.Addr{netip.MustParseAddr("192.0.2.3"), gateway6}
		c.Search, c.Hostname, c.FQDN = []string{"example.com", "lab.example"}, "guest", "guest.example.com"
	})
	a := ask(t, l, nobody4, everybody4, packet.UDP, discover(t))
	offer := offered(t, a)
	if offer.MessageType() != dhcpv4.MessageTypeOffer || a.IP.Src != gateway4 || a.IP.Dst != guest4 || a.Ethernet.Dst != guestMAC {
		t.Fatalf("got %v", a)
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	ack := offered(t, ask(t, l, nobody4, everybody4, packet.UDP, fromClient4(request)))
	if ack.MessageType() != dhcpv4.MessageTypeAck || ack.TransactionID != request.TransactionID {
		t.Errorf("got %v", ack)
	}
	for what, r := range map[string]struct{ got, want any }{
		"address":  {ack.YourIPAddr.String(), "192.0.2.2"},
		"server":   {ack.ServerIdentifier().String(), "192.0.2.1"},
		"client":   {ack.ClientHWAddr.String(), guestMAC.String()},
		"mask":     {net.IP(ack.SubnetMask()).String(), "255.255.255.0"},
		"router":   {ack.Router()[0].String(), "192.0.2.1"},
		"DNS":      {ack.DNS()[0].String(), "192.0.2.3"},
		"DNS sum":  {len(ack.DNS()), 1},
		"search":   {strings.Join(ack.DomainSearch().Labels, " "), "example.com lab.example"},
		"hostname": {ack.HostName(), "guest"},
		"FQDN":     {string(ack.Options.Get(dhcpv4.OptionFQDN)), "\x04\xff\xff\x05guest\x07example\x03com\x00"},
		"lease":    {string(ack.Options.Get(dhcpv4.OptionIPAddressLeaseTime)), "\xff\xff\xff\xff"},
		"MTU":      {string(ack.Options.Get(dhcpv4.OptionInterfaceMTU)), "\xff\xf0"},
		"routes":   {len(ack.ClasslessStaticRoute()), 0},
		"next":     {ack.ServerIPAddr.String(), "0.0.0.0"},
	} {
		if r.got != r.want {
			t.Errorf("%s: %q, want %q", what, r.got, r.want)
		}
	}
}

func TestDHCPVariants(t *testing.T) {
	l := newLAN(t)
	bootp, err := dhcpv4.New(dhcpv4.WithHwAddr(guestMAC[:]))
	if err != nil {
		t.Fatal(err)
	}
	renewal, err := dhcpv4.New(dhcpv4.WithHwAddr(guestMAC[:]), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(guest4.AsSlice()))
	if err != nil {
		t.Fatal(err)
	}
	rapid := dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(dhcp4Rapid), nil))
	for _, r := range []struct {
		name     string
		src, dst netip.Addr
		request  []byte
		kind     dhcpv4.MessageType
		to       netip.Addr
		rapid    bool
	}{
		{"broadcast", nobody4, everybody4, discover(t, dhcpv4.WithBroadcast(true)), dhcpv4.MessageTypeOffer, everybody4, false},
		{"rapid commit", nobody4, everybody4, discover(t, rapid), dhcpv4.MessageTypeAck, guest4, true},
		{"BOOTP", nobody4, everybody4, fromClient4(bootp), dhcpv4.MessageTypeAck, guest4, false},
		{"renewal", guest4, gateway4, fromClient4(renewal), dhcpv4.MessageTypeAck, guest4, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			a := ask(t, l, r.src, r.dst, packet.UDP, r.request)
			m := offered(t, a)
			if m.MessageType() != r.kind || a.IP.Dst != r.to || m.Options.Has(dhcpv4.GenericOptionCode(dhcp4Rapid)) != r.rapid || m.YourIPAddr.String() != guest4.String() {
				t.Errorf("got %v to %s, want %v", m, a.IP.Dst, r)
			}
			wantMAC := guestMAC
			if r.to == everybody4 {
				wantMAC = packet.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			}
			if a.Ethernet.Dst != wantMAC {
				t.Errorf("sent to %s", a.Ethernet.Dst)
			}
		})
	}
}

// A gateway outside of the guest's network needs a route of its own (RFC 3442).
func TestDHCPOnLinkGateway(t *testing.T) {
	l := newLAN(t, func(c *Config) { c.Gateway4 = netip.MustParseAddr("198.51.100.1") })
	m := offered(t, ask(t, l, nobody4, everybody4, packet.UDP, discover(t)))
	routes := m.ClasslessStaticRoute()
	if len(routes) != 2 || routes[0].Dest.String() != "198.51.100.1/32" || routes[0].Router.String() != "0.0.0.0" ||
		routes[1].Dest.String() != "0.0.0.0/0" || routes[1].Router.String() != "198.51.100.1" {
		t.Errorf("routes %v", routes)
	}
}

func TestDHCPInvalid(t *testing.T) {
	good := discover(t)
	change := func(at int, v byte) []byte {
		b := slices.Clone(good)
		b[packet.UDPBytes+at] = v
		return b
	}
	typed := func(kind dhcpv4.MessageType) []byte { return discover(t, dhcpv4.WithMessageType(kind)) }
	cut := func(n int) []byte { return datagram(dhcp4Client, dhcp4Server, good[packet.UDPBytes:][:n]) }
	for name, b := range map[string][]byte{
		"reply":          change(0, bootReply),
		"other hardware": change(1, 6),
		"long address":   change(2, 16),
		"magic":          change(dhcp4Cookie, 0),
		"cut short":      cut(dhcp4Fixed - 1),
		"option cut":     cut(dhcp4Fixed + 2),
		"no length":      cut(dhcp4Fixed + 1),
		"empty":          cut(0),
		"decline":        typed(dhcpv4.MessageTypeDecline),
		"release":        typed(dhcpv4.MessageTypeRelease),
		"inform":         typed(dhcpv4.MessageTypeInform),
		"type 0":         typed(0),
		"UDP length":     good[:len(good)-1],
	} {
		if a := ask(t, newLAN(t), nobody4, everybody4, packet.UDP, b); a != nil {
			t.Errorf("%s: answered %x", name, a.Payload)
		}
	}
}

func fromClient6(m *dhcpv6.Message) []byte { return datagram(dhcp6Client, dhcp6Server, m.ToBytes()) }

// newSolicit returns a Solicit, as an independent client sends it.
func newSolicit(t testing.TB, change ...dhcpv6.Modifier) *dhcpv6.Message {
	t.Helper()
	m, err := dhcpv6.NewSolicit(guestMAC[:], change...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func solicit(t testing.TB) []byte { return fromClient6(newSolicit(t)) }

// answered6 parses an answer to a client with an independent implementation.
func answered6(t testing.TB, a *answer) *dhcpv6.Message {
	t.Helper()
	var u packet.UDPHeader
	if a == nil {
		t.Fatal("no answer")
		return nil
	}
	if err := packet.ParseUDP(a.Payload, &u); err != nil || u.SrcPort != dhcp6Server || u.DstPort != dhcp6Client || a.IP.Src != DefaultMAC.LinkLocal() || a.IP.Dst != guestLocal {
		t.Fatalf("got %+v, %v", a, err)
	}
	m, err := dhcpv6.MessageFromBytes(u.Payload)
	if err != nil {
		t.Fatalf("answer %x: %v", u.Payload, err)
	}
	return m
}

// checkLease checks the address in an answer.
func checkLease(t *testing.T, m *dhcpv6.Message, kind dhcpv6.MessageType) {
	t.Helper()
	ia := m.Options.OneIANA()
	if m.MessageType != kind || ia == nil || len(ia.Options.Addresses()) != 1 {
		t.Fatalf("got %v, want an address by %v", m, kind)
	}
	if got := ia.Options.OneAddress(); got.IPv6Addr.String() != guest6.String() || uint32(got.ValidLifetime.Seconds()) != infinite || ia.IaId != [4]byte{0x5e, 0, 0, 1} {
		t.Errorf("lease %v of association %x", got, ia.IaId)
	}
}

func TestDHCPv6(t *testing.T) {
	l := newLAN(t, func(c *Config) {
		c.DNS = []netip.Addr{gateway4, netip.MustParseAddr("2001:db8::3")}
		c.Search, c.FQDN = []string{"example.com", "lab.example"}, "guest.example.com"
	})
	s := newSolicit(t, dhcpv6.WithFQDN(1, "other.example.com"))
	advertise := answered6(t, ask(t, l, guestLocal, allServers, packet.UDP, fromClient6(s)))
	checkLease(t, advertise, dhcpv6.MessageTypeAdvertise)
	request, err := dhcpv6.NewRequestFromAdvertise(advertise)
	if err != nil {
		t.Fatal(err)
	}
	reply := answered6(t, ask(t, l, guestLocal, allServers, packet.UDP, fromClient6(request)))
	checkLease(t, reply, dhcpv6.MessageTypeReply)
	if reply.TransactionID != request.TransactionID || !reply.Options.ClientID().Equal(s.Options.ClientID()) {
		t.Errorf("answer %v to %v", reply, request)
	}
	server, ok := reply.Options.ServerID().(*dhcpv6.DUIDLL)
	if !ok || server.HWType != iana.HWTypeEthernet || !bytes.Equal(server.LinkLayerAddr, DefaultMAC[:]) {
		t.Errorf("server %v", reply.Options.ServerID())
	}
	if dns := reply.Options.DNS(); len(dns) != 1 || dns[0].String() != "2001:db8::3" {
		t.Errorf("DNS %v", dns)
	}
	if got := strings.Join(reply.Options.DomainSearchList().Labels, " "); got != "example.com lab.example" {
		t.Errorf("search %q", got)
	}
	if f := advertise.Options.FQDN(); f == nil || f.Flags != 2 || f.DomainName.Labels[0] != "guest.example.com" {
		t.Errorf("FQDN %v", f)
	}
}

func TestDHCPv6Variants(t *testing.T) {
	l := newLAN(t)
	server := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: DefaultMAC[:]})
	stranger := dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: guestMAC[:]})
	without := func(m dhcpv6.DHCPv6, codes ...dhcpv6.OptionCode) {
		for _, c := range codes {
			m.(*dhcpv6.Message).Options.Del(c)
		}
	}
	noIA := func(m dhcpv6.DHCPv6) { without(m, dhcpv6.OptionIANA) }
	anonymous := func(m dhcpv6.DHCPv6) { without(m, dhcpv6.OptionClientID) }
	longID := dhcpv6.WithClientID(&dhcpv6.DUIDOpaque{Type: 9, Data: make([]byte, 129)})
	address := func(a netip.Addr) dhcpv6.Modifier {
		return dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: a.AsSlice()})
	}
	const silent, lease, bare = "silent", "lease", "bare"
	for _, r := range []struct {
		name   string
		kind   dhcpv6.MessageType
		change []dhcpv6.Modifier
		want   string // a status, or one of the above
	}{
		{"renew", dhcpv6.MessageTypeRenew, []dhcpv6.Modifier{server}, lease},
		{"rebind", dhcpv6.MessageTypeRebind, nil, lease},
		{"request for another address", dhcpv6.MessageTypeRequest, []dhcpv6.Modifier{server, address(gateway6)}, lease},
		{"request to nobody", dhcpv6.MessageTypeRequest, nil, silent},
		{"request to another server", dhcpv6.MessageTypeRequest, []dhcpv6.Modifier{stranger}, silent},
		{"solicitation to a server", dhcpv6.MessageTypeSolicit, []dhcpv6.Modifier{server}, silent},
		{"solicitation by nobody", dhcpv6.MessageTypeSolicit, []dhcpv6.Modifier{anonymous}, silent},
		{"long client identifier", dhcpv6.MessageTypeSolicit, []dhcpv6.Modifier{longID}, silent},
		{"confirm", dhcpv6.MessageTypeConfirm, []dhcpv6.Modifier{address(guest6)}, iana.StatusSuccess.String()},
		{"confirm another address", dhcpv6.MessageTypeConfirm, []dhcpv6.Modifier{address(gateway6)}, iana.StatusNotOnLink.String()},
		{"confirm nothing", dhcpv6.MessageTypeConfirm, []dhcpv6.Modifier{noIA}, silent},
		{"release", dhcpv6.MessageTypeRelease, []dhcpv6.Modifier{server}, iana.StatusSuccess.String()},
		{"decline", dhcpv6.MessageTypeDecline, []dhcpv6.Modifier{server}, iana.StatusSuccess.String()},
		{"information", dhcpv6.MessageTypeInformationRequest, []dhcpv6.Modifier{noIA, anonymous}, bare},
		{"information about an address", dhcpv6.MessageTypeInformationRequest, nil, silent},
		{"reply", dhcpv6.MessageTypeReply, nil, silent},
		{"relay", dhcpv6.MessageTypeRelayForward, nil, silent},
	} {
		t.Run(r.name, func(t *testing.T) {
			m := newSolicit(t, r.change...)
			m.MessageType = r.kind
			a := ask(t, l, guestLocal, allServers, packet.UDP, fromClient6(m))
			if r.want == silent {
				if a != nil {
					t.Errorf("answered %x", a.Payload)
				}
				return
			}
			reply := answered6(t, a)
			status := reply.Options.Status()
			switch r.want {
			case lease:
				checkLease(t, reply, dhcpv6.MessageTypeReply)
			case bare:
				if status != nil || reply.Options.OneIANA() != nil || reply.Options.ClientID() != nil || reply.MessageType != dhcpv6.MessageTypeReply {
					t.Errorf("got %v", reply)
				}
			default:
				if status == nil || status.StatusCode.String() != r.want || reply.Options.OneIANA() != nil {
					t.Errorf("got %v, want status %s", reply, r.want)
				}
			}
		})
	}
	if a := ask(t, l, guestLocal, gateway6, packet.UDP, solicit(t)); a != nil {
		t.Errorf("a solicitation to one address is answered: %+v", a)
	}
	for n := range len(solicit(t)) - packet.UDPBytes {
		if b := solicit(t)[packet.UDPBytes:][:n]; n != 4 { // only a header: no client identifier either
			ask(t, l, guestLocal, allServers, packet.UDP, datagram(dhcp6Client, dhcp6Server, b)) // must not panic
		}
	}
}
