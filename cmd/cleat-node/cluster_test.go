package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestCluster is what a user does first: three hosts, one network, containers on all.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	a, b, last := c.hosts[0], c.hosts[1], c.hosts[2]
	a.createSpan("web")
	var all []*container
	for _, h := range c.hosts {
		for i := range 2 {
			k := h.container(fmt.Sprintf("%s%d", h.name, i), "web", "--alias", "any")
			k.serve()
			all = append(all, k)
		}
	}

	t.Run("every container reaches every other one", func(t *testing.T) {
		for _, from := range all {
			for _, to := range all {
				if err := from.reaches(to); err != nil {
					t.Error(err)
				}
			}
		}
	})
	t.Run("addresses are unique and in the host's block", func(t *testing.T) {
		var seen []netip.Addr
		for _, k := range all {
			s, err := k.host.status()
			must(t, err)
			if slices.Contains(seen, k.addr) || !slices.ContainsFunc(s.Networks[0].Blocks, func(p netip.Prefix) bool { return p.Contains(k.addr) }) {
				t.Errorf("%s has %s; seen %s, blocks of its host %s", k.name, k.addr, seen, s.Networks[0].Blocks)
			}
			seen = append(seen, k.addr)
		}
	})
	t.Run("names over hosts", func(t *testing.T) {
		for _, from := range all {
			for _, to := range all {
				c.eventually("name", func() error {
					got, err := from.resolve(to.name)
					if err == nil && !slices.Equal(got, []string{to.addr.String()}) {
						err = fmt.Errorf("%s finds %s at %s", from.name, to.name, got)
					}
					return err
				})
			}
		}
		got, err := all[0].resolve("any")
		if err != nil || len(got) != len(all) {
			t.Errorf("the alias of all has %s, %v", got, err)
		}
	})
	t.Run("the host itself reaches containers of others", func(t *testing.T) {
		if got, err := ask(a.NS, all[5].addr); err != nil || got != all[5].name {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("policies hold over hosts", func(t *testing.T) {
		b.cleat("net", "deny", "web/a0 to web/c0:7")
		c.eventually("the rule", func() error {
			if all[0].reaches(all[4]) == nil {
				return errors.New("the denied connection passes")
			}
			return nil
		})
		for _, allowed := range [][2]int{{0, 5}, {1, 4}, {4, 0}, {2, 4}} {
			if err := all[allowed[0]].reaches(all[allowed[1]]); err != nil {
				t.Error(err)
			}
		}
		last.cleat("net", "deny", "--remove", "web/a0 to web/c0:7")
		c.eventually("the rule is gone", func() error { return all[0].reaches(all[4]) })
	})
	t.Run("an engine connects a container by CNI", func(t *testing.T) {
		pod := b.newContainer("pod")
		must(t, b.cni("ADD", pod, "web"))
		c.eventually("name of the pod", func() error {
			got, err := all[0].resolve("pod")
			if err == nil {
				pod.addr = netip.MustParseAddr(got[0])
			}
			return err
		})
		pod.serve()
		for _, k := range all {
			if err := k.reaches(pod); err != nil {
				t.Error(err)
			}
		}
		must(t, b.cni("DEL", pod, "web"))
		c.eventually("the pod is forgotten", func() error {
			if got, err := all[0].resolve("pod"); err == nil {
				return fmt.Errorf("it is at %s", got)
			}
			return nil
		})
	})
	t.Run("a network with containers is not removed, and then it is", func(t *testing.T) {
		if out, err := b.run(t.Context(), "cleat", "net", "rm", "web"); err == nil {
			t.Fatalf("removed: %s", out)
		}
		b.cleat("net", "rm", "--force", "web")
		for _, h := range c.hosts {
			c.eventually("network gone on "+h.name, func() error {
				if out := h.cleat("net", "ls"); strings.Contains(out, "web") {
					return errors.New(out)
				}
				return nil
			})
		}
	})
}
