package probe_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/span/probe"
)

func TestMain(m *testing.M) { os.Exit(lab.RunTests(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	port     = 7790
	interval = 40 * time.Millisecond
)

// testbed is two hosts on a switch, and a third one that takes no part.
type testbed struct {
	t     *testing.T
	sw    *lab.Switch
	hosts []*host
}

type host struct {
	*lab.Node
	tb      *testbed
	addr    netip.AddrPort
	prober  *probe.Prober
	stop    func()
	changes chan struct{}
}

func newTestbed(t *testing.T, v6 bool) *testbed {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t}
	var err error
	tb.sw, err = lab.NewSwitch("switch", 1500)
	must(t, err)
	t.Cleanup(func() { tb.sw.Close() })
	for i := range 3 {
		node, err := lab.NewNode(fmt.Sprintf("host%d", i+1))
		must(t, err)
		t.Cleanup(func() { node.Close() })
		for _, of := range []string{"all", "default"} {
			must(t, node.Sysctl("net/ipv6/conf/"+of+"/accept_dad", "0"))
		}
		_, err = tb.sw.Plug(lab.End{Node: node, Name: "eth0"}, 0)
		must(t, err)
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24)
		if v6 {
			p = netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1)), 64)
		}
		must(t, node.Address("eth0", p))
		h := &host{Node: node, tb: tb, addr: netip.AddrPortFrom(p.Addr(), port), changes: make(chan struct{}, 1), stop: func() {}}
		tb.hosts = append(tb.hosts, h)
	}
	return tb
}

// overlay returns addresses that containers of a host could have, one of each family.
func overlay(i int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 64, byte(i), 1}), netip.MustParseAddr(fmt.Sprintf("2001:db8:64:%d::1", i))}
}

// setup returns what a host probes: the other one of two.
func (tb *testbed) setup(i int) probe.Setup {
	o := 1 - i
	peer := probe.Peer{Name: tb.hosts[o].String(), Address: tb.hosts[o].addr}
	for k := range 2 {
		peer.Ways = append(peer.Ways, probe.Way{From: overlay(i)[k], To: overlay(o)[k]})
	}
	return probe.Setup{Local: tb.hosts[i].addr, Uplink: "eth0", Peers: []probe.Peer{peer}}
}

// start starts a host's prober.
func (tb *testbed) start(i int) {
	h := tb.hosts[i]
	h.prober = probe.New(probe.Config{NS: h.NS, Interval: interval, Changed: func() {
		select {
		case h.changes <- struct{}{}:
		default:
		}
	}})
	h.prober.Set(tb.setup(i))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = h.prober.Run(ctx) })
	h.stop = func() { cancel(); running.Wait() }
	tb.t.Cleanup(func() { h.stop() })
}

// results returns what a host knows of the ways to the other one.
func (tb *testbed) results(i int) (all [2]probe.Result) {
	for k, a := range overlay(i) {
		all[k] = tb.hosts[i].prober.Result(tb.hosts[1-i].String(), a)
	}
	return all
}

// become waits until a host has results.
func (tb *testbed) become(i int, want [2]probe.Result) {
	tb.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tb.results(i) != want {
		if time.Now().After(deadline) {
			tb.t.Fatalf("host %d has %v, want %v; %v", i, tb.results(i), want, tb.hosts[i].prober.Problem())
		}
		select {
		case <-tb.hosts[i].changes:
		case <-time.After(interval):
		}
	}
}

// rounds waits for what is not to happen: as long as a number of hellos take.
func rounds(n int) { time.Sleep(time.Duration(n) * interval) }

func (tb *testbed) run(ns *lab.Node, script string) {
	tb.t.Helper()
	must(tb.t, ns.NS.Do(func() error {
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", script, err, out)
		}
		return nil
	}))
}

var (
	works   = [2]probe.Result{probe.Works, probe.Works}
	fails   = [2]probe.Result{probe.Fails, probe.Fails}
	unknown = [2]probe.Result{}
)

func TestWorks(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("over IPv6 %v", v6), func(t *testing.T) {
			tb := newTestbed(t, v6)
			tb.start(0)
			rounds(10)
			if got := tb.results(0); got != unknown {
				t.Errorf("a host whose peer does not run has %v", got)
			}
			tb.start(1)
			tb.become(0, works)
			tb.become(1, works)
		})
	}
}

