package named_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cleat/network/firewall"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/packet"
)

// serveNamesEnv makes the test binary a name server with this control socket.
const serveNamesEnv = "CLEAT_TEST_SERVE_NAMES"

// startNameServer runs a name server, in a process of its own because it seals that.
func (tb *testbed) startNameServer() *names.Client {
	tb.t.Helper()
	must(tb.t, os.MkdirAll(tb.state, 0o755))
	path := named.NameServerPath(tb.store)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveNamesEnv+"="+path)
	cmd.Stderr = os.Stderr
	must(tb.t, tb.onHost(cmd.Start))
	tb.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		c, err := names.Dial(context.Background(), path)
		if err == nil {
			tb.t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(end) {
			tb.t.Fatal(err)
		}
	}
}

// model is what should exist: networks by name.
type model map[string]*modelNetwork

type modelNetwork struct {
	driver      string
	subnet      netip.Prefix
	rules       []string // as in files
	defaultDeny bool
	on          map[string]*modelEndpoint // by container
}

type modelEndpoint struct {
	ports   map[int]bool // of the host
	address netip.Addr   // unknown until it is compared with the file
}

var (
	modelNetworks   = []string{"n0", "n1", "n2"}
	modelContainers = []string{"a", "b", "c", "d"}
)

func modelSubnet(network string) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", slices.Index(modelNetworks, network)))
}

// After each of many random operations the files, the kernel and the name server agree with a
// model.
func TestRandomOperations(t *testing.T) {
	t.Parallel()
	const seeds, operations = 6, 50
	done := map[string]int{}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			tb := newTestbed(t, modelContainers...)
			client := tb.startNameServer()
			s := &stepper{tb: tb, r: rand.New(rand.NewPCG(seed, 7)), m: model{}, done: done}
			for i := range operations {
				what := s.step()
				tb.check()
				s.m.compare(tb, client)
				s.m.compareFlows(tb, s.r)
				if t.Failed() {
					t.Fatalf("after operation %d: %s", i, what)
				}
			}
			for _, name := range slices.Collect(maps.Keys(s.m)) {
				must(t, tb.remove(name, true))
			}
			if found, _ := filepath.Glob(filepath.Join(tb.state, "networks", "*")); len(found) > 0 {
				t.Errorf("left behind: %v", found)
			}
		})
	}
	t.Logf("succeeded: %v", done)
	for _, op := range []string{"create", "rm", "connect", "disconnect", "publish", "unpublish", "rule", "remove rule", "policy", "apply"} {
		if done[op] == 0 && !t.Failed() {
			t.Errorf("no operation %s succeeded", op)
		}
	}
}

// compare compares the files and the name server with the model, and takes addresses from files
// that it does not know yet.
func (m model) compare(tb *testbed, client *names.Client) {
	t := tb.t
	t.Helper()
	all, err := tb.store.Networks()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if len(all) != len(m) {
		t.Errorf("%d networks, want %d", len(all), len(m))
	}
	for _, n := range all {
		if want := m[n.Name]; want == nil || !slices.Equal(n.Rules, want.rules) || n.DefaultDeny != want.defaultDeny {
			t.Errorf("%s has rules %q, default deny %v; want %+v", n.Name, n.Rules, n.DefaultDeny, want)
		}
	}
	for network, n := range m {
		endpoints, err := tb.store.Endpoints(network)
		must(t, err)
		zone, err := client.Network(t.Context(), network)
		if err != nil {
			t.Errorf("names of %s: %v", network, err)
		}
		if len(endpoints) != len(n.on) || len(zone.Endpoints) != len(n.on) {
			t.Errorf("%s: %d endpoints with a file, %d with a name, want %d", network, len(endpoints), len(zone.Endpoints), len(n.on))
		}
		for _, e := range endpoints {
			want := n.on[e.Container.Name]
			if want != nil && !want.address.IsValid() {
				want.address = e.Addresses[0]
			}
			if want == nil || len(e.Wanted.Ports) != len(want.ports) || e.Addresses[0] != want.address || !n.subnet.Contains(want.address) {
				t.Errorf("%s/%s: %v with ports %v; want %+v", network, e.Container.Name, e.Addresses, e.Wanted.Ports, want)
			}
			i := slices.IndexFunc(zone.Endpoints, func(h names.Endpoint) bool { return h.Name == e.Container.Name })
			if i < 0 || !slices.Contains(zone.Endpoints[i].Addrs, e.Addresses[0]) {
				t.Errorf("%s/%s has no name", network, e.Container.Name)
			}
		}
	}
}

// compareFlows compares the flows that the kernel has with the model's rules as they are written,
// for random packets. That the kernel has the flows of the files is what check checks.
func (m model) compareFlows(tb *testbed, r *rand.Rand) {
	t := tb.t
	t.Helper()
	var w world
	var rules []named.Rule
	addrs := []netip.Addr{netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.20.0.200")}
	for name, n := range m {
		w.networks = append(w.networks, &named.Network{NetworkSpec: named.NetworkSpec{Name: name, Driver: n.driver, DefaultDeny: n.defaultDeny, Subnets: []named.Subnet{{Prefix: n.subnet}}}})
		for container, e := range n.on {
			w.endpoints = append(w.endpoints, &named.Endpoint{Network: name, Names: []string{container}, Addresses: []netip.Addr{e.address}})
			addrs = append(addrs, e.address)
		}
		for _, text := range n.rules {
			rule, err := named.ParseStored(text)
			must(t, err)
			rules = append(rules, rule)
		}
	}
	var flows []firewall.Flow
	must(t, tb.onHost(func() (err error) { flows, err = named.WantedFlows(tb.cfg); return err }))
	inside := func(a netip.Addr) bool {
		return slices.ContainsFunc(w.networks, func(n *named.Network) bool { return n.Subnets[0].Prefix.Contains(a) })
	}
	for range 200 {
		p := flowPacket{from: addrs[r.IntN(len(addrs))], to: addrs[r.IntN(len(addrs))], protocol: []packet.Protocol{packet.TCP, packet.UDP}[r.IntN(2)], port: []uint16{53, 80, 81, 443}[r.IntN(4)]}
		if !inside(p.from) && !inside(p.to) {
			continue
		}
		if v, matches := got(flows, p); v != w.want(rules, p) || matches > 1 {
			t.Errorf("%+v: verdict %d by %d flows, want %d by rules %v", p, v, matches, w.want(rules, p), rules)
		}
	}
}
