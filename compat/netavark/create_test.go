package netavark

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cleat/compat/netavark/args"
)

const id = "abc123def4567890123456789012345678901234567890123456789012345678"

// createText returns the input of create for a network with some keys.
func createText(keys string) []byte {
	return fmt.Appendf(nil, `{"network": {"name": "web", "id": %q, "driver": "bridge", "dns_enabled": false, "internal": false, "ipv6_enabled": false%s},
		"used": {"interfaces": ["podman1"], "names": {"old": %q}, "subnets": ["10.89.0.0/24", "10.1.3.0/24"]},
		"options": {"subnet_pools": [{"base": "10.89.0.0/16", "size": 24}], "default_interface_name": "podman", "check_used_subnets": true}}`, id, keys, id)
}

func create(text []byte) (*network, error) {
	var out bytes.Buffer
	c := &call{Call: Call{Stdin: text, Out: &out}, line: args.Line{Command: "create"}}
	if err := c.create(); err != nil {
		return nil, err
	}
	var n network
	return &n, json.Unmarshal(out.Bytes(), &n)
}

func TestCreate(t *testing.T) {
	for _, tt := range []struct{ name, keys, want string }{
		{"default", ``, "podman2 10.89.1.0/24@10.89.1.1 host-local"},
		{"subnet", `, "subnets": [{"subnet": "10.100.0.0/24"}]`, "podman2 10.100.0.0/24@10.100.0.1 host-local"},
		{"gateway", `, "subnets": [{"subnet": "10.100.0.0/24", "gateway": "10.100.0.50"}]`, "podman2 10.100.0.0/24@10.100.0.50 host-local"},
		{"internal", `, "internal": true, "subnets": [{"subnet": "10.100.0.0/24"}]`, "podman2 10.100.0.0/24@- host-local"},
		{"internal with DNS", `, "internal": true, "dns_enabled": true, "subnets": [{"subnet": "10.100.0.0/24"}]`, "podman2 10.100.0.0/24@10.100.0.1 host-local dns"},
		{"IPv6 subnet", `, "subnets": [{"subnet": "fd00:1::/64"}]`, "podman2 fd00:1::/64@fd00:1::1 host-local ipv6"},
		{"bridge name of Docker", `, "options": {"com.docker.network.bridge.name": "br7", "com.docker.network.driver.mtu": "1400"}`, "br7 10.89.1.0/24@10.89.1.1 host-local mtu=1400"},
		{"unmanaged bridge that is used", `, "network_interface": "podman1", "options": {"mode": "unmanaged"}`, "podman1 10.89.0.0/24@10.89.0.1 host-local mode=unmanaged"},
		{"no addresses", `, "dns_enabled": true, "ipam_options": {"driver": "none"}`, "podman2 none"},
		{"macvlan by DHCP", `, "driver": "macvlan"`, "- dhcp"},
		{"macvlan", `, "driver": "macvlan", "dns_enabled": true, "subnets": [{"subnet": "10.100.0.0/24"}]`, "- 10.100.0.0/24@10.100.0.1 host-local"},
		{"blackhole", `, "routes": [{"destination": "10.5.0.0/16", "route_type": "blackhole"}]`, "podman2 10.89.1.0/24@10.89.1.1 host-local blackhole:10.5.0.0/16"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := create(createText(tt.keys))
			if err != nil {
				t.Fatal(err)
			}
			if got := show(n); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if n.Created == "" || n.ID != id {
				t.Errorf("created %q, id %q", n.Created, n.ID)
			}
		})
	}
}

func show(n *network) string {
	words := []string{n.device()}
	if n.Interface == nil {
		words[0] = "-"
	}
	for _, s := range n.Subnets {
		gateway := "-"
		if s.Gateway != nil {
			gateway = s.Gateway.String()
		}
		words = append(words, s.Subnet.String()+"@"+gateway)
	}
	words = append(words, n.ipamDriver())
	for name, v := range n.Options {
		words = append(words, name+"="+v)
	}
	for _, r := range n.Routes {
		words = append(words, *r.Type+":"+r.To.String())
	}
	if n.DNS {
		words = append(words, "dns")
	}
	if n.IPv6 {
		words = append(words, "ipv6")
	}
	return strings.Join(words, " ")
}

// A subnet of each family is chosen for a network with IPv6.
func TestCreateDualStack(t *testing.T) {
	n, err := create(createText(`, "ipv6_enabled": true`))
	if err != nil || len(n.Subnets) != 2 || !n.Subnets[0].Subnet.Addr().Is4() || n.Subnets[1].Subnet.Addr().As16()[0] != 0xfd {
		t.Errorf("%+v, %v", n, err)
	}
}

