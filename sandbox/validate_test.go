package sandbox

import (
	"errors"
	"net/netip"
	"testing"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestDefaults(t *testing.T) {
	tests := []struct {
		name               string
		cfg                Config
		gateway4, gateway6 string
		dns                string
	}{
		{"zero", Config{}, "10.0.2.2", "fd63:6c65:6174::2", "10.0.2.3"},
		{"IPv6 alone", Config{NoIPv4: true}, "invalid IP", "fd63:6c65:6174::2", "fd63:6c65:6174::3"},
		{"guest with the gateway's default address", Config{Addr4: prefix("192.0.2.2/24"), NoIPv6: true}, "192.0.2.3", "invalid IP", "192.0.2.4"},
		{"guest with the resolver's default address", Config{Addr4: prefix("192.0.2.3/24"), NoIPv6: true}, "192.0.2.2", "invalid IP", "192.0.2.4"},
		{"host loopback with the resolver's default address", Config{HostLoopback4: addr("10.0.2.3"), NoIPv6: true}, "10.0.2.2", "invalid IP", "10.0.2.4"},
		{"configured gateway", Config{Addr4: prefix("192.0.2.7/24"), Gateway4: addr("198.51.100.1"), NoIPv6: true}, "198.51.100.1", "invalid IP", "192.0.2.3"},
		{"smallest network with room", Config{Addr4: prefix("192.0.2.1/29"), NoIPv6: true}, "192.0.2.2", "invalid IP", "192.0.2.3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.cfg.complete()
			if err != nil {
				t.Fatal(err)
			}
			if g := got.Gateway4.String(); g != tt.gateway4 {
				t.Errorf("IPv4 gateway %s, want %s", g, tt.gateway4)
			}
			if g := got.Gateway6.String(); g != tt.gateway6 {
				t.Errorf("IPv6 gateway %s, want %s", g, tt.gateway6)
			}
			if len(got.DNS.Listen) != 1 || got.DNS.Listen[0].String() != tt.dns {
				t.Errorf("resolver %v, want %s", got.DNS.Listen, tt.dns)
			}
			if got.Interface != "cleat0" || got.MTU != 65520 || got.Log == nil {
				t.Errorf("interface %q, MTU %d, log %v", got.Interface, got.MTU, got.Log)
			}
		})
	}
}

