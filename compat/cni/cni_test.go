package cni_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/named"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

func subnet(text string) []named.Subnet { return []named.Subnet{{Prefix: netip.MustParsePrefix(text)}} }

// addresses returns the addresses of a link in a namespace; nil if there is no such link.
func addresses(t *testing.T, ns *netns.NS, name string) (all []string) {
	t.Helper()
	l, err := link.Find(ns, name)
	if err != nil {
		return nil
	}
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	device, err := h.LinkByIndex(l.Index())
	must(t, err)
	addrs, err := h.AddrList(device, netlink.FAMILY_ALL)
	must(t, err)
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			all = append(all, a.IPNet.String())
		}
	}
	return all
}

// attributes returns what the kernel says about a link.
func attributes(t *testing.T, ns *netns.NS, name string) *netlink.LinkAttrs {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	device, err := h.LinkByName(name)
	must(t, err)
	return device.Attrs()
}

// remove deletes a link.
func remove(t *testing.T, ns *netns.NS, name string) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	device, err := h.LinkByName(name)
	must(t, err)
	must(t, h.LinkDel(device))
}

// A container whose id can't be a name on a network is connected by a shorter one.
func TestLongID(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}})
	for _, tt := range []struct{ name, id, want string }{
		{"hash", strings.Repeat("0123456789abcdef", 4), "0123456789ab"},
		{"long", strings.Repeat("a-", 40) + "b", strings.Repeat("a-", 31) + "a"},
		{"hyphen", "api-", "api"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tb.container(tt.name)
			c.id = tt.id
			tb.add(c, web)
			for _, e := range tb.endpoints("web") {
				if !slices.Equal(e.Names, []string{tt.want}) {
					t.Errorf("names %q, want %q", e.Names, tt.want)
				}
			}
			tb.succeed("DEL", c, web)
		})
	}
}

// TestLifecycle takes a container through all verbs, in each version of the specification.
func TestLifecycle(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			tb := newTestbed(t)
			tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}, {Prefix: netip.MustParsePrefix("2001:db8::/64")}}})
			before := tb.snapshot(nil)
			c, conf := tb.container("c1"), web.with(conf{"cniVersion": version})
			result := tb.add(c, conf)
			if got := addresses(t, c.ns, "eth0"); !slices.Equal(got, []string{"192.0.2.2/24", "2001:db8::2/64"}) {
				t.Errorf("eth0 has %v", got)
			}
			inside := result.Interfaces[len(result.Interfaces)-1]
			if inside.Name != "eth0" || inside.Sandbox != c.path || inside.Mac == "" {
				t.Errorf("the last interface is %+v", inside)
			}
			if a, b := attributes(t, tb.host, result.Interfaces[1].Name), attributes(t, c.ns, "eth0"); a.ParentIndex != b.Index || b.ParentIndex != a.Index {
				t.Errorf("%s is not the other end of eth0", a.Name)
			}
			var ips, routes []string
			for _, ip := range result.IPs {
				if ip.Interface == nil || result.Interfaces[*ip.Interface] != inside {
					t.Errorf("%v is not on eth0", ip)
				}
				ips = append(ips, ip.Address.String()+" "+ip.Gateway.String())
			}
			for _, r := range result.Routes {
				routes = append(routes, r.Dst.String()+" "+r.GW.String())
			}
			if diff := cmp.Diff([]string{"192.0.2.2/24 192.0.2.1", "2001:db8::2/64 2001:db8::1"}, ips); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"0.0.0.0/0 192.0.2.1", "::/0 2001:db8::1"}, routes); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			if got := result.DNS.Nameservers; !slices.Equal(got, []string{"192.0.2.1", "2001:db8::1"}) {
				t.Errorf("name servers %v", got)
			}
			if version >= "0.4.0" {
				tb.succeed("CHECK", c, conf)
			} else {
				tb.fail("CHECK", c, conf, 1, "CHECK needs")
			}
			if version >= "1.1.0" {
				tb.succeed("STATUS", nil, conf)
				tb.succeed("GC", nil, conf.with(map[string]any{"cni.dev/valid-attachments": []any{map[string]string{"containerID": "c1", "ifname": "eth0"}}}))
			} else {
				tb.fail("STATUS", nil, conf, 1, "STATUS needs")
				tb.fail("GC", nil, conf, 1, "GC needs")
			}
			if len(tb.endpoints("web")) != 1 {
				t.Error("the container is not on the network")
			}
			tb.succeed("DEL", c, conf)
			tb.succeed("DEL", c, conf) // again
			if got := addresses(t, c.ns, "eth0"); got != nil {
				t.Errorf("after DEL eth0 has %v", got)
			}
			if diff := cmp.Diff(before, tb.snapshot(nil)); diff != "" {
				t.Errorf("DEL leaves (-before +after):\n%s", diff)
			}
		})
	}
}

