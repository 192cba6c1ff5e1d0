package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// removed removes a host from the cluster by another one, and waits until it knows.
func (h *host) removed(by *host) {
	h.c.t.Helper()
	by.node("remove", h.name)
	h.knowsRemoved()
}

func (h *host) knowsRemoved() {
	h.c.t.Helper()
	h.c.eventually(h.name+" knows that it was removed", func() error {
		st, err := h.status()
		if err == nil && !strings.Contains(strings.Join(st.Problems, " "), "removed from the cluster") {
			err = fmt.Errorf("its problems are %q", st.Problems)
		}
		return err
	})
}

// joinAgain makes a host that was removed join again.
func (h *host) joinAgain(by *host) {
	h.c.t.Helper()
	h.down()
	h.node("up", "--name", h.name, "--token", by.token())
}

// TestJoinsAgain removes a host with two containers. Before it joins again, another host takes its block, and gives the
// address of one of them away: that one loses it, and gets another. The other one keeps its own, which the other host
// lends.
func TestJoinsAgain(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	a, b := c.hosts[0], c.hosts[1]
	first, second := all[1], b.container("second", "web")
	c.eventually("a finds both", func() error { return errors.Join(all[0].knows(first), all[0].knows(second)) })
	b.removed(a)
	c.eventually("nobody finds them", func() error {
		if got, err := all[0].resolve(second.name); err == nil {
			return fmt.Errorf("a finds %s", got)
		}
		return nil
	})
	taker := a.container("taker", "web", "--ip", second.addr.String())
	taker.serve()
	b.joinAgain(a)
	c.eventually("it has no address twice", func() error {
		if got := second.addresses(); len(got) > 0 {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
	second.connect("web")
	second.serve()
	for _, k := range []*container{all[0], all[2]} {
		c.eventually("all are reached and found", func() error {
			var errs []error
			for _, o := range []*container{first, second, taker} {
				if o != k {
					errs = append(errs, k.reaches(o), k.knows(o))
				}
			}
			return errors.Join(errs...)
		})
	}
	if got := first.addresses(); !slices.Equal(got, []netip.Addr{first.addr}) {
		t.Errorf("the other one has %s, not %s", got, first.addr)
	}
	if second.addr == taker.addr {
		t.Errorf("%s is there twice", taker.addr)
	}
}

// TestBlockOfRemoved removes a host that has lent an address. Whoever gets its block gives that address to nobody.
func TestBlockOfRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	c.settled(3)
	c.hosts[0].createSpan("small", "--subnet", "10.64.0.0/26") // blocks of 4 addresses
	a, b, lender := c.hosts[0], c.hosts[1], c.hosts[2]
	k := lender.container("moves", "small")
	lender.cleat("net", "disconnect", "small", k.path)
	k.host = b
	k.connect("small", "--ip", k.addr.String())
	lender.removed(a)
	lender.down()
	c.hosts = c.hosts[:2]
	// a gets the whole block, and fills it.
	next := k.addr.Prev()
	if k.addr.As4()[3]%4 != 3 {
		next = k.addr.Next()
	}
	c.eventually("the block is free", func() error {
		_, err := a.run(t.Context(), "cleat", "net", "connect", "small", a.newContainerAt("first", fmt.Sprintf("first%d", time.Now().UnixNano())).path, "--ip", next.String())
		return err
	})
	for i := range 8 {
		got := a.container(fmt.Sprintf("more%d", i), "small")
		if got.addr == k.addr {
			t.Fatalf("%s and %s have the address %s", got.name, k.name, k.addr)
		}
	}
	if got := k.addresses(); !slices.Contains(got, k.addr) {
		t.Errorf("%s has %s", k.name, got)
	}
}

// TestNetworkIsAnother removes a network while a host is away, and creates another one with its name.
func TestNetworkIsAnother(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	away := c.hosts[2]
	away.unplug()
	c.eventually("a notices", func() error { return c.hosts[0].sees(away, false) })
	c.hosts[0].cleat("net", "rm", "--force", "web")
	c.hosts[0].cleat("net", "create", "web", "--span")
	taker := c.hosts[0].container("taker", "web", "--ip", all[2].addr.String())
	taker.serve()
	away.plug()
	c.eventually("the container of the earlier network is disconnected", func() error {
		if got := all[2].addresses(); len(got) > 0 {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
	c.eventually("c has the other network", func() error { return away.has("web") })
	late := away.container("late", "web")
	c.eventually("taker is reached", func() error { return late.reaches(taker) })
}
