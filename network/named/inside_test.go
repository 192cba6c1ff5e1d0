package named_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/networktest"
)

// insideServer is where names are served inside containers.
var insideServer = netip.MustParseAddr("127.0.0.64")

// rootEnv makes the test binary the first process of a container with this root.
const rootEnv = "CLEAT_TEST_ROOT"

// beContainer runs in the first process of a container, until its standard input ends.
func beContainer(root string) {
	if err := syscall.Chroot(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// start starts the first process of a container, whose root has a resolv.conf with this text. It
// returns the path of the file, and a function that ends the process.
func (tb *testbed) start(name, text string) (conf string, end func()) {
	t := tb.t
	t.Helper()
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	conf = filepath.Join(root, "etc", "resolv.conf")
	must(t, os.WriteFile(conf, []byte(text), 0o644))
	return conf, tb.startAt(name, root)
}

func (tb *testbed) startAt(name, root string) (end func()) {
	t := tb.t
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), rootEnv+"="+root)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, tb.containers[name].Start(cmd))
	end = func() { in.Close(); _ = cmd.Wait() }
	t.Cleanup(end)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the container %s did not start: %v", name, err)
	}
	tb.pids[name] = cmd.Process.Pid
	return end
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// inside returns the IDs of the sockets that the name server has inside containers.
func (tb *testbed) inside() []string {
	tb.t.Helper()
	c, err := names.Dial(tb.t.Context(), named.NameServerPath(tb.store))
	must(tb.t, err)
	defer c.Close()
	state, err := c.State(tb.t.Context())
	must(tb.t, err)
	var ids []string
	for _, k := range state.Sockets {
		if strings.HasPrefix(k.ID, "inside:") {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

func (tb *testbed) eventually(what string, done func() bool) {
	tb.t.Helper()
	tb.within(10*time.Second, what, done)
}

func (tb *testbed) within(d time.Duration, what string, done func() bool) {
	tb.t.Helper()
	for end := time.Now().Add(d); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.t.Fatalf("not within %s: %s", d, what)
		}
	}
}

// hostResolvConf gives the host a resolv.conf.
func (tb *testbed) hostResolvConf(text string) {
	tb.cfg.ResolvConf = filepath.Join(tb.t.TempDir(), "resolv.conf")
	must(tb.t, os.WriteFile(tb.cfg.ResolvConf, []byte(text), 0o644))
}

// Containers of a network whose gateway is not the host find names at a server inside them: as long
// as they run, and after a restart of the server or of the container.
func TestNamesInside(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	tb.hostResolvConf("search corp.example\nnameserver 192.0.2.1\n")
	outside := netip.MustParseAddr("198.51.100.2")
	upstream(t, tb.outside, outside, outside)
	must(t, tb.create(named.NetworkSpec{Name: "lan", Driver: named.Macvlan, Parent: "nic", DNS: []netip.Addr{outside},
		Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: outside, Range: netip.MustParsePrefix("198.51.100.64/26")}}}))
	keeper := tb.startKeeper()
	const had = "nameserver 192.0.2.77\noptions ndots:1\n"
	conf, end := tb.start("a", had)
	addresses := map[string]netip.Addr{}
	for _, c := range []string{"a", "b"} {
		e, err := tb.connect("lan", c, named.Connection{})
		must(t, err)
		addresses[c] = e.Addresses[0]
	}
	if got, want := read(t, conf), "search lan corp.example\noptions ndots:1\nnameserver 127.0.0.64\n"; got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	finds := func(when string) {
		t.Helper()
		a := tb.containers["a"]
		for name, want := range map[string]netip.Addr{"b.": addresses["b"], "b.lan.": addresses["b"], "www.example.test.": outside} {
			if got := resolve(a, insideServer, name); len(got) != 1 || got[0].Unmap() != want {
				t.Errorf("%s, %s: got %v, want %s", when, name, got, want)
			}
		}
		if got := reverse(a, insideServer, addresses["b"]); !slices.Equal(got, []string{"b.lan."}) {
			t.Errorf("%s: the name of %s is %v", when, addresses["b"], got)
		}
		tb.check()
	}
	finds("connected")
	tb.killNameServer()
	tb.eventually("names after a restart of the server", func() bool { return len(resolve(tb.containers["a"], insideServer, "b.")) > 0 })
	finds("the server was restarted")

	end()
	tb.eventually("the sockets end with the container", func() bool { return len(tb.inside()) == 0 })
	must(t, os.WriteFile(conf, []byte(had), 0o644)) // its engine writes it anew
	must(t, tb.containers["a"].Close())
	tb.containers["a"] = networktest.NewNS(t, "a")
	tb.startAt("a", filepath.Dir(filepath.Dir(conf)))
	a := tb.attachment("lan", "a")
	tb.eventually("the link is attached again", func() bool { // the kernel removes the old one a moment after the namespace
		return tb.onHost(func() error { _, err := attach.Reattach(t.Context(), tb.cfg.Attach, a); return err }) == nil
	})
	a = tb.attachment("lan", "a")
	must(t, tb.onHost(func() error { keeper.Attached(t.Context(), a); return nil }))
	finds("the container was restarted")
	must(t, tb.disconnect("lan", "a"))
	if got := read(t, conf); got != had {
		t.Errorf("disconnected: resolv.conf is %q", got)
	}
	if got := tb.inside(); len(got) > 0 {
		t.Errorf("disconnected: still served: %v", got)
	}
	tb.check()
}

