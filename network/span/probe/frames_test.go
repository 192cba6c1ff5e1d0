package probe_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/network/span/probe"
)

// vxlan is the name of hosts' VXLAN devices.
const vxlan = "vx"

// withVXLAN makes a testbed of two hosts with network cards between them, and VXLAN devices.
func withVXLAN(t *testing.T, divides bool) (*testbed, *labtest.Cards) {
	t.Helper()
	lab.Need(t)
	tb := &testbed{t: t}
	for i := range 2 {
		node, err := lab.NewNode(fmt.Sprintf("host%d", i+1))
		must(t, err)
		t.Cleanup(func() { node.Close() })
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})
		tb.hosts = append(tb.hosts, &host{Node: node, tb: tb, addr: netip.AddrPortFrom(a, port), changes: make(chan struct{}, 1), stop: func() {}})
	}
	cards := labtest.NewCards(t, lab.End{Node: tb.hosts[0].Node, Name: "eth0"}, lab.End{Node: tb.hosts[1].Node, Name: "eth0"}, divides)
	for i, h := range tb.hosts {
		must(t, h.Address("eth0", netip.PrefixFrom(h.addr.Addr(), 24)))
		tb.addVXLAN(i)
	}
	return tb, cards
}

func macOf(i int) link.MAC { return link.MAC{2, 0, 0, 0, 0, byte(i + 1)} }

func (tb *testbed) addVXLAN(i int) {
	tb.t.Helper()
	tb.run(tb.hosts[i].Node, fmt.Sprintf("ip link add vx address %s mtu 1450 type vxlan id 7 dstport 4789 local %s nolearning && ip link set vx up && bridge fdb add %s dev vx dst %s",
		macOf(i), tb.hosts[i].addr.Addr(), macOf(1-i), tb.hosts[1-i].addr.Addr()))
}

// setupFrames returns what a host probes that checks encapsulated packets.
func (tb *testbed) setupFrames(i int) probe.Setup {
	s := tb.setupSizes(i, 1500)
	s.Device, s.MAC, s.Peers[0].MAC = vxlan, macOf(i), macOf(1-i)
	return s
}

func (tb *testbed) startFrames() {
	for i := range tb.hosts {
		tb.start(i)
		tb.hosts[i].prober.Set(tb.setupFrames(i))
	}
}

// until waits until a condition holds.
func (tb *testbed) until(what string, holds func() bool) {
	tb.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			tb.t.Fatalf("not yet: %s", what)
		}
		select {
		case <-tb.hosts[0].changes:
		case <-tb.hosts[1].changes:
		case <-time.After(interval):
		}
	}
}

func (tb *testbed) broken(i int) probe.Offloads {
	found, _ := tb.hosts[i].prober.Broken()
	return found
}

// TestBrokenChecksums checks that cards are found which don't complete the checksums of packets in packets.
func TestBrokenChecksums(t *testing.T) {
	tb, cards := withVXLAN(t, true)
	cards.Break(true)
	tb.startFrames()
	for i := range tb.hosts {
		tb.until("broken checksums", func() bool { return tb.broken(i).Checksums })
		if _, to := tb.hosts[i].prober.Broken(); to != tb.hosts[1-i].String() {
			t.Errorf("it showed to %q", to)
		}
	}
}

// TestBrokenSegments checks that cards are found which don't divide large segments in packets.
func TestBrokenSegments(t *testing.T) {
	tb, _ := withVXLAN(t, false)
	tb.startFrames()
	for i := range tb.hosts {
		tb.until("broken segments", func() bool { return tb.broken(i).Segments })
		if tb.broken(i).Checksums {
			t.Error("the checksums are broken, too")
		}
	}
}

// TestSound checks that nothing is found where nothing is broken, and that a device that is made anew is followed.
func TestSound(t *testing.T) {
	tb, cards := withVXLAN(t, true)
	tb.startFrames()
	sound := func() {
		t.Helper()
		for i := range tb.hosts {
			tb.until("a check", func() bool { return tb.hosts[i].prober.Checked(tb.hosts[1-i].String()) })
			if got := tb.broken(i); got != (probe.Offloads{}) {
				t.Errorf("found %+v", got)
			}
		}
	}
	sound()
	tb.run(tb.hosts[0].Node, "ip link del "+vxlan)
	tb.hosts[0].stop()
	cards.Break(true)
	tb.start(0)
	tb.hosts[0].prober.Set(tb.setupFrames(0))
	tb.passes(0, 1500)
	tb.addVXLAN(0)
	tb.until("broken checksums", func() bool { return tb.broken(0).Checksums })
}

// TestBlocked checks that a firewall that drops encapsulated packets is found.
func TestBlocked(t *testing.T) {
	tb, _ := withVXLAN(t, true)
	tb.run(tb.hosts[1].Node, "nft 'table inet f { chain c { type filter hook input priority 0; udp dport 4789 drop; }; }'")
	tb.startFrames()
	tb.until("blocked", func() bool { return tb.hosts[0].prober.Blocked(tb.hosts[1].String()) })
	if got := tb.broken(0); got != (probe.Offloads{}) {
		t.Errorf("found %+v", got)
	}
	tb.until("the other direction is checked", func() bool { return tb.hosts[1].prober.Checked(tb.hosts[0].String()) })
	if tb.hosts[1].prober.Blocked(tb.hosts[0].String()) {
		t.Error("the other direction is blocked")
	}
}
