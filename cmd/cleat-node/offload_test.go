package main_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/network/span"

	"golang.org/x/sys/unix"
)

// withCards makes a cluster of two hosts, whose packets are in VXLAN, with network cards between them.
func withCards(t *testing.T) (c *cluster, cards *labtest.Cards) {
	t.Helper()
	c = newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	for _, h := range c.hosts {
		c.sh(h.Node, "ip link del eth0")
	}
	cards = labtest.NewCards(t, lab.End{Node: a.Node, Name: "eth0"}, lab.End{Node: b.Node, Name: "eth0"}, true)
	for _, h := range c.hosts {
		must(t, h.Address("eth0", netip.PrefixFrom(h.addr, 24)))
	}
	a.node("up", "--name", "a", "--address", a.addr.String(), "--dataplane", "vxlan")
	b.join()
	return c, cards
}

// TestBrokenCards checks that containers reach each other although the hosts' network cards break packets in VXLAN, that
// this is said, and that it lasts when cleat-node is killed.
func TestBrokenCards(t *testing.T) {
	t.Parallel()
	c, cards := withCards(t)
	cards.Break(true)
	one, two := c.pairOn("web")
	one.mirror()
	two.mirror()
	for _, h := range c.hosts {
		c.eventually("a note of host "+h.name, func() error {
			s, err := h.status()
			if err == nil && !strings.Contains(strings.Join(s.Notes, ""), "checksums of packets in VXLAN are computed in software") {
				err = fmt.Errorf("notes %q", s.Notes)
			}
			return err
		})
		c.eventually("the device of host "+h.name, func() error {
			if got := c.sh(h.Node, "ip link show "+span.Device); !strings.Contains(got, "checksums in software") {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	pass := func() {
		t.Helper()
		for _, pair := range [][2]*container{{one, two}, {two, one}} {
			if err := pair[0].exchange(pair[1], 20*time.Second); err != nil {
				t.Error(err)
			}
			if err := pair[0].echo(pair[1], 1000, 5*time.Second); err != nil {
				t.Error(err)
			}
		}
	}
	pass()
	a := c.hosts[0]
	if out := a.node("status"); !strings.Contains(out, "\nnote: checksums of packets") {
		t.Errorf("status prints\n%s", out)
	}
	must(t, unix.Kill(a.pid(), unix.SIGKILL))
	a.node("up")
	pass()
	if s, err := a.status(); err != nil || !strings.Contains(strings.Join(s.Notes, ""), "as an earlier cleat-node has found") {
		t.Errorf("after a restart: %q, %v", s.Notes, err)
	}
}
