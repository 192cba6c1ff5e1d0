package named_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

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

// A repair marks addresses as taken again whose marks somebody has removed, and frees ports that
// nobody publishes.
func TestRepairClaims(t *testing.T) {
	tb := newTestbed(t, "a")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	e, err := tb.connect("web", "a", named.Connection{})
	must(t, err)
	must(t, os.Remove(filepath.Join(tb.state, "networks", "web", "addresses", fmt.Sprint(e.Addresses[0]))))
	claim := filepath.Join(tb.state, "ports", "tcp-31", "8080=*") // of a connected container that does not publish it
	must(t, os.MkdirAll(filepath.Dir(claim), 0o755))
	must(t, os.Symlink("web/test.a", claim))
	must(t, tb.onHost(func() error {
		found, err := named.Check(t.Context(), tb.cfg)
		if len(found) != 2 {
			t.Errorf("found %v, want the address and the port", found)
		}
		if err == nil {
			_, err = named.RepairAll(t.Context(), tb.cfg)
		}
		return err
	}))
	tb.check()
}

// undo undoes what TestPortTakenMeanwhile may have done in the end.
func (tb *testbed) undo(what string) {
	if what == "connect" {
		_ = tb.disconnect("web", "a") // fails if the port was taken at the last step, too
		return
	}
	_ = tb.onHost(func() error {
		_, err := named.Unpublish(tb.t.Context(), tb.cfg, "", "b", []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80, Count: 1}})
		return err
	})
}

// A program that takes a port while it is being published keeps it: the command fails and leaves
// nothing.
func TestPortTakenMeanwhile(t *testing.T) {
	t.Parallel()
	tb := newTestbed(t, "a", "b")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	_, err := tb.connect("web", "b", named.Connection{Ports: tcp(8081, 81)})
	must(t, err)
	publish := func() error {
		return tb.onHost(func() error { _, err := named.Publish(t.Context(), tb.cfg, "", "b", tcp(8080, 80)); return err })
	}
	for name, do := range map[string]func() error{
		"connect": func() error { _, err := tb.connect("web", "a", named.Connection{Ports: tcp(8080, 80)}); return err },
		"publish": publish,
	} {
		before := tb.settled()
		refused := 0
		for at, points := 1, 1; at <= points; at += 2 {
			var l net.Listener
			n := 0
			tb.cfg.Attach.Checkpoint = func() error {
				if n++; n != at {
					return nil
				}
				return tb.onHost(func() (err error) { l, err = net.Listen("tcp", ":8080"); return err })
			}
			err := do()
			points, tb.cfg.Attach.Checkpoint = max(points, n), nil
			if l == nil {
				must(t, err)
				break
			}
			var taken *named.PortTakenError
			if !errors.As(err, &taken) {
				t.Fatalf("%s, taken at step %d: got %v", name, at, err)
			}
			refused++
			must(t, l.Close())
			tb.check()
		}
		if refused < 2 {
			t.Errorf("%s: the port was only taken %d times", name, refused)
		}
		tb.undo(name)
		tb.is(name, before)
	}
}

// A network that is removed at any moment of a connect takes the container with it: the connect
// fails, or is undone, and nothing is left.
func TestRemoveMeetsConnect(t *testing.T) {
	t.Parallel()
	tb := newTestbed(t, "a")
	create := func() error { return tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}) }
	must(t, tb.create(named.NetworkSpec{Name: "other", Subnets: subnets(2)}))
	before := tb.settled()
	for at, points := 1, 1; at <= points; at++ {
		must(t, create())
		n := 0
		removed := make(chan error, 1)
		begun := make(chan struct{})
		tb.cfg.Attach.Checkpoint = func() error {
			if n++; n == at {
				cfg := tb.cfg
				cfg.Attach.Checkpoint = nil
				go func() {
					removed <- tb.onHost(func() error {
						close(begun)
						_, err := named.Remove(context.Background(), cfg, "web", true)
						return err
					})
				}()
				<-begun
				for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(time.Millisecond) {
					if _, err := os.Stat(filepath.Join(tb.state, "networks", "web")); err != nil {
						break // its files are gone, and Remove waits for this connect
					}
				}
			}
			return nil
		}
		_, err := tb.connect("web", "a", named.Connection{Ports: tcp(8080, 80)})
		tb.cfg.Attach.Checkpoint = nil
		points = max(points, n)
		if n >= at {
			must(t, <-removed)
		} else {
			must(t, tb.remove("web", true))
		}
		tb.check()
		if _, statErr := os.Stat(filepath.Join(tb.state, "networks", "web")); statErr == nil {
			t.Fatalf("at step %d of %d: the network's directory is back; connect: %v", at, points, err)
		}
		if t.Failed() {
			t.Fatalf("at step %d of %d; connect: %v", at, points, err)
		}
	}
	tb.is("in the end", before)
}
