package main_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/span"
)

// sent returns how many packets have left by a device of the host.
func (h *host) sent(device string) (packets int) {
	h.c.t.Helper()
	must(h.c.t, h.NS.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if name, counts, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == device {
				packets, err = strconv.Atoi(strings.Fields(counts)[9])
			}
		}
		return err
	}))
	return packets
}

// TestGeneve joins two hosts by Geneve. Packets of their containers leave by its device, which goes when the hosts choose
// another way.
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
	c.eventually("they reach each other", func() error { return errors.Join(one.reaches(two), two.reaches(one)) })
	before := a.sent(span.GeneveDevice)
	c.reachEachOther(one, two)
	if n := a.sent(span.GeneveDevice) - before; n < 4 {
		t.Errorf("%d packets left by Geneve", n)
	}
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