// attachment returns the attachment of a container on a network.
func (tb *testbed) attachment(network, container string) *attach.Attachment {
	tb.t.Helper()
	all, err := tb.store.AttachmentsOf(attach.Container{Engine: "test", Name: container})
	must(tb.t, err)
	i := slices.IndexFunc(all, func(a *attach.Attachment) bool { return a.Spec.Network == network })
	if i < 0 {
		tb.t.Fatalf("%s is not attached to %s", container, network)
	}
	return all[i]
}

// killNameServer kills the name server.
func (tb *testbed) killNameServer() {
	tb.t.Helper()
	c, err := names.Dial(tb.t.Context(), named.NameServerPath(tb.store))
	must(tb.t, err)
	defer c.Close()
	state, err := c.State(tb.t.Context())
	must(tb.t, err)
	must(tb.t, syscall.Kill(state.PID, syscall.SIGKILL))
}

// reverse returns the names of an address.
func reverse(ns *netns.NS, server, a netip.Addr) []string {
	r := net.Resolver{PreferGo: true, Dial: dialer(ns, server)}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	all, _ := r.LookupAddr(ctx, a.String())
	return all
}

// An address has one name with the network, or all names of its container if an engine wants that.
func TestReverse(t *testing.T) {
	tb := newTestbed(t, "a")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	must(t, tb.create(named.NetworkSpec{Name: "pods", Subnets: subnets(2), EngineSpec: named.EngineSpec{Domain: "dns.podman", AllReverse: true}}))
	tb.startKeeper()
	for network, want := range map[string][]string{"web": {"a.web."}, "pods": {"a.", "www."}} {
		e, err := tb.connect(network, "a", named.Connection{NoDNS: true, Aliases: []string{"www"}})
		must(t, err)
		n, err := tb.store.Network(network)
		must(t, err)
		tb.eventually("names of "+network, func() bool {
			return slices.Equal(reverse(tb.containers["a"], n.Subnets[0].Gateway, e.Addresses[0]), want)
		})
		must(t, tb.disconnect(network, "a"))
	}
}