// TestVersion asks for the supported versions, with the version of the protocol and without any input.
func TestVersion(t *testing.T) {
	tb := newTestbed(t)
	all := []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for stdin, want := range map[string]string{"": "1.1.0", `{"cniVersion": "0.4.0"}`: "0.4.0", `{"cniVersion": "9.9.9"}`: "9.9.9"} {
		out, code := tb.run(map[string]string{"CNI_COMMAND": "VERSION"}, []byte(stdin))
		var v struct {
			CNIVersion        string
			SupportedVersions []string
		}
		if err := json.Unmarshal(out, &v); err != nil || code != 0 || v.CNIVersion != want || !slices.Equal(v.SupportedVersions, all) {
			t.Errorf("for %q: exit code %d, %v: %s", stdin, code, err, out)
		}
	}
}

// TestMistakes calls the plug-in with what is wrong, and looks for the code of the specification.
func TestMistakes(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	c := tb.container("c1")
	before := tb.snapshot(c)
	for _, m := range []struct {
		name string
		verb string
		c    container // replaces fields of c that are not empty
		conf conf
		code uint
		text string
	}{
		{"unknown verb", "SHOW", *c, web, 4, "CNI_COMMAND"},
		{"no verb", "", *c, web, 4, "CNI_COMMAND"},
		{"no container", "ADD", container{ifname: "eth0", path: c.path}, web, 4, "CNI_CONTAINERID"},
		{"bad container", "ADD", container{id: "../x", ifname: "eth0", path: c.path}, web, 4, "CNI_CONTAINERID"},
		{"no namespace", "ADD", container{id: "c1", ifname: "eth0"}, web, 4, "CNI_NETNS"},
		{"nothing", "ADD", container{}, web, 4, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"},
		{"nothing to disconnect", "DEL", container{}, web, 4, "CNI_CONTAINERID, CNI_IFNAME"},
		{"no interface", "DEL", container{id: "c1", path: c.path}, web, 4, "CNI_IFNAME"},
		{"path as interface", "ADD", container{id: "c1", ifname: "eth/0", path: c.path}, web, 4, "CNI_IFNAME"},
		{"long interface", "ADD", container{id: "c1", ifname: "a123456789012345", path: c.path}, web, 4, "CNI_IFNAME"},
		{"missing namespace", "ADD", container{id: "c1", ifname: "eth0", path: "/nonexistent"}, web, 8, "CNI_NETNS"},
		{"no namespace file", "ADD", container{id: "c1", ifname: "eth0", path: "/etc/passwd"}, web, 8, "CNI_NETNS"},
		{"the host's namespace", "ADD", container{id: "c1", ifname: "eth0", path: "/proc/thread-self/ns/net"}, web, 8, "host's network namespace"},
		{"arguments", "ADD", container{id: "c1", ifname: "eth0", path: c.path, args: "IgnoreUnknown"}, web, 4, "CNI_ARGS"},
		{"old version", "ADD", *c, web.with(conf{"cniVersion": "0.2.0"}), 1, "0.2.0"},
		{"no version", "ADD", *c, conf{"name": "web", "type": "cleat-cni"}, 1, "0.1.0"},
		{"future version", "ADD", *c, web.with(conf{"cniVersion": "9.9.9"}), 1, "9.9.9"},
		{"no network", "ADD", *c, web.with(conf{"name": "other"}), 7, "other"},
		{"no name", "ADD", *c, conf{"cniVersion": "1.1.0"}, 7, "network name"},
		{"bad name", "ADD", *c, web.with(conf{"name": "../web"}), 7, "network name"},
		{"ipam", "ADD", *c, web.with(conf{"ipam": conf{"type": "host-local"}}), 2, `ipam.type "host-local"`},
		{"address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"ips": []string{"x"}}}), 7, "IP address"},
		{"foreign address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"ips": []string{"203.0.113.1/24"}}}), 7, "203.0.113.1"},
		{"two addresses of a family", "ADD", *c, web.with(conf{"args": conf{"cni": conf{"ips": []string{"192.0.2.10", "192.0.2.11"}}}}), 7, "192.0.2.11"},
		{"prefix length", "ADD", container{id: "c1", ifname: "eth0", path: c.path, args: "IP=192.0.2.10/33"}, web, 7, "192.0.2.10/33"},
		{"the gateway's address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"ips": []string{"192.0.2.1/24"}}}), 7, "192.0.2.1"},
		{"the network's address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"ips": []string{"192.0.2.0/24"}}}), 7, "192.0.2.0"},
		{"the broadcast address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"ips": []string{"192.0.2.255/24"}}}), 7, "192.0.2.255"},
		{"Ethernet address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"mac": "x"}}), 7, "Ethernet address"},
		{"port", "ADD", *c, web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 70000, "containerPort": 80}}}}), 7, "70000"},
		{"protocol", "ADD", *c, web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}}}}), 7, "icmp"},
		{"host address", "ADD", *c, web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 80, "containerPort": 80, "hostIP": "x"}}}}), 7, "hostIP"},
		{"alias", "ADD", *c, web.with(conf{"runtimeConfig": conf{"aliases": []string{"not a name"}}}), 7, "not a name"},
		{"slow rate", "ADD", *c, web.with(conf{"runtimeConfig": conf{"bandwidth": conf{"ingressRate": 10}}}), 7, "10"},
		{"negative rate", "ADD", *c, web.with(conf{"runtimeConfig": conf{"bandwidth": conf{"egressRate": -8000}}}), 7, "-8000"},
		{"burst without a rate", "ADD", *c, web.with(conf{"runtimeConfig": conf{"bandwidth": conf{"ingressRate": 8000, "egressBurst": 123}}}), 7, "egressBurst"},
		{"type", "ADD", *c, web.with(conf{"network": 5}), 6, "network"},
		{"previous result", "ADD", *c, web.with(conf{"prevResult": conf{"ips": "x"}}), 6, "prevResult"},
		{"CHECK without result", "CHECK", *c, web, 7, "prevResult"},
		{"CHECK of a stranger", "CHECK", *c, web.with(conf{"prevResult": conf{"cniVersion": "1.1.0"}}), 3, "not on network"},
	} {
		t.Run(m.name, func(t *testing.T) {
			sub := *tb
			sub.t = t
			sub.fail(m.verb, &m.c, m.conf, m.code, m.text)
		})
	}
	out, exit := tb.run(map[string]string{"CNI_COMMAND": "ADD"}, []byte("{"))
	tb.failed("half a configuration", out, exit, 6, "configuration")
	if diff := cmp.Diff(before, tb.snapshot(c)); diff != "" {
		t.Errorf("mistakes change (-before +after):\n%s", diff)
	}
	if all := tb.endpoints("web"); len(all) != 0 {
		t.Errorf("mistakes connect %v", all)
	}
}

