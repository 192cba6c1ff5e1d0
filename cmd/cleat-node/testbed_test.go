package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/bench/benchtest"
	"cleat/internal/program"
	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/netns"
	"cleat/overlay/control"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// atOnce is how many tests run at the same time: they mostly wait.
const atOnce = 4

// programsEnv is where the programs are in a guest of the vm tier, which can't build them.
const programsEnv = "CLEAT_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	flag.Parse()
	lab.SetParallel(atOnce)
	code := lab.RunTests(m)
	os.RemoveAll(programsDir)
	os.Exit(code)
}

var programsDir string // "": nothing was built

// usualPrograms returns the directory of cleat, cleat-cni and cleat-node. It builds them once, which takes longer than most
// tests.
var usualPrograms = sync.OnceValues(func() (string, error) {
	var err error
	if programsDir, err = os.MkdirTemp("", "cleat-programs-"); err == nil {
		err = benchtest.BuildIn(programsDir, "cleat/cmd/cleat-node")
	}
	return programsDir, err
})

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is hosts on a switch. Each has a state directory, and containers:
//
//	a 192.0.2.1/24 ┐
//	b 192.0.2.2/24 ├ switch
//	c 192.0.2.3/24 ┘
type cluster struct {
	t        *testing.T
	programs string // directory of cleat and cleat-node
	dir      string
	sw       *lab.Switch
	hosts    []*host
	second   *lab.Switch // of further uplinks
}

type host struct {
	*lab.Node
	c        *cluster
	name     string
	addr     netip.Addr
	port     string // of the switch
	second   string // of another switch
	state    string
	programs string // directory of cleat and cleat-node
	init     int    // first process of a host with engines; 0: the host has the test's files and processes
}

