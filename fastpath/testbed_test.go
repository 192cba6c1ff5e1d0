package fastpath_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"cleat/fastpath"
	"cleat/lab"
	"cleat/lab/labtest"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	os.Exit(labtest.RunTests(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testbed is two hosts, each with two containers, and one more machine, outside:
//
//	container 10.64.1.2, fd00:64:1::2 ─ c2 ┐
//	container 10.64.1.3, fd00:64:1::3 ─ c3 ┴ host 192.0.2.1 ═ switch ═ 192.0.2.2 …
//	                                              outside 192.0.2.9
//
// The hosts forward by VXLAN or plain routes, track connections, and drop what is not of a container.
type testbed struct {
	t       testing.TB
	hosts   [3]*host // from 1
	outside *lab.Node
}

type host struct {
	*lab.Node
	t          testing.TB
	i          int
	containers map[int]*lab.Node // by last byte of the address
	path       *fastpath.Path    // nil: the kernel forwards all
	devices    []fastpath.Device
}

// run runs a command line on a node, with a text as its input.
func run(t testing.TB, n *lab.Node, input, line string) string {
	t.Helper()
	words := strings.Fields(line)
	path, err := exec.LookPath(words[0])
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + words[0])
	}
	if err != nil {
		t.Skipf("no program %s", words[0])
	}
	cmd := exec.Command(path, words[1:]...)
	cmd.Stdin = strings.NewReader(input)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err = n.NS.Do(cmd.Start); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", n, line, err, out.String())
	}
	return out.String()
}

const vni, port = 7790, 4789

// rules are those of a host, whose number replaces the % signs.
const rules = `
table inet raw {
	chain in { type filter hook prerouting priority raw; udp dport 4789 notrack; }
	chain out { type filter hook output priority raw; udp dport 4789 notrack; }
}
table inet filter {
	chain source {
		type filter hook prerouting priority filter;
		iifname "c2" ip saddr != 10.64.%.2 drop
		iifname "c3" ip saddr != 10.64.%.3 drop
		iifname "c2" ip6 saddr != { fd00:64:%::2, fe80::/10 } drop
		iifname "c3" ip6 saddr != { fd00:64:%::3, fe80::/10 } drop
	}
	chain forwarded {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ct state new ip saddr 10.64.1.0/24 accept
		ct state new ip6 saddr fd00:64:1::/48 accept
		ct status dnat accept
	}
}
table ip6 translate {
	chain after { type nat hook postrouting priority srcnat; ip6 saddr fd00:64::/32 ip6 daddr != fd00:64::/32 masquerade; }
	chain before { type nat hook prerouting priority dstnat; iifname "eth0" tcp dport 8080 dnat to [fd00:64:%::2]:80; iifname "eth0" udp dport 8080 dnat to [fd00:64:%::2]:80; }
}
table ip translate {
	chain after { type nat hook postrouting priority srcnat; ip saddr 10.64.0.0/16 ip daddr != 10.64.0.0/16 masquerade; }
	chain before { type nat hook prerouting priority dstnat; iifname "eth0" tcp dport 8080 dnat to 10.64.%.2:80; iifname "eth0" udp dport 8080 dnat to 10.64.%.2:80; }
}
`

