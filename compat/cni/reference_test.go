package cni_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/named"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The tests of this file show what the tests of the reference plug-ins
// (github.com/containernetworking/plugins) show of theirs. doc/plugins.md says which of these hold.

// routes returns the destinations and gateways of a link's routes in the tables of a namespace, apart from
// those of the kernel.
func routes(t *testing.T, ns *netns.NS, name string) (all []string) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	found, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: attributes(t, ns, name).Index, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	must(t, err)
	for _, r := range found {
		if r.Protocol != unix.RTPROT_KERNEL {
			all = append(all, fmt.Sprintf("%v via %v", r.Dst, r.Gw))
		}
	}
	slices.Sort(all)
	return all
}

// compare compares what a result says of a container's link with the kernel.
func compare(t *testing.T, tb *testbed, c *container, r *types100.Result) {
	t.Helper()
	for i, at := range r.Interfaces {
		ns := tb.host
		if at.Sandbox != "" {
			ns = c.ns
		}
		a := attributes(t, ns, at.Name)
		if at.Mac != a.HardwareAddr.String() || at.Mtu != a.MTU {
			t.Errorf("interface %d of the result is %+v, in the kernel %s with MTU %d", i, at, a.HardwareAddr, a.MTU)
		}
	}
	last := r.Interfaces[len(r.Interfaces)-1]
	if last.Name != c.ifname || last.Sandbox != c.path {
		t.Errorf("the last interface is %+v", last)
	}
	var ips, ways []string
	for _, ip := range r.IPs {
		if ip.Interface == nil || r.Interfaces[*ip.Interface] != last {
			t.Errorf("%v is not on %s", ip, c.ifname)
		}
		ips = append(ips, ip.Address.String())
	}
	for _, route := range r.Routes {
		ways = append(ways, fmt.Sprintf("%s via %v", route.Dst.String(), route.GW))
	}
	slices.Sort(ways)
	if diff := cmp.Diff(addresses(t, c.ns, c.ifname), ips); diff != "" {
		t.Errorf("addresses (-kernel +result):\n%s", diff)
	}
	if diff := cmp.Diff(routes(t, c.ns, c.ifname), ways); diff != "" {
		t.Errorf("routes (-kernel +result):\n%s", diff)
	}
}

// TestDrivers takes a container through all verbs on a network of each driver: bridge, ptp, macvlan, ipvlan
// and vlan of the reference plug-ins.
func TestDrivers(t *testing.T) {
	dual := []named.Subnet{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}, {Prefix: netip.MustParsePrefix("2001:db8::/64")}}
	lan := []named.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("198.51.100.2")}}
	for _, tt := range []struct {
		name  string
		spec  named.NetworkSpec
		kinds []string
		hosts int  // interfaces of the host in the result
		apart bool // nobody is the gateway
	}{
		{name: "bridge", spec: named.NetworkSpec{Subnets: dual}, hosts: 2},
		{name: "bridge with IPv6 only", spec: named.NetworkSpec{Subnets: dual[1:]}, hosts: 2},
		{name: "routed", spec: named.NetworkSpec{Driver: named.Routed, Subnets: dual, MTU: 1400}, hosts: 1},
		{name: "macvlan", spec: named.NetworkSpec{Driver: named.Macvlan, Parent: "nic", Subnets: lan, MTU: 1400}, kinds: []string{"macvlan"}},
		{name: "ipvlan", spec: named.NetworkSpec{Driver: named.IPvlan, Parent: "nic", Subnets: lan}, kinds: []string{"ipvlan"}},
		{name: "ipvlan l3", spec: named.NetworkSpec{Driver: named.IPvlan, Mode: "l3", Parent: "nic", Subnets: lan}, kinds: []string{"ipvlan"}, apart: true},
		{name: "vlan", spec: named.NetworkSpec{Driver: named.VLAN, VLAN: 100, Parent: "nic", Subnets: dual}, kinds: []string{"vlan", "macvlan"}, apart: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			for _, kind := range tt.kinds {
				if err := link.Probe(kind); err != nil {
					t.Skip(err)
				}
			}
			tt.spec.Name = "web"
			tb.create(tt.spec)
			c := tb.container("c")
			before := tb.snapshot(c)
			tb.succeed("DEL", c, web) // before any ADD
			tb.succeed("STATUS", nil, web)
			r := tb.add(c, web)
			compare(t, tb, c, r)
			if got := len(r.Interfaces) - 1; got != tt.hosts {
				t.Errorf("the result has %d interfaces of the host, want %d", got, tt.hosts)
			}
			if a := attributes(t, c.ns, "eth0"); tt.spec.MTU != 0 && a.MTU != tt.spec.MTU || a.RawFlags&unix.IFF_UP == 0 {
				t.Errorf("eth0 has MTU %d and flags %s", a.MTU, a.Flags)
			}
			tb.succeed("CHECK", c, web)
			if gateway := map[bool]*netns.NS{true: tb.host, false: tb.outside}[tt.hosts > 0]; !tt.apart {
				serve(t, gateway, 80)
				for _, ip := range r.IPs {
					to := netip.MustParseAddr(ip.Gateway.String())
					if to.IsLinkLocalUnicast() { // of a route; the host answers at its own address
						to = netip.MustParseAddr("2001:db8::1")
					}
					if got := reach(t, c.ns, netip.AddrPortFrom(to, 80).String(), gateway); got != gateway.String() {
						t.Errorf("gateway %s: %q", to, got)
					}
				}
			}
			tb.succeed("DEL", c, web)
			tb.succeed("DEL", c, web)
			if diff := cmp.Diff(before, tb.snapshot(c)); diff != "" {
				t.Errorf("DEL leaves (-before +after):\n%s", diff)
			}
		})
	}
}

