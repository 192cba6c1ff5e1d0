package named_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/link"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
)

// answer serves TCP on a port of a namespace with the client's address as the answer, until the
// test ends or the listener is closed.
func answer(t *testing.T, ns *netns.NS, port int) (l net.Listener) {
	t.Helper()
	must(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprint(c, host)
			c.Close()
		}
	}()
	return l
}

// ask connects from a namespace and returns what the server answers; "" if it can't be reached.
func ask(ns *netns.NS, to string) string {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to, time.Second)
		return err
	})
	if err != nil {
		return ""
	}
	defer c.Close()
	b := make([]byte, 100)
	n, _ := c.Read(b)
	return string(b[:n])
}

// subnets returns subnets of both families.
func subnets(n int) []named.Subnet {
	return []named.Subnet{{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", n))}, {Prefix: netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n))}}
}

// The host reaches published ports of several networks at its loopback addresses.
func TestPortsAtLoopback(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c", "d")
	for i, name := range []string{"a", "b", "c", "d"} {
		network := "of-" + name
		must(t, tb.create(named.NetworkSpec{Name: network, Driver: []string{named.Bridge, named.Routed}[i%2], Subnets: subnets(i + 1)}))
		must(t, ignore(tb.connect(network, name, named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: uint16(8080 + i), Port: 80}}})))
	}
	must(t, tb.onHost(func() error {
		err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-ip6tables", []byte("0"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}))
	for i, name := range []string{"a", "b", "c", "d"} {
		answer(t, tb.containers[name], 80)
		for _, to := range []string{"127.0.0.1", "[::1]"} {
			if ask(tb.host, fmt.Sprintf("%s:%d", to, 8080+i)) == "" {
				t.Errorf("the host does not reach the port of %s at %s", name, to)
			}
		}
	}
}

// Containers on one network reach each other, published ports are reached from everywhere with
// the client's address, and networks don't reach each other. For each driver of the host.
func TestReach(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			must(t, tb.create(named.NetworkSpec{Name: "web", Driver: driver, Subnets: subnets(1)}))
			must(t, tb.create(named.NetworkSpec{Name: "db", Driver: driver, Subnets: subnets(2)}))
			for network, containers := range map[string][]string{"web": {"a", "b"}, "db": {"c"}} {
				for _, c := range containers {
					var ports []named.Port
					if c == "b" {
						ports = []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}
					}
					_, err := tb.connect(network, c, named.Connection{Ports: ports})
					must(t, err)
					answer(t, tb.containers[c], 80)
				}
			}
			a, b, c := tb.containers["a"], tb.containers["b"], tb.containers["c"]
			for _, tt := range []struct {
				what string
				from *netns.NS
				to   string
				want string // the client's address as the server sees it; "": not reached
			}{
				{"a neighbour", a, "10.20.1.3:80", "10.20.1.2"},
				{"a neighbour, IPv6", a, "[fd00:1::3]:80", "fd00:1::2"},
				{"another network", a, "10.20.2.2:80", ""},
				{"another network, IPv6", c, "[fd00:1::3]:80", ""},
				{"a published port from outside", tb.outside, "198.51.100.1:8080", "198.51.100.2"},
				{"a published port from the host", tb.host, "198.51.100.1:8080", "198.51.100.1"},
				{"a published port at the host's loopback", tb.host, "127.0.0.1:8080", "10.20.1.1"},
				{"a published port of a neighbour", a, "198.51.100.1:8080", "10.20.1.2"},
				{"its own published port", b, "198.51.100.1:8080", "10.20.1.1"},
				{"a published port of another network", c, "198.51.100.1:8080", "10.20.2.2"},
			} {
				got := ask(tt.from, tt.to)
				if !strings.HasPrefix(tt.want, "198.51") && tt.want != "" && got != "" {
					got = tt.want // connections that turn around have the host's address
				}
				if got != tt.want {
					t.Errorf("%s (%s): the server sees %q, want %q", tt.what, tt.to, got, tt.want)
				}
			}
			must(t, tb.disconnect("web", "b"))
			if got := ask(tb.outside, "198.51.100.1:8080"); got != "" {
				t.Errorf("a withdrawn port still answers %s", got)
			}
			tb.check()
		})
	}
}