// newTestbed makes a testbed. By VXLAN or by plain routes, containers reach those of the other host. With a bridge,
// containers of one host share one.
func newTestbed(t testing.TB, vxlan, bridge bool) *testbed {
	t.Helper()
	lab.Need(t)
	if err := fastpath.Supported(); err != nil {
		t.Skipf("%+v", err)
	}
	tb := &testbed{t: t}
	sw, err := lab.NewSwitch("switch", 1500)
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	node := func(name string) *lab.Node {
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		for _, of := range []string{"all", "default"} {
			must(t, n.Sysctl("net/ipv6/conf/"+of+"/accept_dad", "0"))
		}
		must(t, n.Sysctl("net/ipv4/tcp_congestion_control", "reno"))
		return n
	}
	tb.outside = node("outside")
	_, err = sw.Plug(lab.End{Node: tb.outside, Name: "eth0"}, 0)
	must(t, err)
	must(t, tb.outside.Address("eth0", netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("2001:db8::9/64")))
	for i := 1; i <= 2; i++ {
		h := &host{Node: node(fmt.Sprintf("host%d", i)), t: t, i: i, containers: map[int]*lab.Node{}}
		tb.hosts[i] = h
		for name, value := range map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/netfilter/nf_conntrack_tcp_be_liberal": "1", "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst": "1"} {
			must(t, h.Sysctl(name, value))
		}
		_, err := sw.Plug(lab.End{Node: h.Node, Name: "eth0"}, 0)
		must(t, err)
		must(t, h.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i)), netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i))))
		if bridge {
			run(t, h.Node, "", "ip link add br0 type bridge")
			run(t, h.Node, "", fmt.Sprintf("ip addr add 10.64.%d.1/24 dev br0", i))
			run(t, h.Node, "", "ip link set br0 up")
		}
		for _, j := range []int{2, 3} {
			c := node(fmt.Sprintf("container%d-%d", i, j))
			h.containers[j] = c
			name := fmt.Sprintf("c%d", j)
			must(t, lab.Connect(lab.End{Node: h.Node, Name: name}, lab.End{Node: c, Name: "eth0"}, lab.Cable{MTU: 1450}))
			if bridge {
				run(t, h.Node, "", "ip link set "+name+" master br0")
				must(t, c.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("10.64.%d.%d/24", i, j))))
				run(t, c, "", fmt.Sprintf("ip route add default via 10.64.%d.1", i))
				continue
			}
			must(t, h.Address(name, netip.MustParsePrefix("fe80::1/64")))
			run(t, h.Node, "", fmt.Sprintf("ip route add 10.64.%d.%d dev %s", i, j, name))
			run(t, h.Node, "", fmt.Sprintf("ip route add fd00:64:%d::%d dev %s", i, j, name))
			must(t, c.Address("eth0", netip.MustParsePrefix(fmt.Sprintf("10.64.%d.%d/32", i, j)), netip.MustParsePrefix(fmt.Sprintf("fd00:64:%d::%d/128", i, j))))
			must(t, h.Sysctl("net/ipv4/conf/"+name+"/proxy_arp", "1"))
			must(t, h.Sysctl("net/ipv4/neigh/"+name+"/proxy_delay", "0"))
			run(t, c, "", "ip route add default dev eth0")
			run(t, c, "", "ip route add default via fe80::1 dev eth0")
		}
		run(t, h.Node, strings.ReplaceAll(rules, "%", fmt.Sprint(i)), "nft -f -")
	}
	for i := 1; i <= 2; i++ {
		h, o := tb.hosts[i], 3-i
		if !vxlan {
			run(t, h.Node, "", fmt.Sprintf("ip route add 10.64.%d.0/24 via 192.0.2.%d", o, o))
			run(t, h.Node, "", fmt.Sprintf("ip route add fd00:64:%d::/48 via 2001:db8::%d", o, o))
			continue
		}
		run(t, h.Node, "", fmt.Sprintf("ip link add vx address 02:00:00:00:00:0%d type vxlan id %d local 192.0.2.%d dstport %d nolearning", i, vni, i, port))
		run(t, h.Node, "", "ip link set vx up")
		run(t, h.Node, "", fmt.Sprintf("bridge fdb replace 02:00:00:00:00:0%d dst 192.0.2.%d dev vx", o, o))
		for route, via := range map[string]string{fmt.Sprintf("10.64.%d.0/24", o): fmt.Sprintf("192.0.2.%d", o), fmt.Sprintf("fd00:64:%d::/48", o): fmt.Sprintf("fe80::%d", o)} {
			run(t, h.Node, "", fmt.Sprintf("ip neigh replace %s lladdr 02:00:00:00:00:0%d dev vx", via, o))
			run(t, h.Node, "", fmt.Sprintf("ip route add %s via %s dev vx onlink", route, via))
		}
	}
	return tb
}

// fast gives a host the fast path.
func (h *host) fast() {
	h.t.Helper()
	h.devices = []fastpath.Device{{Index: h.index("eth0"), Role: fastpath.Wire}, {Index: h.index("c2")}, {Index: h.index("c3")}}
	must(h.t, h.NS.Do(func() (err error) { h.path, err = fastpath.New(); return err }))
	h.t.Cleanup(func() { h.NS.Do(h.path.Close) })
	h.sync()
}

// sync attaches the programs to the host's devices.
func (h *host) sync() {
	h.t.Helper()
	must(h.t, h.NS.Do(func() error {
		var s fastpath.Settings
		if vx, err := net.InterfaceByName("vx"); err == nil {
			s = fastpath.Settings{VNI: vni, Port: port, Device: vx.Index, Peers: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(3 - h.i)})}}
		}
		return h.path.Sync(s, h.devices, nil)
	}))
}

func (h *host) index(name string) int {
	var i *net.Interface
	must(h.t, h.NS.Do(func() (err error) { i, err = net.InterfaceByName(name); return err }))
	return i.Index
}

func address(i, j int) netip.Addr { return netip.AddrFrom4([4]byte{10, 64, byte(i), byte(j)}) }

func address6(i, j int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:64:%d::%d", i, j))
}

// listenUDP opens a socket of a node.
func listenUDP(t testing.TB, n *lab.Node, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	must(t, n.NS.Do(func() (err error) { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }))
	t.Cleanup(func() { c.Close() })
	return c
}

// dial connects from an address of a node.
func dial(t testing.TB, n *lab.Node, network string, from netip.Addr, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	d := net.Dialer{Timeout: 5 * time.Second}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	} else {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	must(t, n.NS.Do(func() (err error) { c, err = d.DialContext(context.Background(), network, to.String()); return err }))
	t.Cleanup(func() { c.Close() })
	return c
}

// echo answers datagrams until its socket is closed.
func echo(c *net.UDPConn) {
	b := make([]byte, 65536)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort(b[:n], from)
	}
}

// onSocket returns what sets an option of a socket before it is used.
func onSocket(level, option, value int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
		return errors.Join(outer, err)
	}
}
