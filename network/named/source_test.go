package named_test

import (
	"fmt"
	"testing"

	"cleat/network/named"
)

// A container on several networks answers by the network that a packet came in by, reaches the
// neighbours on all of them, and keeps a way out when it leaves the network of its default route.
func TestSeveralNetworks(t *testing.T) {
	for _, drivers := range [][2]string{{named.Bridge, named.Bridge}, {named.Bridge, named.Routed}, {named.Routed, named.Bridge}} {
		t.Run(fmt.Sprint(drivers[0], " and ", drivers[1]), func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			before := tb.snapshot()
			for i, name := range []string{"web", "db"} {
				must(t, tb.create(named.NetworkSpec{Name: name, Driver: drivers[i], Subnets: subnets(i + 1)}))
				port := []named.Port{{Protocol: "tcp", HostPort: uint16(8081 + i), Port: 80}}
				must(t, ignore(tb.connect(name, "a", named.Connection{Ports: port})))
				must(t, ignore(tb.connect(name, []string{"b", "c"}[i], named.Connection{})))
			}
			l := answer(t, tb.containers["a"], 80)
			outside := answer(t, tb.outside, 80)
			for _, tt := range []struct{ from, to, want string }{
				{"outside", "198.51.100.1:8081", "198.51.100.2"},
				{"outside", "198.51.100.1:8082", "198.51.100.2"},
				{"b", "10.20.1.2:80", "10.20.1.3"},
				{"c", "10.20.2.2:80", "10.20.2.3"},
				{"b", "[fd00:1::2]:80", "fd00:1::3"},
				{"c", "[fd00:2::2]:80", "fd00:2::3"},
				{"a", "198.51.100.2:80", "198.51.100.1"},
			} {
				from := tb.containers[tt.from]
				if tt.from == "outside" {
					from = tb.outside
				}
				if got := ask(from, tt.to); got != tt.want {
					t.Errorf("%s asks %s: the server sees %q, want %q", tt.from, tt.to, got, tt.want)
				}
			}
			tb.check()
			must(t, tb.disconnect("web", "a"))
			if got := ask(tb.outside, "198.51.100.1:8082"); got != "198.51.100.2" {
				t.Errorf("after it left the other network, its port sees %q", got)
			}
			if got := ask(tb.containers["a"], "198.51.100.2:80"); got != "198.51.100.1" {
				t.Errorf("after it left the network of its default route, the outside sees %q", got)
			}
			must(t, l.Close())
			must(t, outside.Close())
			must(t, tb.remove("web", true))
			must(t, tb.remove("db", true))
			tb.is("after all", before)
		})
	}
}
