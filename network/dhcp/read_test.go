package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// ack is a valid acknowledgement.
func ack() *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootReply, YourIPAddr: net.IP{192, 0, 2, 10}, Options: dhcpv4.Options{}}
	m.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
	m.UpdateOption(dhcpv4.OptServerIdentifier(net.IP{192, 0, 2, 1}))
	m.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(24, 32)))
	m.UpdateOption(dhcpv4.OptIPAddressLeaseTime(time.Hour))
	m.UpdateOption(dhcpv4.OptRouter(net.IP{192, 0, 2, 1}))
	m.UpdateOption(dhcpv4.OptDNS(net.IP{192, 0, 2, 2}, net.IP{192, 0, 2, 3}))
	m.UpdateOption(dhcpv4.OptDomainName("example.org"))
	return m
}

func with(code dhcpv4.OptionCode, value ...byte) func(*dhcpv4.DHCPv4) {
	return func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptGeneric(code, value)) }
}

func without(code dhcpv4.OptionCode) func(*dhcpv4.DHCPv4) {
	return func(m *dhcpv4.DHCPv4) { m.DeleteOption(code) }
}

func yiaddr(a ...byte) func(*dhcpv4.DHCPv4) {
	return func(m *dhcpv4.DHCPv4) { m.YourIPAddr = a }
}

var (
	mustAddr   = netip.MustParseAddr
	mustPrefix = netip.MustParsePrefix
	byDefault  = Route{To: mustPrefix("0.0.0.0/0"), Via: mustAddr("192.0.2.1")}
)

// good is what ack grants.
func good() terms {
	return terms{
		Lease: Lease{
			Address: mustPrefix("192.0.2.10/24"), Server: mustAddr("192.0.2.1"), Routes: []Route{byDefault},
			DNS: []netip.Addr{mustAddr("192.0.2.2"), mustAddr("192.0.2.3")}, Domain: "example.org",
		},
		lifetime: time.Hour, t1: 30 * time.Minute, t2: 52*time.Minute + 30*time.Second,
	}
}

