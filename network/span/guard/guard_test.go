package guard_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/span/guard"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// bed is two hosts with a container behind the first one, another one d, of an engine, at br-1, and somebody else on their segment:
//
//	c 10.64.0.2 ─ clr1 a 192.0.2.1 ┐
//	                   b 192.0.2.2 ├ switch
//	            stranger 192.0.2.9 ┘
//
// A server for UDP at all addresses of the hosts says what it gets.
type bed struct {
	t                 *testing.T
	a, b, c, d, other *lab.Node
	servers           []*net.UDPConn // at ports of VXLAN and nodes
	ends              chan struct{}  // receives what arrives at endPort
}

const endPort = 9

func newNode(t *testing.T, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func newBed(t *testing.T) *bed {
	t.Helper()
	lab.Need(t)
	w := &bed{t: t, a: newNode(t, "a"), b: newNode(t, "b"), c: newNode(t, "c"), d: newNode(t, "d"), other: newNode(t, "stranger"), ends: make(chan struct{}, 1)}
	sw, err := lab.NewSwitch("switch", 1500)
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	for i, n := range []*lab.Node{w.a, w.b, w.other} {
		_, err := sw.Plug(lab.End{Node: n, Name: "eth0"}, 0)
		must(t, err, n.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", []int{1, 2, 9}[i])), netip.MustParsePrefix(fmt.Sprintf("198.51.100.%d/24", []int{1, 2, 9}[i]))))
	}
	must(t, lab.Connect(lab.End{Node: w.a, Name: "clr1"}, lab.End{Node: w.c, Name: "eth0"}, lab.Cable{}),
		w.a.Address("clr1", netip.MustParsePrefix("10.64.0.1/24")), w.c.Address("eth0", netip.MustParsePrefix("10.64.0.2/24")),
		w.a.Sysctl("net/ipv4/ip_forward", "1"))
	w.sh(w.c, "ip route add default via 10.64.0.1")
	must(t, lab.Connect(lab.End{Node: w.a, Name: "br-1"}, lab.End{Node: w.d, Name: "eth0"}, lab.Cable{}),
		w.a.Address("br-1", netip.MustParsePrefix("10.64.1.1/24")), w.d.Address("eth0", netip.MustParsePrefix("10.64.1.2/24")))
	w.sh(w.d, "ip route add default via 10.64.1.1")
	w.sh(w.a, "nft 'table ip n { chain p { type nat hook postrouting priority 100; oifname eth0 masquerade; }; }'") // as package firewall
	for _, n := range []*lab.Node{w.a, w.b} {
		w.servers = append(w.servers, w.listen(n, 4789), w.listen(n, 6081), w.listen(n, 7790))
		end := w.listen(n, endPort)
		go func() {
			for b := make([]byte, 1); ; w.ends <- struct{}{} {
				if _, err := end.Read(b); err != nil {
					return
				}
			}
		}()
	}
	return w
}

func (w *bed) sh(n *lab.Node, script string) string {
	w.t.Helper()
	var out []byte
	must(w.t, n.NS.Do(func() (err error) {
		if out, err = exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w\n%s", script, err, out)
		}
		return err
	}))
	return string(out)
}

func (w *bed) listen(n *lab.Node, port int) (u *net.UDPConn) {
	w.t.Helper()
	must(w.t, n.NS.Do(func() (err error) {
		u, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		return err
	}))
	w.t.Cleanup(func() { u.Close() })
	return u
}

// send sends a VXLAN header.
func (w *bed) send(from *lab.Node, to string, vni int) {
	w.t.Helper()
	must(w.t, from.NS.Do(func() error {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte{8, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0})
		return err
	}))
}

// arrives reports whether what a node sends arrives at a server, before a second datagram that does.
func (w *bed) arrives(from *lab.Node, to string, vni int) (arrived bool) {
	w.t.Helper()
	host, _, _ := net.SplitHostPort(to)
	w.send(from, to, vni)
	w.send(from, fmt.Sprintf("%s:%d", host, endPort), vni)
	select {
	case <-w.ends:
	case <-time.After(5 * time.Second):
		w.t.Fatalf("nothing of %s arrives at %s", from, host)
	}
	for _, u := range w.servers {
		raw, err := u.SyscallConn()
		must(w.t, err, raw.Read(func(fd uintptr) bool {
			for b := make([]byte, 16); ; arrived = true {
				if _, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err != nil {
					return true
				}
			}
		}))
	}
	return arrived
}

