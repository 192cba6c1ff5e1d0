package main_test

import (
	"errors"
	"testing"

	"cleat/link"
	"cleat/network/span"
)

// TestGeneve joins two hosts by Geneve. Their containers reach each other, the switch sees no packet of theirs that is
// not in Geneve, and the device goes when the hosts choose another way.
func TestGeneve(t *testing.T) { // not beside others: a guest's emulated processor is slow
	if err := link.Probe("geneve"); err != nil {
		t.Skip(err)
	}
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	a.upSlowly("--name", "a", "--address", a.addr.String(), "--dataplane", "geneve")
	b.upSlowly("--name", "b", "--token", a.token())
	one, two := c.pairOn("web")
	c.reachBy(a, b, "geneve", "")
	c.sh(c.sw.Node, dropContainers) // what is not encapsulated
	c.eventually("they reach each other", func() error { return errors.Join(one.reaches(two), two.reaches(one)) })
	c.reachEachOther(one, two)
	stream := one.stream(two)
	a.kill()
	a.upSlowly()
	stream.losesNone()
	for _, h := range c.hosts {
		if _, err := link.Find(h.NS, span.GeneveDevice); err != nil {
			t.Errorf("host %s: %v", h.name, err)
		}
	}
	for _, h := range c.hosts {
		h.down()
		h.upSlowly("--dataplane", "vxlan")
	}
	c.reachBy(a, b, "vxlan", "")
	c.eventually("no Geneve device", func() error {
		for _, h := range c.hosts {
			if _, err := link.Find(h.NS, span.GeneveDevice); err == nil {
				return errors.New("host " + h.name + " has one")
			}
		}
		return nil
	})
	c.reachEachOther(one, two)
}
