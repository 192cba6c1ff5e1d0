package cni_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"cleat/link"
	"cleat/netns"
	"cleat/network/named"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// change changes a link of a namespace.
func change(t *testing.T, ns *netns.NS, name string, f func(h *netlink.Handle, l netlink.Link) error) {
	t.Helper()
	h, err := link.Handle(ns)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(name)
	must(t, err)
	must(t, f(h, l))
}

// everything is the destination of a default route for IPv4.
var everything = ipNet("0.0.0.0/0")

func ipNet(text string) *netlink.Addr {
	a, err := netlink.ParseAddr(text)
	if err != nil {
		panic(err)
	}
	return a
}

// moveDefaultRoute moves a default route to another table, as the plug-in sbr does; to none if table is 0.
func moveDefaultRoute(table int) func(h *netlink.Handle, l netlink.Link) error {
	return func(h *netlink.Handle, l netlink.Link) error {
		r := netlink.Route{LinkIndex: l.Attrs().Index, Dst: everything.IPNet, Gw: ipNet("192.0.2.1/32").IP}
		if table != 0 {
			moved := r
			moved.Table = table
			if err := h.RouteAdd(&moved); err != nil {
				return err
			}
		}
		return h.RouteDel(&r)
	}
}

// rates skips the test if the kernel has no rate limits, and returns a configuration with them.
func rates(t *testing.T, in, out int) conf {
	t.Helper()
	for _, kind := range []string{"tbf", "ifb"} {
		if err := link.Probe(kind); err != nil {
			t.Skip(err)
		}
	}
	b := conf{}
	if in != 0 {
		b["ingressRate"], b["ingressBurst"] = in, in
	}
	if out != 0 {
		b["egressRate"], b["egressBurst"] = out, out
	}
	return conf{"runtimeConfig": conf{"bandwidth": b}}
}

// TestCheckFinds changes what ADD has made, and calls CHECK.
func TestCheckFinds(t *testing.T) {
	nft := func(f func(c *nftables.Conn, table *nftables.Table) error) func(*testing.T, *testbed, *container) {
		return func(t *testing.T, tb *testbed, _ *container) {
			must(t, tb.host.Do(func() error {
				c, err := nftables.New()
				if err != nil {
					return err
				}
				tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
				if err != nil {
					return err
				}
				if err := f(c, tables[0]); err != nil {
					return err
				}
				return c.Flush()
			}))
		}
	}
	hostEnd := func(f func(h *netlink.Handle, l netlink.Link) error) func(*testing.T, *testbed, *container) {
		return func(t *testing.T, tb *testbed, c *container) {
			var r struct{ Interfaces []struct{ Name string } }
			must(t, json.Unmarshal(c.prev, &r))
			change(t, tb.host, r.Interfaces[1].Name, f)
		}
	}
	inside := func(f func(h *netlink.Handle, l netlink.Link) error) func(*testing.T, *testbed, *container) {
		return func(t *testing.T, _ *testbed, c *container) { change(t, c.ns, "eth0", f) }
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, tb *testbed, c *container)
		text string
	}{
		{"link removed", func(t *testing.T, _ *testbed, c *container) { remove(t, c.ns, "eth0") }, "removed its link"},
		{"link down", inside(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) }), "down"},
		{"address removed", inside(func(h *netlink.Handle, l netlink.Link) error { return h.AddrDel(l, ipNet("192.0.2.2/24")) }), "removed address 192.0.2.2/24"},
		{"route removed", inside(moveDefaultRoute(0)), "removed route 0.0.0.0/0 via 192.0.2.1"},
		{"off the bridge", hostEnd(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNoMaster(l) }), "of bridge cl-web"},
		{"no limit inbound", hostEnd(func(h *netlink.Handle, l netlink.Link) error {
			return h.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}, QdiscType: "tbf"})
		}), "limit of what"},
		{"no limit outbound", hostEnd(func(h *netlink.Handle, l netlink.Link) error {
			return h.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_INGRESS}})
		}), "limit of what"},
		{"bridge removed", func(t *testing.T, tb *testbed, _ *container) { remove(t, tb.host, "cl-web") }, "missing on the host"},
		{"rules removed", nft(func(c *nftables.Conn, table *nftables.Table) error { c.DelTable(table); return nil }), "rules: "},
		{"port not published", nft(func(c *nftables.Conn, table *nftables.Table) error {
			sets, err := c.GetSets(table)
			for _, s := range sets {
				if s.Name == "ports-anywhere" {
					c.FlushSet(s)
				}
			}
			return err
		}), "set ports-anywhere lacks"},
		{"address not reserved", func(t *testing.T, tb *testbed, _ *container) {
			found, err := filepath.Glob(filepath.Join(tb.dir, "state", "*", "*", "*", "192.0.2.2"))
			must(t, err)
			must(t, os.Remove(found[0]))
		}, "not marked as taken"},
		{"another address in the result", func(_ *testing.T, _ *testbed, c *container) {
			c.prev = json.RawMessage(fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "192.0.2.77/24"}]}`, c.path))
		}, "192.0.2.2, which prevResult does not have"},
		{"another namespace in the result", func(_ *testing.T, _ *testbed, c *container) {
			c.prev = json.RawMessage(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/other"}], "ips": [{"address": "192.0.2.2/24"}]}`)
		}, "which prevResult does not have"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
			runtime := conf{"portMappings": []conf{{"hostPort": 8080, "containerPort": 80}}}
			if tt.text == "limit of what" {
				runtime["bandwidth"] = rates(t, 100e6, 50e6)["runtimeConfig"].(conf)["bandwidth"]
			}
			c, conf := tb.container("c"), web.with(conf{"runtimeConfig": runtime})
			tb.add(c, conf)
			tb.succeed("CHECK", c, conf)
			tt.do(t, tb, c)
			tb.fail("CHECK", c, conf, 999, tt.text)
			if tt.name == "bridge removed" {
				tb.fail("STATUS", nil, web, 51, "missing on the host")
			}
			tb.succeed("DEL", c, conf)
		})
	}
}

