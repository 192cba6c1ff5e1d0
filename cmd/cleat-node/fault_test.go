package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kill ends the host's node, as by a crash.
func (h *host) kill() {
	h.c.t.Helper()
	must(h.c.t, unix.Kill(h.pid(), unix.SIGKILL))
	h.c.eventually("the node is gone", func() error {
		if _, err := h.status(); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
}

// sees returns an error unless the host sees another one alive, or not.
func (h *host) sees(o *host, alive bool) error {
	s, err := h.status()
	if err != nil {
		return err
	}
	for _, one := range s.Hosts {
		if one.Name == o.name && one.Alive == alive {
			return nil
		}
	}
	return fmt.Errorf("host %s sees %+v", h.name, s.Hosts)
}

// webCluster makes a cluster of three to seven hosts with the network web, a container on each host, and three members
// of the registry.
func webCluster(t *testing.T, n int) (c *cluster, all []*container) {
	t.Helper()
	c = newCluster(t, n)
	c.up()
	all = c.web()
	c.settled(3)
	return c, all
}

// web creates the network web, and a container on each host.
func (c *cluster) web() (all []*container) {
	c.t.Helper()
	c.hosts[0].createSpan("web")
	for _, h := range c.hosts {
		k := h.container(h.name+"0", "web")
		k.serve()
		all = append(all, k)
	}
	c.eventually("containers reach and know each other", func() error { return reachAll(all) })
	return all
}

// knows returns an error unless a container finds another one by name.
func (k *container) knows(o *container) error {
	got, err := k.resolve(o.name)
	if err == nil && !slices.Equal(got, []string{o.addr.String()}) {
		err = fmt.Errorf("%s finds %s at %s, not %s", k.name, o.name, got, o.addr)
	}
	return err
}

// TestKilled kills every node, with and without a member of the registry: no packet of a stream is lost, and
// afterwards all is as before.
func TestKilled(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	for i, h := range c.hosts {
		s := all[i].stream(all[(i+1)%3])
		h.kill()
		c.eventually("others notice", func() error { return c.hosts[(i+1)%3].sees(h, false) })
		h.node("up")
		c.settled(3)
		s.losesNone()
	}
	extra := c.hosts[2].container("extra", "web")
	extra.serve()
	for _, k := range all {
		c.eventually("a new container is known", func() error { return k.knows(extra) })
		if err := k.reaches(extra); err != nil {
			t.Error(err)
		}
	}
}

// TestHostDies takes a host off the network.
func TestHostDies(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	s := all[0].stream(all[1])
	c.hosts[2].unplug()
	took := c.eventually("a notices", func() error { return c.hosts[0].sees(c.hosts[2], false) })
	t.Logf("noticed after %s", took.Round(100*time.Millisecond))

	// Each part goes on, also with new containers.
	alone := c.hosts[2].container("alone", "web")
	alone.serve()
	if err := all[2].reaches(alone); err != nil {
		t.Error(err)
	}
	others := c.hosts[0].container("others", "web")
	others.serve()
	c.eventually("b knows the new container of a", func() error { return all[1].knows(others) })

	c.hosts[2].plug()
	took = c.eventually("healed", func() error {
		return errors.Join(all[0].reaches(alone), all[2].reaches(others), all[0].knows(alone), all[2].knows(others), c.hosts[0].sees(c.hosts[2], true))
	})
	t.Logf("healed after %s", took.Round(100*time.Millisecond))
	s.losesNone()
}

// TestMajorityLost kills two of three members of the registry.
func TestMajorityLost(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	s := all[0].stream(all[2])
	c.hosts[1].kill()
	c.hosts[2].kill()
	c.eventually("a notices", func() error {
		s, err := c.hosts[0].status()
		if err == nil && s.Registry.Answers {
			err = errors.New("the registry answers")
		}
		return err
	})
	meanwhile := c.hosts[0].container("meanwhile", "web")
	meanwhile.serve()
	for _, k := range all {
		if err := k.reaches(meanwhile); err != nil {
			t.Error(err)
		}
	}
	c.hosts[1].node("up")
	c.hosts[2].node("up")
	took := c.eventually("b knows what came meanwhile", func() error { return errors.Join(all[1].knows(meanwhile), all[2].knows(meanwhile)) })
	t.Logf("known after %s", took.Round(100*time.Millisecond))
	c.settled(3)
	s.losesNone()
}

// TestMove moves a container with its address from host to host, while another one sends to the address.
func TestMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	all := c.web()
	a := c.hosts[0].container("moving", "web")
	was := a.addr
	from, serves := c.hosts[0], false
	for _, to := range []*host{c.hosts[1], c.hosts[2], c.hosts[0], c.hosts[1], c.hosts[0]} {
		if out, err := to.run(t.Context(), "cleat", "net", "connect", "web", all[0].path, "--ip", was.String()); err == nil {
			t.Fatalf("an address in use was given away: %s", out)
		}
		from.cleat("net", "disconnect", "web", a.path)
		began := time.Now()
		a = &container{Node: a.Node, host: to, name: a.name, path: a.path}
		a.connect("web", "--ip", was.String())
		if a.addr != was {
			t.Fatalf("it has %s now, not %s", a.addr, was)
		}
		if !serves {
			a.serve()
			serves = true
		}
		for _, k := range all {
			c.eventually("reached at its new host", func() error { return k.reaches(a) })
		}
		t.Logf("moved to %s and reached after %s", to.name, time.Since(began).Round(time.Millisecond))
		for _, k := range all {
			c.eventually("known", func() error { return k.knows(a) })
		}
		from = to
	}
	// The address is not given to anybody else meanwhile, and is again once it is free.
	c.hosts[0].cleat("net", "disconnect", "web", a.path)
}

// TestFull has more containers than a host's block has addresses, and than all blocks have.
func TestFull(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.up()
	c.hosts[0].createSpan("small", "--subnet", "10.64.0.0/28")
	seen := map[netip.Addr]bool{}
	// Of 16 addresses, four are the network's, the gateway's, the broadcast address, and the hosts' own.
	const fit = 16 - 3 - 2
	for i := range fit {
		k := c.hosts[0].container(fmt.Sprintf("k%d", i), "small")
		if seen[k.addr] {
			t.Fatalf("%s twice", k.addr)
		}
		seen[k.addr] = true
	}
	out, err := c.hosts[0].run(t.Context(), "cleat", "net", "connect", "small", c.hosts[0].newContainer("toomuch").path)
	if err == nil {
		t.Errorf("one more has an address: %s", out)
	}
	t.Log(err)
}

// TestAddressChanges gives each host another address, one after the other.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	for i, h := range c.hosts {
		s := all[(i+1)%3].stream(all[(i+2)%3])
		h.move(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
		took := c.eventually("containers reach each other again", func() error {
			for _, o := range all {
				if err := errors.Join(all[i].reaches(o), o.reaches(all[i])); err != nil {
					return err
				}
			}
			return nil
		})
		t.Logf("%s reached at its new address after %s", h.name, took.Round(10*time.Millisecond))
		c.settled(3)
		s.losesNone()
	}
	extra := c.hosts[0].container("extra", "web")
	c.eventually("a new container is known", func() error { return errors.Join(all[1].knows(extra), all[2].knows(extra)) })
}