// TestFailedAdd: an ADD that fails leaves nothing in the kernel, and takes no address.
func TestFailedAdd(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, tb *testbed, c *container)
		conf    conf
		code    uint
		text    string
	}{
		{"interface exists", func(t *testing.T, tb *testbed, c *container) {
			_, err := link.Create(tb.host, link.VethSpec{Attrs: link.Attrs{Name: "first"}, Peer: link.Attrs{Name: "eth0"}}, link.Target{PeerNS: c.ns})
			must(t, err)
		}, nil, 100, "eth0"},
		{"interface exists in a result, on the host", func(t *testing.T, tb *testbed, c *container) {
			_, err := link.Create(tb.host, link.VethSpec{Attrs: link.Attrs{Name: "first"}, Peer: link.Attrs{Name: "eth0"}}, link.Target{PeerNS: c.ns})
			must(t, err)
		}, conf{"prevResult": conf{"interfaces": []conf{{"name": "eth0"}}}}, 100, "eth0"},
		{"no address left", func(t *testing.T, tb *testbed, _ *container) {
			for i := range 5 {
				tb.add(tb.container(fmt.Sprint("other", i)), web)
			}
		}, nil, 999, "no free address"},
		{"port of a program", func(t *testing.T, tb *testbed, _ *container) { serve(t, tb.host, 8080) },
			conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 8080, "containerPort": 80}}}}, 100, "8080"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/29")})
			c := tb.container("c")
			tt.prepare(t, tb, c)
			before, endpoints := tb.snapshot(c), len(tb.endpoints("web"))
			tb.fail("ADD", c, web.with(tt.conf), tt.code, tt.text)
			if diff := cmp.Diff(before, tb.snapshot(c)); diff != "" {
				t.Errorf("ADD leaves (-before +after):\n%s", diff)
			}
			if got := len(tb.endpoints("web")); got != endpoints {
				t.Errorf("%d containers are connected, want %d", got, endpoints)
			}
			tb.succeed("DEL", c, web) // runtimes call it after a failed ADD
			tb.check()
		})
	}
}

