package named_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"cleat/bench/benchtest"
	"cleat/bench/catalog"
	"cleat/bench/named"
	"cleat/lab"
	"cleat/link"
)

func TestMain(m *testing.M) {
	if _, in := lab.Inside(); !in && os.Geteuid() == 0 && os.Getenv(lab.TestFlavour) == "" {
		os.Setenv(lab.TestFlavour, string(lab.Root)) // no engine works in a user lab
	}
	os.Exit(lab.RunTests(m))
}

// networks are the named networks of the catalogue.
func networks() (names []string) {
	for _, e := range catalog.All() {
		if e.Role == catalog.Named {
			names = append(names, e.Name)
		}
	}
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a host with a named network, and a node outside.
type world struct {
	host, outside *lab.Node
	network       *named.Network

	// Docker publishes the ports of a container on the internal network that it is left on,
	// by its proxies.
	dockerRepublishes bool
}

var (
	hostAddr    = netip.MustParseAddr("198.19.0.1")
	outsideAddr = netip.MustParseAddr("198.19.0.2")
)

func newWorld(t *testing.T, name, program string) world {
	t.Helper()
	w := world{dockerRepublishes: name == "docker-bridge" || strings.HasPrefix(name, "cleat-docker")}
	for n, label := range map[**lab.Node]string{&w.host: "host", &w.outside: "outside"} {
		node, err := lab.NewNode(label)
		must(t, err)
		t.Cleanup(func() { node.Close() })
		*n = node
	}
	must(t, lab.Connect(lab.End{Node: w.host, Name: "eth0"}, lab.End{Node: w.outside, Name: "eth0"}, lab.Cable{}))
	must(t, w.host.Address("eth0", netip.PrefixFrom(hostAddr, 16)))
	must(t, w.outside.Address("eth0", netip.PrefixFrom(outsideAddr, 16)))
	var err error
	w.network, err = named.Open(t.Context(), named.Config{Name: name, Host: w.host, Dir: benchtest.Scratch(t), Program: program})
	var lack *link.Lack
	if errors.As(err, &lack) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { w.close(t) })
	return w
}

// close closes the network and checks that nothing of it is left.
func (w world) close(t *testing.T) {
	if err := w.network.Close(); err != nil {
		t.Error(err)
	}
	if left, err := w.network.Processes(); err != nil || len(left) > 0 {
		t.Errorf("processes %v are left: %v", left, err)
	}
}

// greet accepts one connection in a container, and sends a word.
func greet(t *testing.T, c *named.Container, port uint16) {
	t.Helper()
	var l net.Listener
	must(t, c.Node.NS.Do(func() (err error) { l, err = net.Listen("tcp4", fmt.Sprint(":", port)); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, c.Name)
			conn.Close()
		}
	}()
}

// ask returns what a server sends.
func ask(from *lab.Node, to netip.AddrPort) (word string, err error) {
	err = from.NS.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), 2*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		b, err := io.ReadAll(conn)
		word = string(b)
		return err
	})
	return word, err
}

// TestPublishedPort connects containers to each network, and reaches one of them by its
// address and its published port, as long as it is connected.
func TestPublishedPort(t *testing.T) {
	lab.Need(t)
	program := benchtest.NeedProgram(t)
	for _, name := range networks() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, name, program)
			server, err := w.network.Create(t.Context(), "server", []named.Port{{Host: 8080, Container: 80}})
			must(t, err)
			if a, err := server.Address(); err == nil {
				t.Errorf("before it is connected, the server has address %s", a)
			}
			greet(t, server, 80)
			for i := range 2 { // the second time shows that the first left nothing behind
				// A client of the time before may still have the server's old Ethernet address.
				client, err := w.network.Run(t.Context(), fmt.Sprintf("client%d", i), nil)
				must(t, err)
				tryConnected(t, w, server, client)
			}
		})
	}
}

func tryConnected(t *testing.T, w world, server, client *named.Container) {
	t.Helper()
	usage, err := server.Connect(t.Context())
	must(t, err)
	if usage.Took <= 0 || usage.CPU <= 0 || usage.Began.IsZero() {
		t.Errorf("%+v: something is missing", usage)
	}
	address, err := server.Address()
	must(t, err)
	for from, to := range map[*lab.Node]netip.AddrPort{
		client.Node: netip.AddrPortFrom(address, 80),
		w.outside:   netip.AddrPortFrom(hostAddr, 8080),
		w.host:      netip.AddrPortFrom(hostAddr, 8080),
	} {
		if got, err := ask(from, to); got != server.Name {
			t.Errorf("from %s to %s: %q, %v", from, to, got, err)
		}
	}
	if _, err := server.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, err := server.Address(); err == nil {
		t.Errorf("after it was disconnected, the server has address %s", a)
	}
	if w.dockerRepublishes {
		return
	}
	if got, err := ask(w.outside, netip.AddrPortFrom(hostAddr, 8080)); err == nil {
		t.Errorf("the port of a container that is not connected leads to %q", got)
	}
}

// TestManyPorts publishes a range of ports and reaches the first and the last.
func TestManyPorts(t *testing.T) {
	lab.Need(t)
	program := benchtest.NeedProgram(t)
	for _, name := range networks() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, name, program)
			c, err := w.network.Run(t.Context(), "server", []named.Port{{Host: 10000, Container: 80, Count: 20}, {Host: 8080, Container: 8080}})
			must(t, err)
			for container, host := range map[uint16]uint16{80: 10000, 99: 10019, 8080: 8080} {
				greet(t, c, container)
				if got, err := ask(w.outside, netip.AddrPortFrom(hostAddr, host)); got != c.Name {
					t.Errorf("port %d: %q, %v", host, got, err)
				}
			}
		})
	}
}

// TestProcesses checks which programs keep running.
func TestProcesses(t *testing.T) {
	lab.Need(t)
	program := benchtest.NeedProgram(t)
	for name, least := range map[string]int{"cleat-bridge": 2, "docker-bridge": 3, "netavark-bridge": 1, "cni-bridge": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, name, program)
			_, err := w.network.Run(t.Context(), "server", []named.Port{{Host: 8080, Container: 80}})
			must(t, err)
			got, err := w.network.Processes()
			must(t, err)
			if len(got) < least || least == 0 && len(got) > 0 {
				t.Errorf("processes %v, want %d or more", got, least)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, name := range networks() {
		err := named.Check(name)
		var lack *link.Lack
		if err != nil && !(errors.As(err, &lack) && lack.Remedy != "" && lack.What != "") {
			t.Errorf("%s: %v, want a remedy", name, err)
		}
	}
	if err := named.Check("docker"); err == nil {
		t.Error("a network that does not exist can be made")
	}
}
