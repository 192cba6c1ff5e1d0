package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// agree returns an error unless all hosts know the same hosts and networks, see all alive, and have no problem.
func (c *cluster) agree(hosts ...*host) error {
	for _, h := range hosts {
		s, err := h.status()
		if err != nil {
			return err
		}
		if len(s.Problems) > 0 || !s.Registry.Answers || len(s.Hosts) != len(hosts) {
			return fmt.Errorf("host %s has %+v", h.name, s)
		}
		for _, o := range hosts {
			if err := h.sees(o, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// reachAll returns an error unless all containers reach and find each other.
func reachAll(all []*container) error {
	var errs []error
	for _, k := range all {
		for _, o := range all {
			if k != o {
				errs = append(errs, k.reaches(o), k.knows(o))
			}
		}
	}
	return errors.Join(errs...)
}

// noAddressTwice fails the test if two containers have one address.
func (c *cluster) noAddressTwice(all []*container) {
	c.t.Helper()
	seen := map[netip.Addr]string{}
	for _, k := range all {
		if other, is := seen[k.addr]; is {
			c.t.Errorf("%s and %s have %s", k.name, other, k.addr)
		}
		seen[k.addr] = k.name
	}
}

// TestRestored restores the registry from a backup. Since then hosts have joined and were removed, blocks were
// claimed, and networks were made.
func TestRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 6)
	late, lost, dead := c.hosts[3], c.hosts[4], c.hosts[5]
	joined := c.hosts
	c.hosts = joined[:3]
	c.up()
	lost.join()
	c.hosts = []*host{joined[0], joined[1], joined[2], lost}
	c.settled(3)
	all := c.web()
	gone := all[3]
	all = all[:3]
	backup := filepath.Join(c.dir, "backup")
	c.hosts[1].node("backup", backup)

	// What the backup does not have.
	c.hosts[0].node("remove", lost.name)
	late.join()
	dead.join()
	c.hosts = []*host{joined[0], joined[1], joined[2], late, dead}
	c.settled(3)
	c.hosts[1].createSpan("shop")
	for _, h := range []*host{late, dead} {
		k := h.container("of-"+h.name, "web")
		k.serve()
		all = append(all, k)
	}
	for i := range 70 { // more than a block
		all[0].host.cleat("net", "connect", "shop", all[0].host.newContainer(fmt.Sprintf("s%d", i)).path)
	}
	dead.kill()
	c.hosts = c.hosts[:4]
	before, err := c.hosts[0].status()
	must(t, err)

	s := all[0].stream(all[1])
	restored := c.hosts[0]
	for _, bad := range []struct{ file, want string }{{"missing", "no such file"}, {os.Args[0], "no backup of a registry"}} {
		restored.node("down")
		_, err := restored.run(t.Context(), "cleat-node", "restore", bad.file)
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("restored from %s: %v", bad.file, err)
		}
		restored.node("up")
		if _, err := restored.run(t.Context(), "cleat-node", "restore", backup); err == nil || !strings.Contains(err.Error(), "cleat-node down") {
			t.Errorf("restored while it runs: %v", err)
		}
	}
	restored.node("down")
	restored.node("restore", backup)
	restored.node("up")
	began := time.Now()
	live := all[:4]
	c.eventually("all hosts agree", func() error {
		for _, h := range c.hosts {
			s, err := h.status()
			if err == nil && (len(s.Hosts) != 5 || len(s.Networks) != 2 || len(s.Problems) > 0 || !s.Registry.Answers) {
				err = fmt.Errorf("host %s has %+v", h.name, s)
			}
			if err != nil {
				return err
			}
			for _, o := range c.hosts {
				if err := h.sees(o, true); err != nil {
					return err
				}
			}
		}
		return reachAll(live)
	})
	t.Logf("all hosts agree after %s", time.Since(began).Round(100*time.Millisecond))
	s.losesNone()
	after, err := restored.status()
	must(t, err)
	for i, n := range before.Networks {
		if !slices.Equal(n.Blocks, after.Networks[i].Blocks) {
			t.Errorf("blocks of %s were %s, and are %s", n.Name, n.Blocks, after.Networks[i].Blocks)
		}
	}
	if err := all[0].knows(gone); err == nil {
		t.Error("a container of a host that was removed is known again")
	}
	c.eventually("the registry has three members", func() error {
		s, err := restored.status()
		if err == nil && len(s.Registry.Members) != 3 {
			err = fmt.Errorf("members %s", s.Registry.Members)
		}
		return err
	})
	// Nobody gets an address of the host that was down meanwhile, which comes back.
	for i, h := range c.hosts {
		all = append(all, h.container(fmt.Sprintf("new%d", i), "web"))
	}
	dead.node("up")
	c.hosts = append(c.hosts, dead)
	all = append(all, dead.container("new-dead", "web"))
	c.noAddressTwice(all)
	c.eventually("the host that was down agrees", func() error { return errors.Join(c.agree(c.hosts...), all[4].reaches(all[0])) })
}
