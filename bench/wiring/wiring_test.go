package wiring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/bench/benchtest"
	"cleat/bench/catalog"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
	"cleat/traffic"
)

// TestMain also runs the helper programs: a Network starts them as copies of the running
// program, which is this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "traffic" {
		if err := helper(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "tunnel") {
		err := syscall.Exec(os.Getenv(programEnv), os.Args, os.Environ())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(lab.RunTests(m))
}

// programEnv holds the path of the cleat binary, for its commands `run` and `tunnel`,
// which this test binary can't stand in for. A guest without a Go toolchain is given the
// binary.
const programEnv = "CLEAT_TEST_PROGRAM"

// needRun builds cleat for the duration of a test. It reports false if there is no Go
// toolchain, as in a guest.
func needRun(t *testing.T) bool {
	t.Helper()
	path := benchtest.Build(t, "cleat/cmd/cleat-node")
	if path != "" {
		t.Setenv(programEnv, path)
	}
	return path != ""
}

// scratch returns a directory whose path is short enough for the names of sockets.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// helper does what cmd/cleat does for these command lines.
func helper(name string, args []string) error {
	ctx := context.Background()
	switch name {
	case "hello": // ADDR
		at, err := traffic.Hello(ctx, args[0])
		fmt.Println(at.Nanoseconds())
		return err
	case "relay": // [--pairs N --delay LIST --loss LIST]
		if slices.Contains(args, "--zoo") {
			return relayZoo(ctx)
		}
		if len(args) > 0 {
			return relaySlow(ctx, args)
		}
		_, _, err := traffic.Relay(ctx, 3, 4)
		return err
	case "proxy": // --listen ADDR --to ADDR
		return traffic.Forward(ctx, netip.MustParseAddrPort(args[1]), netip.MustParseAddrPort(args[3]))
	}
	return fmt.Errorf("unknown helper %q", name)
}

// ours reports whether cleat itself provides a network.
func ours(e catalog.Entry) bool { return strings.HasPrefix(e.Name, "cleat") }

// TestEveryNetwork builds each network of the catalogue in both topologies with two
// pairs, and passes a connection over each pair.
func TestEveryNetwork(t *testing.T) {
	lab.Need(t)
	for _, e := range catalog.All() {
		if e.Name == "tunnel" || e.Role == catalog.Attacher || e.Role == catalog.Named || e.Cluster {
			continue // see TestTunnel, TestNamedNetworks and TestSpannedNetworks; package attacher tests attachers
		}
		if ours(e) && !needRun(t) {
			t.Run(e.Name, func(t *testing.T) { t.Skip("no Go toolchain to build the program") })
			continue
		}
		for _, topology := range []string{"local", "switched"} {
			t.Run(e.Name+"/"+topology, func(t *testing.T) {
				pairs := 2
				if e.Name == "macvlan-passthru" || e.Name == "nsnet" {
					pairs = 1
				}
				build(t, pairs, wiring.Spec{Network: e.Name, Topology: topology, RateBitsPerSec: 1e9})
			})
		}
		if e.Role == catalog.Rootless {
			rootless(t, e.Name)
		}
	}
	t.Run("macvlan-vepa/hairpin switch", func(t *testing.T) {
		build(t, 1, wiring.Spec{Network: "macvlan-vepa", Topology: "local", Hairpin: true})
	})
	for _, port := range []int{4789, 8472} {
		t.Run(fmt.Sprintf("vxlan/port %d", port), func(t *testing.T) {
			build(t, 1, wiring.Spec{Network: "vxlan", Topology: "local", VXLANPort: port})
		})
	}
	t.Run("veth/checksums in software", func(t *testing.T) {
		build(t, 1, wiring.Spec{Network: "veth", Topology: "local", NoChecksum: true})
	})
	t.Run("bridge/MTU 9000", func(t *testing.T) {
		build(t, 1, wiring.Spec{Network: "bridge", Topology: "switched", MTU: 9000})
	})
}

// rootless builds a network with traffic toward the container, and with the host itself
// as the peer.
func rootless(t *testing.T, network string) {
	t.Run(network+"/inbound", func(t *testing.T) {
		build(t, 2, wiring.Spec{Network: network, Topology: "local", Inbound: true})
	})
	for _, peer := range []struct {
		level   string
		inbound bool
	}{{"host-loopback", false}, {"host-loopback", true}, {"host-address", true}} {
		t.Run(fmt.Sprintf("%s/%s/inbound %t", network, peer.level, peer.inbound), func(t *testing.T) {
			build(t, 1, wiring.Spec{Network: network, Topology: "local", Inbound: peer.inbound, Peer: peer.level})
		})
	}
}

