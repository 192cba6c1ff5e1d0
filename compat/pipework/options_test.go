package pipework

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"cleat/link"

	"github.com/google/go-cmp/cmp"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func mac(t *testing.T, s string) link.MAC {
	t.Helper()
	m, err := link.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// same compares values that contain addresses.
var same = cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func TestParse(t *testing.T) {
	rows := []struct {
		name, args string
		want       Options
	}{
		// Every form in the README of the script.
		{"bridge", "br1 web 192.0.2.1/24", Options{Host: "br1", Guest: "web", IP: prefix("192.0.2.1/24")}},
		{"length", "br1 web 192.0.2.25/20", Options{Host: "br1", Guest: "web", IP: prefix("192.0.2.25/20")}},
		{"gateway", "br1 web 192.0.2.25/24@192.0.2.1", Options{Host: "br1", Guest: "web", IP: prefix("192.0.2.25/24"), Gateway: addr("192.0.2.1")}},
		{"name inside", "br1 -i eth2 web 192.0.2.1/24", Options{Host: "br1", Link: "eth2", Guest: "web", IP: prefix("192.0.2.1/24")}},
		{"name outside", "br1 -i eth2 -l hostapp1 web 192.0.2.1/24", Options{Host: "br1", Link: "eth2", HostEnd: "hostapp1", Guest: "web", IP: prefix("192.0.2.1/24")}},
		{"family", "br1 -i eth2 -l hostapp1 -a inet6 web 2001:db8::2/64", Options{Host: "br1", Link: "eth2", HostEnd: "hostapp1", Family: 6, Guest: "web", IP: prefix("2001:db8::2/64")}},
		{"card itself", "--direct-phys eth1 web 192.0.2.2/24", Options{Host: "eth1", DirectPhys: true, Guest: "web", IP: prefix("192.0.2.2/24")}},
		{"card by its address", "--direct-phys mac:00:f3:15:4a:42:c8 -i container0 web 0/0", Options{Host: "mac:00:f3:15:4a:42:c8", DirectPhys: true, Link: "container0", Guest: "web"}},
		{"wait", "--wait", Options{Wait: true, Link: "eth1"}},
		{"wait for another", "--wait -i ib0", Options{Wait: true, Link: "ib0"}},
		{"no address", "br1 web 0/0", Options{Host: "br1", Guest: "web"}},
		{"dummy", "dummy web 192.0.2.101/24@192.0.2.1", Options{Host: "dummy", Guest: "web", IP: prefix("192.0.2.101/24"), Gateway: addr("192.0.2.1")}},
		{"DHCP", "eth1 web dhcp", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "dhcp"}}},
		{"dhclient", "eth1 web dhclient", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "dhclient"}}},
		{"dhclient that stays", "eth1 web dhclient-f", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "dhclient-f"}}},
		{"udhcpc", "eth1 web udhcpc", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "udhcpc"}}},
		{"udhcpc that stays", "eth1 web udhcpc-f", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "udhcpc-f"}}},
		{"dhcpcd", "eth1 web dhcpcd", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "dhcpcd"}}},
		{"DHCP with options", "eth1 web dhcp:-f", Options{Host: "eth1", Guest: "web", DHCP: &DHCP{Client: "dhcp", Options: "-f"}}},
		{"DHCP with MAC", "br0 web dhcp fa:de:b0:99:52:1c", Options{Host: "br0", Guest: "web", DHCP: &DHCP{Client: "dhcp"}, MAC: mac(t, "fa:de:b0:99:52:1c")}},
		{"MAC", "eth0 web 192.0.2.2/24 26:2e:71:98:60:8f", Options{Host: "eth0", Guest: "web", IP: prefix("192.0.2.2/24"), MAC: mac(t, "26:2e:71:98:60:8f")}},
		{"MAC from a word", "eth0 web dhcp U:myhost.foo.com", Options{Host: "eth0", Guest: "web", DHCP: &DHCP{Client: "dhcp"}, MAC: mac(t, "02:72:6c:cd:9b:8d")}},
		{"VLAN", "ovsbr0 web dhcp @10", Options{Host: "ovsbr0", Guest: "web", DHCP: &DHCP{Client: "dhcp"}, VLAN: "10"}},
		{"route", "route web add 198.51.100.0/24 via 192.0.2.1", Options{Guest: "web", Tool: []string{"ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.1"}}},
		{"rule", "rule web add from 192.0.2.2/32 table 1", Options{Guest: "web", Tool: []string{"ip", "rule", "add", "from", "192.0.2.2/32", "table", "1"}}},
		{"tc", "tc web qdisc add dev eth0 root netem loss 30%", Options{Guest: "web", Tool: []string{"tc", "qdisc", "add", "dev", "eth0", "root", "netem", "loss", "30%"}}},
		{"Open vSwitch", "ovsbr0 web 192.0.2.2/24", Options{Host: "ovsbr0", Guest: "web", IP: prefix("192.0.2.2/24")}},
		{"InfiniBand", "ib0 web 192.0.2.10/24 @8001", Options{Host: "ib0", Guest: "web", IP: prefix("192.0.2.10/24"), VLAN: "8001"}},

		// The variant in the thesis.
		{"ipvlan", "eth0 --ipvlan -i eth2 web 192.0.2.2/24", Options{Host: "eth0", IPvlan: true, Link: "eth2", Guest: "web", IP: prefix("192.0.2.2/24")}},
		{"host name", "eth0 -H web1 web dhcp", Options{Host: "eth0", HostName: "web1", Guest: "web", DHCP: &DHCP{Client: "dhcp"}}},

		// Forms that the examples lack.
		{"any order", "-l h0 br1 -a 4 -i eth2 web 192.0.2.1/24", Options{Host: "br1", Link: "eth2", HostEnd: "h0", Family: 4, Guest: "web", IP: prefix("192.0.2.1/24")}},
		{"netmask", "br1 web 192.0.2.1/255.255.255.128", Options{Host: "br1", Guest: "web", IP: prefix("192.0.2.1/25")}},
		{"no address, IPv6", "br1 web ::/0", Options{Host: "br1", Guest: "web"}},
		{"IPv6 gateway", "br1 web 2001:db8::2/64@fe80::1", Options{Host: "br1", Guest: "web", IP: prefix("2001:db8::2/64"), Gateway: addr("fe80::1")}},
		{"MAC and VLAN", "eth0 web 192.0.2.2/24 26:2e:71:98:60:8f@10", Options{Host: "eth0", Guest: "web", IP: prefix("192.0.2.2/24"), MAC: mac(t, "26:2e:71:98:60:8f"), VLAN: "10"}},
		{"word and VLAN", "eth0 web 0/0 U:myhost.foo.com@10", Options{Host: "eth0", Guest: "web", MAC: mac(t, "02:72:6c:cd:9b:8d"), VLAN: "10"}},
		{"a tool's own options", "route web -i -l", Options{Guest: "web", Tool: []string{"ip", "route", "-i", "-l"}}},
		{"help", "--help", Options{Help: true}},
		{"version", "--version", Options{Version: true}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			got, err := Parse(strings.Fields(r.args))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r.want, got, same); diff != "" {
				t.Errorf("pipework %s (-want +got):\n%s", r.args, diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	rows := []struct{ name, args, text, hint string }{
		{"nothing", "", "no HOSTIF given", "--help"},
		{"no guest", "br1", "no GUEST given", "pipework br1 web"},
		{"no address", "br1 web", "no address given", "0/0 for none"},
		{"no length", "br1 web 192.0.2.1", "prefix length missing", "maybe 192.0.2.1/24"},
		{"no length, IPv6", "br1 web 2001:db8::1", "prefix length missing", "maybe 2001:db8::1/64"},
		{"bad address", "br1 web 192.0.2.256/24", `"192.0.2.256" is not an address`, "0/0"},
		{"bad length", "br1 web 192.0.2.1/33", `"33" is not a prefix length`, "/24"},
		{"bad netmask", "br1 web 192.0.2.1/255.0.255.0", "255.0.255.0 is not a netmask", "255.255.255.0"},
		{"bad client", "br1 web dhcpc", "neither ADDRESS/LENGTH nor the name of a DHCP client", "dhcp"},
		{"bad gateway", "br1 web 192.0.2.1/24@gw", `gateway "gw" is not an address`, "@192.0.2.1"},
		{"empty gateway", "br1 web 192.0.2.1/24@", `gateway "" is not an address`, "@192.0.2.1"},
		{"gateway of the other family", "br1 web 192.0.2.1/24@2001:db8::1", "other family", ""},
		{"bad MAC", "br1 web 192.0.2.1/24 10", `"10" is not an Ethernet address`, "@10 for a VLAN alone"},
		{"no word", "br1 web 192.0.2.1/24 U:", "word after U: is missing", "U:web"},
		{"VLAN apart", "br1 web 192.0.2.1/24 02:00:5e:10:00:01 @10", "too many arguments: @10", "MAC@VLAN"},
		{"option too late", "br1 web -i eth2 192.0.2.1/24", "-i: options must precede GUEST", "pipework br1 -i eth2 web"},
		{"option without a value", "br1 -i", "-i: value missing", "--help"},
		{"unknown option", "br1 --ipvlna web 192.0.2.1/24", "unknown option --ipvlna", "--ipvlan"},
		{"unknown family", "br1 -a ipv6 web 192.0.2.1/24", "-a ipv6: no such family", "inet6"},
		{"other family", "br1 -a inet6 web 192.0.2.1/24", "does not belong to the family", "leave out -a"},
		{"both ways", "--direct-phys eth0 --ipvlan web 192.0.2.1/24", "exclude each other", "one of them"},
		{"late wait", "eth0 --wait", "--wait must come first", "pipework --wait"},
		{"wait for what", "--wait -i", "-i: value missing", ""},
		{"wait and more", "--wait -i eth1 web", `unknown argument "web"`, "pipework --wait -i"},
		{"wait otherwise", "--wait eth1", `unknown argument "eth1"`, "pipework --wait -i"},
		{"route of whom", "route", "route: want GUEST", "pipework route web show"},
		{"tc without words", "tc web", "tc: want GUEST", "pipework tc web show"},
		{"a fork's option", "--save /tmp/rules br1 web 192.0.2.1/24", "--save is not supported", "cleat ls"},
		{"a fork's other option", "--restore /tmp/rules", "--restore is not supported", "cleat ls"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			_, err := Parse(strings.Fields(r.args))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("pipework %s: %v, want an *Error", r.args, err)
			}
			if !strings.Contains(e.Error(), r.text) || !strings.Contains(e.Hint(), r.hint) {
				t.Errorf("pipework %s: %q, hint %q; want %q, hint %q", r.args, e, e.Hint(), r.text, r.hint)
			}
		})
	}
}