// config is that of host a, b and so on, of the cluster of a and b.
func config(self string) guard.Config {
	c := guard.Config{Name: "cleat-node", VNI: 7790, Local: netip.MustParseAddr(self), Port: 7790, Devices: []string{"br-1"}}
	for _, h := range []string{"192.0.2.1", "192.0.2.2"} {
		if h != self {
			c.Hosts = append(c.Hosts, guard.Host{Address: netip.MustParseAddr(h), Port: 7790})
		}
	}
	return c
}

// TestGuard sends what a host may send, and what others may not.
func TestGuard(t *testing.T) {
	w := newBed(t)
	rows := []struct {
		name          string
		from          *lab.Node
		to            string
		vni           int
		before, after bool
	}{
		{"VXLAN of a host", w.a, "192.0.2.2:4789", 7790, true, true},
		{"VXLAN of a host to another address", w.a, "198.51.100.2:4789", 7790, true, false},
		{"VXLAN of a stranger", w.other, "192.0.2.2:4789", 7790, true, false},
		{"VXLAN of a stranger, of another program", w.other, "192.0.2.2:4789", 42, true, true},
		{"VXLAN of a container to its host", w.c, "10.64.0.1:4789", 7790, true, false},
		{"VXLAN of a container to another host", w.c, "192.0.2.2:4789", 7790, true, false},
		{"VXLAN of a container to another host's second address", w.c, "198.51.100.2:4789", 7790, true, false},
		{"VXLAN of a container, of another program", w.c, "192.0.2.2:4789", 42, true, true},
		{"Geneve of a host", w.a, "192.0.2.2:6081", 7790, true, true},
		{"Geneve of a stranger", w.other, "192.0.2.2:6081", 7790, true, false},
		{"Geneve of a container to another host", w.c, "192.0.2.2:6081", 7790, true, false},
		{"Geneve of a stranger, of another program", w.other, "192.0.2.2:6081", 42, true, true},
		{"Geneve of a container, of another program", w.c, "192.0.2.2:6081", 42, true, true},
		{"a container to its host's node", w.c, "10.64.0.1:7790", 0, true, false},
		{"a container to its host's node at another address", w.c, "192.0.2.1:7790", 0, true, false},
		{"a container to another host's node", w.c, "192.0.2.2:7790", 0, true, false},
		{"an engine's container to its host's node", w.d, "10.64.1.1:7790", 0, true, false},
		{"an engine's container to another host's node", w.d, "192.0.2.2:7790", 0, true, false},
		{"VXLAN of an engine's container to another host", w.d, "192.0.2.2:4789", 7790, true, false},
		{"a host to another one's node", w.b, "192.0.2.1:7790", 0, true, true},
	}
	check := func(when string, want func(i int) bool) {
		t.Helper()
		for i, r := range rows {
			if got := w.arrives(r.from, r.to, r.vni); got != want(i) {
				t.Errorf("%s, %s: arrives is %v", when, r.name, got)
			}
		}
	}
	check("without rules", func(i int) bool { return rows[i].before })
	for self, n := range map[string]*lab.Node{"192.0.2.1": w.a, "192.0.2.2": w.b} {
		changed, err := new(guard.Tables).Sync(n.NS, config(self))
		must(t, err)
		if !changed {
			t.Error("the first Sync changes nothing")
		}
	}
	check("with rules", func(i int) bool { return rows[i].after })
	must(t, guard.Remove(w.a.NS, "cleat-node"), guard.Remove(w.b.NS, "cleat-node"))
	check("after Remove", func(i int) bool { return rows[i].before })
}

