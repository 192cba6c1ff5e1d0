package netavark_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/compat/netavark"
	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bed is a host, on which calls are made, and containers.
type bed struct {
	t     *testing.T
	host  *netns.NS
	state string
	cfg   named.Config
	serve func(context.Context) error // netavark.Host.Serve
}

func newBed(t *testing.T) *bed {
	t.Helper()
	lab.Need(t)
	b := &bed{t: t, host: networktest.NewNS(t, "host"), state: filepath.Join(t.TempDir(), "state")}
	store, err := attach.OpenStore(b.state)
	must(t, err)
	b.cfg.Attach = attach.Config{Store: store}
	return b
}

// call runs netavark on the host, and returns its exit code and output.
func (b *bed) call(input string, words ...string) (int, string) {
	var out bytes.Buffer
	code := -1
	must(b.t, b.host.Do(func() error {
		code = netavark.Run(b.t.Context(), netavark.Host{Networks: b.cfg, Serve: b.serve}, netavark.Call{Args: words, Stdin: []byte(input), Out: &out})
		return nil
	}))
	return code, strings.TrimSpace(out.String())
}

// result is what setup prints for a network.
type result struct {
	Search     []string `json:"dns_search_domains"`
	Servers    []string `json:"dns_server_ips"`
	Interfaces map[string]struct {
		MAC     string `json:"mac_address"`
		Subnets []struct{ Gateway, IPNet string }
	}
}

func (b *bed) setup(ns *netns.NS, input string) map[string]result {
	b.t.Helper()
	code, out := b.call(input, "setup", ns.Path())
	if code != 0 {
		b.t.Fatalf("setup: %s", out)
	}
	var all map[string]result
	must(b.t, json.Unmarshal([]byte(out), &all))
	return all
}

func (b *bed) teardown(ns, input string) {
	b.t.Helper()
	if code, out := b.call(input, "teardown", ns); code != 0 || out != "" {
		b.t.Fatalf("teardown: %d %s", code, out)
	}
}

// info is a network as Podman has it.
func info(name, device, subnet, more string) string {
	return fmt.Sprintf(`%q: {"name": %q, "id": "%064x", "driver": "bridge", "network_interface": %q, "dns_enabled": true, "internal": false,
		"ipv6_enabled": false, "ipam_options": {"driver": "host-local"}, "subnets": [%s]%s}`, name, name, len(name)+int(device[len(device)-1]), device, subnet, more)
}

// input is the input of setup and teardown for a container.
func input(container, networks, infos, more string) string {
	return fmt.Sprintf(`{"container_id": "%064s", "container_name": %q, "networks": %s, "network_info": {%s}%s}`, container, container, networks, infos, more)
}

const subnet = `{"subnet": "10.89.7.0/24", "gateway": "10.89.7.1"}`

func on(network, device, ip string) string {
	return fmt.Sprintf(`{%q: {"interface_name": %q, "static_ips": [%q], "aliases": ["alias-%s"]}}`, network, device, ip, device)
}

// A container is connected and disconnected, and the network goes with the last one.
func TestSetup(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	a, c := networktest.NewNS(t, "a"), networktest.NewNS(t, "c")
	inA := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, ""), `, "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1}]`)
	inC := input("c", on("web", "eth0", "10.89.7.3"), info("web", "podman7", subnet, ""), "")
	got := b.setup(a, inA)["web"]
	on := got.Interfaces["eth0"]
	if on.MAC == "" || len(on.Subnets) != 1 || on.Subnets[0].IPNet != "10.89.7.2/24" || on.Subnets[0].Gateway != "10.89.7.1" {
		t.Errorf("interface: %+v", got)
	}
	if !slices.Equal(got.Search, []string{"dns.podman"}) || !slices.Equal(got.Servers, []string{"10.89.7.1"}) {
		t.Errorf("names: %+v", got)
	}
	b.setup(c, inC)
	for _, name := range []string{"podman7", "veth0", "veth1"} {
		if _, err := link.Find(b.host, name); err != nil {
			t.Error(err)
		}
	}
	store := named.Store{Store: b.cfg.Attach.Store}
	endpoints, err := store.Endpoints("web")
	must(t, err)
	if len(endpoints) != 2 || endpoints[0].Container.QualifiedName() != "podman:a" || !slices.Contains(endpoints[0].Names, "alias-eth0") {
		t.Errorf("endpoints: %+v", endpoints)
	}
	if n, err := store.Network("web"); err != nil || !n.AllReverse || n.Domain != "dns.podman" {
		t.Errorf("network: %+v, %v", n, err)
	}
	listen(t, a, "10.89.7.2:80")
	reach(t, c, "10.89.7.2:80", true)
	reach(t, b.host, "10.89.7.1:8080", true)
	b.teardown(a.Path(), inA)
	b.teardown("/proc/0/ns/net", inC) // its namespace is gone
	b.teardown(a.Path(), inA)         // again
	b.same(before)
}

