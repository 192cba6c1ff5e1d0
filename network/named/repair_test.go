package named_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cleat/network/named"
)

// A repair at any moment of a connect or a disconnect leaves alone what the command needs, as when
// the keeper's repair meets commands.
func TestRepairMeetsCommands(t *testing.T) {
	port := []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80}}
	for _, driver := range []string{named.Bridge, named.Routed} {
		t.Run(driver, func(t *testing.T) {
			tb := newTestbed(t, "a")
			must(t, tb.create(named.NetworkSpec{Name: "web", Driver: driver, Subnets: subnets(1)}))
			repairAt := func(at int, do func() error) (points int) {
				t.Helper()
				tb.cfg.Attach.Checkpoint = func() error {
					if points++; points != at {
						return nil
					}
					cfg := tb.cfg
					cfg.Attach.Checkpoint = nil
					return tb.onHost(func() error {
						found, err := named.Check(t.Context(), cfg)
						for _, d := range found {
							if d.Container == "" && d.Network != "" { // not rules or links, which come one after the other
								t.Errorf("at step %d: difference: %s", at, d)
							}
						}
						if err == nil {
							_, err = named.RepairAll(t.Context(), cfg)
						}
						return err
					})
				}
				must(t, do())
				tb.cfg.Attach.Checkpoint = nil
				tb.check()
				return points
			}
			for at, points := 1, 1; at <= points; at++ {
				points = repairAt(at, func() error { _, err := tb.connect("web", "a", named.Connection{Ports: port}); return err })
				repairAt(at, func() error { return tb.disconnect("web", "a") })
				if t.Failed() {
					t.Fatalf("at step %d of %d", at, points)
				}
			}
		})
	}
}

// A repair marks addresses as taken again whose marks somebody has removed.
func TestRepairClaims(t *testing.T) {
	tb := newTestbed(t, "a")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	e, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	must(t, os.Remove(filepath.Join(tb.state, "networks", "web", "addresses", fmt.Sprint(e.Addresses[0]))))
	must(t, tb.onHost(func() error { _, err := named.RepairAll(t.Context(), tb.cfg); return err }))
	tb.check()
}