// Callers know these texts.
func TestCreateErrors(t *testing.T) {
	for keys, want := range map[string]string{
		`, "name": ""`:                     "Network name must be supplied",
		`, "name": "a b"`:                  `Invalid characters in network name "a b": must match [a-zA-Z0-9][a-zA-Z0-9_.-]*`,
		`, "name": "old"`:                  "network already exists old",
		`, "id": ""`:                       "Network id must be supplied",
		`, "id": "abc"`:                    `Network id must be a hexadecimal string "abc"`,
		`, "network_interface": "podman1"`: "bridge name podman1 already in use",
		`, "network_interface": "abcdefghijklmnop"`:                                                               "Interface name is too long: interface names must be 15 characters or less: abcdefghijklmnop",
		`, "options": {"mtu": "x"}`:                                                                               `unable to parse "mtu": invalid digit found in string`,
		`, "options": {"vlan": "5000"}`:                                                                           "vlan must be between 0 and 4094",
		`, "options": {"colour": "red"}`:                                                                          "unsupported bridge network option: colour",
		`, "options": {"isolate": "perhaps"}`:                                                                     `invalid isolate option "perhaps"`,
		`, "ipam_options": {"driver": "none"}, "subnets": [{"subnet": "10.100.0.0/24"}]`:                          "None ipam driver is set but subnets are given",
		`, "subnets": [{"subnet": "10.1.0.0/16"}]`:                                                                "subnet 10.1.0.0/16 is already used on the host or by another config",
		`, "subnets": [{"subnet": "10.2.0.0/16"}, {"subnet": "10.2.3.0/24"}]`:                                     "overlapping subnets: 10.2.0.0/16 and 10.2.3.0/24",
		`, "subnets": [{"subnet": "10.2.0.0/24", "gateway": "10.3.0.1"}]`:                                         "gateway 10.3.0.1 not in subnet 10.2.0.0/24",
		`, "subnets": [{"subnet": "192.168.0.0/32"}]`:                                                             "could not create gateway for subnet 192.168.0.0/32 because it has a 31 or greater subnet prefix",
		`, "subnets": [{"subnet": "10.2.0.0/24", "lease_range": {"start_ip": "10.3.0.1"}}]`:                       "lease range start_ip 10.3.0.1 not in subnet 10.2.0.0/24",
		`, "subnets": [{"subnet": "10.2.0.0/24", "lease_range": {"start_ip": "10.2.0.9", "end_ip": "10.2.0.2"}}]`: "lease range start_ip 10.2.0.9 must be less than or equal to end_ip 10.2.0.2",
		`, "network_dns_servers": ["192.0.2.1"]`:                                                                  "cannot set NetworkDNSServers if DNS is not enabled for the network",
		`, "network_dns_servers": ["x"]`:                                                                          "failed to load network create: IO error: invalid IP address syntax",
		`, "routes": [{"destination": "10.5.0.0/16"}]`:                                                            "route 10.5.0.0/16 requires a gateway for type unicast",
		`, "routes": [{"destination": "10.5.0.1/16", "gateway": "10.2.0.1"}]`:                                     "route destination invalid",
		`, "driver": "ipvlan"`:                                                                                    "ipam driver dhcp is not supported with ipvlan",
		`, "driver": "macvlan", "network_interface": "none"`:                                                      "parent interface none does not exist",
		`, "driver": "macvlan", "options": {"mode": "l2"}, "subnets": [{"subnet": "10.2.0.0/24"}]`:                `invalid macvlan mode "l2"`,
		`, "driver": "other"`:                                                                                     `plugin for driver "other" not found in plugin directories`,
	} {
		if _, err := create(createText(keys)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", keys, err, want)
		}
	}
}

// Names that cleat's networks can't have get an equivalent.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{"web": "web web-abc123de", "Web.1": "web-1-abc123de"} {
		if got := strings.Join((&network{Name: name, ID: id}).names(), " "); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestPorts(t *testing.T) {
	o := options{Ports: []portMapping{{Port: 80, HostPort: 8080, Protocol: "tcp,udp", Range: 3}, {Port: 53, HostPort: 53, HostIP: "127.0.0.1"}}}
	ports, err := o.ports()
	var got []string
	for _, p := range ports {
		got = append(got, p.String())
	}
	if want := "8080-8082:80-82 8080-8082:80-82/udp 127.0.0.1:53:53"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("got %q, %v, want %s", got, err, want)
	}
	o.Ports = []portMapping{{Port: 1, HostPort: 8080, HostIP: "abcd"}}
	if _, err := o.ports(); err == nil || err.Error() != `invalid host ip "abcd" provided for port 8080` {
		t.Errorf("host ip: %v", err)
	}
}
