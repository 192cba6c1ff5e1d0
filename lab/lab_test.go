package lab_test

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"cleat/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

// pair makes two nodes, connected by wire, with addresses 192.0.2.1 and .2.
func pair(t *testing.T, wire func(a, b lab.End) error) (a, b *lab.Node) {
	t.Helper()
	lab.Need(t)
	for i, n := range []**lab.Node{&a, &b} {
		var err error
		if *n, err = lab.NewNode([]string{"a", "b"}[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*n).Close() })
	}
	if err := wire(lab.End{Node: a, Name: "eth0"}, lab.End{Node: b, Name: "eth0"}); err != nil {
		t.Fatal(err)
	}
	for n, addr := range map[*lab.Node]string{a: "192.0.2.1/24", b: "192.0.2.2/24"} {
		if err := n.Address("eth0", netip.MustParsePrefix(addr)); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// carries sends a word from a to b over TCP.
func carries(t *testing.T, a, b *lab.Node) {
	t.Helper()
	var l net.Listener
	if err := b.NS.Do(func() (err error) { l, err = net.Listen("tcp", "192.0.2.2:0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		var c net.Conn
		if err := a.NS.Do(func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err }); err != nil {
			t.Error(err)
			l.Close()
			return
		}
		defer c.Close()
		io.WriteString(c, "ahoy")
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "ahoy" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestCable(t *testing.T) {
	a, b := pair(t, func(a, b lab.End) error { return lab.Connect(a, b, lab.Cable{}) })
	carries(t, a, b)
}

func TestSlowCable(t *testing.T) {
	a, b := pair(t, func(a, b lab.End) error { return lab.Connect(a, b, lab.Cable{RateBitsPerSec: 100e6}) })
	carries(t, a, b)
}

func TestSwitch(t *testing.T) {
	a, b := pair(t, func(a, b lab.End) error {
		sw, err := lab.NewSwitch("switch", 1500)
		if err != nil {
			return err
		}
		t.Cleanup(func() { sw.Close() })
		for _, e := range []lab.End{a, b} {
			if _, err := sw.Plug(e, 0); err != nil {
				return err
			}
		}
		return nil
	})
	carries(t, a, b)
}

// output runs a command and returns its output.
func output(t *testing.T, start func(lab.Command) (lab.Proc, error), args ...string) (string, error) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := start(lab.Command{Args: args, Stdout: in})
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), p.Wait()
}

// TestNodesAreUnpaced checks that a node does not inherit the host's congestion control.
func TestNodesAreUnpaced(t *testing.T) {
	lab.Need(t)
	n, err := lab.NewNode("n")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	got, err := output(t, n.Start, "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil || strings.TrimSpace(got) != "reno" {
		t.Errorf("congestion control of a new node: %q, %v", got, err)
	}
}

func TestHostIsOutside(t *testing.T) {
	lab.Need(t)
	if f, _ := lab.Inside(); f == lab.None {
		t.Skip("this machine as a whole is the lab, so there is no host")
	}
	outside, err := output(t, lab.Host{}.Start, "readlink", "/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(outside) == inside {
		t.Errorf("a command on the host ran in the lab's own namespace %s", inside)
	}
}

func TestHostReportsFailure(t *testing.T) {
	lab.Need(t)
	if _, err := output(t, lab.Host{}.Start, "false"); err == nil {
		t.Error("a command that failed on the host returned no error")
	}
	if _, err := output(t, lab.Host{}.Start, "/nonexistent"); err == nil {
		t.Error("a missing command returned no error")
	}
}

func TestKill(t *testing.T) {
	lab.Need(t)
	n, err := lab.NewNode("n")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for name, start := range map[string]func(lab.Command) (lab.Proc, error){"node": n.Start, "host": lab.Host{}.Start} {
		t.Run(name, func(t *testing.T) {
			p, err := start(lab.Command{Args: []string{"sleep", "60"}})
			if err != nil {
				t.Fatal(err)
			}
			p.Kill()
			if p.Wait() == nil {
				t.Error("a killed program returned no error")
			}
		})
	}
}

func TestPinned(t *testing.T) {
	lab.Need(t)
	n, err := lab.NewNode("n")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	start := func(c lab.Command) (lab.Proc, error) { c.CPU = []int{0}; return n.Start(c) }
	got, err := output(t, start, "grep", "Cpus_allowed_list", "/proc/self/status")
	if err != nil || strings.Fields(got)[1] != "0" {
		t.Errorf("allowed processors: %q, %v", got, err)
	}
}

// TestHostProc checks that a lab sees the kernel threads of the host, if the host does.
func TestHostProc(t *testing.T) {
	lab.Need(t)
	if _, err := os.Stat("/proc/2"); err == nil {
		if name, _ := os.ReadFile("/proc/2/comm"); string(name) == "kthreadd\n" {
			t.Fatal("the lab's own /proc shows kernel threads")
		}
	}
	entries, err := os.ReadDir(lab.HostProc())
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 || len(entries) < len(here) {
		t.Errorf("%d entries of the host's /proc, %d of the lab's", len(entries), len(here))
	}
	if _, err := os.ReadFile(lab.HostProc() + "/1/stat"); err != nil {
		t.Error(err)
	}
}