// Rules open and close what they say, also on a bridge, and end what they close.
func TestRules(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c")
	must(t, link.SetBridgeNetfilter(tb.host, false)) // only our bridges pass packets through netfilter
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	must(t, tb.create(named.NetworkSpec{Name: "db", Subnets: subnets(2)}))
	for c, network := range map[string]string{"a": "web", "b": "web", "c": "db"} {
		_, err := tb.connect(network, c, named.Connection{Labels: map[string]string{"tier": c}})
		must(t, err)
		answer(t, tb.containers[c], 80)
		answer(t, tb.containers[c], 81)
	}
	address := map[string]string{}
	for c, network := range map[string]string{"a": "web", "b": "web", "c": "db"} {
		e, err := tb.store.Endpoints(network)
		must(t, err)
		for _, one := range e {
			if one.Container.Name == c {
				address[c] = one.Addresses[0].String()
			}
		}
	}
	reaches := func(from, to string, port int) bool {
		return ask(tb.containers[from], fmt.Sprintf("%s:%d", address[to], port)) != ""
	}
	rule := func(allow bool, text string) {
		t.Helper()
		must(t, tb.onHost(func() error {
			do := named.Deny
			if allow {
				do = named.Allow
			}
			_, err := do(t.Context(), tb.cfg, text)
			return err
		}))
		tb.check()
	}
	expect := func(when, from, to string, port int, want bool) {
		t.Helper()
		if got := reaches(from, to, port); got != want {
			t.Errorf("%s: %s reaches port %d of %s: %v, want %v", when, from, port, to, got, want)
		}
	}
	expect("no rule", "a", "b", 80, true)
	expect("no rule", "a", "c", 80, false)
	rule(true, "web/a to db/c:80")
	expect("allow between networks", "a", "c", 80, true)
	expect("allow between networks", "a", "c", 81, false)
	expect("allow between networks", "b", "c", 80, false)
	rule(false, "web/tier=a to b:80")
	expect("deny inside", "a", "b", 80, false)
	expect("deny inside", "a", "b", 81, true)
	expect("deny inside", "b", "a", 80, true)
	rule(true, "web/a to web/b:80")
	expect("allow a container, deny its label", "a", "b", 80, true)
	rule(false, "web/a to web/b")
	expect("deny all of it", "a", "b", 80, true)
	expect("deny all of it", "a", "b", 81, false)
	must(t, tb.disconnect("web", "a"))
	tb.check()
	must(t, tb.remove("web", true))
	must(t, tb.remove("db", true))
}

// A full network says who has its addresses, and gives one out again.
func TestFullNetwork(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("10.20.0.0/30"), Gateway: netip.MustParseAddr("10.20.0.1")}}}))
	_, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	if _, err := tb.connect("web", "b", named.Connection{}); err == nil || !strings.Contains(err.Error(), "taken by a") {
		t.Errorf("connect to a full network: %v", err)
	}
	tb.check()
	must(t, tb.disconnect("web", "a"))
	e, err := tb.connect("web", "b", named.Connection{})
	must(t, err)
	if e.Addresses[0] != netip.MustParseAddr("10.20.0.2") {
		t.Errorf("got %s", e.Addresses)
	}
}

// A container gets its address again, and a taken one is refused with its owner's name.
func TestAddresses(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	first, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	must(t, tb.disconnect("web", "a"))
	second, err := tb.connect("web", "b", named.Connection{})
	must(t, err)
	again, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	if again.Addresses[0] != first.Addresses[0] || second.Addresses[0] == first.Addresses[0] {
		t.Errorf("a had %v, then b got %v, then a %v", first.Addresses, second.Addresses, again.Addresses)
	}
	must(t, tb.disconnect("web", "b"))
	_, err = tb.connect("web", "b", named.Connection{Addresses: first.Addresses[:1]})
	var taken *named.AddressTakenError
	if !errors.As(err, &taken) || taken.Container != "a" {
		t.Errorf("a taken address: %v", err)
	}
	tb.check()
}