// TestRead checks what is made of valid and partly invalid messages.
func TestRead(t *testing.T) {
	const forever = 0xff
	for name, c := range map[string]struct {
		change func(*dhcpv4.DHCPv4)
		want   func(*terms) // difference from good
		notes  string       // in the only note
	}{
		"good":      {func(*dhcpv4.DHCPv4) {}, func(*terms) {}, ""},
		"unlimited": {with(dhcpv4.OptionIPAddressLeaseTime, forever, forever, forever, forever), func(t *terms) { t.lifetime, t.t1, t.t2 = 0, 0, 0 }, ""},
		"T1 and T2": {func(m *dhcpv4.DHCPv4) {
			with(dhcpv4.OptionRenewTimeValue, 0, 0, 0, 60)(m)
			with(dhcpv4.OptionRebindingTimeValue, 0, 0, 0, 120)(m)
		}, func(t *terms) { t.t1, t.t2 = time.Minute, 2*time.Minute }, ""},
		"T1 after the end": {with(dhcpv4.OptionRenewTimeValue, 0, 1, 0, 0), func(*terms) {}, "T1 18h12m16s and T2"},
		"T1 is 0":          {with(dhcpv4.OptionRenewTimeValue, 0, 0, 0, 0), func(*terms) {}, "T1 0s"},
		"T2 before T1":     {with(dhcpv4.OptionRebindingTimeValue, 0, 0, 0, 9), func(*terms) {}, "T2 9s"},
		"no mask":          {without(dhcpv4.OptionSubnetMask), func(*terms) {}, "no subnet mask; using /24"},
		"smallest subnet":  {with(dhcpv4.OptionSubnetMask, 255, 255, 255, 255), func(t *terms) { t.Address = mustPrefix("192.0.2.10/32"); t.Routes[0].OnLink = true }, ""},
		"mtu":              {with(dhcpv4.OptionInterfaceMTU, 5, 0x78), func(t *terms) { t.MTU = 1400 }, ""},
		"mtu 576":          {with(dhcpv4.OptionInterfaceMTU, 2, 0x40), func(t *terms) { t.MTU = 576 }, ""},
		"mtu 575":          {with(dhcpv4.OptionInterfaceMTU, 2, 0x3f), func(*terms) {}, "MTU 023f ignored"},
		"mtu 68":           {with(dhcpv4.OptionInterfaceMTU, 0, 68), func(*terms) {}, "MTU 0044 ignored"},
		"T1 of a second": {func(m *dhcpv4.DHCPv4) {
			with(dhcpv4.OptionRenewTimeValue, 0, 0, 0, 1)(m)
			with(dhcpv4.OptionRebindingTimeValue, 0, 0, 14, 15)(m)
		}, func(*terms) {}, "T1 1s and T2"},
		"T1 of a short lease": {func(m *dhcpv4.DHCPv4) {
			with(dhcpv4.OptionIPAddressLeaseTime, 0, 0, 0, 60)(m)
			with(dhcpv4.OptionRenewTimeValue, 0, 0, 0, 30)(m)
			with(dhcpv4.OptionRebindingTimeValue, 0, 0, 0, 50)(m)
		}, func(t *terms) { t.lifetime, t.t1, t.t2 = time.Minute, 30*time.Second, 50*time.Second }, ""},
		"many routes": {with(dhcpv4.OptionClasslessStaticRoute, manyRoutes(maxRoutes+100)...), func(t *terms) {
			t.Routes = nil
			for i := range maxRoutes {
				t.Routes = append(t.Routes, Route{To: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Via: mustAddr("192.0.2.7")})
			}
		}, "100 more routes ignored"},
		"many name servers": {with(dhcpv4.OptionDomainNameServer, 192, 0, 2, 2, 192, 0, 2, 3, 192, 0, 2, 4, 192, 0, 2, 5, 192, 0, 2, 6), func(t *terms) {
			t.DNS = append(t.DNS, mustAddr("192.0.2.4"))
		}, "2 more name servers ignored"},
		"mtu 0":                     {with(dhcpv4.OptionInterfaceMTU, 0, 0), func(*terms) {}, "MTU 0000"},
		"mtu of three bytes":        {with(dhcpv4.OptionInterfaceMTU, 1, 2, 3), func(*terms) {}, "MTU 010203"},
		"no router":                 {without(dhcpv4.OptionRouter), func(t *terms) { t.Routes = nil }, ""},
		"router outside the subnet": {with(dhcpv4.OptionRouter, 198, 51, 100, 1), func(t *terms) { t.Routes = []Route{{To: byDefault.To, Via: mustAddr("198.51.100.1"), OnLink: true}} }, ""},
		"own address as router":     {with(dhcpv4.OptionRouter, 192, 0, 2, 10), func(t *terms) { t.Routes = nil }, "router 192.0.2.10 ignored"},
		"multicast router":          {with(dhcpv4.OptionRouter, 224, 0, 0, 1, 192, 0, 2, 1), func(*terms) {}, "router 224.0.0.1 ignored"},
		"router of three bytes":     {with(dhcpv4.OptionRouter, 192, 0, 2), func(t *terms) { t.Routes = nil }, "malformed routers"},
		"name server 0":             {with(dhcpv4.OptionDomainNameServer, 0, 0, 0, 0, 192, 0, 2, 2, 192, 0, 2, 3, 192, 0, 2, 2), func(*terms) {}, "name server 0.0.0.0"},
		"loopback name server":      {with(dhcpv4.OptionDomainNameServer, 127, 0, 0, 53), func(t *terms) { t.DNS = nil }, "name server 127.0.0.53"},
		"name server of five bytes": {with(dhcpv4.OptionDomainNameServer, 1, 2, 3, 4, 5), func(t *terms) { t.DNS = nil }, "malformed name servers"},
		"domain with a zero byte":   {with(dhcpv4.OptionDomainName, 'a', '.', 'b', '.', 0), func(t *terms) { t.Domain = "a.b" }, ""},
		"domain with a newline":     {with(dhcpv4.OptionDomainName, []byte("a\nnameserver 203.0.113.1")...), func(t *terms) { t.Domain = "" }, `domain "a\nnameserver 203.0.113.1" ignored`},
		"classless routes": {with(dhcpv4.OptionClasslessStaticRoute, 0, 192, 0, 2, 7, 24, 198, 51, 100, 0, 0, 0, 0, 32, 203, 0, 113, 1, 192, 0, 2, 8), func(t *terms) {
			t.Routes = []Route{{To: byDefault.To, Via: mustAddr("192.0.2.7")}, {To: mustPrefix("198.51.100.0/24")}, {To: mustPrefix("203.0.113.1/32"), Via: mustAddr("192.0.2.8")}}
		}, ""},
		"with the subnet's route": {with(dhcpv4.OptionClasslessStaticRoute, 24, 192, 0, 2, 0, 0, 0, 0, 0, 192, 0, 2, 1), func(*terms) {}, ""},
		"bits beyond the prefix":  {with(dhcpv4.OptionClasslessStaticRoute, 20, 198, 51, 255, 192, 0, 2, 7), func(t *terms) { t.Routes = []Route{{To: mustPrefix("198.51.240.0/20"), Via: mustAddr("192.0.2.7")}} }, ""},
		"duplicate route":         {with(dhcpv4.OptionClasslessStaticRoute, 0, 192, 0, 2, 1, 0, 192, 0, 2, 7), func(*terms) {}, "another route to 0.0.0.0/0, via 192.0.2.7"},
		"multicast route":         {with(dhcpv4.OptionClasslessStaticRoute, 0, 192, 0, 2, 1, 4, 224, 192, 0, 2, 7), func(*terms) {}, "route to 224.0.0.0/4 via 192.0.2.7 ignored"},
		"route via own address":   {with(dhcpv4.OptionClasslessStaticRoute, 0, 192, 0, 2, 1, 8, 10, 192, 0, 2, 10), func(*terms) {}, "route to 10.0.0.0/8 via 192.0.2.10 ignored"},
		"truncated route":         {with(dhcpv4.OptionClasslessStaticRoute, 24, 198, 51), func(*terms) {}, "malformed classless routes"},
		"prefix of 33 bits":       {with(dhcpv4.OptionClasslessStaticRoute, 33, 1, 2, 3, 4, 5, 6, 7, 8, 9), func(*terms) {}, "malformed classless routes"},
		"no classless routes":     {with(dhcpv4.OptionClasslessStaticRoute), func(*terms) {}, ""},
		"shortest lease":          {with(dhcpv4.OptionIPAddressLeaseTime, 0, 0, 0, 4), func(t *terms) { t.lifetime, t.t1, t.t2 = 4*time.Second, 2*time.Second, 3500*time.Millisecond }, ""},
		"longest limited lease":   {with(dhcpv4.OptionIPAddressLeaseTime, 255, 255, 255, 254), func(t *terms) { t.lifetime = 4294967294 * time.Second; t.t1, t.t2 = t.lifetime/2, t.lifetime/8*7 }, ""},
		"link-local server":       {with(dhcpv4.OptionServerIdentifier, 169, 254, 0, 1), func(t *terms) { t.Server = mustAddr("169.254.0.1") }, ""},
	} {
		m := ack()
		c.change(m)
		got, err := read(m, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		notes := got.Notes
		got.Notes = nil
		want := good()
		c.want(&want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, want)
		}
		if (c.notes == "") != (len(notes) == 0) || len(notes) > 1 || c.notes != "" && !strings.Contains(notes[0], c.notes) {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

// manyRoutes returns n classless routes.
func manyRoutes(n int) (option []byte) {
	for i := range n {
		option = append(option, 24, 10, byte(i>>8), byte(i), 192, 0, 2, 7)
	}
	return option
}

// TestReadInvalid checks messages that are rejected.
func TestReadInvalid(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dhcpv4.DHCPv4)
		why    string
	}{
		"address 0":               {yiaddr(0, 0, 0, 0), "address 0.0.0.0"},
		"this network":            {yiaddr(0, 1, 2, 3), "address 0.1.2.3"},
		"group":                   {yiaddr(224, 0, 0, 251), "address 224.0.0.251"},
		"loopback":                {yiaddr(127, 0, 0, 1), "address 127.0.0.1"},
		"link-local":              {yiaddr(169, 254, 7, 7), "address 169.254.7.7"},
		"class E":                 {yiaddr(240, 0, 0, 1), "address 240.0.0.1"},
		"everyone":                {yiaddr(255, 255, 255, 255), "address 255.255.255.255"},
		"network address":         {yiaddr(192, 0, 2, 0), "address 192.0.2.0/24"},
		"broadcast address":       {yiaddr(192, 0, 2, 255), "address 192.0.2.255/24"},
		"the server's address":    {yiaddr(192, 0, 2, 1), "is the server's"},
		"mask of seven bits":      {with(dhcpv4.OptionSubnetMask, 254, 0, 0, 0), "subnet mask 254.0.0.0"},
		"mask 0":                  {with(dhcpv4.OptionSubnetMask, 0, 0, 0, 0), "subnet mask 0.0.0.0"},
		"mask with a hole":        {with(dhcpv4.OptionSubnetMask, 255, 0, 255, 0), "subnet mask 255.0.255.0"},
		"inverted mask":           {with(dhcpv4.OptionSubnetMask, 0, 0, 0, 255), "subnet mask 0.0.0.255"},
		"mask of three bytes":     {with(dhcpv4.OptionSubnetMask, 255, 255, 255), "subnet mask of 3 bytes"},
		"no lease time":           {without(dhcpv4.OptionIPAddressLeaseTime), "no lease time"},
		"lease time of two bytes": {with(dhcpv4.OptionIPAddressLeaseTime, 14, 16), "no lease time"},
		"time 0":                  {with(dhcpv4.OptionIPAddressLeaseTime, 0, 0, 0, 0), "lease time of 0s"},
		"time 3":                  {with(dhcpv4.OptionIPAddressLeaseTime, 0, 0, 0, 3), "lease time of 3s"},
		"no server":               {without(dhcpv4.OptionServerIdentifier), "no server identifier"},
		"broadcast server":        {with(dhcpv4.OptionServerIdentifier, 255, 255, 255, 255), "no server identifier"},
		"server of one byte":      {with(dhcpv4.OptionServerIdentifier, 1), "no server identifier"},
	} {
		m := ack()
		c.change(m)
		if _, err := read(m, nil); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", name, err, c.why)
		}
	}
}