// newCluster makes hosts, which belong to no cluster yet. programs are built beside cleat-node.
func newCluster(t *testing.T, n int, programs ...string) *cluster {
	t.Helper()
	lab.Need(t)
	c := &cluster{t: t, programs: os.Getenv(programsEnv)}
	var err error
	if c.programs == "" {
		if _, err := program.Find("go"); err != nil {
			t.Skip("no Go toolchain to build the programs")
		}
		c.programs, err = usualPrograms()
		must(t, err)
		if len(programs) > 0 { // few tests need others
			c.programs = filepath.Dir(benchtest.NeedProgram(t, append(programs, "cleat/cmd/cleat-node")...))
		}
		c.dir = benchtest.Scratch(t)
	} else {
		c.dir, err = os.MkdirTemp("", "")
		must(t, err)
	}
	c.sw, err = lab.NewSwitch("switch", 1500)
	must(t, err)
	for i := range n {
		name := string(rune('a' + i%26))
		if i >= 26 {
			name += strconv.Itoa(i / 26)
		}
		c.newHost(name, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
	}
	return c
}

func (c *cluster) newHost(name string, addr netip.Addr) *host {
	c.t.Helper()
	node, err := lab.NewNode(name)
	must(c.t, err)
	h := &host{Node: node, c: c, name: name, addr: addr, state: filepath.Join(c.dir, name), programs: c.programs}
	h.port, err = c.sw.Plug(lab.End{Node: node, Name: "eth0"}, 0)
	must(c.t, err)
	must(c.t, h.Address("eth0", netip.PrefixFrom(addr, 24)))
	c.hosts = append(c.hosts, h)
	c.t.Cleanup(func() {
		h.end()
		h.endAll()
	})
	return h
}

// end ends the host's node. It shows the logs of a test that has failed.
func (h *host) end() {
	if h.c.t.Failed() {
		if log, err := os.ReadFile(filepath.Join(control.Dir(h.state), "log")); err == nil {
			h.c.t.Logf("log of host %s:\n%s", h.name, log)
		}
		if log, err := os.ReadFile(filepath.Join(h.state, "keeper.log")); err == nil {
			h.c.t.Logf("log of the keeper of %s:\n%s", h.name, log)
		}
	}
	h.run(context.Background(), "cleat-node", "down")
}

// endAll ends the processes of a host.
func (h *host) endAll() {
	id, err := h.NS.ID()
	if err != nil {
		return
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		var st unix.Stat_t
		if err == nil && pid != os.Getpid() && unix.Stat("/proc/"+e.Name()+"/ns/net", &st) == nil && st.Ino == id {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// run runs a program on the host.
func (h *host) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(h.programs, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+h.state, "PATH="+h.programs+":"+os.Getenv("PATH"))
	if h.init != 0 {
		cmd = h.on(ctx, args[0], args[1:]...)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := h.NS.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("host %s: %s: %w\n%s", h.name, strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String()), err
}

// cleat and node run the programs, which must succeed.
func (h *host) cleat(args ...string) string {
	h.c.t.Helper()
	out, err := h.run(h.c.t.Context(), append([]string{"cleat"}, args...)...)
	must(h.c.t, err)
	return out
}

func (h *host) node(args ...string) string {
	h.c.t.Helper()
	out, err := h.run(h.c.t.Context(), append([]string{"cleat-node"}, args...)...)
	must(h.c.t, err)
	return out
}

// up makes all hosts one cluster.
func (c *cluster) up() {
	c.t.Helper()
	c.hosts[0].node("up", "--name", c.hosts[0].name, "--address", c.hosts[0].addr.String())
	var joining sync.WaitGroup
	for _, h := range c.hosts[1:] {
		joining.Go(func() { h.join() })
	}
	joining.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// token returns what another host needs to join.
func (h *host) token() string {
	h.c.t.Helper()
	var t control.Token
	if err := json.Unmarshal([]byte(h.node("token", "--json")), &t); err != nil {
		h.c.t.Fatal(err)
	}
	return t.Text
}

// join makes a host join the cluster of the first one.
func (h *host) join() {
	out, err := h.run(h.c.t.Context(), "cleat-node", "up", "--name", h.name, "--token", h.c.hosts[0].token())
	if err != nil {
		h.c.t.Errorf("%v%s", err, out)
	}
}

func (h *host) status() (s control.Status, err error) {
	return control.New(h.state).Status(h.c.t.Context())
}

// eventually calls f until it returns nil. The test fails if that takes long.
func (c *cluster) eventually(what string, f func() error) time.Duration {
	c.t.Helper()
	began, within := time.Now(), time.Minute
	if os.Getenv(programsEnv) != "" {
		within = 5 * time.Minute // the processor is emulated
	}
	for {
		err := f()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > within {
			c.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// settled waits until all given hosts have a number of members of the registry, and see all hosts of the cluster alive.
func (c *cluster) settled(members int) {
	c.t.Helper()
	c.eventually("the cluster settles", func() error {
		for _, h := range c.hosts {
			s, err := h.status()
			if err != nil {
				return err
			}
			if !s.Registry.Answers || len(s.Registry.Members) != members || len(s.Hosts) != len(c.hosts) {
				return fmt.Errorf("host %s has %+v", h.name, s)
			}
			for _, o := range s.Hosts {
				if !o.Alive {
					return fmt.Errorf("host %s sees %s not alive", h.name, o.Name)
				}
			}
		}
		return nil
	})
}

// createSpan creates a network that spans hosts, and waits until all hosts have it.
func (h *host) createSpan(network string, args ...string) {
	h.c.t.Helper()
	h.cleat(append([]string{"net", "create", network, "--span"}, args...)...)
	for _, o := range h.c.hosts {
		h.c.eventually("network "+network+" on "+o.name, func() error { return o.has(network) })
	}
}

// has returns an error unless the host has a network.
func (h *host) has(network string) error {
	_, err := h.run(h.c.t.Context(), "cleat", "net", "inspect", network)
	return err
}

// container is a container of a host.
type container struct {
	*lab.Node
	host *host
	name string
	path string
	addr netip.Addr
}

// container makes a container on the host, and connects it to a network with further arguments.
func (h *host) container(name, network string, args ...string) *container {
	h.c.t.Helper()
	k := h.newContainer(name)
	k.connect(network, args...)
	return k
}

func (h *host) newContainer(name string) *container { return h.newContainerAt(name, name) }

// newContainerAt makes a container whose namespace has a file name of its own.
func (h *host) newContainerAt(name, file string) *container {
	h.c.t.Helper()
	node, err := lab.NewNode(name)
	must(h.c.t, err)
	dir := filepath.Join(h.c.dir, "containers")
	must(h.c.t, os.MkdirAll(dir, 0o755))
	k := &container{Node: node, host: h, name: name, path: filepath.Join(dir, file)}
	must(h.c.t, node.NS.Pin(k.path))
	h.c.t.Cleanup(func() { netns.Unpin(k.path) })
	return k
}

func (k *container) connect(network string, args ...string) {
	k.host.c.t.Helper()
	var got struct {
		Endpoint struct {
			Addresses []netip.Addr `json:"addresses"`
		} `json:"endpoint"`
	}
	out := k.host.cleat(append([]string{"net", "connect", network, k.path, "--json"}, args...)...)
	must(k.host.c.t, json.Unmarshal([]byte(out), &got))
	k.addr = got.Endpoint.Addresses[0]
}

// cni has cleat-cni connect a container to a network, or disconnect it, as a runtime does. Its name is that of a pod.
func (h *host) cni(verb string, k *container, network string) error {
	cmd := exec.CommandContext(h.c.t.Context(), filepath.Join(h.programs, "cleat-cni"))
	cmd.Env = append(os.Environ(), "CLEAT_STATE_DIR="+h.state, "PATH="+h.programs+":"+os.Getenv("PATH"), "CNI_COMMAND="+verb,
		"CNI_CONTAINERID="+k.name, "CNI_NETNS="+k.path, "CNI_IFNAME=eth0", "CNI_PATH="+h.programs, "CNI_ARGS=K8S_POD_NAME="+k.name)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"cleat-cni","network":%[1]q}`, network))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.NS.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("host %s: %s %s: %w\n%s", h.name, verb, k.name, err, out.String())
	}
	return err
}

// echoPort is where containers answer.
const echoPort = 7

// serve makes the container answer with its name.
func (k *container) serve() {
	k.host.c.t.Helper()
	labtest.Serve(k.host.c.t, k.NS, fmt.Sprintf(":%d", echoPort), labtest.Reply(k.name))
}

// ask returns what answers at an address.
func ask(from *netns.NS, to netip.Addr) (string, error) {
	return askWithin(from, to, 300*time.Millisecond)
}

func askWithin(from *netns.NS, to netip.Addr, connects time.Duration) (string, error) {
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, echoPort).String(), connects)
		return err
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 64)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// reaches returns an error unless a container reaches another one.
func (k *container) reaches(o *container) error {
	got, err := ask(k.NS, o.addr)
	if err == nil && got != o.name {
		err = fmt.Errorf("%q answers", got)
	}
	if err != nil {
		return fmt.Errorf("%s on %s to %s at %s on %s: %w", k.name, k.host.name, o.name, o.addr, o.host.name, err)
	}
	return nil
}

// resolve returns the addresses of a name, as the container's network says.
func (k *container) resolve(name string) ([]string, error) {
	var found []string
	err := k.NS.Do(func() error {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var c net.Conn
			err := k.NS.Do(func() (err error) {
				c, err = net.DialTimeout("udp", "10.64.0.1:53", time.Second)
				return err
			})
			return c, err
		}}
		var err error
		found, err = r.LookupHost(k.host.c.t.Context(), name)
		return err
	})
	return found, err
}

// unplug takes a host off the switch, and plug puts it back.
func (h *host) unplug() { h.c.t.Helper(); h.setPort(false) }
func (h *host) plug()   { h.c.t.Helper(); h.setPort(true) }

func (h *host) setPort(up bool) {
	h.c.t.Helper()
	l, err := link.Find(h.c.sw.NS, h.port)
	must(h.c.t, err)
	if up {
		must(h.c.t, l.Up())
	} else {
		must(h.c.t, l.Down())
	}
}

// pid returns the process id of the host's node.
func (h *host) pid() int {
	h.c.t.Helper()
	s, err := h.status()
	must(h.c.t, err)
	return s.PID
}

// move gives the host another address.
func (h *host) move(to netip.Addr) {
	h.c.t.Helper()
	k, err := link.Handle(h.NS)
	must(h.c.t, err)
	defer k.Close()
	l, err := k.LinkByName("eth0")
	must(h.c.t, err)
	address := func(a netip.Addr) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	}
	must(h.c.t, k.AddrDel(l, address(h.addr)))
	must(h.c.t, k.AddrAdd(l, address(to)))
	h.addr = to
}