// TestRemoved removes a host that is lost, and lets it join again.
func TestRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 4)
	c.up()
	all := c.web()
	c.hosts[1].unplug()
	c.eventually("a notices", func() error { return c.hosts[0].sees(c.hosts[1], false) })
	was := all[1].addr
	if out, err := c.hosts[0].run(t.Context(), "cleat", "net", "connect", "web", c.hosts[0].newContainer("taker").path, "--ip", was.String()); err == nil {
		t.Fatalf("an address of a host that may run was given away: %s", out)
	}
	c.hosts[0].node("remove", "b")
	c.eventually("its addresses are free", func() error {
		_, err := c.hosts[0].run(t.Context(), "cleat", "net", "connect", "web", filepath.Join(c.dir, "containers", "taker"), "--ip", was.String())
		return err
	})
	c.eventually("nobody has a route to it", func() error {
		for _, h := range []*host{c.hosts[0], c.hosts[2], c.hosts[3]} {
			s, err := h.status()
			if err != nil || len(s.Hosts) != 3 {
				return fmt.Errorf("%v, %+v", err, s.Hosts)
			}
		}
		return nil
	})
	c.eventually("the registry has three members again", func() error {
		s, err := c.hosts[0].status()
		if err == nil && (len(s.Registry.Members) != 3 || slices.Contains(s.Registry.Members, "b")) {
			err = fmt.Errorf("members %s", s.Registry.Members)
		}
		return err
	})
	// It comes back, and is refused.
	c.hosts[1].plug()
	extra := c.hosts[1].container("extra", "web")
	if err := all[0].knows(extra); err == nil {
		t.Error("a removed host's container is known")
	}
}

