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

	"cleat/network/named"
	"cleat/network/names"
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

// model is what should exist.
type model struct {
	subnets   map[string]netip.Prefix            // by network
	endpoints map[string]map[string]map[int]bool // network, container: the host's ports
	addresses map[string]map[string]netip.Addr   // network, container
}

// After each of many random operations the files, the kernel and the name server agree with a
// model.
func TestRandomOperations(t *testing.T) {
	const seeds, operations = 6, 50
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			containers := []string{"a", "b", "c", "d"}
			tb := newTestbed(t, containers...)
			client := tb.startNameServer()
			r := rand.New(rand.NewPCG(seed, 7))
			m := model{map[string]netip.Prefix{}, map[string]map[string]map[int]bool{}, map[string]map[string]netip.Addr{}}
			for i := range operations {
				what := m.step(tb, r, containers)
				tb.check()
				m.compare(tb, client)
				if t.Failed() {
					t.Fatalf("after operation %d: %s", i, what)
				}
			}
			for _, name := range slices.Collect(maps.Keys(m.subnets)) {
				must(t, tb.remove(name, true))
			}
			if found, _ := filepath.Glob(filepath.Join(tb.state, "networks", "*")); len(found) > 0 {
				t.Errorf("left behind: %v", found)
			}
		})
	}
}

// step does a random operation and checks that it succeeds or fails as the model says. It returns
// what it did.
func (m model) step(tb *testbed, r *rand.Rand, containers []string) string {
	t := tb.t
	networks := []string{"n0", "n1", "n2"}
	network, container := networks[r.IntN(3)], containers[r.IntN(len(containers))]
	on, exists := m.endpoints[network]
	ports, connected := on[container]
	expect := func(what string, err error, ok bool) {
		t.Helper()
		if (err == nil) != ok {
			t.Errorf("%s: got error %v, want success %v", what, err, ok)
		}
	}
	port := 8000 + r.IntN(4)
	free := true
	for _, all := range m.endpoints {
		for _, taken := range all {
			free = free && !taken[port]
		}
	}
	switch op := r.IntN(7); op {
	case 0:
		what := "create " + network
		driver := []string{named.Bridge, named.Routed}[r.IntN(2)]
		subnet := netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", slices.Index(networks, network)))
		err := tb.create(named.NetworkSpec{Name: network, Driver: driver, Subnets: []named.Subnet{{Prefix: subnet}}})
		expect(what, err, !exists)
		if err == nil {
			m.subnets[network], m.endpoints[network], m.addresses[network] = subnet, map[string]map[int]bool{}, map[string]netip.Addr{}
		}
		return what
	case 1:
		force := r.IntN(2) == 0
		what := fmt.Sprintf("rm %s, force %v", network, force)
		err := tb.remove(network, force)
		expect(what, err, exists && (force || len(on) == 0))
		if err == nil {
			delete(m.subnets, network)
			delete(m.endpoints, network)
			delete(m.addresses, network)
		}
		return what
	case 2, 3:
		what := fmt.Sprintf("connect %s to %s, port %d", container, network, port)
		e, err := tb.connect(network, container, named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: uint16(port), Port: 80}}})
		expect(what, err, exists && !connected && free)
		if err == nil {
			on[container], m.addresses[network][container] = map[int]bool{port: true}, e.Addresses[0]
		}
		return what
	case 4:
		what := fmt.Sprintf("disconnect %s from %s", container, network)
		err := tb.disconnect(network, container)
		expect(what, err, connected)
		if err == nil {
			delete(on, container)
			delete(m.addresses[network], container)
		}
		return what
	case 5:
		what := fmt.Sprintf("publish %d of %s on %s", port, container, network)
		err := tb.onHost(func() error {
			_, err := named.Publish(t.Context(), tb.cfg, network, container, []named.Port{{Protocol: "tcp", HostPort: uint16(port), Port: 81}})
			return err
		})
		expect(what, err, connected && free)
		if err == nil {
			ports[port] = true
		}
		return what
	}
	what := fmt.Sprintf("withdraw all ports of %s on %s", container, network)
	err := tb.onHost(func() error { _, err := named.Unpublish(t.Context(), tb.cfg, network, container, nil); return err })
	expect(what, err, connected)
	if err == nil {
		clear(ports)
	}
	return what
}

// compare compares the files and the name server with the model.
func (m model) compare(tb *testbed, client *names.Client) {
	t := tb.t
	t.Helper()
	all, err := tb.store.Networks()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if len(all) != len(m.subnets) {
		t.Errorf("%d networks, want %d", len(all), len(m.subnets))
	}
	for network, on := range m.endpoints {
		endpoints, err := tb.store.Endpoints(network)
		must(t, err)
		zone, err := client.Network(t.Context(), network)
		if err != nil {
			t.Errorf("names of %s: %v", network, err)
		}
		if len(endpoints) != len(on) || len(zone.Endpoints) != len(on) {
			t.Errorf("%s: %d endpoints with a file, %d with a name, want %d", network, len(endpoints), len(zone.Endpoints), len(on))
		}
		for _, e := range endpoints {
			ports, connected := on[e.Container.Name]
			if !connected || len(e.Wanted.Ports) != len(ports) || e.Addresses[0] != m.addresses[network][e.Container.Name] {
				t.Errorf("%s/%s: %v with ports %v; want it %v with %v", network, e.Container.Name, e.Addresses, e.Wanted.Ports, connected, ports)
			}
			i := slices.IndexFunc(zone.Endpoints, func(h names.Endpoint) bool { return h.Name == e.Container.Name })
			if i < 0 || !slices.Contains(zone.Endpoints[i].Addrs, e.Addresses[0]) {
				t.Errorf("%s/%s has no name", network, e.Container.Name)
			}
		}
	}
}
