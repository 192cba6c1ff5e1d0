package why_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
	"cleat/netns/find"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/networktest"
	"cleat/network/why"

	"golang.org/x/sys/unix"
)

// Environment variables that make the test binary another program: a name server with this
// control socket, or a container's process with this root directory.
const (
	serveNamesEnv = "CLEAT_TEST_SERVE_NAMES"
	rootEnv       = "CLEAT_TEST_ROOT"
)

// parallelTests is how many tests run at the same time. Most of the time they wait for answers
// that don't come.
const parallelTests = 6

func TestMain(m *testing.M) {
	if path := os.Getenv(serveNamesEnv); path != "" {
		if err := names.Run(context.Background(), names.Config{Path: path, ResolvConf: filepath.Join(filepath.Dir(path), "resolv.conf")}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if root := os.Getenv(rootEnv); root != "" {
		if err := unix.Chroot(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	lab.SetParallel(parallelTests)
	os.Exit(lab.RunTests(m))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// testbed is a host with an uplink, a name server, and containers, each with a process that has
// a root directory of its own:
//
//	outside 198.51.100.2 ═══ nic ─ host 198.51.100.1/24   a, b, c …
type testbed struct {
	t             *testing.T
	host, outside *netns.NS
	containers    map[string]*testContainer
	cfg           named.Config
	store         named.Store
	stopNames     func()
}

type testContainer struct {
	ns   *netns.NS
	root string
	pid  int
	// stopped makes the engine say that the container does not run.
	stopped bool
}

func newTestbed(t *testing.T, containers ...string) *testbed {
	t.Helper()
	lab.Need(t)
	state := filepath.Join(t.TempDir(), "state")
	tb := &testbed{t: t, host: networktest.NewNS(t, "host"), outside: networktest.NewNS(t, "outside"), containers: map[string]*testContainer{}}
	networktest.Connect(t, tb.host, tb.outside)
	must(t, link.SetBridgeNetfilter(tb.host, false))
	for _, name := range containers {
		c := &testContainer{ns: networktest.NewNS(t, name), root: t.TempDir()}
		must(t, os.Mkdir(filepath.Join(c.root, "etc"), 0o755), os.WriteFile(filepath.Join(c.root, "etc/resolv.conf"), []byte("nameserver 192.0.2.53\n"), 0o644))
		c.pid = startProcess(t, c.ns, rootEnv+"="+c.root, true).Process.Pid
		tb.containers[name] = c
	}
	store, err := attach.OpenStore(state)
	must(t, err)
	tb.store = named.Store{Store: store}
	tb.cfg.Attach = attach.Config{Store: store, Find: tb.find}
	tb.startNames()
	return tb
}

// startProcess runs the test binary in a namespace until the test ends. Unless wait is false
// it waits for its first output.
func startProcess(t *testing.T, ns *netns.NS, env string, wait bool) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err, ns.Start(cmd))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if wait {
		_, err := out.Read(make([]byte, 1))
		must(t, err)
	}
	return cmd
}

// startNames runs a name server, in a process of its own because it seals that, and waits until
// it knows all names.
func (tb *testbed) startNames() {
	tb.t.Helper()
	path := named.NameServerPath(tb.store)
	must(tb.t, os.MkdirAll(filepath.Dir(path), 0o755))
	cmd := startProcess(tb.t, tb.host, serveNamesEnv+"="+path, false)
	tb.stopNames = func() { cmd.Process.Kill(); cmd.Wait() }
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		c, err := names.Dial(context.Background(), path)
		if err == nil {
			defer c.Close()
			must(tb.t, tb.onHost(func() error { return named.SendNames(tb.t.Context(), tb.cfg, c) }))
			return
		}
		if time.Now().After(end) {
			tb.t.Fatal(err)
		}
	}
}

func (tb *testbed) find(_ context.Context, ref string) (attach.Container, *netns.NS, error) {
	name := strings.TrimPrefix(ref, "test:")
	c := tb.containers[name]
	switch {
	case c == nil:
		return attach.Container{}, nil, netns.ErrNotFound
	case c.stopped:
		return attach.Container{}, nil, &find.NotRunning{Found: find.Found{Engine: "test", Name: name}, State: "exited", Remedy: "test start " + name}
	}
	own, err := netns.Open(c.ns.Path())
	return attach.Container{Ref: ref, Engine: "test", Name: name, PID: c.pid, Path: fmt.Sprintf("/proc/%d/ns/net", c.pid)}, own, err
}

func (tb *testbed) onHost(f func() error) error { return tb.host.Do(f) }

func (tb *testbed) create(spec named.NetworkSpec) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error { _, err := named.Create(tb.t.Context(), tb.cfg, spec); return err }))
}

// network creates network number n with containers on it: 10.20.n.0/24.
func (tb *testbed) network(name string, n int, containers ...string) {
	tb.t.Helper()
	tb.create(named.NetworkSpec{Name: name, Subnets: subnets(n)})
	for _, c := range containers {
		tb.connect(name, c, named.Connection{})
	}
}

func (tb *testbed) connect(network, container string, c named.Connection) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error { _, err := named.Connect(tb.t.Context(), tb.cfg, network, container, c); return err }))
	// The kernel notices up to a second later that a link has a carrier (linkwatch). Then it
	// makes the port of a bridge forward, and would undo what a test does to the port.
	tb.run("host until ip link show dev " + tb.portOf(container, network) + " | grep -q 'state UP'; do sleep 0.01; done")
}

