package main_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/lab"

	"golang.org/x/sys/unix"
)

// bulkPort is where containers send what they receive back.
const bulkPort = 9

// bulk is how much a TCP connection sends in each direction, in bytes: more than its first window.
const bulk = 200_000

// mirror makes the container send back what comes by TCP and UDP.
func (k *container) mirror() {
	t := k.host.c.t
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	must(t, k.NS.Do(func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", bulkPort)); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", fmt.Sprintf(":%d", bulkPort))
		return err
	}))
	t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	go func() {
		b := make([]byte, 65535)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(b[:n], from)
		}
	}()
}

// exchange sends much by TCP and gets it back. Broken paths hang.
func (k *container) exchange(o *container, within time.Duration) error {
	c, err := k.dial("tcp", o, within)
	if err != nil {
		return err
	}
	defer c.Close()
	go func() { _, _ = c.Write(make([]byte, bulk)) }()
	n, err := io.ReadFull(c, make([]byte, bulk))
	if err != nil {
		return fmt.Errorf("%s to %s: %d bytes came back: %w", k.name, o.name, n, err)
	}
	return nil
}

// echo sends one datagram and gets it back.
func (k *container) echo(o *container, size int, within time.Duration) error {
	c, err := k.dial("udp", o, within)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 65535)); err != nil || n != size {
		return fmt.Errorf("%s to %s: %d of %d bytes came back: %w", k.name, o.name, n, size, err)
	}
	return nil
}

func (k *container) dial(network string, o *container, within time.Duration) (c net.Conn, err error) {
	err = k.NS.Do(func() error {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(o.addr, bulkPort).String(), within)
		return err
	})
	if err == nil {
		err = c.SetDeadline(time.Now().Add(within))
	}
	return c, err
}

// silent makes a container drop ICMP messages about its packets, as some firewalls do.
func (k *container) silent() {
	k.host.c.sh(k.Node, "nft 'table inet f { chain c { type filter hook input priority 0; icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }'")
}

// withRouter puts a router between two hosts of a new cluster.
func withRouter(t *testing.T) (c *cluster, router *lab.Node) {
	t.Helper()
	c = newCluster(t, 1)
	a := c.hosts[0]
	router, err := lab.NewNode("router")
	must(t, err)
	t.Cleanup(func() { router.Close() })
	_, err = c.sw.Plug(lab.End{Node: router, Name: "eth0"}, 0)
	must(t, err)
	must(t, router.Address("eth0", netip.MustParsePrefix("192.0.2.254/24")))
	far := c.newHost("b", netip.MustParseAddr("192.0.2.2"))
	c.sh(far.Node, "ip addr flush dev eth0; ip link del eth0")
	must(t, lab.Connect(lab.End{Node: far.Node, Name: "eth0"}, lab.End{Node: router, Name: "eth1"}, lab.Cable{}))
	far.addr = netip.MustParseAddr("198.51.100.2")
	must(t, far.Address("eth0", netip.PrefixFrom(far.addr, 24)))
	must(t, router.Address("eth1", netip.MustParsePrefix("198.51.100.254/24")))
	must(t, router.Sysctl("net/ipv4/ip_forward", "1"))
	c.sh(a.Node, "ip route add default via 192.0.2.254")
	c.sh(far.Node, "ip route add default via 198.51.100.254")
	return c, router
}

// hole makes a router drop larger packets without a word.
func hole(size int) string {
	return fmt.Sprintf("nft 'table ip hole { chain c { type filter hook forward priority 0; ip length > %d drop; }; }'", size)
}

const noHole = "nft delete table ip hole"

// TestVXLANFits checks that containers know from the start what passes between hosts: they neither lose the first
// datagram nor need ICMP.
func TestVXLANFits(t *testing.T) {
	t.Parallel()
	c, _ := withRouter(t)
	c.up()
	one, two := c.pairOn("web")
	for _, k := range []*container{one, two} {
		k.mirror()
		k.silent()
	}
	c.reachBy(c.hosts[0], c.hosts[1], "vxlan", "segment")
	for _, pair := range [][2]*container{{one, two}, {two, one}} {
		for _, size := range []int{100, 1422, 1423, 1472, 1473, 8000} {
			if err := pair[0].echo(pair[1], size, 5*time.Second); err != nil {
				t.Errorf("a datagram of %d bytes: %v", size, err)
			}
		}
		if err := pair[0].exchange(pair[1], 20*time.Second); err != nil {
			t.Error(err)
		}
	}
}