// A port that is published or that a program has is refused before anything is made.
func TestPortTaken(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	answer(t, tb.host, 9000)
	before := tb.snapshot()
	_, err := tb.connect("web", "a", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 9000, Port: 80}}})
	var taken *named.PortTakenError
	if !errors.As(err, &taken) || !strings.Contains(taken.Owner, "process") {
		t.Errorf("a program's port: %v", err)
	}
	tb.is("after a refused port", before)
	must(t, ignore(tb.connect("web", "a", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80, Count: 10}}})))
	for text, free := range map[string]bool{"8085:80": false, "127.0.0.1:8089:80": false, "8085:80/udp": true, "8090:80": true, "0:80": true} {
		p, err := named.ParsePort(text)
		must(t, err)
		err = ignore(tb.connect("web", "b", named.Connection{Ports: []named.Port{p}}))
		if (err == nil) != free {
			t.Errorf("port %s: %v, want free %v", text, err, free)
		}
		if err == nil {
			must(t, tb.disconnect("web", "b"))
		}
	}
	tb.check()
}

func ignore(_ *named.Endpoint, err error) error { return err }

// A hundred containers connected at once get a hundred addresses and ports.
func TestConnectAtOnce(t *testing.T) {
	const n = 100
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("c", i))
	}
	tb := newTestbed(t, names...)
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	type result struct {
		e   *named.Endpoint
		err error
	}
	results := make(chan result)
	for _, name := range names {
		go func() {
			e, err := tb.connect("web", name, named.Connection{Ports: []named.Port{{Protocol: "tcp", Port: 80}}})
			results <- result{e, err}
		}()
	}
	seen := map[string]string{}
	for range n {
		r := <-results
		if r.err != nil {
			t.Fatal(r.err)
		}
		for _, key := range []string{r.e.Addresses[0].String(), r.e.Addresses[1].String(), fmt.Sprint("port ", r.e.Wanted.Ports[0].HostPort)} {
			if seen[key] != "" {
				t.Errorf("%s belongs to %s and %s", key, seen[key], r.e.Container.Name)
			}
			seen[key] = r.e.Container.Name
		}
	}
	tb.check()
}

// After a restart of the machine, when nothing of it is left in the kernel, a network is made
// again with the same addresses and ports, in whatever order its parts come back.
func TestRestart(t *testing.T) {
	for _, linksFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("links first ", linksFirst), func(t *testing.T) {
			tb := newTestbed(t, "a", "b")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
			before, err := tb.connect("web", "a", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}})
			must(t, err)
			again := newTestbed(t, "a", "b")
			must(t, os.RemoveAll(tb.store.RunPath()))
			tb.otherBoot()
			tb.host, tb.outside, tb.containers = again.host, again.outside, again.containers
			if linksFirst {
				a, err := tb.store.Attachment(before.AttachmentID)
				must(t, err)
				must(t, tb.onHost(func() error { _, err := attach.Reattach(t.Context(), tb.cfg.Attach, a); return err }))
			}
			must(t, tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err }))
			tb.check()
			answer(t, tb.containers["a"], 80)
			if got := ask(tb.host, "198.51.100.1:8080"); got == "" {
				t.Error("the published port does not answer")
			}
			after, err := tb.connect("web", "b", named.Connection{})
			must(t, err)
			if after.Addresses[0] == before.Addresses[0] {
				t.Errorf("b got %s, which belongs to a", after.Addresses[0])
			}
			must(t, tb.remove("web", true))
		})
	}
}

// otherBoot makes all attachments those of an earlier boot.
func (tb *testbed) otherBoot() {
	paths, err := filepath.Glob(tb.store.Path("attachments", "*.json"))
	must(tb.t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must(tb.t, err)
		must(tb.t, os.WriteFile(path, bytes.ReplaceAll(text, []byte(tb.store.BootID()), []byte("another-boot")), 0o644))
	}
}
