package wiring_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"cleat/bench/catalog"
	"cleat/bench/wiring"
	"cleat/lab"
	"cleat/link"
)

// TestEveryNetworkBySides builds each network that can be between two machines on two nodes
// that stand for them, one side at a time, while all others are there too, and passes a
// connection over each pair. The machines are afterwards as before.
func TestEveryNetworkBySides(t *testing.T) {
	lab.Need(t)
	machines := [2]*lab.Node{}
	addrs := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	for i := range machines {
		n, err := lab.NewNode(fmt.Sprintf("machine%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		machines[i] = n
	}
	if err := lab.Connect(lab.End{Node: machines[0], Name: "eth0"}, lab.End{Node: machines[1], Name: "eth0"}, lab.Cable{}); err != nil {
		t.Fatal(err)
	}
	for i, n := range machines {
		if err := n.Address("eth0", netip.PrefixFrom(addrs[i], 24)); err != nil {
			t.Fatal(err)
		}
	}
	before := [2]string{state(t, machines[0]), state(t, machines[1])}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last []*wiring.Network // of the last stacked network, which can't be there beside another one
	var all []*wiring.Network
	slot := 0
	for _, e := range catalog.All() {
		pairs := 2
		if e.Name == "ipip" || e.Name == "gre" || e.Name == "macvlan-passthru" {
			pairs = 1
		}
		cfg := wiring.Config{Spec: wiring.Spec{Network: e.Name, Topology: "switched"}, Pairs: pairs, Scratch: scratch(t)}
		if wiring.CheckSides(cfg, true) != nil {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			if wiring.IsStacked(e.Name) {
				closeAll(t, last)
				last = nil
			}
			slot++
			first, second, err := wiring.NewSideKeys(e.Name, pairs)
			if err != nil {
				t.Fatal(err)
			}
			keys := [2][]wiring.SideKeys{first, second}
			var sides [2]*wiring.Network
			for i := range sides {
				sides[i], err = wiring.BuildSide(ctx, cfg, wiring.Side{
					Number: i + 1, Slot: slot, Device: "eth0", Chosen: true, Local: addrs[i], Remote: addrs[1-i], Keys: keys[i], Host: machines[i],
				})
				skipLacking(t, err)
				if err != nil {
					t.Fatal(err)
				}
				if wiring.IsStacked(e.Name) {
					last = append(last, sides[i])
				} else {
					all = append(all, sides[i])
				}
			}
			whole := wiring.Across(pairs, func(i int) lab.Runner { return sides[0].Container(i) }, func(i int) lab.Runner { return sides[1].Container(i) }, func() error { return nil })
			for i, p := range whole.Pairs {
				if err := connect(ctx, p); err != nil {
					t.Errorf("pair %d: %v", i, err)
				}
			}
			if sides[0].Container(pairs) != nil || sides[0].Container(-1) != nil {
				t.Error("there are more containers than pairs")
			}
		})
	}
	closeAll(t, slices.Concat(last, all))
	for i, n := range machines {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the kernel removes namespaces in its own time
			after := state(t, n)
			if after == before[i] {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("machine %d was:\n%s\nand is:\n%s", i+1, before[i], after)
			}
		}
	}
}

func closeAll(t *testing.T, networks []*wiring.Network) {
	t.Helper()
	for _, nw := range networks {
		if err := nw.Close(); err != nil {
			t.Error(err)
		}
	}
}

// state returns the links, addresses, routes and neighbours of a node.
func state(t *testing.T, n *lab.Node) string {
	t.Helper()
	h, err := link.Handle(n.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var b strings.Builder
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if slices.Contains([]string{"tunl0", "gre0", "gretap0", "erspan0"}, l.Attrs().Name) {
			continue // every namespace has them, once the kernel has loaded the modules
		}
		fmt.Fprintf(&b, "%s %s up %t promiscuous %d\n", l.Type(), l.Attrs().Name, l.Attrs().Flags&1 != 0, l.Attrs().Promisc)
		addrs, err := h.AddrList(l, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			fmt.Fprintln(&b, a.IPNet)
		}
	}
	routes, err := h.RouteList(nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

func TestCheckSides(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cfg    wiring.Config
		chosen bool
		why    string
	}{
		{"a tunnel", wiring.Config{Spec: wiring.Spec{Network: "vxlan", Topology: "switched"}, Pairs: 8}, false, ""},
		{"a tunnel, which has two hosts in the topology local too", wiring.Config{Spec: wiring.Spec{Network: "geneve", Topology: "local"}, Pairs: 1}, false, ""},
		{"without a key", wiring.Config{Spec: wiring.Spec{Network: "gre", Topology: "switched"}, Pairs: 1}, false, ""},
		{"several without a key", wiring.Config{Spec: wiring.Spec{Network: "gre", Topology: "switched"}, Pairs: 2}, false, "without a key"},
		{"on a device", wiring.Config{Spec: wiring.Spec{Network: "macvlan-bridge", Topology: "switched"}, Pairs: 1}, true, ""},
		{"on a device that nobody named", wiring.Config{Spec: wiring.Spec{Network: "macvlan-bridge", Topology: "switched"}, Pairs: 1}, false, "--device"},
		{"on one machine", wiring.Config{Spec: wiring.Spec{Network: "macvlan-bridge", Topology: "local"}, Pairs: 1}, true, "both ends are on one host"},
		{"of one machine", wiring.Config{Spec: wiring.Spec{Network: "veth", Topology: "local"}, Pairs: 1}, true, "one host only"},
		{"a bridge", wiring.Config{Spec: wiring.Spec{Network: "bridge", Topology: "switched"}, Pairs: 1}, true, "could cut the machine off"},
		{"routes", wiring.Config{Spec: wiring.Spec{Network: "ipvlan-l3", Topology: "switched"}, Pairs: 1}, true, "could cut the machine off"},
		{"several links", wiring.Config{Spec: wiring.Spec{Network: "tunnel", Topology: "links"}, Pairs: 1}, true, "links of its own"},
		{"rootless", wiring.Config{Spec: wiring.Spec{Network: "pasta", Topology: "switched"}, Pairs: 1}, true, "spans no machines"},
		{"a cluster", wiring.Config{Spec: wiring.Spec{Network: "cleat-overlay", Topology: "switched"}, Pairs: 1}, true, "not sent"},
		{"in containers", wiring.Config{Spec: wiring.Spec{Network: "vxlan", Topology: "switched", Runtime: "docker"}, Pairs: 1}, true, "natively"},
		{"another MTU", wiring.Config{Spec: wiring.Spec{Network: "vxlan", Topology: "switched", MTU: 9000}, Pairs: 1}, true, "MTU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := wiring.CheckSides(tt.cfg, tt.chosen)
			var never *wiring.NotApplicable
			switch {
			case tt.why == "" && err != nil:
				t.Errorf("got %v", err)
			case tt.why != "" && (!errors.As(err, &never) || !strings.Contains(never.Why, tt.why)):
				t.Errorf("got %v, want %q", err, tt.why)
			}
		})
	}
}