// packets waits until a host knows that packets of a size pass to another one.
func (c *cluster) packets(h, o *host, size int, why string) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("packets of %d bytes from %s to %s", size, h.name, o.name), func() error {
		s, err := h.status()
		if err != nil {
			return err
		}
		for _, one := range s.Hosts {
			if one.Name == o.name && (one.MTU != size || !strings.Contains(one.Why, why) || why == "" && strings.Contains(one.Why, "packets")) {
				return fmt.Errorf("%d bytes: %s", one.MTU, one.Why)
			}
		}
		return nil
	})
}

// TestPathMTU checks that containers reach each other although a router between the hosts drops larger packets and
// says nothing.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	c, router := withRouter(t)
	c.sh(router, hole(1372))
	c.up()
	a, b := c.hosts[0], c.hosts[1]
	one, two := c.pairOn("web")
	one.mirror()
	two.mirror()
	both := func(size int, why string) {
		t.Helper()
		c.packets(a, b, size, why)
		c.packets(b, a, size, why)
	}
	pass := func() {
		t.Helper()
		for _, pair := range [][2]*container{{one, two}, {two, one}} {
			if err := pair[0].exchange(pair[1], 20*time.Second); err != nil {
				t.Error(err)
			}
			c.eventually("a large datagram", func() error { return pair[0].echo(pair[1], 1472, 300*time.Millisecond) })
		}
	}
	both(1322, "packets of up to 1322 bytes, the path passes no more than 1372")
	pass()
	t.Run("without ICMP", func(t *testing.T) {
		one.silent()
		two.silent()
		pass()
	})
	t.Run("the node of a host is killed", func(t *testing.T) {
		must(t, unix.Kill(a.pid(), unix.SIGKILL))
		a.node("up")
		if got := c.sh(a.Node, "ip route show proto 193"); !strings.Contains(got, "mtu 1322") {
			t.Errorf("it forgets the MTU of the path:\n%s", got)
		}
		both(1322, "the path passes no more than 1372")
	})
	t.Run("the path becomes smaller", func(t *testing.T) {
		c.sh(router, noHole+"; "+hole(1300))
		both(1250, "the path passes no more than 1300")
		pass()
	})
	t.Run("the device becomes smaller than the path", func(t *testing.T) {
		c.sh(b.Node, "ip link set eth0 mtu 1290")
		c.packets(b, a, 1240, "")
		c.packets(a, b, 1240, "the device of b passes no more than 1290")
	})
}

// TestImpossibleMTU checks that networks whose packets hosts can't carry are refused, and so are hosts that can't carry
// those of a network, with nothing changed.
func TestImpossibleMTU(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	c.up()
	refused := func(want []string, h *host, args ...string) {
		t.Helper()
		_, err := h.run(t.Context(), args...)
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%v: %v, want %q", args, err, text)
			}
		}
	}
	refused([]string{"needs packets of 1480 bytes between hosts (--mtu), and host", "passes at most 1450: its device has MTU 1500, of which VXLAN takes 50", "hint: --mtu 1450"},
		a, "cleat", "net", "create", "web", "--span", "--mtu", "1480")
	c.sh(b.Node, "ip link set eth0 mtu 1300")
	c.packets(a, b, 1250, "the device of b passes no more than 1300")
	refused([]string{"host b passes at most 1250"}, a, "cleat", "net", "create", "web", "--span", "--mtu", "1251")
	refused([]string{"needs packets of 1280 bytes between hosts (IPv6), and host b passes at most 1250", "to 1330"}, a, "cleat", "net", "create", "web", "--span", "--ipv6")
	for _, h := range c.hosts {
		if got := h.cleat("net", "ls", "--json"); strings.Contains(got, "web") {
			t.Errorf("host %s has a network: %s", h.name, got)
		}
	}
	c.sh(b.Node, "ip link set eth0 mtu 1500")
	c.eventually("a network", func() error {
		_, err := a.run(t.Context(), "cleat", "net", "create", "web", "--span", "--ipv6", "--mtu", "1450")
		return err
	})
	third := c.newHost("c", netip.MustParseAddr("192.0.2.3"))
	c.hosts = c.hosts[:2]
	c.sh(third.Node, "ip link set eth0 mtu 1300")
	refused([]string{"network web needs packets of 1280 bytes between hosts (IPv6), and host c passes at most 1250", "to 1330"},
		third, "cleat-node", "up", "--name", "c", "--token", a.token())
	if s, err := a.status(); err != nil || len(s.Hosts) != 2 {
		t.Errorf("the cluster has %+v, %v", s.Hosts, err)
	}
	c.sh(third.Node, "ip link set eth0 mtu 1400")
	third.join() // it can carry what IPv6 needs
	c.packets(a, third, 1350, "the device of c passes no more than 1400")
}