// A container on several networks finds the names of all of them, and of what remains when it leaves
// one, whichever it leaves first.
func TestNamesOfSeveralNetworks(t *testing.T) {
	for _, first := range []string{"web", "db"} {
		t.Run("leaves "+first+" first", func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			tb.hostResolvConf("nameserver 192.0.2.1\n")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
			must(t, tb.create(named.NetworkSpec{Name: "db", Driver: named.Routed, Subnets: subnets(2)}))
			tb.startKeeper()
			const had = "nameserver 192.0.2.77\n"
			conf, _ := tb.start("a", had)
			for _, on := range []struct{ network, container string }{{"web", "b"}, {"db", "c"}, {"web", "a"}} {
				must(t, ignore(tb.connect(on.network, on.container, named.Connection{})))
			}
			if got, want := read(t, conf), "nameserver 10.20.1.1\nnameserver fd00:1::1\n"; got != want {
				t.Errorf("on one network: resolv.conf is %q, want %q", got, want)
			}
			must(t, ignore(tb.connect("db", "a", named.Connection{})))
			if got, want := read(t, conf), "nameserver 127.0.0.64\n"; got != want {
				t.Errorf("on two networks: resolv.conf is %q, want %q", got, want)
			}
			finds := func(name string) bool { return len(resolve(tb.containers["a"], insideServer, name+".")) == 1 }
			for _, name := range []string{"b", "b.web", "c", "c.db"} {
				if !finds(name) {
					t.Errorf("on two networks: %s is not found", name)
				}
			}
			tb.check()
			must(t, tb.disconnect(first, "a"))
			want := map[string]string{"web": "nameserver 10.20.2.1\nnameserver fd00:2::1\n", "db": "nameserver 10.20.1.1\nnameserver fd00:1::1\n"}[first]
			if got := read(t, conf); got != want {
				t.Errorf("on the other network: resolv.conf is %q, want %q", got, want)
			}
			if got := tb.inside(); len(got) > 0 {
				t.Errorf("on the other network: still served inside: %v", got)
			}
			must(t, tb.remove("web", true))
			must(t, tb.remove("db", true))
			if got := read(t, conf); got != had {
				t.Errorf("on no network: resolv.conf is %q", got)
			}
		})
	}
}

// The resolver of a container's engine stays the one for all names that are not ours.
func TestEngineResolver(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	tb.hostResolvConf("search corp.example\n")
	engine, engines := netip.MustParseAddr("127.0.0.11"), netip.MustParseAddr("192.0.2.9")
	upstream(t, tb.containers["a"], engine, engines)
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	tb.startKeeper()
	for _, tt := range []struct{ had, want string }{
		{"nameserver 127.0.0.11\noptions ndots:0\n", "options ndots:0\nnameserver 127.0.0.64\nnameserver 127.0.0.11\n"},
		{"nameserver 127.0.0.12\nnameserver 192.0.2.1\n", "search web corp.example\nnameserver 10.20.1.1\nnameserver fd00:1::1\n"}, // nobody listens; the host's
	} {
		conf, end := tb.start("a", tt.had)
		for _, c := range []string{"a", "b"} {
			must(t, ignore(tb.connect("web", c, named.Connection{})))
		}
		if got := read(t, conf); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.had, got, tt.want)
		}
		if strings.Contains(tt.want, engine.String()) {
			if got := resolve(tb.containers["a"], insideServer, "b."); len(got) != 1 {
				t.Errorf("our name: %v", got)
			}
			if got := resolve(tb.containers["a"], insideServer, "theirs."); len(got) != 0 {
				t.Errorf("the engine's name at our server: %v", got)
			}
			if got := resolve(tb.containers["a"], engine, "theirs."); len(got) != 1 {
				t.Errorf("the engine's name at its server: %v", got)
			}
		}
		tb.check()
		for _, c := range []string{"a", "b"} {
			must(t, tb.disconnect("web", c))
		}
		if got := read(t, conf); got != tt.had {
			t.Errorf("disconnected: %q became %q", tt.had, got)
		}
		end()
		delete(tb.pids, "a")
	}
}