// TestRequests asks for addresses by each way that runtimes have.
func TestRequests(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}, {Prefix: netip.MustParsePrefix("2001:db8::/64")}}})
	for i, ask := range []struct {
		name, args string
		conf       conf
	}{
		{"capability", "", conf{"runtimeConfig": conf{"ips": []string{"192.0.2.10/24"}, "mac": "02:00:00:00:00:10"}}},
		{"variable", "IgnoreUnknown=1;IP=192.0.2.11;MAC=02:00:00:00:00:11", nil},
		{"args", "", conf{"args": conf{"cni": conf{"ips": []string{"192.0.2.12"}, "mac": "02:00:00:00:00:12"}}}},
		{"both families", "IP=192.0.2.13/24,2001:db8::99;MAC=02:00:00:00:00:13", nil},
		{"the capability wins", "IP=192.0.2.99;MAC=02:00:00:00:00:99", conf{"runtimeConfig": conf{"ips": []string{"192.0.2.14"}, "mac": "02:00:00:00:00:14"}}},
	} {
		t.Run(ask.name, func(t *testing.T) {
			c := tb.container(fmt.Sprint("c", i))
			c.args = ask.args
			r := tb.add(c, web.with(ask.conf))
			want := fmt.Sprintf("192.0.2.%d/24 02:00:00:00:00:%d", 10+i, 10+i)
			if got := r.IPs[0].Address.String() + " " + r.Interfaces[len(r.Interfaces)-1].Mac; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if six := r.IPs[1].Address.String(); strings.Contains(ask.name, "both") && six != "2001:db8::99/64" {
				t.Errorf("got %s", six)
			}
		})
	}
	f := tb.fail("ADD", tb.container("thief"), web.with(conf{"runtimeConfig": conf{"ips": []string{"192.0.2.10"}}}), 100, "192.0.2.10")
	if !strings.Contains(f.Msg, "c0") {
		t.Errorf("the message does not name the owner: %s", f.Msg)
	}
}