// TestReadRenewal checks what a server may leave out when it renews a lease, and what it
// may not change.
func TestReadRenewal(t *testing.T) {
	old := &Lease{Address: mustPrefix("192.0.2.10/25"), Server: mustAddr("192.0.2.5")}
	m := ack()
	without(dhcpv4.OptionSubnetMask)(m)
	without(dhcpv4.OptionServerIdentifier)(m)
	got, err := read(m, old)
	if err != nil || got.Address != old.Address || got.Server != old.Server {
		t.Errorf("%+v, %v", got, err)
	}
	yiaddr(192, 0, 2, 11)(m)
	if _, err := read(m, old); err == nil || !strings.Contains(err.Error(), "192.0.2.11 instead of 192.0.2.10") {
		t.Errorf("another address: %v", err)
	}
}

// FuzzRead checks that whatever is accepted is valid.
func FuzzRead(f *testing.F) {
	f.Add(uint32(0xc000020a), ack().Options.ToBytes())
	m := ack()
	with(dhcpv4.OptionClasslessStaticRoute, 0, 192, 0, 2, 7, 24, 198, 51, 100, 0, 0, 0, 0)(m)
	with(dhcpv4.OptionInterfaceMTU, 5, 0x78)(m)
	with(dhcpv4.OptionRenewTimeValue, 0, 0, 0, 60)(m)
	f.Add(uint32(0xc0000201), m.Options.ToBytes())
	f.Fuzz(func(t *testing.T, yiaddr uint32, options []byte) {
		m := &dhcpv4.DHCPv4{YourIPAddr: binary.BigEndian.AppendUint32(nil, yiaddr), Options: dhcpv4.Options{}}
		if m.Options.FromBytes(options) != nil {
			return
		}
		_ = nakReason(m)
		r, err := read(m, nil)
		if err != nil {
			return
		}
		if !isUnicast(r.Address.Addr()) || r.Address.Bits() < minPrefixBits || !isUnicast(r.Server) {
			t.Errorf("address %s of %s", r.Address, r.Server)
		}
		if r.lifetime != 0 && (r.lifetime < minLease || r.t1 <= 0 || r.t1 >= r.t2 || r.t2 >= r.lifetime) {
			t.Errorf("times %s %s %s", r.t1, r.t2, r.lifetime)
		}
		if r.MTU != 0 && r.MTU < minMTU || r.Domain != "" && !validName(r.Domain) || len(r.Notes) > maxNotes || len(r.Routes) > maxRoutes || len(r.DNS) > maxNameServers {
			t.Errorf("mtu %d, domain %q, %d notes", r.MTU, r.Domain, len(r.Notes))
		}
		for _, route := range r.Routes {
			if route.To != route.To.Masked() || route.Via.IsValid() && (!isUnicast(route.Via) || route.Via == r.Address.Addr()) {
				t.Errorf("route %+v", route)
			}
		}
		for _, a := range r.DNS {
			if !isUnicast(a) {
				t.Errorf("name server %s", a)
			}
		}
		l := &Lease{}
		l.set(r, at(0), func() float64 { return 0.999 })
		if s := l.Next(at(0)); s.Delay <= 0 {
			t.Errorf("a new lease is due for %q at once", s.Action)
		}
	})
}