func TestInvalidConfig(t *testing.T) {
	tests := []struct {
		name  string
		cfg   Config
		field string
	}{
		{"both families off", Config{NoIPv4: true, NoIPv6: true}, "NoIPv6"},
		{"long name", Config{Interface: "sixteen-bytes-00"}, "Interface"},
		{"name with a slash", Config{Interface: "a/b"}, "Interface"},
		{"name pattern", Config{Interface: "tun%d"}, "Interface"},
		{"MTU below IPv6's", Config{MTU: 1279}, "MTU"},
		{"MTU below IPv4's", Config{MTU: 575, NoIPv6: true}, "MTU"},
		{"MTU too large", Config{MTU: 65521}, "MTU"},
		{"IPv6 address as IPv4", Config{Addr4: prefix("2001:db8::1/64")}, "Addr4"},
		{"IPv4-mapped address", Config{Addr6: prefix("::ffff:192.0.2.1/120")}, "Addr6"},
		{"loopback", Config{Addr4: prefix("127.0.0.1/8")}, "Addr4"},
		{"multicast", Config{Addr4: prefix("224.0.0.1/8")}, "Addr4"},
		{"gateway is the guest", Config{Addr4: prefix("192.0.2.1/24"), Gateway4: addr("192.0.2.1")}, "Gateway4"},
		{"no room for a gateway", Config{Addr4: prefix("192.0.2.1/32")}, "Gateway4"},
		{"no room for a resolver", Config{Addr4: prefix("192.0.2.1/30"), NoIPv6: true}, "DNS.Listen"},
		{"resolver is the guest", Config{DNS: DNS{Listen: []netip.Addr{addr("10.0.2.100")}}}, "DNS.Listen"},
		{"resolver of a family that is off", Config{NoIPv6: true, DNS: DNS{Listen: []netip.Addr{addr("2001:db8::1")}}}, "DNS.Listen"},
		{"server without address", Config{DNS: DNS{Servers: []netip.AddrPort{{}}}}, "DNS.Servers"},
		{"loopback of the other family", Config{HostLoopback4: addr("2001:db8::1")}, "HostLoopback4"},
		{"source of the other family", Config{Outbound4: addr("2001:db8::1")}, "Outbound4"},
		{"mapped source", Config{Outbound6: addr("::ffff:192.0.2.1")}, "Outbound6"},
		{"mapping across families", Config{Mappings: []Mapping{{Guest: addr("192.0.2.1"), Host: addr("2001:db8::1")}}}, "Mappings"},
		{"mapping twice", Config{HostLoopback4: addr("192.0.2.1"), Mappings: []Mapping{{Guest: addr("192.0.2.1"), Host: addr("192.0.2.2")}}}, "Mappings"},
		{"mapping of loopback", Config{Mappings: []Mapping{{Guest: addr("127.0.0.1"), Host: addr("127.0.0.1")}}}, "Mappings"},
		{"forward without protocol", Config{Forwards: []Forward{{}}}, "Forwards"},
		{"reverse forward without port", Config{ReverseForwards: []ReverseForward{{Protocol: TCP}}}, "ReverseForwards"},
		{"another device", Config{Device: "tup"}, "Device"},
		{"Ethernet of a TUN", Config{Ethernet: Ethernet{NoDHCP: true}}, "Ethernet"},
		{"address of a group", Config{Device: DeviceTAP, Ethernet: Ethernet{MAC: MAC{1}}}, "Ethernet.MAC"},
		{"gateway with the address of a group", Config{Device: DeviceTAP, Ethernet: Ethernet{GatewayMAC: MAC{0xff}}}, "Ethernet.GatewayMAC"},
		{"the same address twice", Config{Device: DeviceTAP, Ethernet: Ethernet{MAC: MAC{2}, GatewayMAC: MAC{2}}}, "Ethernet.MAC"},
		{"a name that DHCP can't carry", Config{Device: DeviceTAP, Ethernet: Ethernet{FQDN: "a..b"}}, "Ethernet"},
		{"ports in reverse order", Config{AutoForward: []AutoForward{{TCP: true, Only: []PortRange{{First: 2, Last: 1}}}}}, "AutoForward"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.cfg)
			var wrong *ConfigError
			if !errors.As(err, &wrong) {
				t.Fatalf("got error %v, want a *ConfigError", err)
			}
			if wrong.Field != tt.field {
				t.Errorf("field %s, want %s", wrong.Field, tt.field)
			}
		})
	}
}

// The defaults of a TAP: a random address, and what the guest is told.
func TestEthernet(t *testing.T) {
	tap := func(change ...func(*Config)) Config {
		cfg := Config{Device: DeviceTAP}
		for _, c := range change {
			c(&cfg)
		}
		cfg, err := cfg.complete()
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	one, other := tap(), tap()
	const group, local = 1, 2
	if m := one.Ethernet.MAC; m[0]&(group|local) != local || m == other.Ethernet.MAC {
		t.Errorf("random addresses %s and %s", m, other.Ethernet.MAC)
	}
	got := one.lan()
	if got.MAC != (MAC{0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55}) || got.Addr4 != one.Addr4 || got.Addr6 != one.Addr6 || len(got.DNS) != 1 || got.DNS[0] != addr("10.0.2.3") {
		t.Errorf("the guest is told %+v", got)
	}
	unconfigured := func(c *Config) { c.NoConfigure = true }
	for _, r := range []struct {
		name   string
		change func(*Config)
		router bool
	}{
		{"configured", func(*Config) {}, false},
		{"left to others", unconfigured, true},
		{"switched off", func(c *Config) { c.NoConfigure, c.Ethernet.NoRA = true, true }, false},
	} {
		c := tap(r.change)
		if got := !c.lan().NoRA; got != r.router {
			t.Errorf("%s: router solicitations answered: %v, want %v", r.name, got, r.router)
		}
	}
	if c := tap(func(c *Config) { c.Ethernet.DNS = []netip.Addr{} }); len(c.lan().DNS) != 0 {
		t.Errorf("resolvers %v are announced, want none", c.lan().DNS)
	}
}

func TestPIDOfPath(t *testing.T) {
	for path, want := range map[string]int{
		"/proc/4711/ns/net": 4711, "/proc//4711/fd/3": 4711, "/proc/self/ns/net": 0,
		"/run/netns/web": 0, "/proc": 0, "/proc/-1/ns/net": 0, "": 0,
	} {
		if got := pidOf(path); got != want {
			t.Errorf("pidOf(%q) = %d, want %d", path, got, want)
		}
	}
}
