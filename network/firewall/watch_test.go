package firewall_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
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
	checkSources(t, table.NS)
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
			r.Family, r.Priority = netlink.FAMILY_V4, 501
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

// checkSources makes the kernel check where packets of IPv4 come from.
func checkSources(t *testing.T, ns *netns.NS) {
	t.Helper()
	must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0) }))
}

// Routing rules are made when somebody begins to check where packets come from, and not before.
func TestWatchSourceChecks(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*testing.T, firewall.Table){
		"kernel": func(t *testing.T, table firewall.Table) { checkSources(t, table.NS) },
		"rule": func(t *testing.T, table firewall.Table) {
			vandalism(t, table.NS, func(c *nftables.Conn, _ *netlink.Handle) error {
				theirs := c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet})
				chain := c.AddChain(&nftables.Chain{Table: theirs, Name: "prerouting", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
				c.AddRule(&nftables.Rule{Table: theirs, Chain: chain, Exprs: []expr.Any{
					&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true, FlagPRESENT: true},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
					&expr.Verdict{Kind: expr.VerdictDrop},
				}})
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			s := randomState(rand.New(rand.NewPCG(8, 8)))
			must(t, table.Sync(s))
			if all := routingRules(t, table.NS); len(all) != 0 {
				t.Errorf("routing rules %v, want none", all)
			}
			found := watch(t, table, nil, s)
			begin(t, table)
			settle(t, table, found, s)
			if all := routingRules(t, table.NS); len(all) < 3 {
				t.Errorf("routing rules %v, want those of the doorway", all)
			}
		})
	}
}

// routingRules lists the routing rules that the kernel does not have by default.
func routingRules(t *testing.T, ns *netns.NS) (all []netlink.Rule) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	rules, err := h.RuleList(netlink.FAMILY_ALL)
	must(t, err)
	for _, r := range rules {
		if r.Priority > 0 && r.Priority < 32766 {
			all = append(all, r)
		}
	}
	return all
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
// another socket, to a chain of iptables.
func TestWatchIgnores(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	o := own(t, table)
	must(t, o.Sync(firewall.State{}))
	// Few elements: the socket may not hold the messages about many.
	s := firewall.State{Networks: []firewall.Network{{Devices: []string{"br0"}, Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}, MasqueradeIPv4: true}}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	made := make(chan struct{})
	early, reports := false, 0
	var last sync.WaitGroup
	must(t, table.Watch(ctx, o, func() {
		for range 3 {
			must(t, o.Apply(firewall.Change{Add: s}), o.Apply(firewall.Change{Remove: s}))
		}
		vandalism(t, table.NS, func(c *nftables.Conn, _ *netlink.Handle) error {
			c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyIPv4})
			return nil
		})
		last.Go(func() {
			vandalism(t, table.NS, func(c *nftables.Conn, _ *netlink.Handle) error {
				close(made)
				theirs := c.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
				c.AddChain(&nftables.Chain{Table: theirs, Name: "FORWARD"})
				return nil
			})
		})
	}, func() {
		if reports++; reports == 1 {
			select {
			case <-made:
			default:
				early = true
			}
		}
		stop()
	}))
	last.Wait()
	if early {
		t.Error("the first report came before the last change")
	}
}