// A port of the host belongs to one container.
func TestPortTaken(t *testing.T) {
	b := newBed(t)
	a, c := networktest.NewNS(t, "a"), networktest.NewNS(t, "c")
	const ports = `, "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1}]`
	b.setup(a, input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, ""), ports))
	code, out := b.call(input("c", on("web", "eth0", "10.89.7.3"), info("web", "podman7", subnet, ""), ports), "setup", c.Path())
	if code != 1 || !strings.Contains(out, "address already in use") {
		t.Errorf("setup: %d %s", code, out)
	}
}

// All networks are joined, or none.
func TestAtomic(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	a, c := networktest.NewNS(t, "a"), networktest.NewNS(t, "c")
	infos := info("one", "podman1", subnet, "") + ", " + info("two", "podman2", `{"subnet": "10.89.8.0/24", "gateway": "10.89.8.1"}`, "")
	first := input("c", on("two", "eth0", "10.89.8.2"), infos, "")
	b.setup(c, first)
	between := b.snapshot()
	second := input("a", `[{"name": "one", "interface_name": "eth0", "static_ips": ["10.89.7.2"]}, {"name": "two", "interface_name": "eth1", "static_ips": ["10.89.8.2"]}]`, infos, "")
	if code, out := b.call(second, "setup", a.Path()); code != 1 || !strings.Contains(out, `"error":"address 10.89.8.2 of network two belongs to c`) {
		t.Errorf("setup: %d %s", code, out)
	}
	b.same(between)
	b.teardown(c.Path(), first)
	b.same(before)
}

// Networks are apart, unless both have an option that says otherwise.
func TestIsolation(t *testing.T) {
	b := newBed(t)
	spaces := map[string]*netns.NS{}
	for i, isolate := range []string{"", "true", "false", "strict"} {
		ns := networktest.NewNS(t, "n"+isolate)
		spaces[isolate] = ns
		options := ""
		if isolate != "" {
			options = fmt.Sprintf(`, "options": {"isolate": %q}`, isolate)
		}
		net := fmt.Sprintf(`{"subnet": "10.89.%d.0/24", "gateway": "10.89.%d.1"}`, i, i)
		name := "net" + isolate
		b.setup(ns, input("c"+isolate, on(name, "eth0", fmt.Sprintf("10.89.%d.2", i)), info(name, fmt.Sprintf("podman%d", i), net, options), ""))
		listen(t, ns, fmt.Sprintf("10.89.%d.2:80", i))
	}
	reach(t, spaces["false"], "10.89.1.2:80", true)
	reach(t, spaces["true"], "10.89.2.2:80", true)
	reach(t, spaces["false"], "10.89.3.2:80", false)
	reach(t, spaces["false"], "10.89.0.2:80", false)
	reach(t, spaces["strict"], "10.89.2.2:80", false)
}

// Options of networks.
func TestOptions(t *testing.T) {
	b := newBed(t)
	for _, tt := range []struct {
		name, subnet, more string
		want, never        []string // routes
	}{
		{"metric", subnet, `, "options": {"metric": "200"}`, []string{"default 10.89.7.1 200"}, nil},
		{"no default route", subnet, `, "options": {"no_default_route": "true"}`, nil, []string{"default 10.89.7.1 100"}},
		{"routes", subnet, `, "routes": [{"destination": "10.90.0.0/24", "gateway": "10.89.7.9"}, {"destination": "10.91.0.0/24", "route_type": "blackhole"}]`,
			[]string{"10.90.0.0/24 10.89.7.9 100", "blackhole 10.91.0.0/24 100", "default 10.89.7.1 100"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := networktest.NewNS(t, "a")
			in := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", tt.subnet, tt.more), "")
			b.setup(ns, in)
			got := routes(t, ns)
			for _, w := range tt.want {
				if !slices.Contains(got, w) {
					t.Errorf("no route %q among %q", w, got)
				}
			}
			for _, n := range tt.never {
				if slices.Contains(got, n) {
					t.Errorf("route %q", n)
				}
			}
			b.teardown(ns.Path(), in)
			if got := routes(t, ns); len(got) > 0 {
				t.Errorf("routes are left: %q", got)
			}
		})
	}
}