// TestMembersMove gives the hosts with the registry other addresses while another host is away. It finds them by the one
// that has kept its address.
func TestMembersMove(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 5)
	s, err := c.hosts[0].status()
	must(t, err)
	isMember := func(h *host) bool { return slices.Contains(s.Registry.Members, h.name) }
	away := c.hosts[slices.IndexFunc(c.hosts, func(h *host) bool { return !isMember(h) })]
	away.down()
	for i, h := range c.hosts {
		if isMember(h) {
			h.move(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
		}
	}
	others := slices.DeleteFunc(slices.Clone(c.hosts), func(h *host) bool { return h == away })
	for _, h := range others {
		for _, o := range others {
			c.eventually("the others know the new addresses", func() error { return h.sees(o, true) })
		}
	}
	away.node("up")
	c.settled(3)
	for i, k := range all {
		for _, o := range all[:i] {
			c.eventually("containers reach each other", func() error { return errors.Join(k.reaches(o), o.reaches(k)) })
		}
	}
}

// TestEndsMeanwhile disconnects the only container of a host on a network while the node of another one does not run:
// afterwards nobody finds it there.
func TestEndsMeanwhile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	c.settled(3)
	one, two := c.pairOn("web")
	c.eventually("one finds two", func() error { return one.knows(two) })
	c.hosts[0].down()
	c.hosts[1].cleat("net", "disconnect", "web", two.path)
	c.eventually("the registry has heard of it", func() error {
		s, err := c.hosts[2].status()
		if err == nil && (!s.Registry.Answers || s.Networks[0].Endpoints["b"] > 0) {
			err = fmt.Errorf("it has %v", s.Networks[0].Endpoints)
		}
		return err
	})
	c.hosts[0].node("up")
	c.eventually("one does not find two", func() error {
		if got, err := one.resolve("two"); err == nil {
			return fmt.Errorf("it finds %s", got)
		}
		return nil
	})
}

// TestVandals removes what hosts need to reach each other's containers. They make it again by themselves.
func TestVandals(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.hosts[0].node("up", "--name", "a", "--address", c.hosts[0].addr.String(), "--dataplane", "vxlan")
	c.hosts[1].join()
	one, two := c.pairOn("web")
	c.reachEachOther(one, two)
	for _, d := range damages {
		if _, err := c.hosts[0].shell(d.script); err != nil {
			t.Fatalf("%s: %v", d.what, err)
		}
		took := c.eventually(d.what+" and containers reach each other again", func() error {
			if err := errors.Join(one.reaches(two), two.reaches(one)); err != nil {
				return err
			}
			if out, err := c.hosts[0].run(t.Context(), "cleat", "net", "check"); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
		t.Logf("%s: well after %s", d.what, took.Round(10*time.Millisecond))
	}
}