// TestPorts publishes ports, also twice, and to what runtimes send without a port of the host.
func TestPorts(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	mapping := func(port int) conf {
		return web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": port, "containerPort": 80, "protocol": "TCP"}, {"containerPort": 81}}}})
	}
	a := tb.container("a")
	serve(t, a.ns, 80)
	tb.add(a, mapping(8080))
	if got := reach(t, tb.outside, "198.51.100.1:8080", a.ns); got != a.ns.String() {
		t.Errorf("from outside: %q", got)
	}
	if got := reach(t, tb.host, "127.0.0.1:8080", a.ns); got != a.ns.String() {
		t.Errorf("from the host: %q", got)
	}
	b := tb.container("b")
	serve(t, b.ns, 80)
	tb.fail("ADD", b, mapping(8080), 100, "8080")
	tb.succeed("DEL", a, mapping(8080))
	tb.add(b, mapping(8080)) // the port is free again
	if got := reach(t, tb.outside, "198.51.100.1:8080", b.ns); got != b.ns.String() {
		t.Errorf("the port's second owner: %q", got)
	}
}

// TestForgotten loses a runtime's DEL in each way: what it forgot must not be in the way of others.
func TestForgotten(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/29")}) // five addresses for containers
	conf := web.with(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 8080, "containerPort": 80}}}})
	for i := range 12 { // the namespace is gone, and with it the address, the port and the name
		c := tb.container(fmt.Sprint("c", i))
		c.args = "K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0"
		tb.add(c, conf)
		c.end(t)
	}
	c := tb.container("same") // the same id again, with another namespace
	tb.add(c, conf)
	c.end(t)
	c = tb.container("same")
	tb.add(c, conf)
	if all := tb.endpoints("web"); len(all) != 1 {
		t.Errorf("%d endpoints, want one", len(all))
	}
	c.end(t)
	tb.succeed("DEL", c, conf)
	tb.check()
}

// TestAfterRestart: after a restart of the machine a runtime may call before any keeper runs.
func TestAfterRestart(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	remove(t, tb.host, "cl-web")
	tb.add(tb.container("c"), web)
	if got := addresses(t, tb.host, "cl-web"); !slices.Equal(got, []string{"192.0.2.1/24"}) {
		t.Errorf("the gateway has %v", got)
	}
}

