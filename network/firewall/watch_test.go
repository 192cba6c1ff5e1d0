package firewall_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/firewall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// watch restores the table whenever Watch reports a change. The channel gets the number of
// differences that were found.
func watch(t *testing.T, table firewall.Table, by *firewall.Owner, s firewall.State) <-chan int {
	t.Helper()
	found, ready, done := make(chan int, 100), make(chan struct{}), make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		done <- table.Watch(ctx, by, func() { close(ready) }, func() {
			all, err := table.Check(s)
			if err != nil {
				t.Error(err)
			}
			if err := table.Sync(s); err != nil {
				t.Error(err)
			}
			found <- len(all)
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	<-ready
	return found
}

// settle waits until Watch has restored the table.
func settle(t *testing.T, table firewall.Table, found <-chan int, s firewall.State) {
	t.Helper()
	for range found {
		all, err := table.Check(s)
		must(t, err)
		if len(all) == 0 {
			return
		}
	}
}

// Whatever others do to the table, its devices or its routing rules, Watch reports it.
func TestWatch(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := randomState(rand.New(rand.NewPCG(6, 6)))
	must(t, table.Sync(s))
	found := watch(t, table, nil, s)
	for name, vandal := range map[string]func(*nftables.Conn, *netlink.Handle) error{
		"flush ruleset": func(c *nftables.Conn, _ *netlink.Handle) error { c.FlushRuleset(); return nil },
		"insert rule": func(c *nftables.Conn, _ *netlink.Handle) error {
			theirs := &nftables.Table{Name: table.Name, Family: nftables.TableFamilyIPv6}
			c.InsertRule(&nftables.Rule{Table: theirs, Chain: &nftables.Chain{Name: "forward"}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
			return nil
		},
		"flush set": func(c *nftables.Conn, _ *netlink.Handle) error {
			c.FlushSet(&nftables.Set{Table: &nftables.Table{Name: table.Name, Family: nftables.TableFamilyIPv4}, Name: "own-devices"})
			return nil
		},
		"delete device": func(_ *nftables.Conn, h *netlink.Handle) error {
			l, err := h.LinkByName("cleat-in1")
			if err != nil {
				return err
			}
			return h.LinkDel(l)
		},
		"delete routing rules": func(_ *nftables.Conn, h *netlink.Handle) error {
			r := netlink.NewRule()
			r.Family, r.Priority = netlink.FAMILY_V6, 501
			return h.RuleDel(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			vandalism(t, table.NS, vandal)
			settle(t, table, found, s)
			assertState(t, table, s)
		})
	}
}

func vandalism(t *testing.T, ns *netns.NS, f func(*nftables.Conn, *netlink.Handle) error) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	must(t, ns.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := f(c, h); err != nil {
			return err
		}
		return c.Flush()
	}))
}

// An owner's own changes are not reported, nor those of other tables. The last change is by
// another socket.
func TestWatchIgnores(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := own(t, table)
	must(t, o.Sync(firewall.State{}))
	s := randomState(rand.New(rand.NewPCG(7, 7)))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var first []firewall.Difference
	reports := 0
	must(t, table.Watch(ctx, o, func() {
		for range 3 {
			must(t, o.Apply(firewall.Change{Add: s}), o.Apply(firewall.Change{Remove: s}))
		}
		vandalism(t, table.NS, func(c *nftables.Conn, _ *netlink.Handle) error {
			c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyIPv4})
			return nil
		})
		go func() {
			if err := errors.Join(o.Close(), table.Apply(firewall.Change{Add: s})); err != nil { // this one is reported
				t.Error(err)
			}
		}()
	}, func() {
		if reports++; reports == 1 {
			all, err := table.Check(s)
			if err != nil {
				t.Error(err)
			}
			first = all
		}
		stop()
	}))
	if len(first) > 0 {
		t.Errorf("the first report came before the last change: %v", first)
	}
}