// TestCheckAllows changes what plug-ins after this one may change.
func TestCheckAllows(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(h *netlink.Handle, l netlink.Link) error
		left bool // the default route is in the result
	}{
		{"Ethernet address", func(h *netlink.Handle, l netlink.Link) error {
			return h.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 9})
		}, true},
		{"MTU", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, 1300) }, true},
		{"further address", func(h *netlink.Handle, l netlink.Link) error { return h.AddrAdd(l, ipNet("203.0.113.9/24")) }, true},
		{"route in another table", moveDefaultRoute(100), true},
		{"route removed, also from the result", moveDefaultRoute(0), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t)
			tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/24")})
			c := tb.container("c")
			r := tb.add(c, web)
			change(t, c.ns, "eth0", tt.do)
			if !tt.left {
				r.Routes = nil
			}
			var err error
			c.prev, err = json.Marshal(r)
			must(t, err)
			tb.succeed("CHECK", c, web)
			tb.succeed("DEL", c, web)
		})
	}
}

// TestStatus: a network that does not exist makes the plug-in unavailable, unless it can be created, and so does
// one without an address left, unless a runtime has forgotten one.
func TestStatus(t *testing.T) {
	tb := newTestbed(t)
	tb.fail("STATUS", nil, web, 50, `no network "web"`)
	tb.succeed("STATUS", nil, web.with(conf{"create": conf{}}))
	tb.create(named.NetworkSpec{Name: "web", Subnets: subnet("192.0.2.0/29")})
	var last *container
	for i := range 5 {
		tb.succeed("STATUS", nil, web)
		last = tb.container(fmt.Sprint("c", i))
		tb.add(last, web)
	}
	tb.fail("STATUS", nil, web, 50, "no free address")
	last.end(t)
	tb.succeed("STATUS", nil, web)
	tb.add(tb.container("next"), web)
	tb.fail("STATUS", nil, web, 50, "no free address")
}

// TestStatusOfParent: without its parent no container can be connected to a macvlan network.
func TestStatusOfParent(t *testing.T) {
	if err := link.Probe("macvlan"); err != nil {
		t.Skip(err)
	}
	tb := newTestbed(t)
	tb.create(named.NetworkSpec{Name: "web", Driver: named.Macvlan, Parent: "nic", Subnets: []named.Subnet{{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("198.51.100.2")}}})
	tb.succeed("STATUS", nil, web)
	change(t, tb.host, "nic", func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) })
	tb.fail("STATUS", nil, web, 51, "nic is down")
	remove(t, tb.host, "nic")
	tb.fail("STATUS", nil, web, 51, "nic does not exist")
}
