package main_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cleat/overlay/control"
)

// has returns an error unless a problem of the host has a text.
func (h *host) hasProblem(text string) error {
	s, err := h.status()
	if err == nil && !strings.Contains(strings.Join(s.Problems, "\n"), text) {
		err = fmt.Errorf("host %s has the problems %q", h.name, s.Problems)
	}
	return err
}

// TestForgotten cuts a host off for so long that others may have its addresses. One takes the block of one of its
// containers; the block of another one stays free.
func TestForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.up()
	for _, bad := range []string{"1s", "soon", "-1h"} {
		if _, err := c.hosts[0].run(t.Context(), "cleat-node", "set", "--forget-after", bad); err == nil || !strings.Contains(err.Error(), "e.g. --forget-after") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	all := c.web()
	c.settled(3)
	a, lost := c.hosts[0], c.hosts[2]
	a.createSpan("shop")
	keeps := lost.container("keeps", "shop")
	a.node("set", "--forget-after", "6s")
	if out := a.node("set"); out != "--forget-after 6s" {
		t.Errorf("set prints %q", out)
	}
	c.eventually("all know", func() error {
		for _, h := range c.hosts {
			if s, err := h.status(); err != nil || s.ForgetAfter != 6*time.Second {
				return fmt.Errorf("%v, %v", s.ForgetAfter, err)
			}
		}
		return nil
	})

	was := all[2].addr
	lost.unplug()
	began := time.Now()
	taker := a.newContainer("taker")
	held := make(chan time.Duration, 1)
	go func() {
		for lost.hasProblem("containers get none here") != nil && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		held <- time.Since(began)
	}()
	c.eventually("the address is free", func() error {
		_, err := a.run(t.Context(), "cleat", "net", "connect", "web", taker.path, "--ip", was.String())
		return err
	})
	free := time.Since(began)
	stopped := <-held
	t.Logf("c gives out no addresses after %s, and others may have them after %s", stopped.Round(100*time.Millisecond), free.Round(100*time.Millisecond))
	if stopped >= free {
		t.Error("c gives out addresses that others may have")
	}
	taker.addr = was
	taker.serve()
	late := lost.newContainer("late")
	if _, err := lost.run(t.Context(), "cleat", "net", "connect", "web", late.path); err == nil || !strings.Contains(err.Error(), "gives out no addresses here") {
		t.Errorf("connected while it is cut off: %v", err)
	}

	// A restart changes nothing.
	lost.kill()
	lost.node("up")
	c.eventually("c knows after a restart", func() error { return lost.hasProblem("containers get none here") })
	if _, err := lost.run(t.Context(), "cleat", "net", "connect", "web", late.path); err == nil {
		t.Error("connected after a restart")
	}

	lost.plug()
	took := c.eventually("c is back", func() error {
		return errors.Join(lost.sees(a, true), a.sees(lost, true), lost.hasProblem("container "), all[1].reaches(taker))
	})
	t.Logf("c agrees after %s", took.Round(100*time.Millisecond))
	c.eventually("c gives out addresses", func() error {
		_, err := lost.run(t.Context(), "cleat", "net", "connect", "web", late.path)
		return err
	})
	if got := all[2].addresses(); len(got) > 0 {
		t.Errorf("a container of c has %s still", got)
	}
	s, err := lost.status()
	must(t, err)
	for _, n := range s.Networks {
		if n.Name == "shop" && !contains(n, keeps.addr) {
			t.Errorf("c has blocks %s of shop, not the one of %s", n.Blocks, keeps.addr)
		}
	}
	// The container that was disconnected gets another address.
	out := lost.cleat("net", "connect", "web", all[2].path, "--json")
	if strings.Contains(out, `"`+was.String()+`"`) {
		t.Errorf("it has its former address again: %s", out)
	}
	c.eventually("no problems", func() error { return c.agree(c.hosts...) })
}

func contains(n control.NetworkStatus, a netip.Addr) bool {
	for _, b := range n.Blocks {
		if b.Contains(a) {
			return true
		}
	}
	return false
}

// TestLentAgain removes a host that has two addresses of another one's block, and lets it join again. Meanwhile one of
// them went to a container of the other host; the other one is lent again.
func TestLentAgain(t *testing.T) {
	t.Parallel()
	c, all := webCluster(t, 3)
	a, b := c.hosts[0], c.hosts[1]
	free := all[0].addr.Next()
	keeps := b.container("keeps", "web", "--ip", free.String())
	loses := b.container("loses", "web", "--ip", free.Next().String())
	keeps.serve()
	c.eventually("they are reached", func() error { return all[0].reaches(keeps) })
	b.unplug()
	c.eventually("b is not alive", func() error { return a.sees(b, false) })
	a.node("remove", b.name)
	taker := a.newContainer("taker")
	c.eventually("the address is free", func() error {
		_, err := a.run(t.Context(), "cleat", "net", "connect", "web", taker.path, "--ip", loses.addr.String())
		return err
	})
	taker.addr = loses.addr
	taker.serve()
	b.plug()
	c.eventually("b knows", b.knowsThatItWasRemoved)
	b.node("down")
	b.node("up", "--name", b.name, "--token", a.token())
	c.eventually("one address is lent again", func() error {
		return errors.Join(all[0].reaches(keeps), all[0].knows(keeps), all[1].reaches(taker))
	})
	if got := keeps.addresses(); len(got) != 1 || got[0] != keeps.addr {
		t.Errorf("the container has %s, not %s", got, keeps.addr)
	}
	if got := loses.addresses(); len(got) > 0 {
		t.Errorf("a container of b has %s still, which one of a has", got)
	}
	third := a.newContainer("third")
	if _, err := a.run(t.Context(), "cleat", "net", "connect", "web", third.path, "--ip", keeps.addr.String()); err == nil {
		t.Error("the address that was lent again went to another container")
	}
}