// TestGeneve sends Geneve datagrams where hosts have a device that takes those with any identifier.
func TestGeneve(t *testing.T) {
	w := newBed(t)
	for self, n := range map[string]*lab.Node{"192.0.2.1": w.a, "192.0.2.2": w.b} {
		c := config(self)
		c.Geneve = true
		_, err := new(guard.Tables).Sync(n.NS, c)
		must(t, err)
	}
	for _, r := range []struct {
		name    string
		from    *lab.Node
		to      string
		arrives bool
	}{
		{"of a host", w.a, "192.0.2.2:6081", true},
		{"of a host to another address", w.a, "198.51.100.2:6081", false},
		{"of a stranger", w.other, "192.0.2.2:6081", false},
		{"of a container to its host", w.c, "10.64.0.1:6081", false},
		{"of a container to another host", w.c, "192.0.2.2:6081", false},
		{"of an engine's container to another host", w.d, "192.0.2.2:6081", false},
	} {
		for _, vni := range []int{7790, 42} {
			if got := w.arrives(r.from, r.to, vni); got != r.arrives {
				t.Errorf("%s, identifier %d: arrives is %v", r.name, vni, got)
			}
		}
	}
	if !w.arrives(w.other, "192.0.2.2:4789", 42) {
		t.Error("VXLAN of another program does not arrive")
	}
}

// Datagrams between hosts are no connections for the kernel, whichever source port VXLAN takes; those of other programs are.
func TestUntracked(t *testing.T) {
	w := newBed(t)
	for self, n := range map[string]*lab.Node{"192.0.2.1": w.a, "192.0.2.2": w.b} {
		_, err := new(guard.Tables).Sync(n.NS, config(self))
		must(t, err)
		w.sh(n, "nft 'table ip t { chain f { type filter hook input priority 0; ct state established accept; }; }'")
	}
	for _, vni := range []int{7790, 7790, 42} {
		if !w.arrives(w.a, "192.0.2.2:4789", vni) {
			t.Fatalf("VXLAN %d does not arrive", vni)
		}
	}
	for _, n := range []*lab.Node{w.a, w.b} {
		if out := w.sh(n, "cat /proc/net/nf_conntrack"); strings.Count(out, " dport=4789 ") != 1 {
			t.Errorf("%s tracks\n%s", n, out)
		}
	}
}

// TestSync changes what is wanted, and what the kernel has.
func TestSync(t *testing.T) {
	lab.Need(t)
	n := newNode(t, "host")
	w := &bed{t: t}
	c := config("192.0.2.1")
	c.Hosts = append(c.Hosts, guard.Host{Address: netip.MustParseAddr("2001:db8::3"), Port: 7791}, c.Hosts[0])
	var tables guard.Tables
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"nothing is there", func() {}, true},
		{"nothing differs", func() {}, false},
		{"another host", func() { c.Hosts = append(c.Hosts, guard.Host{Address: netip.MustParseAddr("192.0.2.3"), Port: 7790}) }, true},
		{"another address", func() { c.Local = netip.MustParseAddr("192.0.2.7") }, true},
		{"another port", func() { c.Port++ }, true},
		{"another identifier", func() { c.VNI++ }, true},
		{"Geneve is in use", func() { c.Geneve = true }, true},
		{"another device", func() { c.Devices = append(c.Devices, "br-2") }, true},
		{"a table is gone", func() { w.sh(n, "nft delete table ip6 cleat-node") }, true},
		{"rules are gone", func() { w.sh(n, "nft flush chain ip cleat-node input") }, true},
		{"a host is gone", func() { w.sh(n, "nft delete element ip cleat-node hosts '{ 192.0.2.3 }'") }, true},
		{"somebody else's table", func() { w.sh(n, "nft add table ip other") }, false},
		{"a host too many", func() { w.sh(n, "nft add element ip cleat-node hosts '{ 192.0.2.77 }'") }, true},
		{"nothing differs any more", func() {}, false},
	} {
		step.do()
		changed, err := tables.Sync(n.NS, c)
		must(t, err)
		if changed != step.want {
			t.Errorf("%s: changed is %v", step.name, changed)
		}
		if !tables.Known() {
			t.Errorf("%s: Sync does not know afterwards what the tables are", step.name)
		}
	}
	if out := w.sh(n, "nft list ruleset"); strings.Count(out, "192.0.2.3") != 2 || !strings.Contains(out, "2001:db8::3 . 7791") {
		t.Errorf("the rules are\n%s", out)
	}
}