// rule adds a rule, e.g. "deny web/a to web/b".
func (tb *testbed) rule(text string) {
	tb.t.Helper()
	verb, rest, _ := strings.Cut(text, " ")
	do := map[string]func(context.Context, named.Config, string) (named.Rule, error){"allow": named.Allow, "deny": named.Deny}[verb]
	must(tb.t, tb.onHost(func() error { _, err := do(tb.t.Context(), tb.cfg, rest); return err }))
}

// ns returns the namespace of a container, of the host or of the outside.
func (tb *testbed) ns(name string) *netns.NS {
	switch name {
	case "host":
		return tb.host
	case "outside":
		return tb.outside
	}
	return tb.containers[name].ns
}

// run runs a program in a namespace: "a ip link set eth0 down".
func (tb *testbed) run(line string) {
	tb.t.Helper()
	at, command, _ := strings.Cut(line, " ")
	cmd := exec.Command("sh", "-c", command)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	must(tb.t, tb.ns(at).Start(cmd))
	if err := cmd.Wait(); err != nil {
		tb.t.Fatalf("%s: %v\n%s", line, err, &out)
	}
}

// listen accepts connections at an address of a namespace until the test ends.
func (tb *testbed) listen(at, address string) {
	tb.t.Helper()
	var l net.Listener
	must(tb.t, tb.ns(at).Do(func() (err error) { l, err = net.Listen("tcp", address); return err }))
	tb.t.Cleanup(func() { l.Close() })
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

// receive takes datagrams at an address of a namespace, and answers none, until the test ends.
func (tb *testbed) receive(at, address string) {
	tb.t.Helper()
	must(tb.t, tb.ns(at).Do(func() error {
		c, err := net.ListenPacket("udp", address)
		if err == nil {
			tb.t.Cleanup(func() { c.Close() })
		}
		return err
	}))
}

// ask asks why a does or does not reach a destination.
func (tb *testbed) ask(from, to string) *why.Answer {
	tb.t.Helper()
	d, err := why.ParseDestination(to)
	must(tb.t, err)
	var a *why.Answer
	must(tb.t, tb.onHost(func() (err error) {
		a, err = why.Ask(tb.t.Context(), tb.cfg, why.Question{From: from, To: d})
		return err
	}))
	return a
}

// portOf returns the name of the host's end of a container's link to a network.
func (tb *testbed) portOf(container, network string) string {
	tb.t.Helper()
	all, err := tb.store.Attachments()
	must(tb.t, err)
	for _, a := range all {
		if a.Container.Name != container || a.Spec.Network != network {
			continue
		}
		var st attach.Status
		must(tb.t, tb.onHost(func() (err error) { st, err = attach.StatusOf(tb.store.Store, a); return err }))
		return st.Peer
	}
	tb.t.Fatalf("%s has no link to %s", container, network)
	return ""
}

// fill replaces words in an expected text by what differs from test to test: PID is the process
// of a, PID-b that of b, PORT-b the host's end of b's link to web, and PORT-db-b
// that to db.
func (tb *testbed) fill(text string) string {
	if strings.Contains(text, "PORT-db-b") {
		text = strings.ReplaceAll(text, "PORT-db-b", tb.portOf("b", "db"))
	}
	if strings.Contains(text, "PORT-b") {
		text = strings.ReplaceAll(text, "PORT-b", tb.portOf("b", "web"))
	}
	pid := func(name string) string { return fmt.Sprint(tb.containers[name].pid) }
	return strings.NewReplacer("PID-b", pid("b"), "PID-c", pid("c"), "PID", pid("a")).Replace(text)
}

// text returns an answer as people see it.
func text(t *testing.T, a *why.Answer) string {
	t.Helper()
	var b strings.Builder
	must(t, a.WriteText(&b))
	return b.String()
}

func (tb *testbed) write(container, name, text string) {
	tb.t.Helper()
	must(tb.t, os.WriteFile(filepath.Join(tb.containers[container].root, "etc", name), []byte(text), 0o644))
}

// together puts a and b on web, with a program at port 80 of b.
func together(tb *testbed) {
	tb.network("web", 1, "a", "b")
	tb.listen("b", ":80")
}

// apart puts a on web and b on db, with a program at port 80 of b.
func apart(tb *testbed) {
	tb.network("web", 1, "a")
	tb.network("db", 2, "b")
	tb.listen("b", ":80")
}

// dual puts a and b on web, which has IPv4 and IPv6.
func (tb *testbed) dual() {
	tb.t.Helper()
	tb.create(named.NetworkSpec{Name: "web", Subnets: append(subnets(1), named.Subnet{Prefix: netip.MustParsePrefix("fd00:1::/64")})})
	tb.connect("web", "a", named.Connection{})
	tb.connect("web", "b", named.Connection{})
}

// routed puts a and b on web, a network without a bridge.
func (tb *testbed) routed() {
	tb.t.Helper()
	tb.create(named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: subnets(1)})
	tb.connect("web", "a", named.Connection{})
	tb.connect("web", "b", named.Connection{})
}

// subnets returns those of network number n.
func subnets(n int) []named.Subnet {
	return []named.Subnet{{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", n))}}
}

// published puts a on web, and b on db with port 80 on port 8080 of the host.
func published(tb *testbed) {
	tb.network("web", 1, "a")
	tb.network("db", 2)
	tb.connect("db", "b", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80, BypassFirewall: true}}})
	tb.listen("b", ":80")
}