// A network that a person has made takes containers of Podman, whose addresses cleat chooses as a plug-in.
func TestShared(t *testing.T) {
	b := newBed(t)
	must(t, b.host.Do(func() error {
		_, err := named.Create(t.Context(), b.cfg, named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.89.7.0/24")}}})
		return err
	}))
	plugin := func(input string, words ...string) (out bytes.Buffer) {
		must(t, b.host.Do(func() error {
			if code := netavark.Run(t.Context(), netavark.Host{Networks: b.cfg}, netavark.Call{Args: words, Stdin: []byte(input), Plugin: true, Out: &out}); code != 0 {
				return errors.New(out.String())
			}
			return nil
		}))
		return out
	}
	out := plugin(`{"name": "web", "id": "1", "driver": "cleat", "dns_enabled": true, "internal": false, "ipv6_enabled": false}`, "create")
	var network struct {
		Subnets []struct{ Subnet, Gateway string }
		IPAM    map[string]string `json:"ipam_options"`
	}
	must(t, json.Unmarshal(out.Bytes(), &network))
	if len(network.Subnets) != 1 || network.Subnets[0].Subnet != "10.89.7.0/24" || network.IPAM["driver"] != "cleat" {
		t.Errorf("create: %s", out.String())
	}
	ns := networktest.NewNS(t, "a")
	in := fmt.Sprintf(`{"container_id": "%064d", "container_name": "a", "network": %s, "network_options": {"interface_name": "eth0"}}`, 7, out.String())
	out = plugin(in, "setup", ns.Path())
	var r result
	must(t, json.Unmarshal(out.Bytes(), &r))
	if len(r.Interfaces["eth0"].Subnets) != 1 || r.Interfaces["eth0"].Subnets[0].IPNet != "10.89.7.2/24" || !slices.Equal(r.Servers, []string{"10.89.7.1"}) {
		t.Errorf("setup: %s", out.String())
	}
	plugin(in, "teardown", ns.Path())
	if _, err := (named.Store{Store: b.cfg.Attach.Store}).Network("web"); err != nil {
		t.Errorf("the network of a person: %v", err)
	}
	if out := plugin("", "info"); !strings.Contains(out.String(), `"api_version":"1.0.0"`) {
		t.Errorf("info: %s", out.String())
	}
}

// Errors that callers know.
func TestErrors(t *testing.T) {
	b := newBed(t)
	ns := networktest.NewNS(t, "a")
	_, err := link.Create(b.host, link.BridgeSpec{Attrs: link.Attrs{Name: "other"}}, link.Target{})
	must(t, err)
	good := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, ""), "")
	for _, tt := range []struct{ name, path, input, want string }{
		{"namespace", "/nowhere", good, "invalid namespace path: IO error: No such file or directory (os error 2)"},
		{"JSON", ns.Path(), "{", "failed to load network options: "},
		{"no info", ns.Path(), input("a", on("other", "eth0", "10.89.7.2"), info("web", "podman7", subnet, ""), ""), "network info for network other not found"},
		{"IPAM", ns.Path(), strings.Replace(good, "host-local", "someDriver", 1), "unsupported ipam driver someDriver"},
		{"driver", ns.Path(), strings.Replace(good, `"bridge"`, `"other"`, 1), `unknown network driver "other"`},
		{"addresses", ns.Path(), strings.Replace(good, "10.89.7.2", "10.9.9.9", 1), "not all static IPs matched a subnet: expected 1, got 0"},
		{"unmanaged", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"mode": "unmanaged"}`), ""), "in unmanaged mode, the bridge must already exist on the host"},
		{"no VRF", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"vrf": "blue"}`), ""), "get vrf to set up bridge interface: Netlink error: No such device (os error 19)"},
		{"not a VRF", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"vrf": "other"}`), ""), "vrf other already exists but is a Bridge interface"},
		{"not even a kind", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"vrf": "lo"}`), ""), "could not determine namespace link kind for vrf lo"},
		{"IPv6 as outbound_addr4", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"outbound_addr4": "2001:db8::1"}`), ""), `unable to parse "outbound_addr4": invalid IPv4 address syntax`},
		{"outbound_addr6", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "options": {"outbound_addr6": ""}`), ""), `unable to parse "outbound_addr6": invalid IPv6 address syntax`},
		{"loop", ns.Path(), input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, `, "network_dns_servers": ["10.89.7.1"]`), ""), "forward queries to itself"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out := b.call(tt.input, "setup", tt.path)
			var said struct{ Error string }
			if err := json.Unmarshal([]byte(out), &said); err != nil || code != 1 || !strings.Contains(said.Error, tt.want) {
				t.Errorf("got %d %s, want %s", code, out, tt.want)
			}
		})
	}
	if code, out := b.call("", "version"); code != 0 || !strings.Contains(out, `"version":"2.`) {
		t.Errorf("version: %d %s", code, out)
	}
	if code, _ := b.call("", "destroy"); code != 2 {
		t.Errorf("an unknown command: exit code %d", code)
	}
}