// TestFiltered makes the switch drop packets with addresses that it does not know.
func TestFiltered(t *testing.T) {
	for _, c := range []struct {
		name, match string
		want        [2]probe.Result
	}{
		{"sources", "ip saddr 10.64.0.0/12 drop; ip6 saddr 2001:db8:64::/48 drop", fails},
		{"destinations", "ip daddr 10.64.0.0/12 drop; ip6 daddr 2001:db8:64::/48 drop", fails},
		{"sources in one direction", "iifname port0 ip saddr 10.64.0.0/12 drop; iifname port0 ip6 saddr 2001:db8:64::/48 drop", fails},
		{"IPv4 only", "ip saddr 10.64.0.0/12 drop", [2]probe.Result{probe.Fails, probe.Works}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb := newTestbed(t, false)
			filter := func() {
				tb.run(tb.sw.Node, "nft 'table bridge f { chain c { type filter hook forward priority 0; "+c.match+"; }; }'")
			}
			filter()
			tb.start(0)
			tb.start(1)
			tb.become(0, c.want)
			tb.become(1, c.want)
			tb.run(tb.sw.Node, "nft delete table bridge f")
			tb.become(0, works)
			tb.become(1, works)
			filter()
			tb.become(0, c.want)
			tb.become(1, c.want)
		})
	}
}

// TestHostFirewall checks that firewalls of the hosts drop trials unnoticed: they are about the segment.
func TestHostFirewall(t *testing.T) {
	tb := newTestbed(t, false)
	for _, h := range tb.hosts {
		tb.run(h.Node, "nft 'table inet f { chain c { type filter hook input priority 0; ip saddr 10.64.0.0/12 drop; }; chain o { type filter hook output priority 0; ip daddr 10.64.0.0/12 drop; }; }'")
	}
	tb.start(0)
	tb.start(1)
	tb.become(0, works)
	tb.become(1, works)
}

// TestRestart checks that results stay while the other host's node does not run, and when it comes again.
func TestRestart(t *testing.T) {
	tb := newTestbed(t, false)
	tb.start(0)
	tb.start(1)
	tb.become(0, works)
	tb.become(1, works)
	select {
	case <-tb.hosts[0].changes:
	default:
	}
	tb.hosts[1].stop()
	rounds(12)
	tb.start(1)
	tb.become(1, works)
	rounds(12)
	tb.become(0, works)
	select {
	case <-tb.hosts[0].changes:
		t.Error("the result has changed meanwhile")
	default:
	}
}

// TestDevice checks that a prober goes on when the uplink was deleted and made again, and with another address.
func TestDevice(t *testing.T) {
	tb := newTestbed(t, false)
	tb.start(0)
	tb.start(1)
	tb.become(0, works)
	s := tb.setup(0)
	s.Uplink = "eth9"
	tb.hosts[0].prober.Set(s)
	deadline := time.Now().Add(10 * time.Second)
	for tb.hosts[0].prober.Problem() == nil {
		if time.Now().After(deadline) {
			t.Fatal("a device that does not exist is no problem")
		}
		time.Sleep(interval)
	}
	if got := tb.results(0); got != unknown {
		t.Errorf("with a device that does not exist: %v", got)
	}
	tb.run(tb.hosts[0].Node, "ip link set eth0 down; ip link set eth0 name eth9 up")
	tb.become(0, works)
	if err := tb.hosts[0].prober.Problem(); err != nil {
		t.Error(err)
	}
}

// TestForged checks that messages of somebody who can't read what is sent to the other host count for nothing.
func TestForged(t *testing.T) {
	tb := newTestbed(t, false)
	tb.start(0)
	var c *net.UDPConn
	must(t, tb.hosts[1].NS.Do(func() (err error) {
		c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: port}, net.UDPAddrFromAddrPort(tb.hosts[0].addr))
		return err
	}))
	defer c.Close()
	_, err := c.Read(make([]byte, 64)) // the prober runs
	must(t, err)
	for i := range 20 {
		b := append([]byte("cleatpr\x01\x01\x03"), binary.BigEndian.AppendUint64(nil, 77)...)
		b = binary.BigEndian.AppendUint64(b, uint64(i)) // a guess
		_, err := c.Write(b)
		must(t, err)
		rounds(1)
	}
	if got := tb.results(0); got != unknown {
		t.Errorf("after forged hellos: %v", got)
	}
}
