package main_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/span"
)

// by returns how a host reaches containers of another one, and why.
func (h *host) by(o *host) (by, why string) {
	s, err := h.status()
	if err != nil {
		return "", err.Error()
	}
	for _, one := range s.Hosts {
		if one.Name == o.name {
			return one.By, one.Why
		}
	}
	return "", "no such host"
}

// reachBy waits until two hosts reach each other's containers in a way.
func (c *cluster) reachBy(a, b *host, want, why string) {
	c.t.Helper()
	for _, pair := range [][2]*host{{a, b}, {b, a}} {
		c.eventually(pair[0].name+" by "+want, func() error {
			if by, because := pair[0].by(pair[1]); by != want || !strings.Contains(because, why) {
				return fmt.Errorf("by %s: %s", by, because)
			}
			return nil
		})
	}
}

// sh runs a script on a node.
func (c *cluster) sh(n *lab.Node, script string) string {
	c.t.Helper()
	var out []byte
	must(c.t, n.NS.Do(func() (err error) {
		if out, err = exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w\n%s", script, err, out)
		}
		return err
	}))
	return strings.TrimSpace(string(out))
}

// down ends the host's node.
func (h *host) down() {
	h.c.t.Helper()
	pid := h.pid()
	_, _ = h.run(h.c.t.Context(), "cleat-node", "down") // the node may end before it answers
	h.c.eventually("the node of "+h.name+" ends", func() error {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil { // nobody waits for it
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// pairOn makes a container that answers on each of the first two hosts, on a network of the cluster.
func (c *cluster) pairOn(network string) (one, two *container) {
	c.t.Helper()
	c.hosts[0].createSpan(network)
	one, two = c.hosts[0].container("one", network), c.hosts[1].container("two", network)
	one.serve()
	two.serve()
	return one, two
}

// reachEachOther checks the ways between two containers, and from their hosts.
func (c *cluster) reachEachOther(one, two *container) {
	c.t.Helper()
	for _, err := range []error{one.reaches(two), two.reaches(one)} {
		if err != nil {
			c.t.Error(err)
		}
	}
	for _, k := range [][2]*container{{one, two}, {two, one}} {
		if got, err := ask(k[0].host.NS, k[1].addr); err != nil || got != k[1].name {
			c.t.Errorf("host %s to %s: %q, %v", k[0].host.name, k[1].name, got, err)
		}
	}
}

// dropContainers makes the switch drop packets of containers.
const dropContainers = "nft 'table bridge f { chain c { type filter hook forward priority 0; ip saddr 10.64.0.0/12 drop; }; }'"

// TestAuto checks that hosts of a segment reach each other's containers by plain routes where the switch passes them,
// and by VXLAN where it does not.
func TestAuto(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for _, h := range c.hosts { // the strictest setting
		must(t, h.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	}
	c.up()
	one, two := c.pairOn("web")
	a, b := c.hosts[0], c.hosts[1]
	c.reachBy(a, b, "routes", "passes")
	c.reachEachOther(one, two)
	c.sh(a.Node, "ip link set "+span.Device+" down") // and don't need the device
	c.reachEachOther(one, two)

	t.Run("a node that does not run changes nothing", func(t *testing.T) {
		b.down()
		c.reachEachOther(one, two)
		b.node("up")
		c.eventually("an answer", func() error { _, err := b.status(); return err })
		c.reachEachOther(one, two)
		c.reachBy(a, b, "routes", "passes")
		c.reachEachOther(one, two)
	})
	t.Run("a switch that filters", func(t *testing.T) {
		c.sh(c.sw.Node, dropContainers)
		c.reachBy(a, b, "vxlan", "drops")
		c.reachEachOther(one, two)
		c.sh(c.sw.Node, "nft delete table bridge f")
		c.reachBy(a, b, "routes", "passes")
		c.reachEachOther(one, two)
	})
	t.Run("others of the segment can't come in as they like", func(t *testing.T) {
		third := c.newHost("stranger", netip.MustParseAddr("192.0.2.9"))
		c.hosts = c.hosts[:2]
		c.sh(third.Node, fmt.Sprintf("ip route add %s via %s", two.addr, b.addr))
		if got, err := ask(third.NS, two.addr); err == nil {
			t.Errorf("%q answers a stranger", got)
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		a.cleat("net", "rm", "--force", "web")
		for _, h := range c.hosts {
			c.eventually("no routes on "+h.name, func() error {
				if out := c.sh(h.Node, "ip route show proto 193"); out != "" {
					return fmt.Errorf("%s", out)
				}
				return nil
			})
		}
	})
}

// TestAutoIPv6 is TestAuto with hosts that have IPv6 addresses only.
func TestAutoIPv6(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for i, h := range c.hosts {
		h.addr = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1))
		c.sh(h.Node, "ip addr flush dev eth0 && ip addr add "+h.addr.String()+"/64 dev eth0 nodad")
	}
	c.up()
	one, two := c.pairOn("web")
	c.reachBy(c.hosts[0], c.hosts[1], "routes", "passes")
	c.reachEachOther(one, two)
	for _, h := range c.hosts {
		c.sh(h.Node, "ip link set "+span.Device+" down")
	}
	c.reachEachOther(one, two)
}

// TestChoice checks --dataplane.
func TestChoice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		first, second []string // arguments of up
		filtered      bool
		want, why     string
	}{
		{"VXLAN for the cluster", []string{"--dataplane", "vxlan"}, nil, false, "vxlan", "chosen"},
		{"VXLAN for one host", nil, []string{"--dataplane", "vxlan"}, false, "vxlan", "chosen"},
		{"VXLAN prevails over routes", []string{"--dataplane", "routes"}, []string{"--dataplane", "vxlan"}, false, "vxlan", "chosen"},
		{"routes", []string{"--dataplane", "routes"}, nil, false, "routes", "chosen"},
		{"routes that are filtered", []string{"--dataplane", "routes"}, []string{"--dataplane", "auto"}, true, "routes", "drops"},
		{"auto for one host", []string{"--dataplane", "vxlan"}, []string{"--dataplane", "auto"}, false, "vxlan", "chosen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newCluster(t, 2)
			if c.filtered {
				k.sh(k.sw.Node, dropContainers)
			}
			k.hosts[0].node(append([]string{"up", "--name", "a", "--address", "192.0.2.1"}, c.first...)...)
			k.hosts[1].node(append([]string{"up", "--name", "b", "--token", k.hosts[0].token()}, c.second...)...)
			one, two := k.pairOn("web")
			k.reachBy(k.hosts[0], k.hosts[1], c.want, c.why)
			if !c.filtered {
				k.reachEachOther(one, two)
			}
		})
	}
}

// TestChoiceChanges checks that a host can be given another way later, and unknown ones are refused.
func TestChoiceChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.up()
	one, two := c.pairOn("web")
	a, b := c.hosts[0], c.hosts[1]
	c.reachBy(a, b, "routes", "passes")
	b.down()
	if _, err := b.run(t.Context(), "cleat-node", "up", "--dataplane", "pigeons"); err == nil || !strings.Contains(err.Error(), "auto, routes, vxlan, geneve or wireguard") {
		t.Errorf("an unknown way: %v", err)
	}
	b.node("up", "--dataplane", "vxlan")
	c.reachBy(a, b, "vxlan", "chosen")
	c.reachEachOther(one, two)
	b.down()
	b.node("up", "--dataplane", "auto")
	c.reachBy(a, b, "routes", "passes")
	c.reachEachOther(one, two)
}

// TestSegments checks that hosts with a router between them reach each other's containers by VXLAN.
func TestSegments(t *testing.T) {
	t.Parallel()
	c, _ := withRouter(t)
	c.up()
	one, two := c.pairOn("web")
	c.reachBy(c.hosts[0], c.hosts[1], "vxlan", "segment")
	c.reachEachOther(one, two)
}

// TestNoProbes checks that hosts whose probes are filtered reach each other's containers by VXLAN.
func TestNoProbes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.sh(c.hosts[1].Node, "nft 'table inet f { chain c { type filter hook input priority 0; udp dport 7790 drop; }; }'")
	c.up()
	one, two := c.pairOn("web")
	c.reachBy(c.hosts[0], c.hosts[1], "vxlan", "UDP port 7790")
	c.reachEachOther(one, two)
}
