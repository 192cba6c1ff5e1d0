package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/tunnel/control"

	"golang.org/x/sys/unix"
)

// addUplinks gives each host another uplink, eth1 at a switch of its own.
func (c *cluster) addUplinks() {
	c.t.Helper()
	var err error
	c.second, err = lab.NewSwitch("second", 1500)
	must(c.t, err)
	for i, h := range c.hosts {
		h.second, err = c.second.Plug(lab.End{Node: h.Node, Name: "eth1"}, 0)
		must(c.t, err)
		must(c.t, h.Address("eth1", netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}), 24)))
	}
}

// TestUplinks joins hosts by tunnels over two uplinks. One host has a single one.
func TestUplinks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.addUplinks()
	c.up()
	for _, h := range c.hosts[:2] {
		h.node("down")
		h.node("up", "--uplinks", "eth0,eth1")
	}
	all := c.web()
	a, b := c.hosts[0], c.hosts[1]
	c.reachBy(a, b, "tunnel", "all 2 uplinks work")
	c.reachBy(a, c.hosts[2], "tunnel", "all 2 uplinks work")
	c.reachBy(b, c.hosts[2], "tunnel", "all 2 uplinks work")
	allReach := func() (err error) {
		for _, k := range all {
			for _, o := range all {
				err = errors.Join(err, k.reaches(o))
			}
		}
		return err
	}
	must(t, allReach())

	// Either uplink may be lost.
	for _, lost := range []struct {
		sw   *lab.Switch
		port string
	}{{c.sw, a.port}, {c.second, a.second}} {
		s := all[0].stream(all[1])
		l, err := link.Find(lost.sw.NS, lost.port)
		must(t, err)
		must(t, l.Down())
		c.reachBy(a, b, "tunnel", "1 of 2 uplinks work")
		if err := all[0].reaches(all[1]); err != nil {
			t.Error(err)
		}
		must(t, l.Up())
		c.reachBy(a, b, "tunnel", "all 2 uplinks work")
		s.losesNone()
	}

	// The node does not matter to tunnels.
	s := all[0].stream(all[1])
	a.kill()
	a.node("up")
	c.reachBy(a, b, "tunnel", "all 2 uplinks work")
	s.losesNone()

	// While a tunnel is gone, VXLAN takes over.
	var running []control.Status
	must(t, json.Unmarshal([]byte(a.cleat("tunnel", "ls", "--json")), &running))
	if len(running) != 2 {
		t.Fatalf("tunnels %+v", running)
	}
	for _, one := range running {
		must(t, unix.Kill(one.PID, unix.SIGKILL))
	}
	c.eventually("reached", func() error { return all[0].reaches(all[1]) })
	c.reachBy(a, b, "tunnel", "all 2 uplinks work")

	// Without uplinks there are none.
	for _, h := range c.hosts[:2] {
		h.node("down")
		h.node("up", "--uplinks", "none")
	}
	for _, h := range c.hosts {
		c.eventually("no tunnel", func() error {
			left, _ := filepath.Glob(filepath.Join(h.state, "node", "tunnels", "*.yaml"))
			if len(left) > 0 {
				return fmt.Errorf("%s are left", left)
			}
			return nil
		})
	}
	c.eventually("reached", allReach)
}