func build(t *testing.T, pairs int, spec wiring.Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := wiring.Build(ctx, wiring.Config{Spec: spec, Pairs: pairs, Scratch: scratch(t)})
	skipLacking(t, err)
	var never *wiring.NotApplicable
	if errors.As(err, &never) {
		entry, _ := catalog.Lookup(spec.Network)
		if !entry.Isolates && spec.Topology == "local" && spec.Network != "nsnet" {
			t.Fatalf("not applicable, but the catalogue does not say so: %s", never.Why)
		}
		t.Log(never) // package link tests that containers are isolated
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	if len(w.Pairs) != pairs {
		t.Fatalf("%d pairs, want %d", len(w.Pairs), pairs)
	}
	for i, pair := range w.Pairs {
		if err := connect(ctx, pair); err != nil {
			t.Errorf("pair %d: %v", i, err)
		}
	}
}

// skipLacking skips, with the reason, what this kernel or machine can't do.
func skipLacking(t *testing.T, err error) {
	t.Helper()
	var lack *link.Lack
	if errors.As(err, &lack) {
		t.Skip(lack.Error())
	}
}

// connect passes one connection from the client to the server of a pair, as soon as both
// are ready.
func connect(ctx context.Context, p wiring.Pair) error {
	client, ok1 := p.Client.(*lab.Node)
	server, ok2 := p.Server.(*lab.Node)
	if !ok1 || !ok2 {
		return nil // nothing to try on the host itself
	}
	var l net.Listener
	if err := server.NS.Do(func() (err error) { l, err = net.Listen("tcp", p.Listen.String()); return err }); err != nil {
		return err
	}
	defer l.Close()
	go echo(l)
	for {
		err := client.NS.Do(func() error { return ask(p.Dial.String()) })
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// echo answers each connection with the byte it sends.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		var b [1]byte
		if _, err := c.Read(b[:]); err == nil {
			c.Write(b[:])
		}
		c.Close()
	}
}

// ask sends a byte and reads it back. A connection alone proves nothing: a proxy accepts
// it before the server does.
func ask(address string) error {
	c, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	b := [1]byte{'a'}
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	_, err = c.Read(b[:])
	return err
}

func TestInvalidConfig(t *testing.T) {
	lab.Need(t)
	for _, tt := range []struct {
		name  string
		spec  wiring.Spec
		pairs int
		is    func(error) bool
	}{
		{"unknown network", wiring.Spec{Network: "carrier-pigeon"}, 1, func(err error) bool { return errors.Is(err, wiring.ErrUnknown) }},
		{"no pairs", wiring.Spec{Network: "veth"}, 0, isParamError},
		{"too many pairs", wiring.Spec{Network: "veth"}, 129, isParamError},
		{"invalid port", wiring.Spec{Network: "vxlan", VXLANPort: 65536}, 1, isParamError},
		{"invalid MTU", wiring.Spec{Network: "veth", MTU: -1}, 1, isParamError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := wiring.Build(context.Background(), wiring.Config{Spec: tt.spec, Pairs: tt.pairs, Scratch: t.TempDir()})
			if err == nil {
				w.Close()
			}
			if err == nil || !tt.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func isParamError(err error) bool {
	var param *link.ParamError
	return errors.As(err, &param)
}

// TestLaunch starts a command together with each network that can, and checks the
// command's output.
func TestLaunch(t *testing.T) {
	lab.Need(t)
	for _, e := range catalog.All() {
		if e.Role != catalog.Rootless && e.Name != "loopback" {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			if ours(e) {
				needRun(t)
			}
			launch(t, e.Name)
		})
	}
}

func launch(t *testing.T, network string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w, err := wiring.Build(ctx, wiring.Config{
		Spec: wiring.Spec{Network: network, Topology: "local", Peer: wiring.PeerHostLoopback}, Pairs: 1, Scratch: scratch(t)})
	skipLacking(t, err)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	if has := len(w.Programs()) > 0; has != (network != "loopback") {
		t.Errorf("programs %v", w.Programs())
	}
	stop := serveTraffic(t, w.Pairs[0])
	defer stop()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	before := traffic.MonotonicTime()
	p, end, err := w.Launch(ctx, lab.Command{Args: []string{self, "traffic", "hello", w.Pairs[0].Dial.String()}, Stdout: in})
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	output, _ := io.ReadAll(out)
	if err := errors.Join(p.Wait(), end()); err != nil {
		t.Errorf("%v: %s", err, output)
	}
	if at, err := strconv.ParseInt(strings.TrimSpace(string(output)), 10, 64); err != nil || time.Duration(at) < before {
		t.Errorf("the command printed %q", output)
	}
}

// serveTraffic runs a traffic server at the far end of a pair.
func serveTraffic(t *testing.T, p wiring.Pair) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- p.Server.(*lab.Node).NS.Do(func() error {
			return traffic.Serve(ctx, traffic.ServeConfig{Listen: p.Listen.String(), Ready: func(at string) { ready <- at }})
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
