package slirp4netns

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"cleat/compat/getopt"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
)

// links are the host's links for --outbound-addr.
func links(link string, four bool) (netip.Addr, error) {
	switch {
	case link != "eth0":
		return netip.Addr{}, fmt.Errorf("no link %s", link)
	case four:
		return netip.MustParseAddr("192.0.2.10"), nil
	}
	return netip.MustParseAddr("2001:db8::10"), nil
}

// like returns the plan of "4711 tap0", changed by change.
func like(change func(*sandbox.Config)) sandbox.Config {
	c := sandbox.Config{
		Interface: "tap0", MTU: 1500, NoConfigure: true, ReplaceTUN: true, NoIPv6: true, Tier: sandbox.TierTUN,
		Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{GatewayMAC: sandbox.MAC{0x52, 0x55, 10, 0, 2, 2}},
		Addr4: netip.MustParsePrefix("10.0.2.100/24"), Gateway4: netip.MustParseAddr("10.0.2.2"), HostLoopback4: netip.MustParseAddr("10.0.2.2"),
		DNS: sandbox.DNS{Listen: []netip.Addr{netip.MustParseAddr("10.0.2.3")}, KeepResolvConf: true},
	}
	change(&c)
	return c
}

func TestPlan(t *testing.T) {
	rows := []struct {
		name, args string
		config     sandbox.Config
		namespace  sandbox.Namespace
		notices    string
	}{
		{"the least", "4711 tap0", like(func(*sandbox.Config) {}), sandbox.Namespace{PID: 4711}, ""},
		{"without a name", "4711", like(func(*sandbox.Config) {}), sandbox.Namespace{PID: 4711}, ""},
		{
			"RootlessKit", "--mtu 65520 -r 3 --disable-host-loopback --cidr 10.0.3.0/24 --api-socket /run/x/.s4nn.sock --enable-sandbox --enable-seccomp 4711 tap0",
			like(func(c *sandbox.Config) {
				c.MTU, c.HostLoopback4 = 65520, netip.Addr{}
				c.Addr4, c.Gateway4 = netip.MustParsePrefix("10.0.3.100/24"), netip.MustParseAddr("10.0.3.2")
				c.DNS.Listen = []netip.Addr{netip.MustParseAddr("10.0.3.3")}
				c.Ethernet.GatewayMAC = sandbox.MAC{0x52, 0x55, 10, 0, 3, 2}
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{
			"RootlessKit, detached namespace", "--mtu 65520 -r 3 --userns-path=/proc/4711/ns/user --netns-type=path /run/user/1000/x/netns tap0",
			like(func(c *sandbox.Config) { c.MTU = 65520 }),
			sandbox.Namespace{Path: "/run/user/1000/x/netns", UserNSPath: "/proc/4711/ns/user"}, "",
		},
		{
			"options after arguments", "4711 tun7 -c --mtu=9000", like(func(c *sandbox.Config) {
				c.Interface, c.MTU, c.NoConfigure = "tun7", 9000, false
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{
			"MAC address", "-c --macaddress 02:00:5e:00:00:01 4711 tap0", like(func(c *sandbox.Config) {
				c.NoConfigure, c.Ethernet.MAC = false, sandbox.MAC{2, 0, 0x5e, 0, 0, 1}
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{
			"IPv6", "-c -6 4711 tap0", like(func(c *sandbox.Config) {
				c.NoConfigure, c.NoIPv6 = false, false
				c.Addr6, c.Gateway6, c.HostLoopback6 = netip.MustParsePrefix("fd00::100/64"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::2")
				c.DNS.Listen = append(c.DNS.Listen, netip.MustParseAddr("fd00::3"))
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{
			"IPv6 that nobody sets up", "-6 --disable-host-loopback --disable-dns 4711 tap0", like(func(c *sandbox.Config) {
				c.NoIPv6, c.HostLoopback4 = false, netip.Addr{}
				c.Addr6, c.Gateway6 = netip.MustParsePrefix("fd00::100/64"), netip.MustParseAddr("fd00::2")
				c.DNS.Off, c.DNS.Listen = true, nil
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{
			"outbound addresses", "--outbound-addr=198.51.100.1 --outbound-addr6=eth0 4711 tap0", like(func(c *sandbox.Config) {
				c.Outbound4, c.Outbound6 = netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::10")
			}), sandbox.Namespace{PID: 4711}, "",
		},
		{"too many arguments", "4711 tap0 x", like(func(*sandbox.Config) {}), sandbox.Namespace{PID: 4711}, "arguments after the device's name are ignored, as in slirp4netns"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err != nil {
				t.Fatal(err)
			}
			p, err := o.Plan(links)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Options{
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
			}
			if d := cmp.Diff(r.config, p.Config, same); d != "" {
				t.Errorf("config (-want +got):\n%s", d)
			}
			if d := cmp.Diff(r.namespace, p.Namespace); d != "" {
				t.Errorf("namespace (-want +got):\n%s", d)
			}
			if got := strings.Join(p.Notices, "\n"); got != r.notices {
				t.Errorf("notices %q, want %q", got, r.notices)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	rows := []struct {
		args, want string
		usage      bool
	}{
		{"--bogus", "unrecognized option '--bogus'", true},
		{"--en 1 tap0", "option '--en' is ambiguous; possibilities: '--enable-ipv6' '--enable-sandbox' '--enable-seccomp'", true},
		{"-m", "option requires an argument -- 'm'", true},
		{"", "missing namespace: PID, or a path with --netns-type=path", true},
		{"x tap0", `PID "x" is not a positive integer; for a path use --netns-type=path`, true},
		{"0 tap0", `PID "0" is not a positive integer; for a path use --netns-type=path`, true},
		{"1 abcdefghijklmnop", `device "abcdefghijklmnop": a link name has 1 to 15 bytes`, false},
		{"-e -1 1 tap0", "-e -1: must be a non-negative integer", false},
		{"--ready-fd=x 1 tap0", "--ready-fd x: must be a non-negative integer", false},
		{"--mtu x 1 tap0", "--mtu x: must be a positive integer", false},
		{"--mtu 65521 1 tap0", "--mtu 65521: must be 576 to 65520", false},
		{"--mtu 1000 -6 1 tap0", "--enable-ipv6: the MTU must be at least 1280", false},
		{"--cidr 10.0.0.1/24 1 tap0", "--cidr 10.0.0.1/24: needs to be a network address, like 10.0.0.0/24", false},
		{"--cidr 10.0.0.0/26 1 tap0", "--cidr 10.0.0.0/26: prefix length needs to be 1-25", false},
		{"--cidr 2001:db8::/32 1 tap0", "--cidr 2001:db8::/32: is not an IPv4 network in CIDR notation", false},
		{"--macaddress 02:00:00:00:00:01 1 tap0", "--macaddress requires --configure", false},
		{"--macaddress 03:00:00:00:00:01 -c 1 tap0", "--macaddress 03:00:00:00:00:01: is not the MAC address of one station", false},
		{"--netns-type=tapfd 5", "--netns-type tapfd: is not supported: the device is created in the namespace", false},
		{"--target-type=bess /tmp/x", "--target-type bess: is not supported: only network namespaces are", false},
		{"--outbound-addr 2001:db8::1 1 tap0", "--outbound-addr 2001:db8::1: is not a usable source address", false},
		{"--outbound-addr6 eth9 1 tap0", "--outbound-addr6 eth9: no link eth9", false},
	}
	for _, r := range rows {
		t.Run(r.args, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err == nil {
				_, err = o.Plan(links)
			}
			if err == nil || err.Error() != r.want {
				t.Errorf("%v, want %s", err, r.want)
			}
			if usage := new(getopt.Error); errors.As(err, &usage) != r.usage {
				t.Errorf("with the usage: %v, want %v", !r.usage, r.usage)
			}
		})
	}
}
