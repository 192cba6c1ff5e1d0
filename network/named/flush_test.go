package named_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"cleat/netns"
	"cleat/network/named"

	"github.com/google/nftables"
)

// flood sends a datagram every 100 µs from a namespace to an address in another one until the test
// ends, and counts those that arrive.
func flood(t *testing.T, from, to *netns.NS, dst netip.AddrPort) *atomic.Int64 {
	t.Helper()
	var in net.PacketConn
	must(t, to.Do(func() (err error) { in, err = net.ListenPacket("udp", dst.String()); return err }))
	var out net.Conn
	must(t, from.Do(func() (err error) { out, err = net.Dial("udp", dst.String()); return err }))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); in.Close(); out.Close() })
	go func() {
		for ctx.Err() == nil {
			_, _ = out.Write([]byte("x")) // an error reports what was dropped
			time.Sleep(100 * time.Microsecond)
		}
	}()
	var arrived atomic.Int64
	go func() {
		b := make([]byte, 10)
		for {
			if _, _, err := in.ReadFrom(b); err != nil {
				return
			}
			arrived.Add(1)
		}
	}()
	return &arrived
}

// vandals do what administrators and other programs do to rules that are not theirs.
func (tb *testbed) vandals() map[string]func() error {
	nft := func(f func(*nftables.Conn) error) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			if err := f(c); err != nil {
				return err
			}
			return c.Flush()
		}
	}
	each := func(f func(*nftables.Conn, *nftables.Table)) func() error {
		return nft(func(c *nftables.Conn) error {
			tables, err := c.ListTables()
			for _, table := range tables {
				f(c, table)
			}
			return err
		})
	}
	all := map[string]func() error{
		"flush ruleset": nft(func(c *nftables.Conn) error { c.FlushRuleset(); return nil }),
		"delete tables": each(func(c *nftables.Conn, table *nftables.Table) { c.DelTable(table) }),
		"flush tables":  each(func(c *nftables.Conn, table *nftables.Table) { c.FlushTable(table) }),
	}
	if path, err := exec.LookPath("iptables"); err == nil {
		all["iptables -F"] = func() error { return exec.Command(path, "-F").Run() }
	}
	return all
}

// While a keeper runs, nothing that is denied passes, whatever others do to the ruleset. Where the
// kernel can't protect rules (before Linux 6.9), they are back at once.
func TestFlushedRules(t *testing.T) {
	for _, protected := range []bool{true, false} {
		t.Run(fmt.Sprint("protected ", protected), func(t *testing.T) {
			tb := newTestbed(t, "a", "b", "c")
			must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
			must(t, tb.create(named.NetworkSpec{Name: "db", Driver: named.Routed, Subnets: subnets(2)}))
			_, isProtected := tb.startKeeperWith(func(k *named.Keeper) { named.SetUnprotected(k, !protected) })
			if isProtected != protected {
				t.Skip("the kernel can't protect rules")
			}
			for network, containers := range map[string][]string{"web": {"a", "b"}, "db": {"c"}} {
				for _, c := range containers {
					_, err := tb.connect(network, c, named.Connection{Addresses: []netip.Addr{address(network, c)}})
					must(t, err)
				}
			}
			must(t, tb.onHost(func() error {
				_, err := named.Deny(t.Context(), tb.cfg, "web/a to web/b:9/udp")
				return err
			}))
			a, b, c := tb.containers["a"], tb.containers["b"], tb.containers["c"]
			inside := flood(t, a, b, netip.AddrPortFrom(address("web", "b"), 9))
			across := flood(t, a, c, netip.AddrPortFrom(address("db", "c"), 9))
			allowed := flood(t, a, b, netip.AddrPortFrom(address("web", "b"), 10))
			var longest time.Duration
			vandals := tb.vandals()
			for range 20 {
				for what, f := range vandals {
					err := tb.onHost(f)
					if !protected && err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					begun := time.Now()
					tb.waitForRules(what)
					longest = max(longest, time.Since(begun))
				}
			}
			t.Logf("restored within %s; passed: %d inside a network, %d across; allowed: %d", longest, inside.Load(), across.Load(), allowed.Load())
			if allowed.Load() == 0 {
				t.Error("what is allowed does not arrive either")
			}
			if protected && (inside.Load() > 0 || across.Load() > 0) {
				t.Errorf("%d denied datagrams passed inside a network, %d from one to another", inside.Load(), across.Load())
			}
		})
	}
}

func address(network, container string) netip.Addr {
	third := map[string]int{"web": 1, "db": 2}[network]
	return netip.MustParseAddr(fmt.Sprintf("10.20.%d.%d", third, 10+container[0]-'a'))
}

// waitForRules waits until the rules in the kernel are as the files say.
func (tb *testbed) waitForRules(after string) {
	tb.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var found []named.Difference
		must(tb.t, tb.onHost(func() (err error) { found, err = named.Check(tb.t.Context(), tb.cfg); return err }))
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tb.t.Fatalf("after %s the rules are not back: %v", after, found)
		}
	}
}
