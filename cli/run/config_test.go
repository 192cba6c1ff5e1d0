package run

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/cli/exit"
	"cleat/policy"
	"cleat/sandbox"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
)

// runCommandLine parses the arguments of `cleat run` and returns their configuration.
func runCommandLine(t *testing.T, words ...string) (sandbox.Config, policy.Rules, error) {
	t.Helper()
	f := &flags{}
	cmd := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }}
	f.define(cmd)
	if err := cmd.ParseFlags(words); err != nil {
		t.Fatal(err)
	}
	return f.config()
}

func TestRunConfig(t *testing.T) {
	addr, prefix, port := netip.MustParseAddr, netip.MustParsePrefix, netip.MustParseAddrPort
	for _, tt := range []struct {
		name  string
		words string
		want  func(*sandbox.Config)
	}{
		{"nothing", "", func(*sandbox.Config) {}},
		{"queues", "--queues 3", func(c *sandbox.Config) { c.Queues = 3 }},
		{"mtu", "--mtu 1500", func(c *sandbox.Config) { c.MTU = 1500 }},
		{"addresses", "--addr 192.0.2.5/24 --addr 2001:db8::5/64", func(c *sandbox.Config) {
			c.Addr4, c.Addr6 = prefix("192.0.2.5/24"), prefix("2001:db8::5/64")
		}},
		{"addresses as a list", "--addr 192.0.2.5/24,ipv6=off", func(c *sandbox.Config) { c.Addr4, c.NoIPv6 = prefix("192.0.2.5/24"), true }},
		{"no IPv4", "--addr ipv4=off", func(c *sandbox.Config) { c.NoIPv4 = true }},
		{"gateways", "--gateway 192.0.2.1,2001:db8::1", func(c *sandbox.Config) { c.Gateway4, c.Gateway6 = addr("192.0.2.1"), addr("2001:db8::1") }},
		{"resolvers", "--dns 192.0.2.53 --dns [2001:db8::53]:5353,192.0.2.54:54 --dns 2001:db8::53", func(c *sandbox.Config) {
			c.DNS.Servers = []netip.AddrPort{port("192.0.2.53:53"), port("[2001:db8::53]:5353"), port("192.0.2.54:54"), port("[2001:db8::53]:53")}
		}},
		{"no resolver", "--dns off", func(c *sandbox.Config) { c.DNS.Off = true }},
		{"the host's loopback", "--host-loopback 192.0.2.1,2001:db8::1", func(c *sandbox.Config) {
			c.HostLoopback4, c.HostLoopback6 = addr("192.0.2.1"), addr("2001:db8::1")
		}},
		{"the host's loopback off", "--host-loopback off", func(*sandbox.Config) {}},
		{"mappings", "--map 192.0.2.7=198.51.100.7 --map 2001:db8::7=::1", func(c *sandbox.Config) {
			c.Mappings = []sandbox.Mapping{{Guest: addr("192.0.2.7"), Host: addr("198.51.100.7")}, {Guest: addr("2001:db8::7"), Host: addr("::1")}}
		}},
		{"outbound", "--outbound lo --outbound 127.0.0.9,::1", func(c *sandbox.Config) {
			c.OutboundInterface, c.Outbound4, c.Outbound6 = "lo", addr("127.0.0.9"), addr("::1")
		}},
		{"device and root", "--interface tap0 --map-root", func(c *sandbox.Config) { c.Interface, c.MapRoot = "tap0", true }},
		{"an Ethernet card", "--device tap", func(c *sandbox.Config) { c.Device = sandbox.DeviceTAP }},
		{"ports", "-p 8080:80 -p auto/tcp", func(c *sandbox.Config) {
			c.Forwards = []sandbox.Forward{{Protocol: sandbox.TCP, Listen: netip.AddrPortFrom(netip.Addr{}, 8080), To: netip.AddrPortFrom(netip.Addr{}, 80)}}
			c.AutoForward = []sandbox.AutoForward{{TCP: true}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := runCommandLine(t, strings.Fields(tt.words)...)
			if err != nil {
				t.Fatal(err)
			}
			want := sandbox.Config{MTU: 65520, Device: sandbox.DeviceTUN}
			tt.want(&want)
			if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if _, err := sandbox.New(got); err != nil {
				t.Errorf("the library refuses it: %v", err)
			}
		})
	}
}

func TestRunConfigRefuses(t *testing.T) {
	for _, tt := range []struct{ name, words, want string }{
		{"both families off", "--addr ipv4=off,ipv6=off", "both families are off"},
		{"an address of a family that is off", "--addr ipv4=off --addr 192.0.2.5/24", "an address of a family that is off"},
		{"an address without length", "--addr 192.0.2.5", `--addr "192.0.2.5"`},
		{"two of a family", "--addr 192.0.2.5/24 --addr 192.0.2.6/24", "only one address of each family"},
		{"IPv4 in IPv6", "--addr ::ffff:192.0.2.5/100", "--addr"},
		{"a gateway by name", "--gateway router", `--gateway "router"`},
		{"two gateways", "--gateway 192.0.2.1,192.0.2.2", "only one address of each family"},
		{"a gateway of a family that is off", "--addr ipv6=off --gateway 2001:db8::1", "--gateway: the family of 2001:db8::1 is off"},
		{"a resolver by name", "--dns dns.example.com", `--dns "dns.example.com"`},
		{"a resolver's port", "--dns 192.0.2.53:0", "--dns"},
		{"a resolver and off", "--dns off,192.0.2.53", "can't be combined with servers"},
		{"loopback at loopback", "--host-loopback 127.0.0.1", "a unicast address that is not loopback"},
		{"loopback twice", "--host-loopback 192.0.2.1,192.0.2.2", "only one address of each family"},
		{"loopback and off", "--host-loopback 192.0.2.1,off", "can't be combined with addresses"},
		{"loopback of a family that is off", "--addr ipv4=off --host-loopback 192.0.2.1", "the family of 192.0.2.1 is off"},
		{"a mapping of two families", "--map 192.0.2.1=::1", "two addresses of one family"},
		{"half a mapping", "--map 192.0.2.1", "two addresses of one family"},
		{"a mapping of a family that is off", "--addr ipv4=off --map 192.0.2.1=192.0.2.2", "the family of 192.0.2.1 is off"},
		{"an unknown link", "--outbound nosuch0", "neither an address nor a link"},
		{"two links", "--outbound lo,lo", "one link"},
		{"an address of another host", "--outbound 192.0.2.9", "not an address of this host"},
		{"the network's own address", "--addr 10.9.0.0/24", "this is the network"},
		{"outbound of a family that is off", "--addr ipv6=off --outbound ::1", "is off"},
		{"a port of a family that is off", "--addr ipv6=off -p [::1]:80", "--publish: the family of ::1 is off"},
		{"auto of a family that is off", "--addr ipv4=off -p 127.0.0.1:auto", "--publish: the family of 127.0.0.1 is off"},
		{"mtu 0", "--mtu 0", "--mtu 0: want"},
		{"a rule", "--allow 192.0.2.0/33", "--allow"},
		{"a rule's protocol", "--deny example.com/sctp", "--deny"},
		{"a policy file that is not there", "--policy nosuch", "read policy: open nosuch"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := runCommandLine(t, strings.Fields(tt.words)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !exit.IsUsage(err) {
				t.Errorf("error %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

// Errors of the library are reported in terms of the flag.
func TestRunConfigError(t *testing.T) {
	for _, tt := range []struct{ name, words, want string }{
		{"mtu too small", "--mtu 500", `--mtu "500": want`},
		{"mtu too small for IPv6", "--mtu 1000", `--mtu "1000": want 1280 to`},
		{"mtu too large", "--mtu 65521", `--mtu "65521": want`},
		{"a device's name", "--interface a/b", `--interface "a/b": want`},
		{"the guest's own address", "--addr 192.0.2.5/24 --host-loopback 192.0.2.5", `--host-loopback "192.0.2.5": want`},
		{"the same address twice", "--host-loopback 192.0.2.7 --map 192.0.2.7=192.0.2.8", `--map "192.0.2.7": want`},
		{"no room for a gateway", "--addr 192.0.2.5/32", "--addr|--gateway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _, err := runCommandLine(t, strings.Fields(tt.words)...)
			if err != nil {
				t.Fatal(err)
			}
			_, err = sandbox.New(cfg)
			err = configError(err)
			if err == nil || !exit.IsUsage(err) {
				t.Fatalf("error %v, want a usage error", err)
			}
			for _, one := range strings.Split(tt.want, "|") {
				if strings.Contains(err.Error(), one) {
					return
				}
			}
			t.Errorf("error %v, want %q", err, tt.want)
		})
	}
}

func TestRunRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte("# a mirror\nallow example.com:443/tcp\ndefault deny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, rules, err := runCommandLine(t, "--deny", "192.0.2.0/24", "--policy", file, "--allow", "198.51.100.1:80")
	if err != nil {
		t.Fatal(err)
	}
	got, err := rules.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	want := "default deny\nallow example.com:443/tcp\nallow 198.51.100.1:80\ndeny 192.0.2.0/24\n"
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("rules -want +got:\n%s", d)
	}
	if err := os.WriteFile(file, []byte("alow example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := runCommandLine(t, "--policy", file); err == nil || !exit.IsUsage(err) || !strings.Contains(err.Error(), file) {
		t.Errorf("a policy file with a mistake: %v, want a usage error with its name", err)
	}
}

func TestRunCheckUse(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    flags
		args []string
		want string // "" if there is none
	}{
		{"a command", flags{}, []string{"true"}, ""},
		{"a namespace", flags{netns: "1"}, nil, ""},
		{"nothing", flags{}, nil, "no command given"},
		{"both", flags{netns: "1"}, []string{"true"}, "can't be combined with a command"},
		{"root in a namespace", flags{netns: "1", mapRoot: true}, nil, "--map-root needs a command"},
		{"another network", flags{net: "bridge"}, []string{"true"}, "unknown kind of network"},
		{"another device", flags{device: "tup"}, []string{"true"}, "unknown kind of device"},
		{"another tier", flags{tier: "tap"}, []string{"true"}, "unknown tier"},
		{"a name without control", flags{control: "off", name: "web"}, []string{"true"}, "--control off disables"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.f.net == "" {
				tt.f.net = "user"
			}
			if tt.f.tier == "" {
				tt.f.tier = "auto"
			}
			if tt.f.device == "" {
				tt.f.device = "tun"
			}
			err := tt.f.check(tt.args)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !exit.IsUsage(err) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
