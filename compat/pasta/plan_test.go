package pasta

import (
	"net/netip"
	"strings"
	"testing"

	"cleat/compat/portspec"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, addr(s))
	}
	return out
}

// office is a host with both families and its own resolver.
var office = Host{
	Link4:       Template{Link: "eth0", Addr: prefix("192.0.2.10/24"), Gateway: addr("192.0.2.1")},
	Link6:       Template{Link: "eth0", Addr: prefix("2001:db8::10/64"), Gateway: addr("fe80::1")},
	Nameservers: addrs("198.51.100.53"),
	Ephemeral:   portspec.Ports{First: 32768, Last: 60999},
}

var only4 = Host{Link4: office.Link4, Nameservers: office.Nameservers, Ephemeral: office.Ephemeral}

// router maps the gateway of office to itself, the router.
var router = sandbox.Mapping{Guest: addr("192.0.2.1"), Host: addr("192.0.2.1")}

// everything is the default: all listening ports are forwarded.
func everything(listen string, protocols ...sandbox.Protocol) (all []sandbox.AutoForward) {
	a := sandbox.AutoForward{Only: []sandbox.PortRange{{First: 1, Last: 32767}, {First: 61000, Last: 65535}}}
	if listen != "" {
		a.Listen = addr(listen)
	}
	for _, p := range protocols {
		a.TCP, a.UDP = p == sandbox.TCP, p == sandbox.UDP
		all = append(all, a)
	}
	return all
}

// quiet turns off all forwards; a row appends the options that it is about.
const quiet = "--config-net -t none -u none -T none -U none "

// like returns the plan of quiet on the office host, changed by change.
func like(change func(*sandbox.Config)) sandbox.Config {
	c := sandbox.Config{
		Interface: "eth0", MapRoot: true, Tier: sandbox.TierTUN, Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{DNS: []netip.Addr{}},
		Addr4: prefix("192.0.2.10/24"), Gateway4: addr("192.0.2.1"), HostLoopback4: addr("192.0.2.1"),
		Addr6: prefix("2001:db8::10/64"), Gateway6: addr("fe80::1"), HostLoopback6: addr("fe80::1"),
		DNS: sandbox.DNS{Off: true, KeepResolvConf: true},
	}
	change(&c)
	return c
}

func forward(p sandbox.Protocol, listen, to string) sandbox.Forward {
	f := sandbox.Forward{Protocol: p}
	f.Listen, f.To = end(listen), end(to)
	return f
}

// end parses "22" as port 22 of no address.
func end(s string) netip.AddrPort {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a
	}
	a := netip.MustParseAddrPort("192.0.2.1:" + s)
	return netip.AddrPortFrom(netip.Addr{}, a.Port())
}