// TestStableBridge: the bridge's Ethernet address stays the same while containers come and go.
func TestStableBridge(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	address := func() string { return attributes(t, tb.host, "cl-web").HardwareAddr.String() }
	before := address()
	a, b := tb.container("a"), tb.container("b")
	tb.add(a, web)
	tb.add(b, web)
	if got := address(); got != before {
		t.Errorf("with two containers %s, without %s", got, before)
	}
	tb.succeed("DEL", a, web)
	tb.succeed("DEL", b, web)
	if got := address(); got != before {
		t.Errorf("after two containers %s, before %s", got, before)
	}
}

// TestDNS: the result has the network's servers, then those of the configuration and of the runtime.
func TestDNS(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	static := conf{"nameservers": []string{"198.51.100.53"}, "domain": "example.com", "search": []string{"a.example.com"}, "options": []string{"ndots:2"}}
	runtime := conf{"dns": conf{"servers": []string{"198.51.100.54"}, "searches": []string{"b.example.com"}, "options": []string{"edns0"}}}
	for name, tt := range map[string]struct {
		conf conf
		want string
	}{
		"none":          {nil, "{[192.0.2.1]  [] []}"},
		"empty":         {conf{"dns": conf{"nameservers": []string{}, "search": []string{}}}, "{[192.0.2.1]  [] []}"},
		"configuration": {conf{"dns": static}, "{[192.0.2.1 198.51.100.53] example.com [a.example.com] [ndots:2]}"},
		"runtime":       {conf{"runtimeConfig": runtime}, "{[192.0.2.1 198.51.100.54]  [b.example.com] [edns0]}"},
		"both":          {conf{"dns": static, "runtimeConfig": runtime}, "{[192.0.2.1 198.51.100.53 198.51.100.54] example.com [a.example.com b.example.com] [ndots:2 edns0]}"},
	} {
		if got := fmt.Sprint(tb.add(tb.container(name), web.with(tt.conf)).DNS); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestIsolation: containers of one network reach each other, and not those of another. A network that denies
// everything by default isolates its containers as well (firewall's ingressPolicy, bridge's portIsolation).
func TestIsolation(t *testing.T) {
	tb := newTestbed(t)
	of := map[string]conf{
		"foo": web.with(conf{"name": "foo", "create": conf{"subnets": []conf{{"subnet": "192.0.2.0/24"}}}}),
		"bar": web.with(conf{"name": "bar", "create": conf{"subnets": []conf{{"subnet": "203.0.113.0/24"}}, "default_deny": true}}),
	}
	at := map[string]string{}
	ns := map[string]*netns.NS{}
	for _, name := range []string{"foo0", "foo1", "bar0", "bar1"} {
		c := tb.container(name)
		r := tb.add(c, of[name[:3]])
		serve(t, c.ns, 80)
		at[name], ns[name] = r.IPs[0].Address.IP.String()+":80", c.ns
	}
	if got := reach(t, ns["foo0"], at["foo1"], ns["foo1"]); got != ns["foo1"].String() {
		t.Errorf("foo0 → foo1: %q", got)
	}
	for _, pair := range []string{"foo0 bar0", "bar0 foo0", "bar0 bar1"} {
		from, to, _ := strings.Cut(pair, " ")
		if got := ask(t, ns[from], at[to]); got != "" {
			t.Errorf("%s → %s: %q", from, to, got)
		}
	}
}

// echo answers datagrams to a port of a namespace with its name until the test ends.
func echo(t *testing.T, ns *netns.NS, port int) {
	t.Helper()
	var conn net.PacketConn
	must(t, ns.Do(func() (err error) { conn, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port)); return err }))
	t.Cleanup(func() { conn.Close() })
	go func() {
		b := make([]byte, 16)
		for {
			_, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(ns.String()), from)
		}
	}()
}

