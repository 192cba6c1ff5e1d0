package main_test

import (
	"errors"
	"fmt"
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

// web creates the network web, and a container on each host.
func (c *cluster) web() (all []*container) {
	c.t.Helper()
	c.hosts[0].cleat("net", "create", "web", "--span")
	for _, h := range c.hosts {
		c.eventually("network on "+h.name, func() error {
			_, err := h.run(c.t.Context(), "cleat", "net", "inspect", "web")
			return err
		})
		k := h.container(h.name+"0", "web")
		k.serve()
		all = append(all, k)
	}
	for _, k := range all {
		for _, o := range all {
			c.eventually("containers reach each other", func() error { return k.reaches(o) })
		}
	}
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
	c := newCluster(t, 3)
	c.up()
	all := c.web()
	c.settled(3)
	for i, h := range c.hosts {
		s := all[i].stream(all[(i+1)%3])
		h.kill()
		c.eventually("others notice", func() error { return c.hosts[(i+1)%3].sees(h, false) })
		h.node("up")
		c.settled(3)
		if sent, lost, _ := s.end(); lost > 0 {
			t.Errorf("node %s killed: %d of %d datagrams are lost", h.name, lost, sent)
		}
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
	c := newCluster(t, 3)
	c.up()
	all := c.web()
	c.settled(3)
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
	if sent, lost, _ := s.end(); lost > 0 {
		t.Errorf("the stream between the other hosts lost %d of %d datagrams", lost, sent)
	}
}

// TestMajorityLost kills two of three members of the registry.
func TestMajorityLost(t *testing.T) {
	c := newCluster(t, 3)
	c.up()
	all := c.web()
	c.settled(3)
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
	if sent, lost, _ := s.end(); lost > 0 {
		t.Errorf("%d of %d datagrams are lost", lost, sent)
	}
}