// TestGarbage: GC keeps what is listed, and everything if there is no list.
func TestGarbage(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	tb.create(named.NetworkSpec{Name: "db", Subnets: subnet("198.18.0.0/24")})
	a, b, other := tb.container("a"), tb.container("b"), tb.container("other")
	tb.add(a, web)
	tb.add(b, web)
	second := *b
	second.ifname, second.prev = "net1", nil
	tb.add(&second, web)
	tb.add(other, web.with(conf{"name": "list2", "network": "web"})) // another list, on the same network
	tb.add(tb.container("db1"), conf{"cniVersion": "1.1.0", "name": "db"})
	count := func(when string, web, db int) {
		t.Helper()
		if got := len(tb.endpoints("web")); got != web {
			t.Errorf("%s: %d on web, want %d", when, got, web)
		}
		if got := len(tb.endpoints("db")); got != db {
			t.Errorf("%s: %d on db, want %d", when, got, db)
		}
	}
	count("at first", 4, 1)
	tb.succeed("GC", nil, web)
	count("no list", 4, 1)
	tb.succeed("GC", nil, web.with(conf{"cni.dev/valid-attachments": nil}))
	count("null", 4, 1)
	valid := []conf{{"containerID": "a", "ifname": "eth0"}, {"containerID": "b", "ifname": "net1"}, {"containerID": "unknown", "ifname": "eth0"}}
	tb.succeed("GC", nil, web.with(conf{"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}))
	count("two are valid", 3, 1)
	if got := addresses(t, b.ns, "eth0"); got != nil {
		t.Errorf("what GC removed has addresses %v", got)
	}
	tb.succeed("GC", nil, web.with(conf{"cni.dev/valid-attachments": []conf{}}))
	count("none is valid", 1, 1)
}

// TestTwoLinks connects a container to one network twice, and to another one.
func TestTwoLinks(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	tb.create(named.NetworkSpec{Name: "db", Subnets: subnet("198.18.0.0/24"), Internal: true})
	c := tb.container("c")
	tb.add(c, web)
	tb.fail("ADD", c, web, 100, "already") // it is not called twice without DEL
	second := *c
	second.ifname, second.prev = "net1", nil
	tb.add(&second, web)
	third := *c
	third.ifname, third.prev = "net2", nil
	tb.add(&third, conf{"cniVersion": "1.1.0", "name": "db"})
	want := map[string]string{"eth0": "192.0.2.2/24", "net1": "192.0.2.3/24", "net2": "198.18.0.2/24"}
	for name, address := range want {
		if got := addresses(t, c.ns, name); !slices.Equal(got, []string{address}) {
			t.Errorf("%s has %v, want %s", name, got, address)
		}
	}
	tb.succeed("CHECK", c, web)
	tb.succeed("CHECK", &second, web)
	tb.succeed("DEL", c, web)
	if got := addresses(t, c.ns, "net1"); len(got) != 1 {
		t.Errorf("DEL of eth0 leaves net1 with %v", got)
	}
	tb.succeed("CHECK", &second, web)
	tb.succeed("DEL", &second, web)
	if got := len(tb.endpoints("web")) + len(tb.endpoints("db")); got != 1 {
		t.Errorf("%d endpoints are left, want one", got)
	}
}

// TestOtherNetwork gives a list another network while a container is connected.
func TestOtherNetwork(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	tb.create(named.NetworkSpec{Name: "db", Subnets: subnet("198.18.0.0/24")})
	a, b := tb.container("a"), tb.container("b")
	tb.add(a, web)
	tb.add(b, web)
	now := web.with(conf{"network": "db"})
	tb.succeed("DEL", a, now)
	tb.succeed("GC", nil, now.with(conf{"cni.dev/valid-attachments": []conf{}}))
	if got := tb.endpoints("web"); len(got) > 0 {
		t.Errorf("left on the first network: %v", got)
	}
}

// TestCreate: a configuration may say how to create its network.
func TestCreate(t *testing.T) {
	tb := newTestbed(t)
	made := web.with(conf{"create": conf{"driver": "routed", "subnets": []conf{{"subnet": "192.0.2.0/24"}}, "mtu": 1400}})
	r := tb.add(tb.container("a"), made)
	if got := r.IPs[0].Address.String() + fmt.Sprint(" ", r.Interfaces[len(r.Interfaces)-1].Mtu); got != "192.0.2.2/24 1400" && got != "192.0.2.2/32 1400" {
		t.Errorf("got %s", got)
	}
	tb.add(tb.container("b"), made)
	f := tb.fail("ADD", tb.container("c"), web.with(conf{"name": "x", "create": conf{"drivers": "bridge"}}), 7, "drivers")
	if f.Details == "" {
		t.Error("the error has no details")
	}
	if err := link.Probe("macvlan"); err != nil {
		t.Skip(err)
	}
	for _, mtu := range []int{-1, 9000} { // 9000: more than that of the parent
		tb.fail("ADD", tb.container(fmt.Sprint("mtu", mtu)), web.with(conf{"name": "y", "create": conf{"driver": "macvlan", "parent": "nic", "subnets": []conf{{"subnet": "198.51.100.0/24", "gateway": "198.51.100.2"}}, "mtu": mtu}}), 7, fmt.Sprint(mtu))
	}
}

// TestChained: the plug-in adds its link to what others have made before.
func TestChained(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	c := tb.container("c")
	_, err := link.Create(tb.host, link.VethSpec{Attrs: link.Attrs{Name: "first"}, Peer: link.Attrs{Name: "eth0"}}, link.Target{PeerNS: c.ns})
	must(t, err)
	previous := json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "first"}, {"name": "eth0", "sandbox": %q}], "ips": [{"address": "198.18.0.2/24", "interface": 1}]}`, c.path))
	chained := conf{"cniVersion": "1.1.0", "name": "list", "network": "web", "prevResult": previous}
	r := tb.add(c, chained)
	var names, ips []string
	for _, i := range r.Interfaces {
		names = append(names, i.Name)
	}
	for _, ip := range r.IPs {
		ips = append(ips, fmt.Sprint(ip.Address.String(), " ", r.Interfaces[*ip.Interface].Name))
	}
	if len(names) != 5 || names[0] != "first" || names[1] != "eth0" || names[4] != "eth1" {
		t.Errorf("interfaces %v", names)
	}
	if want := []string{"198.18.0.2/24 eth0", "192.0.2.2/24 eth1"}; !slices.Equal(ips, want) {
		t.Errorf("addresses %v, want %v", ips, want)
	}
	tb.succeed("CHECK", c, chained.with(conf{"prevResult": c.prev}))
	tb.succeed("DEL", c, chained)
	if _, err := link.Find(c.ns, "eth0"); err != nil {
		t.Errorf("DEL removes the link of another plug-in: %v", err)
	}
	if _, err := link.Find(c.ns, "eth1"); err == nil {
		t.Error("DEL leaves eth1")
	}
}

// TestNames: pods of one name in different namespaces, and the successor of a pod, don't collide.
func TestNames(t *testing.T) {
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	for i, args := range []string{
		"K8S_POD_NAMESPACE=prod;K8S_POD_NAME=api;K8S_POD_UID=1",
		"K8S_POD_NAMESPACE=test;K8S_POD_NAME=api;K8S_POD_UID=2",
		"K8S_POD_NAMESPACE=prod;K8S_POD_NAME=api;K8S_POD_UID=3",                              // before DEL of the first
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=db;K8S_POD_NAME=db;K8S_POD_INFRA_CONTAINER_ID=c3", // Podman
	} {
		c := tb.container(fmt.Sprint("c", i))
		c.args = args
		tb.add(c, web.with(conf{"runtimeConfig": conf{"aliases": map[string][]string{"web": {"alias"}, "other": {"x"}}}}))
	}
	want := map[string][]string{
		"[192.0.2.2] pod:prod/api": {"api", "alias", "api.prod"},
		"[192.0.2.3] pod:test/api": {"api", "alias", "api.test"},
		"[192.0.2.4] pod:prod/api": {"api", "alias", "api.prod"},
		"[192.0.2.5] podman:db":    {"db", "alias"},
	}
	got := map[string][]string{}
	for address, e := range tb.endpoints("web") {
		got[address+" "+e.Container.QualifiedName()] = e.Names
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestHostServers: a pod that gets the host's resolv.conf from its runtime finds the names of the network, as
// the gateway receives what the pod asks the host's servers.
func TestHostServers(t *testing.T) {
	tb := newTestbed(t)
	tb.cfg.ResolvConf = filepath.Join(tb.dir, "resolv.conf")
	must(t, os.WriteFile(tb.cfg.ResolvConf, []byte("nameserver 127.0.0.53\nnameserver 198.51.100.2\n"), 0o644))
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
	c := tb.container("c")
	tb.add(c, web)
	var gateway net.PacketConn
	must(t, tb.host.Do(func() (err error) { gateway, err = net.ListenPacket("udp4", "192.0.2.1:53"); return err }))
	defer gateway.Close()
	must(t, c.ns.Do(func() error {
		conn, err := net.Dial("udp4", "198.51.100.2:53")
		if err == nil {
			_, err = conn.Write([]byte("query"))
			conn.Close()
		}
		return err
	}))
	must(t, gateway.SetReadDeadline(time.Now().Add(5*time.Second)))
	text := make([]byte, 16)
	if n, from, err := gateway.ReadFrom(text); err != nil || string(text[:n]) != "query" || !strings.HasPrefix(from.String(), "192.0.2.2:") {
		t.Errorf("the gateway received %q from %v, %v", text[:n], from, err)
	}
}
