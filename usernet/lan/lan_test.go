package lan

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cleat/packet"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The stations of the tests.
var (
	guestMAC   = packet.MAC{2, 0, 0x5e, 0, 0, 1}
	guest4     = netip.MustParseAddr("192.0.2.2")
	guest6     = netip.MustParseAddr("2001:db8::2")
	guestLocal = guestMAC.LinkLocal()
	gateway4   = netip.MustParseAddr("192.0.2.1")
	gateway6   = netip.MustParseAddr("2001:db8::1")
	allRouters = netip.MustParseAddr("ff02::2")
	allServers = netip.MustParseAddr("ff02::1:2")
	nobody4    = netip.IPv4Unspecified()
	everybody4 = netip.MustParseAddr("255.255.255.255")
)

func testConfig() Config {
	return Config{
		MTU: 65520, Addr4: netip.PrefixFrom(guest4, 24), Addr6: netip.PrefixFrom(guest6, 64), Gateway4: gateway4, Gateway6: gateway6,
	}
}

// newLAN makes a LAN with the changes.
func newLAN(t testing.TB, change ...func(*Config)) *LAN {
	t.Helper()
	cfg := testConfig()
	for _, c := range change {
		c(&cfg)
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// answer is a parsed answer.
type answer struct {
	packet.Ethernet
	packet.IP
}

// parse checks an answer as a guest's kernel does.
func parse(t testing.TB, frame []byte) *answer {
	t.Helper()
	if len(frame) == 0 {
		return nil
	}
	var a answer
	if err := a.Ethernet.Parse(frame); err != nil {
		t.Fatal(err)
	}
	if len(frame) > AnswerBytes {
		t.Fatalf("answer of %d bytes", len(frame))
	}
	if err := packet.ParseIP(frame[packet.EthernetBytes:], &a.IP); err != nil {
		t.Fatalf("answer %x: %v", frame, err)
	}
	wantType := uint16(packet.EtherTypeIPv6)
	if a.IP.Src.Is4() {
		wantType = packet.EtherTypeIPv4
	}
	if a.Type != wantType || a.Ethernet.Src != DefaultMAC {
		t.Errorf("answer has type %#x from %s", a.Type, a.Ethernet.Src)
	}
	if packet.TransportChecksum(a.IP.Src, a.IP.Dst, a.Protocol, a.Payload) != 0 {
		t.Errorf("answer %x has a wrong checksum", frame)
	}
	return &a
}

// ask sends an IP packet's payload to the LAN and returns the answer, nil if there is none.
func ask(t testing.TB, l *LAN, src, dst netip.Addr, proto packet.Protocol, payload []byte) *answer {
	t.Helper()
	ip := packet.IP{Src: src, Dst: dst, Protocol: proto, TTL: maxHops, Payload: payload}
	if !Concerns(&ip) {
		t.Fatalf("a request of protocol %v does not concern the LAN", proto)
	}
	b := make([]byte, AnswerBytes)
	return parse(t, b[:l.IP(b, guestMAC, &ip)])
}

func arp(operation uint16, sender packet.MAC, senderIP, target string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 0}
	binary.BigEndian.PutUint16(b[6:], operation)
	b = append(b, sender[:]...)
	from, to := netip.MustParseAddr(senderIP).As4(), netip.MustParseAddr(target).As4()
	b = append(append(b, from[:]...), 0, 0, 0, 0, 0, 0)
	return append(b, to[:]...)
}

func TestARP(t *testing.T) {
	l := newLAN(t)
	wrong := func(at int, v byte) []byte {
		b := arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1")
		b[at] = v
		return b
	}
	for _, r := range []struct {
		name    string
		request []byte
		want    string // the address that is resolved; "": no answer
	}{
		{"gateway", arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1"), "192.0.2.1"},
		{"with padding", append(arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1"), make([]byte, 18)...), "192.0.2.1"},
		{"neighbour", arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.77"), "192.0.2.77"},
		{"address of another network", arp(arpRequest, guestMAC, "192.0.2.2", "198.51.100.1"), "198.51.100.1"},
		{"guest without an address", arp(arpRequest, guestMAC, "0.0.0.0", "192.0.2.1"), "192.0.2.1"},
		{"the guest's probe for its own address", arp(arpRequest, guestMAC, "0.0.0.0", "192.0.2.2"), ""},
		{"the guest's own address", arp(arpRequest, guestMAC, "192.0.2.9", "192.0.2.2"), ""},
		{"announcement", arp(arpRequest, guestMAC, "192.0.2.9", "192.0.2.9"), ""},
		{"reply", arp(arpReply, guestMAC, "192.0.2.2", "192.0.2.1"), ""},
		{"other hardware", wrong(1, 6), ""},
		{"other protocol", wrong(2, 0x86), ""},
		{"long hardware address", wrong(4, 8), ""},
		{"long protocol address", wrong(5, 16), ""},
		{"sender is a group", wrong(arpSender, 3), ""},
		{"cut short", arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1")[:arpBytes-1], ""},
		{"empty", nil, ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			b := make([]byte, AnswerBytes)
			n := l.ARP(b, r.request)
			if r.want == "" {
				if n != 0 {
					t.Errorf("answered %x", b[:n])
				}
				return
			}
			want := append(append(slices.Clone(guestMAC[:]), DefaultMAC[:]...), 8, 6)
			reply := arp(arpReply, DefaultMAC, r.want, netip.AddrFrom4([4]byte(r.request[arpSenderIP:])).String())
			copy(reply[arpTarget:], guestMAC[:])
			if want = append(want, reply...); !bytes.Equal(b[:n], want) {
				t.Errorf("answer\n%x, want\n%x", b[:n], want)
			}
		})
	}
	if n := newLAN(t, func(c *Config) { c.Addr4 = netip.Prefix{} }).ARP(make([]byte, AnswerBytes), arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1")); n != 0 {
		t.Error("ARP is answered without IPv4")
	}
}

func solicitation(kind byte, target netip.Addr) []byte {
	b := make([]byte, packet.ICMPBytes)
	b[0] = kind
	if target.IsValid() {
		to := target.As16()
		b = append(b, to[:]...)
	}
	return append(append(b, optionSource, 1), guestMAC[:]...)
}

func TestNeighbour(t *testing.T) {
	multicast := netip.MustParseAddr("ff02::1:ff00:1")
	for _, r := range []struct {
		name   string
		src    netip.Addr
		target netip.Addr
		want   bool
	}{
		{"gateway", guest6, gateway6, true},
		{"gateway, from the link-local address", guestLocal, gateway6, true},
		{"link-local gateway", guestLocal, netip.MustParseAddr("fe80::1"), true},
		{"address of another network", guest6, netip.MustParseAddr("2001:db8:7::7"), true},
		{"duplicate address detection", netip.IPv6Unspecified(), guest6, false},
		{"duplicate address detection of a link-local address", netip.IPv6Unspecified(), guestLocal, false},
		{"the guest's own address", guestLocal, guest6, false},
		{"the source itself", guestLocal, guestLocal, false},
		{"a group", guest6, multicast, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			a := ask(t, newLAN(t), r.src, multicast, packet.ICMPv6, solicitation(neighbourSolicitation, r.target))
			if (a != nil) != r.want {
				t.Fatalf("answer %+v, want %v", a, r.want)
			}
			if a == nil {
				return
			}
			target := r.target.As16()
			want := append([]byte{neighbourAdvertisement, 0, a.Payload[2], a.Payload[3], 0xe0, 0, 0, 0}, target[:]...)
			want = append(append(want, optionTarget, 1), DefaultMAC[:]...)
			if !bytes.Equal(a.Payload, want) || a.IP.Src != r.target || a.IP.Dst != r.src || a.Ethernet.Dst != guestMAC || a.TTL != maxHops {
				t.Errorf("got %+v, want %x", a, want)
			}
		})
	}
}

// Invalid messages of NDP are dropped (RFC 4861 section 7.1.1).
func TestNDPInvalid(t *testing.T) {
	good := solicitation(neighbourSolicitation, gateway6)
	code := slices.Clone(good)
	code[1] = 1
	for name, ip := range map[string]packet.IP{
		"from another link": {TTL: 64, Payload: good},
		"code":              {TTL: maxHops, Payload: code},
		"cut short":         {TTL: maxHops, Payload: good[:23]},
		"only a type":       {TTL: maxHops, Payload: good[:1]},
		"advertisement":     {TTL: maxHops, Payload: solicitation(neighbourAdvertisement, gateway6)},
		"redirect":          {TTL: maxHops, Payload: solicitation(redirect, gateway6)},
		"fragment":          {TTL: maxHops, Payload: good, More: true},
	} {
		ip.Src, ip.Dst, ip.Protocol = guest6, gateway6, packet.ICMPv6
		if !Concerns(&ip) {
			t.Errorf("%s: does not concern the LAN", name)
		}
		if n := newLAN(t).IP(make([]byte, AnswerBytes), guestMAC, &ip); n != 0 {
			t.Errorf("%s: answered with %d bytes", name, n)
		}
	}
}

func TestRouterAdvertisement(t *testing.T) {
	l := newLAN(t, func(c *Config) {
		c.DNS = []netip.Addr{gateway4, netip.MustParseAddr("2001:db8::3")}
		c.Search = []string{"example.com", "lab.example."}
	})
	a := ask(t, l, guestLocal, allRouters, packet.ICMPv6, solicitation(RouterSolicitation, netip.Addr{}))
	if a == nil {
		t.Fatal("no answer")
	}
	if a.IP.Src != DefaultMAC.LinkLocal() || a.IP.Dst != guestLocal || a.Ethernet.Dst != guestMAC || a.TTL != maxHops {
		t.Errorf("got %+v", a)
	}
	a.Payload[2], a.Payload[3] = 0, 0 // verified above
	want := "\x86\x00\x00\x00\x40\xc0\x23\x28\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x03\x04\x40\xc0\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x05\x01\x00\x00\x00\x00\xff\xf0" +
		"\x01\x01\x9a\x55\x9a\x55\x9a\x55" +
		"\x19\x03\x00\x00\xff\xff\xff\xff\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03" +
		"\x1f\x05\x00\x00\xff\xff\xff\xff\x07example\x03com\x00\x03lab\x07example\x00\x00\x00\x00\x00\x00\x00"
	if got := string(a.Payload); got != want {
		t.Errorf("got\n%x, want\n%x", got, want)
	}
	b := make([]byte, AnswerBytes)
	n := l.Advertise(b)
	if u := parse(t, b[:n]); u == nil || u.IP.Dst != allNodes || u.Ethernet.Dst != allNodesMAC || !bytes.Equal(u.Payload[4:], a.Payload[4:]) {
		t.Errorf("unsolicited: %+v", u)
	}
	if a := ask(t, l, netip.IPv6Unspecified(), allRouters, packet.ICMPv6, solicitation(RouterSolicitation, netip.Addr{})); a == nil || a.IP.Dst != allNodes || a.Ethernet.Dst != allNodesMAC {
		t.Errorf("to a guest without an address: %+v", a)
	}
}

func TestSwitches(t *testing.T) {
	router, neighbour := solicitation(RouterSolicitation, netip.Addr{}), solicitation(neighbourSolicitation, gateway6)
	for _, r := range []struct {
		name                            string
		change                          func(*Config)
		router, neighbour, dhcp4, dhcp6 bool
		auto                            string // AutoPrefix
	}{
		{"all", func(*Config) {}, true, true, true, true, "2001:db8::/64"},
		{"no router", func(c *Config) { c.NoRA = true }, false, true, true, true, "invalid Prefix"},
		{"no NDP", func(c *Config) { c.NoNDP = true }, false, false, true, true, "invalid Prefix"},
		{"no DHCP", func(c *Config) { c.NoDHCP = true }, true, true, false, true, "2001:db8::/64"},
		{"no DHCPv6", func(c *Config) { c.NoDHCPv6 = true }, true, true, true, false, "2001:db8::/64"},
		{"no IPv4", func(c *Config) { c.Addr4, c.Gateway4 = netip.Prefix{}, netip.Addr{} }, true, true, false, true, "2001:db8::/64"},
		{"no IPv6", func(c *Config) { c.Addr6, c.Gateway6 = netip.Prefix{}, netip.Addr{} }, false, false, true, false, "invalid Prefix"},
		{"another prefix length", func(c *Config) { c.Addr6 = netip.PrefixFrom(guest6, 80) }, true, true, true, true, "invalid Prefix"},
	} {
		t.Run(r.name, func(t *testing.T) {
			l := newLAN(t, r.change)
			for what, got := range map[string]struct{ got, want bool }{
				"router":    {ask(t, l, guestLocal, allRouters, packet.ICMPv6, router) != nil, r.router},
				"advertise": {l.Advertise(make([]byte, AnswerBytes)) > 0, r.router},
				"neighbour": {ask(t, l, guestLocal, gateway6, packet.ICMPv6, neighbour) != nil, r.neighbour},
				"DHCP":      {ask(t, l, nobody4, everybody4, packet.UDP, discover(t)) != nil, r.dhcp4},
				"DHCPv6":    {ask(t, l, guestLocal, allServers, packet.UDP, solicit(t)) != nil, r.dhcp6},
			} {
				if got.got != got.want {
					t.Errorf("%s: answered %v, want %v", what, got.got, got.want)
				}
			}
			if got := l.AutoPrefix().String(); got != r.auto {
				t.Errorf("guests choose addresses of %s, want %s", got, r.auto)
			}
		})
	}
}

func TestLinkLocalGateway(t *testing.T) {
	router := netip.MustParseAddr("fe80::1")
	l := newLAN(t, func(c *Config) { c.Gateway6 = router })
	if a := ask(t, l, guestLocal, allRouters, packet.ICMPv6, solicitation(RouterSolicitation, netip.Addr{})); a == nil || a.IP.Src != router {
		t.Errorf("advertisement %+v, want one from %s", a, router)
	}
}

// Names that fill every message still leave room for the rest.
func TestManyNames(t *testing.T) {
	l := newLAN(t, func(c *Config) {
		for range 40 {
			c.Search = append(c.Search, strings.Repeat("a", 60)+".example")
		}
		c.FQDN = strings.Repeat(strings.Repeat("b", 60)+".", 4)
		c.Hostname = strings.Repeat("c", 255)
		c.DNS = slices.Repeat([]netip.Addr{gateway4, gateway6}, 20)
	})
	if ask(t, l, guestLocal, allRouters, packet.ICMPv6, solicitation(RouterSolicitation, netip.Addr{})) == nil {
		t.Error("no advertisement")
	}
	offer := offered(t, ask(t, l, nobody4, everybody4, packet.UDP, discover(t)))
	if len(offer.HostName()) != 255 || offer.Options.Has(dhcpv4.OptionFQDN) || len(offer.DNS()) != maxServers {
		t.Errorf("offer %v: want the host name and no name that does not fit", offer)
	}
	reply := answered6(t, ask(t, l, guestLocal, allServers, packet.UDP, solicit(t)))
	if reply.Options.FQDN() == nil || len(reply.Options.DomainSearchList().Labels) < 5 || len(reply.Options.DNS()) != maxServers {
		t.Errorf("answer %v: want all names that fit", reply)
	}
}

func TestNew(t *testing.T) {
	for _, r := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"group address", func(c *Config) { c.MAC = packet.MAC{1} }, "MAC address 01:00:00:00:00:00: want that of one station"},
		{"long host name", func(c *Config) { c.Hostname = strings.Repeat("a", 256) }, "want at most 255 bytes"},
		{"empty label", func(c *Config) { c.FQDN = "a..b" }, `full host name: name "a..b": want labels of 1 to 63 bytes`},
		{"long label", func(c *Config) { c.Search = []string{strings.Repeat("a", 64)} }, "search domain"},
		{"long name", func(c *Config) { c.Search = []string{strings.Repeat("a.", 128)} }, "longer than 255 bytes"},
		{"root", func(c *Config) { c.Search = []string{"."} }, ""},
	} {
		cfg := testConfig()
		r.change(&cfg)
		_, err := New(cfg)
		if r.want == "" && err != nil || r.want != "" && (err == nil || !strings.Contains(err.Error(), r.want)) {
			t.Errorf("%s: %v, want %q", r.name, err, r.want)
		}
	}
}

func TestConcerns(t *testing.T) {
	for name, ip := range map[string]packet.IP{
		"TCP":                  {Src: guest4, Protocol: packet.TCP, Payload: make([]byte, 20)},
		"DNS":                  {Src: guest4, Protocol: packet.UDP, Payload: []byte{0, 68, 0, 53, 0, 8, 0, 0}},
		"short UDP":            {Src: guest4, Protocol: packet.UDP, Payload: []byte{0, 68, 0, 67}},
		"DHCPv6's port, IPv4":  {Src: guest4, Protocol: packet.UDP, Payload: []byte{0, 68, 2, 35, 0, 8, 0, 0}},
		"DHCP's port, IPv6":    {Src: guest6, Protocol: packet.UDP, Payload: []byte{0, 68, 0, 67, 0, 8, 0, 0}},
		"ping":                 {Src: guest6, Protocol: packet.ICMPv6, Payload: []byte{128, 0, 0, 0, 0, 0, 0, 0}},
		"multicast report":     {Src: guest6, Protocol: packet.ICMPv6, Payload: []byte{143, 0, 0, 0, 0, 0, 0, 0}},
		"ICMPv6 in IPv4":       {Src: guest4, Protocol: packet.ICMPv6, Payload: []byte{135, 0, 0, 0, 0, 0, 0, 0}},
		"ICMPv6 without bytes": {Src: guest6, Protocol: packet.ICMPv6},
	} {
		if Concerns(&ip) {
			t.Errorf("%s concerns the LAN", name)
		}
	}
}

// Answers allocate nothing: a guest may ask all the time.
func TestNoAllocations(t *testing.T) {
	l := newLAN(t, func(c *Config) { c.Search, c.FQDN, c.Hostname = []string{"example.com"}, "guest.example.com", "guest" })
	b := make([]byte, AnswerBytes)
	request := arp(arpRequest, guestMAC, "192.0.2.2", "192.0.2.1")
	asks := map[string]packet.IP{
		"NDP":    {Src: guestLocal, Dst: gateway6, Protocol: packet.ICMPv6, TTL: maxHops, Payload: solicitation(neighbourSolicitation, gateway6)},
		"router": {Src: guestLocal, Dst: allRouters, Protocol: packet.ICMPv6, TTL: maxHops, Payload: solicitation(RouterSolicitation, netip.Addr{})},
		"DHCP":   {Src: nobody4, Dst: everybody4, Protocol: packet.UDP, Payload: discover(t)},
		"DHCPv6": {Src: guestLocal, Dst: allServers, Protocol: packet.UDP, Payload: solicit(t)},
	}
	for name, ip := range asks {
		if n := testing.AllocsPerRun(100, func() {
			if l.IP(b, guestMAC, &ip) == 0 {
				t.Fatal("no answer")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.ARP(b, request) }); n != 0 {
		t.Errorf("ARP: %v allocations", n)
	}
}
