package named_test

import (
	"net/netip"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/named"
)

// A container that gets the address of another one is reached with the first packet, by containers
// and by the host that have just talked to the other one.
func TestReusedAddress(t *testing.T) {
	for _, driver := range []string{named.Bridge, named.Routed, named.Macvlan} {
		t.Run(driver, func(t *testing.T) {
			needKinds(t, "macvlan")
			tb := newTestbed(t, "a", "b", "c")
			spec := named.NetworkSpec{Name: "lan", Driver: driver, Subnets: subnets(1)}
			if driver == named.Macvlan {
				spec = lan(driver)
				tb.outsideOn(&spec)
			}
			must(t, tb.create(spec))
			must(t, ignore(tb.connect("lan", "a", named.Connection{})))
			e, err := tb.connect("lan", "b", named.Connection{})
			must(t, err)
			b := answer(t, tb.containers["b"], 80)
			clients := map[string]*netns.NS{"a": tb.containers["a"], "the host": tb.host}
			if driver == named.Macvlan {
				clients = map[string]*netns.NS{"a": tb.containers["a"], "the outside": tb.outside}
			}
			reach := func(what string) {
				t.Helper()
				for name, from := range clients {
					for _, a := range e.Addresses {
						if got := ask(from, netip.AddrPortFrom(a, 80).String()); got == "" { // a lost packet takes a second
							t.Errorf("%s does not reach %s of %s", name, a, what)
						}
					}
				}
			}
			reach("b")
			must(t, b.Close())
			must(t, tb.disconnect("lan", "b"))
			if driver == named.Bridge {
				device, err := link.Find(tb.host, "cl-lan")
				must(t, err)
				for _, a := range e.Addresses {
					if mac, ok, err := device.Neighbor(a); ok || err != nil {
						t.Errorf("the host still knows %s as the neighbour %s, %v", a, mac, err)
					}
				}
			}
			must(t, ignore(tb.connect("lan", "c", named.Connection{Addresses: e.Addresses})))
			answer(t, tb.containers["c"], 80)
			reach("c")
		})
	}
}
