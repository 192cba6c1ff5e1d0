package named_test

import (
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/named"
)

// The kernel removes the host's routes to the containers of a routed network with the network's device.
func TestRepairHostRoutes(t *testing.T) {
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Driver: named.Routed, Subnets: subnets(1)}))
	for _, c := range []string{"a", "b"} {
		_, err := tb.connect("web", c, named.Connection{})
		must(t, err)
	}
	h, err := link.Handle(tb.host)
	must(t, err)
	defer h.Close()
	device, err := h.LinkByName("cl-web")
	must(t, err)
	must(t, h.LinkDel(device))
	must(t, tb.onHost(func() error {
		found, err := named.Check(t.Context(), tb.cfg)
		routes := 0
		for _, d := range found {
			if strings.Contains(d.What, "no route") {
				routes++
			}
		}
		if routes != 2 {
			t.Errorf("found %v, want two routes that are gone", found)
		}
		if err == nil {
			_, err = named.RepairAll(t.Context(), tb.cfg)
		}
		return err
	}))
	tb.check()
	if got := tb.sh("ip route show proto static"); strings.Count(got, "10.20.1.") < 2 {
		t.Errorf("the host has the routes %s", got)
	}
}
