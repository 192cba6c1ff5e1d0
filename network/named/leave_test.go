package named_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cleat/network/attach"
	"cleat/network/named"
	"cleat/network/networktest"
)

// joined is a container of an engine that has made its namespace.
func (tb *testbed) joined(name string) attach.Container {
	return attach.Container{Manager: "cni", Engine: "test", Key: name, Name: name, Path: tb.containers[name].Path()}
}

func (tb *testbed) join(name string, c named.Connection) (got *named.Result, err error) {
	err = tb.onHost(func() error { got, err = named.Join(tb.t.Context(), tb.cfg, "web", tb.joined(name), c); return err })
	return got, err
}

// A container that leaves is in nobody's way: whoever wants its address, its port or its name waits until its
// link is removed, which happens in the background.
func TestLeaveLater(t *testing.T) {
	for name, next := range map[string]named.Connection{
		"address": {Addresses: []netip.Addr{netip.MustParseAddr("10.20.0.7")}},
		"port":    {Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}},
		"alias":   {Aliases: []string{"a"}},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(0)}))
			_, err := tb.join("b", named.Connection{NoDNS: true})
			must(t, err)
			_, err = tb.join("a", named.Connection{NoDNS: true, Addresses: []netip.Addr{netip.MustParseAddr("10.20.0.7")},
				Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}})
			must(t, err)

			var background sync.WaitGroup
			tb.cfg.Attach.Background = &background
			gate := make(chan struct{})
			tb.cfg.Attach.Checkpoint = func() error { // the rest of the work waits
				if !hasLink(t, tb, "a") {
					<-gate
				}
				return nil
			}
			must(t, tb.onHost(func() error { return named.Leave(t.Context(), tb.cfg, "web", tb.joined("a")) }))
			if hasLink(t, tb, "a") {
				t.Error("the link is listed after Leave")
			}
			if _, err := os.Stat(tb.store.RunPath("netops", "web~"+tb.joined("a").FileName())); err != nil {
				t.Errorf("nothing is left for the background: %v", err)
			}
			tb.cfg.Attach.Checkpoint = nil
			time.AfterFunc(50*time.Millisecond, func() { close(gate) })
			next.NoDNS = true
			_, err = tb.join("c", next)
			must(t, err)
			background.Wait()
			tb.check()
		})
	}
}

func hasLink(t *testing.T, tb *testbed, container string) bool {
	return slices.ContainsFunc(networktest.Netlink(t, tb.containers[container]), func(line string) bool { return strings.Contains(line, "eth") })
}