// A container with a name server of its own keeps the port, also when it restarts, and asks the
// gateways of its networks.
func TestOwnNameServer(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	tb.hostResolvConf("")
	const had, want = "nameserver 192.0.2.77\n", "nameserver 10.20.1.1\nnameserver fd00:1::1\nnameserver 10.20.2.1\n"
	conf, _ := tb.start("a", had)
	must(t, tb.create(named.NetworkSpec{Name: "app", Subnets: subnets(1)}))
	must(t, tb.create(named.NetworkSpec{Name: "db", Subnets: subnets(2)}))
	tb.startKeeper()
	must(t, ignore(tb.connect("app", "a", named.Connection{})))
	own := answer(t, tb.containers["a"], 53)
	must(t, ignore(tb.connect("db", "a", named.Connection{})))
	if got := read(t, conf); got != want {
		t.Errorf("resolv.conf is %q, want %q", got, want)
	}
	must(t, own.Close()) // while it restarts
	must(t, tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err }))
	if got := read(t, conf); got != want || len(tb.inside()) > 0 {
		t.Errorf("while its server restarts: resolv.conf is %q, served inside: %v", got, tb.inside())
	}
	tb.check()
	for _, n := range []string{"app", "db"} {
		must(t, tb.disconnect(n, "a"))
	}
	if got := read(t, conf); got != had {
		t.Errorf("disconnected: resolv.conf is %q", got)
	}
}

// A connection that changes where a container asks for names, killed at each of its steps, leaves
// the resolv.conf of before or after, and nothing that the next command does not find.
func TestNamesKilledAtEachStep(t *testing.T) {
	needKinds(t, "macvlan")
	const had = "options ndots:1\nnameserver 192.0.2.77\n"
	start := func() (tb *testbed, conf string) {
		tb = newTestbed(t, "a")
		tb.hostResolvConf("search corp.example\n")
		conf, _ = tb.start("a", had)
		must(t, tb.create(lan(named.Macvlan)))
		must(t, tb.create(named.NetworkSpec{Name: "app", Subnets: subnets(1)})) // before "lan" by name as well as by time
		must(t, ignore(tb.connect("app", "a", named.Connection{})))
		return tb, conf
	}
	for _, name := range []string{"connect", "disconnect"} {
		t.Run(name, func(t *testing.T) {
			do := func(tb *testbed) error { return ignore(tb.connect("lan", "a", named.Connection{})) }
			if name == "disconnect" {
				connect := do
				before := start
				start = func() (*testbed, string) { tb, conf := before(); must(t, connect(tb)); return tb, conf }
				do = func(tb *testbed) error { return tb.disconnect("lan", "a") }
			}
			tb, conf := start()
			before := read(t, conf)
			points := 0
			tb.cfg.Attach.Checkpoint = func() error { points++; return nil }
			must(t, do(tb))
			tb.cfg.Attach.Checkpoint = nil
			after := read(t, conf)
			if before == after {
				t.Fatalf("the resolv.conf does not change: %q", before)
			}
			for k := range points {
				tb, conf := start()
				n := 0
				tb.cfg.Attach.Checkpoint = func() error {
					if n++; n > k {
						return attach.ErrKilled
					}
					return nil
				}
				if err := do(tb); !errors.Is(err, attach.ErrKilled) {
					t.Fatalf("killed at step %d of %d: got %v", k, points, err)
				}
				tb.cfg.Attach.Checkpoint = nil
				must(t, tb.repair())
				endpoints, err := tb.store.Endpoints("lan")
				must(t, err)
				want := before
				if (len(endpoints) > 0) == (name == "connect") {
					want = after
				}
				if got := read(t, conf); got != want {
					t.Errorf("killed at step %d of %d, %d endpoints: resolv.conf is %q, want %q", k, points, len(endpoints), got, want)
				}
				tb.check()
				must(t, tb.remove("lan", true))
				must(t, tb.remove("app", true))
				if got := read(t, conf); got != had {
					t.Errorf("killed at step %d of %d: at the end resolv.conf is %q", k, points, got)
				}
			}
		})
	}
}
