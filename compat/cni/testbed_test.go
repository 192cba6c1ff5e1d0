package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/compat/cni"
	"cleat/lab"
	"cleat/netns"
	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testbed is a host with an uplink, on which a runtime calls the plug-in:
//
//	outside 198.51.100.2 ═══ nic ─ host 198.51.100.1/24
type testbed struct {
	t             *testing.T
	host, outside *netns.NS
	dir           string
	cfg           named.Config
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t, dir: t.TempDir()}
	tb.host, tb.outside = networktest.NewNS(t, "host"), networktest.NewNS(t, "outside")
	networktest.Connect(t, tb.host, tb.outside)
	store, err := attach.OpenStore(filepath.Join(tb.dir, "state"))
	must(t, err)
	tb.cfg = named.Config{Attach: attach.Config{Store: store}}
	return tb
}

// create makes a network.
func (tb *testbed) create(spec named.NetworkSpec) {
	tb.t.Helper()
	must(tb.t, tb.host.Do(func() error { _, err := named.Create(tb.t.Context(), tb.cfg, spec); return err }))
}

// container is a network namespace as a runtime makes it.
type container struct {
	id, ifname string
	ns         *netns.NS
	path       string // of the namespace
	args       string // CNI_ARGS
	prev       json.RawMessage
}

func (tb *testbed) container(id string) *container {
	tb.t.Helper()
	c := &container{id: id, ifname: "eth0", ns: networktest.NewNS(tb.t, id), path: filepath.Join(tb.dir, id)}
	must(tb.t, c.ns.Pin(c.path))
	tb.t.Cleanup(func() { _ = netns.Unpin(c.path) })
	return c
}

// end ends the container's namespace.
func (c *container) end(t *testing.T) {
	t.Helper()
	must(t, netns.Unpin(c.path))
	must(t, c.ns.Close())
}

// conf is a configuration of the plug-in.
type conf map[string]any

// with returns the configuration with further keys.
func (c conf) with(more conf) conf {
	all := maps.Clone(c)
	maps.Copy(all, more)
	return all
}

var web = conf{"cniVersion": "1.1.0", "name": "web", "type": "cleat-cni"}

// call calls the plug-in about a container, or about none, and returns what it printed.
func (tb *testbed) call(verb string, c *container, conf conf) (out []byte, code int) {
	t := tb.t
	t.Helper()
	if c == nil {
		c = &container{}
	}
	if c.prev != nil && conf["prevResult"] == nil {
		conf = conf.with(map[string]any{"prevResult": c.prev})
	}
	stdin, err := json.Marshal(conf)
	must(t, err)
	env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": c.id, "CNI_NETNS": c.path, "CNI_IFNAME": c.ifname, "CNI_ARGS": c.args, "CNI_PATH": "/opt/cni/bin"}
	return tb.run(env, stdin)
}

func (tb *testbed) run(env map[string]string, stdin []byte) ([]byte, int) {
	tb.t.Helper()
	var out bytes.Buffer
	code := 0
	must(tb.t, tb.host.Do(func() error {
		code = cni.Run(tb.t.Context(), cni.Host{Networks: tb.cfg}, cni.Call{Getenv: func(name string) string { return env[name] }, Stdin: stdin, Out: &out})
		return nil
	}))
	return out.Bytes(), code
}

// add calls ADD, which must succeed, and returns the result in the newest version.
func (tb *testbed) add(c *container, conf conf) *types100.Result {
	tb.t.Helper()
	out := tb.succeed("ADD", c, conf)
	c.prev = out
	r, err := create.CreateFromBytes(out)
	must(tb.t, err)
	result, err := types100.GetResult(r)
	must(tb.t, err)
	return result
}

// succeed calls the plug-in, which must succeed. Only ADD prints something then.
func (tb *testbed) succeed(verb string, c *container, conf conf) []byte {
	tb.t.Helper()
	out, code := tb.call(verb, c, conf)
	if code != 0 {
		tb.t.Fatalf("%s: exit code %d: %s", verb, code, out)
	}
	if (len(out) > 0) != (verb == "ADD") {
		tb.t.Errorf("%s prints %q", verb, out)
	}
	return out
}

// failure is an error as the specification has it.
type failure struct {
	CNIVersion string
	Code       uint
	Msg        string
	Details    string
}

// fail calls the plug-in, which must fail with a code and a message that contains text.
func (tb *testbed) fail(verb string, c *container, conf conf, code uint, text string) failure {
	tb.t.Helper()
	out, exit := tb.call(verb, c, conf)
	return tb.failed(verb, out, exit, code, text)
}

func (tb *testbed) failed(verb string, out []byte, exit int, code uint, text string) (f failure) {
	tb.t.Helper()
	if err := json.Unmarshal(out, &f); err != nil || exit != 1 {
		tb.t.Fatalf("%s: exit code %d, %v: %s", verb, exit, err, out)
	}
	if f.Code != code || !strings.Contains(f.Msg, text) || f.CNIVersion == "" {
		tb.t.Errorf("%s failed with code %d (%s) and version %q, want %d (… %s …)", verb, f.Code, f.Msg, f.CNIVersion, code, text)
	}
	return f
}

// endpoints returns the endpoints of a network by their addresses.
func (tb *testbed) endpoints(network string) map[string]*named.Endpoint {
	tb.t.Helper()
	all, err := named.Store{Store: tb.cfg.Attach.Store}.Endpoints(network)
	must(tb.t, err)
	by := map[string]*named.Endpoint{}
	for _, e := range all {
		by[fmt.Sprint(e.Addresses)] = e
	}
	return by
}

// snapshot returns the network state of the host and of a container.
func (tb *testbed) snapshot(c *container) []string {
	tb.t.Helper()
	all := networktest.Netlink(tb.t, tb.host)
	if c != nil {
		all = append(all, networktest.Netlink(tb.t, c.ns)...)
	}
	return slices.DeleteFunc(all, func(line string) bool { return strings.HasPrefix(line, "route ff00::/8") })
}

// serve answers connections to a port of a namespace with its name until the test ends.
func serve(t *testing.T, ns *netns.NS, port int) {
	t.Helper()
	var l net.Listener
	must(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, ns)
			conn.Close()
		}
	}()
}

// reach asks a server at an address until its answer is that of want, for some seconds: the kernel takes up to
// one to see that a new link has a carrier (net/core/link_watch.c). It returns the last answer.
func reach(t *testing.T, ns *netns.NS, address string, want *netns.NS) (answer string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); answer != want.String() && time.Now().Before(deadline); {
		answer = ask(t, ns, address)
	}
	return answer
}

// ask returns what a server at an address answers to a namespace; "" if none does.
func ask(t *testing.T, ns *netns.NS, address string) (answer string) {
	t.Helper()
	_ = ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Second))
		text, err := io.ReadAll(conn)
		answer = string(text)
		return err
	})
	return answer
}

// check checks that the kernel has what the files say.
func (tb *testbed) check() {
	tb.t.Helper()
	must(tb.t, tb.host.Do(func() error {
		found, err := named.Check(tb.t.Context(), tb.cfg)
		for _, d := range found {
			tb.t.Errorf("difference: %s", d)
		}
		return err
	}))
}