func TestPlan(t *testing.T) {
	rows := []struct {
		name, args string
		host       Host
		config     sandbox.Config
		namespace  sandbox.Namespace
		command    string
		notices    string
	}{
		{
			name: "nothing forwarded", args: quiet, host: office,
			config: like(func(*sandbox.Config) {}),
		},
		{
			name: "Podman 5, one container with ports", host: office,
			args: "--config-net -t 127.0.0.1/8080-8081:80-81 -u 5353-5353:53-53 --dns-forward 169.254.1.1 -T none -U none --no-map-gw --quiet " +
				"--netns /run/user/1000/netns/netns-1 --map-guest-addr 169.254.1.2",
			config: like(func(c *sandbox.Config) {
				c.HostLoopback4, c.HostLoopback6 = netip.Addr{}, netip.Addr{}
				c.DNS = sandbox.DNS{Listen: addrs("169.254.1.1"), KeepResolvConf: true}
				c.Mappings = []sandbox.Mapping{{Guest: addr("169.254.1.2"), Host: addr("192.0.2.10")}, router}
				c.Forwards = []sandbox.Forward{
					forward(sandbox.TCP, "127.0.0.1:8080", "80"), forward(sandbox.TCP, "127.0.0.1:8081", "81"),
					forward(sandbox.UDP, "5353", "53"),
				}
			}),
			namespace: sandbox.Namespace{Path: "/run/user/1000/netns/netns-1"},
		},
		{
			name: "Podman 6, network of its own with IPv6 on a host without", host: only4,
			args: "--config-net -a fc00::3 -g fc00::1 --map-guest-addr fc00::2 --dns-forward 169.254.1.1 -t none -u none -T none -U none --no-map-gw --quiet " +
				"--map-guest-addr 169.254.1.2 --pid /tmp/pasta.pid --netns /run/user/1000/containers/networks/rootless-netns/rootless-netns",
			config: like(func(c *sandbox.Config) {
				c.HostLoopback4, c.HostLoopback6 = netip.Addr{}, netip.Addr{}
				c.Addr6, c.Gateway6 = prefix("fc00::3/64"), addr("fc00::1")
				c.DNS = sandbox.DNS{Listen: addrs("169.254.1.1"), KeepResolvConf: true}
				c.Mappings = []sandbox.Mapping{
					{Guest: addr("169.254.1.2"), Host: addr("192.0.2.10")}, router,
					{Guest: addr("fc00::2"), Host: addr("fc00::3")}, {Guest: addr("fc00::1"), Host: addr("fc00::1")},
				}
			}),
			namespace: sandbox.Namespace{Path: "/run/user/1000/containers/networks/rootless-netns/rootless-netns"},
		},
		{
			name: "RootlessKit's pasta driver", host: office,
			args: "--stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 " +
				"--no-map-gw --ipv4-only --tcp-ports=auto --udp-ports=auto 4711",
			config: sandbox.Config{
				Interface: "tap0", MTU: 65520, MapRoot: true, Tier: sandbox.TierTUN, Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{DNS: []netip.Addr{}}, NoIPv6: true,
				Addr4: prefix("10.0.2.100/24"), Gateway4: addr("10.0.2.2"),
				Mappings:           []sandbox.Mapping{{Guest: addr("10.0.2.2"), Host: addr("10.0.2.2")}},
				DNS:                sandbox.DNS{Listen: addrs("10.0.2.3"), KeepResolvConf: true},
				AutoForward:        everything("0.0.0.0", sandbox.TCP, sandbox.UDP),
				AutoReverseForward: everything("", sandbox.TCP, sandbox.UDP),
			},
			namespace: sandbox.Namespace{PID: 4711},
		},
		{
			name: "nothing said", args: "--config-net -- sh -c true", host: office, command: "sh -c true",
			config: like(func(c *sandbox.Config) {
				c.AutoForward, c.AutoReverseForward = everything("", sandbox.TCP, sandbox.UDP), everything("", sandbox.TCP, sandbox.UDP)
			}),
		},
		{
			name: "not set up", args: strings.TrimPrefix(quiet, "--config-net "), host: office,
			config: like(func(c *sandbox.Config) { c.NoConfigure = true }),
		},
		{
			name: "the gateway's own address", args: quiet + "-a 192.0.2.1 -a fe80::1", host: office,
			config: like(func(c *sandbox.Config) {
				c.Addr4, c.Gateway4, c.HostLoopback4 = prefix("192.0.2.1/24"), addr("169.254.2.2"), addr("169.254.2.2")
				c.Addr6, c.Gateway6, c.HostLoopback6 = prefix("fe80::1/64"), addr("fe80::2"), addr("fe80::2")
			}),
		},
		{
			name: "the same address twice", args: quiet + "-4 --no-map-gw -a 10.0.0.7/24 -g 10.0.0.7", host: office,
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
				c.Addr4, c.Gateway4, c.HostLoopback4 = prefix("10.0.0.7/24"), addr("169.254.2.2"), netip.Addr{}
			}),
		},
		{
			name: "MAC addresses", args: quiet + "--ns-mac-addr 02:00:5e:00:00:01 -M 02-00-5e-00-00-02", host: office,
			config: like(func(c *sandbox.Config) {
				c.Ethernet.MAC, c.Ethernet.GatewayMAC = sandbox.MAC{2, 0, 0x5e, 0, 0, 1}, sandbox.MAC{2, 0, 0x5e, 0, 0, 2}
			}),
		},
		{
			name: "announcements of the host's names", args: quiet + "--dhcp-dns --dhcp-search -H web --fqdn web.example.com",
			host: Host{Link4: office.Link4, Link6: office.Link6, Nameservers: addrs("198.51.100.53", "127.0.0.53", "2001:db8::53"), Search: []string{"example.com"}},
			config: like(func(c *sandbox.Config) {
				c.DNS = sandbox.DNS{Listen: addrs("192.0.2.1"), KeepResolvConf: true}
				c.Ethernet = sandbox.Ethernet{DNS: addrs("198.51.100.53", "192.0.2.1", "2001:db8::53"), Search: []string{"example.com"}, Hostname: "web", FQDN: "web.example.com"}
			}),
		},
		{
			name: "announcements of given names", args: quiet + "--dhcp-dns -D 192.0.2.7 -D 2001:db8::7 --dhcp-search -S a.example -S b.example", host: office,
			config: like(func(c *sandbox.Config) {
				c.Ethernet = sandbox.Ethernet{DNS: addrs("192.0.2.7", "2001:db8::7"), Search: []string{"a.example", "b.example"}}
			}),
		},
		{
			name: "announcement of the forwarding address", args: quiet + "--dhcp-dns --dns-forward 192.0.2.53 --dhcp-search -S none", host: office,
			config: like(func(c *sandbox.Config) {
				c.DNS = sandbox.DNS{Listen: addrs("192.0.2.53"), KeepResolvConf: true}
				c.Ethernet = sandbox.Ethernet{DNS: addrs("192.0.2.53"), Search: []string{}}
			}),
		},
		{
			name: "no announcement", args: quiet + "--dhcp-dns -D none", host: office,
			config: like(func(*sandbox.Config) {}),
		},
		{
			name: "nothing answered", args: quiet + "--no-dhcp --no-ndp --no-dhcpv6 --no-ra", host: office,
			config: like(func(c *sandbox.Config) {
				c.Ethernet = sandbox.Ethernet{NoDHCP: true, NoDHCPv6: true, NoNDP: true, NoRA: true, DNS: []netip.Addr{}}
			}),
		},
		{
			name: "no network on the host", args: quiet, host: Host{},
			config: sandbox.Config{
				Interface: "tap0", MapRoot: true, Tier: sandbox.TierTUN, Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{DNS: []netip.Addr{}}, NoIPv6: true, DNS: sandbox.DNS{Off: true, KeepResolvConf: true},
				Addr4: prefix("169.254.2.1/16"), Gateway4: addr("169.254.2.2"), HostLoopback4: addr("169.254.2.2"),
			},
		},
		{
			name: "only IPv6 on a host without", args: quiet + "-6", host: only4,
			config: sandbox.Config{
				Interface: "eth0", MapRoot: true, Tier: sandbox.TierTUN, Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{DNS: []netip.Addr{}}, NoIPv4: true, DNS: sandbox.DNS{Off: true, KeepResolvConf: true},
				Gateway6: addr("fe80::1"), HostLoopback6: addr("fe80::1"),
			},
		},
		{
			name: "the last of -4 and -6 counts", args: quiet + "-64", host: office,
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
			}),
		},
		{
			name: "a host without a gateway", args: quiet + "-4", host: Host{Link4: Template{Link: "wg0", Addr: prefix("192.0.2.10/32")}},
			config: sandbox.Config{
				Interface: "wg0", MapRoot: true, Tier: sandbox.TierTUN, Device: sandbox.DeviceTAP, Ethernet: sandbox.Ethernet{DNS: []netip.Addr{}}, NoIPv6: true, Addr4: prefix("192.0.2.10/32"), DNS: sandbox.DNS{Off: true, KeepResolvConf: true},
			},
		},
		{
			name: "address of a class", args: quiet + "-4 -a 10.1.2.3", host: office,
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
				c.Addr4 = prefix("10.1.2.3/8")
			}),
		},
		{
			name: "address and netmask in either order", args: quiet + "-n 255.255.255.0 -a 10.1.2.3 -a 2001:db8::7/48", host: office,
			config: like(func(c *sandbox.Config) { c.Addr4, c.Addr6 = prefix("10.1.2.3/24"), prefix("2001:db8::7/64") }),
		},
		{
			name: "netmask for the host's address", args: quiet + "-n 16", host: office,
			config: like(func(c *sandbox.Config) { c.Addr4 = prefix("192.0.2.10/16") }),
		},
		{
			name: "loopback at another address", args: quiet + "--map-host-loopback 192.0.2.99 --map-host-loopback 192.0.2.77 --no-map-gw", host: office,
			config: like(func(c *sandbox.Config) {
				c.HostLoopback4, c.HostLoopback6, c.Mappings = addr("192.0.2.77"), netip.Addr{}, []sandbox.Mapping{router}
			}),
		},
		{
			name: "loopback nowhere", args: quiet + "--map-host-loopback 192.0.2.99 --map-host-loopback none", host: office,
			config: like(func(c *sandbox.Config) {
				c.HostLoopback4, c.HostLoopback6, c.Mappings = netip.Addr{}, netip.Addr{}, []sandbox.Mapping{router}
			}),
		},
		{
			name: "the gateway again", args: quiet + "--no-map-gw --map-gw", host: office,
			config: like(func(*sandbox.Config) {}),
		},
		{
			name: "the gateway is the resolver", args: quiet + "-4",
			host: Host{Link4: office.Link4, Nameservers: addrs("192.0.2.1")},
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
				c.DNS = sandbox.DNS{Listen: addrs("192.0.2.1"), KeepResolvConf: true}
			}),
		},
		{
			name: "the resolver is on loopback", args: quiet + "-4 --dns-host 127.0.0.54",
			host: Host{Link4: office.Link4, Nameservers: addrs("127.0.0.53")},
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
				c.DNS = sandbox.DNS{Listen: addrs("192.0.2.1"), KeepResolvConf: true, Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.54:53")}}
			}),
		},
		{
			name: "a link-local resolver stays within reach", args: quiet + "-4 --no-map-gw",
			host: Host{Link4: office.Link4, Nameservers: addrs("169.254.169.254", "127.0.0.53")},
			config: like(func(c *sandbox.Config) {
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6, c.HostLoopback4 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}, netip.Addr{}
				c.DNS = sandbox.DNS{Listen: addrs("169.254.169.254"), KeepResolvConf: true}
				c.Mappings = []sandbox.Mapping{router}
			}),
		},
		{
			name: "dns none takes back", args: quiet + "--dns-forward 192.0.2.3 -D none", host: office,
			config: like(func(*sandbox.Config) {}),
		},
		{
			name: "small MTU", args: quiet + "-m 1000", host: office,
			config: like(func(c *sandbox.Config) {
				c.MTU = 1000
				c.NoIPv6, c.Addr6, c.Gateway6, c.HostLoopback6 = true, netip.Prefix{}, netip.Addr{}, netip.Addr{}
			}),
			notices: "MTU 1000 is too small for IPv6 (minimum 1280): IPv6 is disabled",
		},
		{
			name: "MTU left alone", args: quiet + "-m 0", host: office,
			config: like(func(c *sandbox.Config) { c.MTU = 1500 }),
		},
		{
			name: "outbound", args: quiet + "-o 192.0.2.11 -o 2001:db8::11 --outbound-if4 eth1 --outbound-if6=eth1", host: office,
			config: like(func(c *sandbox.Config) {
				c.Outbound4, c.Outbound6, c.OutboundInterface = addr("192.0.2.11"), addr("2001:db8::11"), "eth1"
			}),
		},
		{
			name: "no TCP", args: "--config-net --no-tcp --no-icmp -u 53 -U none", host: office,
			config: like(func(c *sandbox.Config) {
				c.Policy = without{tcp: true, icmp: true}
				c.Ethernet.NoNDP = true
				c.Forwards = []sandbox.Forward{forward(sandbox.UDP, "53", "53")}
			}),
		},
		{
			name: "forwards in all forms", args: "--config-net -t 192.0.2.10%eth0/22:2222 -t [::1]/22,24 -t 0.0.0.0/25:192.0.2.99/26 -u none -T 5432:15432 -U none", host: office,
			config: like(func(c *sandbox.Config) {
				bound := forward(sandbox.TCP, "192.0.2.10:22", "2222")
				bound.Interface = "eth0"
				c.Forwards = []sandbox.Forward{bound, forward(sandbox.TCP, "[::1]:22", "22"), forward(sandbox.TCP, "[::1]:24", "24"), forward(sandbox.TCP, "0.0.0.0:25", "192.0.2.99:26")}
				c.ReverseForwards = []sandbox.ReverseForward{{Protocol: sandbox.TCP, Listen: end("5432"), To: end("15432")}}
			}),
		},
		{
			name: "automatic with another port inside", args: "--config-net -t 8000-8001:9000-9001,auto -u none -T none -U none", host: office,
			config: like(func(c *sandbox.Config) {
				c.AutoForward = []sandbox.AutoForward{{TCP: true, Only: []sandbox.PortRange{{First: 9000, Last: 9001}}, Shift: map[uint16]int{9000: -1000, 9001: -1000}}}
			}),
		},
		{
			name: "all follows the listeners", args: "--config-net -t none -u 127.0.0.1/all -T none -U none", host: office,
			config: like(func(c *sandbox.Config) {
				c.AutoForward = everything("127.0.0.1", sandbox.UDP)
			}),
		},
		{
			name: "several sets of ports to follow", args: "--config-net -t ~1-21,~23-65535,auto -t 127.0.0.1/80,auto -T none -U none", host: office,
			config: like(func(c *sandbox.Config) {
				c.AutoForward = append([]sandbox.AutoForward{
					{TCP: true, Only: []sandbox.PortRange{{First: 22, Last: 22}}},
					{TCP: true, Listen: addr("127.0.0.1"), Only: []sandbox.PortRange{{First: 80, Last: 80}}},
				}, everything("", sandbox.UDP)...)
			}),
		},
		{
			name: "namespaces by path", args: quiet + "--userns /proc/7/ns/user --netns web --no-netns-quit", host: office,
			config:    like(func(*sandbox.Config) {}),
			namespace: sandbox.Namespace{Path: "/run/netns/web", UserNSPath: "/proc/7/ns/user", KeepRunning: true},
		},
		{
			name: "only the network namespace", args: quiet + "--userns /proc/7/ns/user --netns-only 7", host: office,
			config:    like(func(*sandbox.Config) {}),
			namespace: sandbox.Namespace{PID: 7, SkipUserNS: true},
		},
		{
			name: "a command may begin with a number and go on", args: quiet + "7 x", host: office, command: "7 x",
			config: like(func(*sandbox.Config) {}),
		},
		{
			name: "what is accepted because it changes nothing", host: office,
			args:    quiet + "-e -S example.com -D 192.0.2.53 --no-splice --chroot-fallback --no-pidns --no-copy-routes --no-copy-addrs --trace",
			config:  like(func(*sandbox.Config) {}),
			notices: "--no-copy-routes has no effect: this is always so\n--no-copy-addrs has no effect: this is always so\n--trace does not log single packets here: use --pcap FILE",
		},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err != nil {
				t.Fatal(err)
			}
			p, err := o.Plan(r.host)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Options{
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
				cmp.AllowUnexported(without{}),
			}
			if d := cmp.Diff(r.config, p.Config, same); d != "" {
				t.Errorf("config (-want +got):\n%s", d)
			}
			if d := cmp.Diff(r.namespace, p.Namespace); d != "" {
				t.Errorf("namespace (-want +got):\n%s", d)
			}
			if got := strings.Join(p.Command, " "); got != r.command {
				t.Errorf("command %q, want %q", got, r.command)
			}
			if got := strings.Join(p.Notices, "\n"); got != r.notices {
				t.Errorf("notices:\n%s\nwant:\n%s", got, r.notices)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	rows := []struct{ args, want string }{
		{"--bogus", "unrecognized option '--bogus'"},
		{"--no-m", ""},
		{"-t", "option requires an argument -- 't'"},
		{"--config-net=1", "option '--config-net' doesn't allow an argument"},
		{"-M 02:00:00:00:00", "-M 02:00:00:00:00: is not the MAC address of one station"},
		{"--ns-mac-addr 01:00:5e:00:00:01", "--ns-mac-addr 01:00:5e:00:00:01: is not the MAC address of one station"},
		{"--ns-mac-addr 00:00:00:00:00:00", "--ns-mac-addr 00:00:00:00:00:00: is not the MAC address of one station"},
		{"--no-dhcp-dns", "--no-dhcp-dns: is for passt, not for pasta"},
		{"--host-lo-to-ns-lo --version", "--host-lo-to-ns-lo: is not supported: connections to the host's loopback arrive at the namespace's own address"},
		{"-s /tmp/x", "-s /tmp/x: is for passt, not for pasta"},
		{"-m x", "-m x: want a number of bytes"},
		{"-m 65521", "-m 65521: is too large (max 65520)"},
		{"-m 68", "-m 68: is too small (min 576)"},
		{"-a 127.0.0.1", "-a 127.0.0.1: is not a usable address"},
		{"-a 192.0.2.1/24 -n 24", "-n 24: the prefix length is given twice"},
		{"-n 24 -a 192.0.2.1/24", "-a 192.0.2.1/24: the prefix length is given twice"},
		{"-n 255.0.255.0", "-n 255.0.255.0: is not a netmask"},
		{"-n 33", "-n 33: is not a netmask"},
		{"-g 0.0.0.0", "-g 0.0.0.0: is not a usable gateway address"},
		{"-o ff02::1", "-o ff02::1: is not a usable source address"},
		{"-D x", "-D x: is not an address"},
		{"--dns-forward 127.0.0.1", "--dns-forward 127.0.0.1: is not a usable address"},
		{"--map-host-loopback 1.2", "--map-host-loopback 1.2: is not a usable address"},
		{"-I abcdefghijklmnop", "-I abcdefghijklmnop: a link name has 1 to 15 bytes"},
		{"--log-size 3", "--log-size 3: want a number of bytes, at least 16384"},
		{"--netns /x true", "both --netns and PID or command given"},
		{"0", "invalid PID 0"},
		{"--no-pidns 7", "--no-pidns can't be combined with a PID or --netns"},
		{"--userns /x", "--userns requires a PID or --netns"},
		{"--outbound-if4 eth0", "--outbound-if4 and --outbound-if6 must name the same link, unless -4 or -6 is given"},
		{"-t 22 -t none", "-t none conflicts with previous options"},
		{"-t 22 -t 127.0.0.1/20-23", "-t 127.0.0.1/20-23: port 22 conflicts with an earlier specification"},
		{"-t all -t 22", "-t 22: port 22 conflicts with an earlier specification"},
		{"-t http", "-t: invalid port specifier 'http': 'http' is not a port"},
		{"-T 127.0.0.1/22", "-T 127.0.0.1/22: a listening address is not allowed"},
		{"-4 -t ::1/22", "-t needs IPv6, which is disabled"},
		{"--no-tcp -t 22", "-t 22: tcp is disabled"},
		{"-t 0.0.0.0/all:192.0.2.99", "-t can't follow listeners on 192.0.2.99: 'auto' and 'all' lead to the namespace's own address"},
	}
	for _, r := range rows {
		t.Run(r.args, func(t *testing.T) {
			o, err := Parse(strings.Fields(r.args))
			if err == nil {
				_, err = o.Plan(office)
			}
			switch {
			case r.want == "" && err != nil: // --no-m abbreviates --no-map-gw
				t.Errorf("%v", err)
			case r.want != "" && (err == nil || err.Error() != r.want):
				t.Errorf("%v, want %s", err, r.want)
			}
		})
	}
}

// TestEndings checks options that end parsing.
func TestEndings(t *testing.T) {
	if o, err := Parse([]string{"--version", "--bogus"}); err != nil || !o.Version {
		t.Errorf("--version before nonsense: %+v, %v", o, err)
	}
	if o, err := Parse([]string{"-qh", "-t"}); err != nil || !o.Help {
		t.Errorf("-h before nonsense: %+v, %v", o, err)
	}
}