// TestDatagramPorts publishes a UDP port, which a container takes over from another: a client that sends from
// the same port as before reaches the new one.
func TestDatagramPorts(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	mapping := web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 8053, "containerPort": 53, "protocol": "udp"}}}})
	var client net.Conn
	must(t, tb.outside.Do(func() (err error) { client, err = net.Dial("udp", "198.51.100.1:8053"); return err }))
	defer client.Close()
	for _, name := range []string{"a", "b"} {
		c := tb.container(name)
		echo(t, c.ns, 53)
		tb.add(c, mapping)
		answer := ""
		for deadline := time.Now().Add(5 * time.Second); answer != c.ns.String() && time.Now().Before(deadline); {
			_, _ = client.Write([]byte("?"))
			must(t, client.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			b := make([]byte, 64)
			n, _ := client.Read(b)
			answer = string(b[:n])
		}
		if answer != c.ns.String() {
			t.Errorf("%s answers %q", name, answer)
		}
		c.prev = nil
		tb.succeed("DEL", c, web) // a DEL has no ports
	}
}

// TestPortsFromEverywhere reaches a published port of both address families, at all addresses and at one, from
// outside, from the host, from another container and from the container itself.
func TestPortsFromEverywhere(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}, {Prefix: netip.MustParsePrefix("2001:db8::/64")}}})
	change(t, tb.host, "nic", func(h *netlink.Handle, l netlink.Link) error { return h.AddrAdd(l, ipNet("2001:db8:1::1/64")) })
	change(t, tb.outside, "wire", func(h *netlink.Handle, l netlink.Link) error { return h.AddrAdd(l, ipNet("2001:db8:1::2/64")) })
	c, other := tb.container("c"), tb.container("other")
	serve(t, c.ns, 80)
	tb.add(other, web)
	tb.add(c, web.with(conf{"runtimeConfig": conf{"portMappings": []conf{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": 8081, "containerPort": 80, "hostIP": "198.51.100.1"},
		{"hostPort": 8082, "containerPort": 80, "hostIP": "0.0.0.0"},
		{"hostPort": 8083, "containerPort": 80, "hostIP": "127.0.0.1"},
	}}}))
	for _, tt := range []struct {
		name    string
		from    *netns.NS
		to      string
		refused bool
	}{
		{"outside", tb.outside, "198.51.100.1:8080", false},
		{"outside by IPv6", tb.outside, "[2001:db8:1::1]:8080", false},
		{"host", tb.host, "198.51.100.1:8080", false},
		{"host at its loopback address", tb.host, "127.0.0.1:8080", false},
		{"another container", other.ns, "198.51.100.1:8080", false},
		{"the container itself", c.ns, "198.51.100.1:8080", false},
		{"one address", tb.outside, "198.51.100.1:8081", false},
		{"one address, at another", tb.host, "192.0.2.1:8081", true},
		{"all IPv4 addresses", tb.outside, "198.51.100.1:8082", false},
		{"all IPv4 addresses, by IPv6", tb.outside, "[2001:db8:1::1]:8082", true},
		{"loopback", tb.host, "127.0.0.1:8083", false},
		{"loopback from outside", tb.outside, "198.51.100.1:8083", true},
	} {
		if tt.refused {
			if got := ask(t, tt.from, tt.to); got != "" {
				t.Errorf("%s: %q", tt.name, got)
			}
			continue
		}
		if got := reach(t, tt.from, tt.to, c.ns); got != c.ns.String() {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// TestBandwidth: the capability limits each direction for itself, and only the container that asks for it.
func TestBandwidth(t *testing.T) {
	rates(t, 0, 0)
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	before := tb.snapshot(nil)
	for _, tt := range []struct {
		name        string
		in, out     int
		disciplines string // of the host's end, which sends what the container receives
	}{
		{"both", 100e6, 50e6, "tbf ingress"},
		{"inbound", 100e6, 0, "tbf"},
		{"outbound", 0, 50e6, "ingress"},
		{"none", 0, 0, ""},
	} {
		c := tb.container(tt.name)
		r := tb.add(c, web.with(rates(t, tt.in, tt.out)))
		got := []string{}
		change(t, tb.host, r.Interfaces[1].Name, func(h *netlink.Handle, l netlink.Link) error {
			all, err := h.QdiscList(l)
			for _, q := range all {
				if q.Type() == "tbf" || q.Type() == "ingress" {
					got = append(got, q.Type())
				}
			}
			return err
		})
		if strings.Join(got, " ") != tt.disciplines {
			t.Errorf("%s: %v, want %s", tt.name, got, tt.disciplines)
		}
		tb.succeed("CHECK", c, web.with(rates(t, tt.in, tt.out)))
		tb.succeed("DEL", c, web)
	}
	if diff := cmp.Diff(before, tb.snapshot(nil)); diff != "" {
		t.Errorf("DEL leaves (-before +after):\n%s", diff)
	}
	c := tb.container("slow")
	const rate, bytes = 2_000_000, 200_000 // 0.8 s
	r := tb.add(c, web.with(rates(t, rate, 0)))
	var l net.Listener
	must(t, c.ns.Do(func() (err error) { l, err = net.Listen("tcp", ":80"); return err }))
	defer l.Close()
	go func() {
		_ = tb.host.Do(func() error {
			conn, err := net.Dial("tcp", r.IPs[0].Address.IP.String()+":80")
			if err == nil {
				_, err = conn.Write(make([]byte, bytes))
				conn.Close()
			}
			return err
		})
	}()
	conn, err := l.Accept()
	must(t, err)
	start := time.Now()
	n, err := io.Copy(io.Discard, conn)
	must(t, err)
	if took := time.Since(start); n != bytes || took < 400*time.Millisecond {
		t.Errorf("%d bytes at %d bit/s in %s", n, rate, took)
	}
}

// TestPreviousResult: what plug-ins before this one have made is in the result, in each version.
func TestPreviousResult(t *testing.T) {
	for version, want := range map[string]string{
		"0.3.1": `{"cniVersion": "0.3.1", "interfaces": [{"name": "lo", "sandbox": "/x"}],
			"ips": [{"version": "4", "interface": 0, "address": "198.18.0.2/24", "gateway": "198.18.0.1"}, {"version": "6", "address": "2001:db8:9::2/64"}],
			"routes": [{"dst": "198.19.0.0/24", "gw": "198.18.0.1"}], "dns": {"nameservers": ["198.18.0.53"], "domain": "example.com", "search": ["a.example.com"], "options": ["edns0"]}}`,
		"1.0.0": `{"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "mac": "02:00:00:00:00:01", "sandbox": "/x"}],
			"ips": [{"interface": 0, "address": "198.18.0.2/24", "gateway": "198.18.0.1"}], "routes": [{"dst": "198.19.0.0/24"}], "dns": {"domain": "example.com"}}`,
		"1.1.0": `{"cniVersion": "1.1.0", "interfaces": [{"name": "lo", "mac": "02:00:00:00:00:01", "mtu": 1300, "sandbox": "/x", "socketPath": "/run/s", "pciID": "0000:00:1f.6"}],
			"ips": [{"interface": 0, "address": "198.18.0.2/24"}],
			"routes": [{"dst": "198.19.0.0/24", "gw": "198.18.0.1", "mtu": 1280, "advmss": 1220, "priority": 7, "table": 100, "scope": 0}], "dns": {}}`,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
			var before, after map[string]any
			must(t, json.Unmarshal([]byte(want), &before))
			out := tb.succeed("ADD", tb.container("c"), web.with(conf{"cniVersion": version, "prevResult": json.RawMessage(want)}))
			must(t, json.Unmarshal(out, &after))
			if after["cniVersion"] != version {
				t.Errorf("the result has version %v", after["cniVersion"])
			}
			for _, key := range []string{"interfaces", "ips", "routes"} {
				old, all := before[key].([]any), after[key].([]any)
				if diff := cmp.Diff(old, all[:min(len(old), len(all))]); diff != "" || len(all) <= len(old) {
					t.Errorf("%s (-before +after):\n%s", key, diff)
				}
			}
			dns := after["dns"].(map[string]any)
			for key, old := range before["dns"].(map[string]any) {
				list, ok := old.([]any)
				if now, _ := dns[key].([]any); ok && !cmp.Equal(list, now[:min(len(list), len(now))]) || !ok && old != dns[key] {
					t.Errorf("dns.%s was %v and is %v", key, old, dns[key])
				}
			}
		})
	}
}