// snapshot returns all state of the host that calls could change.
func (b *bed) snapshot() []string {
	var all []string
	for _, line := range networktest.Netlink(b.t, b.host) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(line, "route ff00::/8") {
			all = append(all, strings.Join(fields, " "))
		}
	}
	for _, line := range networktest.Files(b.t, b.state) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "file "), " ")
		if strings.HasSuffix(name, ".json") {
			all = append(all, name)
		}
	}
	return all
}

func (b *bed) same(before []string) {
	b.t.Helper()
	var now []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if now = b.snapshot(); slices.Equal(now, before) {
			return
		}
	}
	b.t.Errorf("before: %q\nnow: %q", before, now)
}

// listen accepts connections at an address of a namespace.
func listen(t *testing.T, ns *netns.NS, address string) {
	t.Helper()
	must(t, ns.Do(func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Close()
				}
			}()
		}
		return err
	}))
}

// reach checks whether a connection from a namespace succeeds.
func reach(t *testing.T, ns *netns.NS, address string, want bool) {
	t.Helper()
	var err error
	must(t, ns.Do(func() error {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", address, 300*time.Millisecond); err == nil {
			c.Close()
		}
		return nil
	}))
	if (err == nil) != want {
		t.Errorf("from %s to %s: %v", ns, address, err)
	}
}

// routes returns the routes of a namespace for IPv4 that the kernel has not added itself.
func routes(t *testing.T, ns *netns.NS) (all []string) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	got, err := h.RouteList(nil, 2) // AF_INET
	must(t, err)
	for _, r := range got {
		if r.Protocol == 2 { // RTPROT_KERNEL
			continue
		}
		to, via := "default", ""
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			to = r.Dst.String()
		}
		if r.Type == 6 { // RTN_BLACKHOLE
			to = "blackhole " + to
		}
		if r.Gw != nil {
			via = r.Gw.String() + " "
		}
		all = append(all, fmt.Sprintf("%s %s%d", to, via, r.Priority))
	}
	return all
}

// A network of Podman stays while others are on it, and goes with the last of them.
func TestLastOne(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	a, guest := networktest.NewNS(t, "a"), networktest.NewNS(t, "guest")
	in := input("a", on("web", "eth0", "10.89.7.2"), info("web", "podman7", subnet, ""), "")
	b.setup(a, in)
	cfg := b.cfg
	cfg.Attach.Find = func(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
		ns, err := netns.Open(guest.Path())
		return attach.Container{Ref: ref, Engine: "test", Name: ref, Path: guest.Path()}, ns, err
	}
	must(t, b.host.Do(func() error {
		_, err := named.Connect(t.Context(), cfg, "web", "guest", named.Connection{NoDNS: true, Addresses: []netip.Addr{netip.MustParseAddr("10.89.7.200")}})
		return err
	}))
	b.teardown(a.Path(), in)
	file, err := named.Export(cfg)
	if err != nil || len(file.Networks) > 0 {
		t.Errorf("exported: %+v, %v", file, err)
	}
	changes, err := named.Plan(t.Context(), cfg, &named.Wanted{}, true)
	if err != nil || len(changes) > 0 {
		t.Errorf("pruning removes the network: %+v, %v", changes, err)
	}
	must(t, b.host.Do(func() error {
		_, err := named.Disconnect(t.Context(), cfg, "web", "guest")
		return err
	}))
	b.same(before)
}

// A container that is to choose its addresses itself has what the kernel gives it.
func TestNoAddresses(t *testing.T) {
	b := newBed(t)
	ns := networktest.NewNS(t, "a")
	must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("0"), 0) })) // the kernel's default
	in := input("a", `[{"name": "web", "interface_name": "eth0"}]`, strings.Replace(info("web", "podman7", "", ""), "host-local", "none", 1), "")
	if got := b.setup(ns, in)["web"].Interfaces["eth0"]; got.MAC == "" || len(got.Subnets) > 0 {
		t.Errorf("interface: %+v", got)
	}
	var addrs []net.Addr
	for end := time.Now().Add(5 * time.Second); len(addrs) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		must(t, ns.Do(func() error {
			i, err := net.InterfaceByName("eth0")
			if err == nil {
				addrs, err = i.Addrs()
			}
			return err
		}))
	}
	if len(addrs) != 1 || !strings.HasPrefix(addrs[0].String(), "fe80::") {
		t.Errorf("addresses: %v", addrs)
	}
	b.teardown(ns.Path(), in)
}
