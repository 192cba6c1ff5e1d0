package endpoint_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/tunnel"
	"cleat/tunnel/secure"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// natPlan describes a natbed.
type natPlan struct {
	family          int
	oneNAT          bool      // both uplinks are behind the same
	serverInitiates bool      // by the order of the keys
	names           [2]string // of the server's paths; "": p0 and p1, as the client's
	more            string    // further settings of each of them
	serverRoutes    string    // through the tunnel
	metered         bool      // all paths, at both ends
}

// natbed is a client with two uplinks, each behind a NAT, and a server with one address,
// whose paths have no remote:
//
//	client p0 ── lan0 NAT wan ──┐
//	                            switch ── net server
//	client p1 ── lan1 NAT wan ──┘
type natbed struct {
	t              *testing.T
	plan           natPlan
	client, server *end
	nats           []*lab.Node
}

// natAddr returns the address of a host in the server's network.
func natAddr(family, host int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{198, 51, 100, byte(host)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", host))
}

// lanAddr returns the address of a host behind the NAT of an uplink.
func lanAddr(family, uplink, host int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{10, 77, byte(uplink), byte(host)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd77:%d::%d", uplink, host))
}

func subnet(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, map[bool]int{true: 24, false: 64}[a.Is4()])
}

// wan returns the address of the NAT of an uplink.
func (b *natbed) wan(uplink int) netip.Addr {
	if b.plan.oneNAT {
		uplink = 0
	}
	return natAddr(b.plan.family, 11+uplink)
}

func (b *natbed) nat(uplink int) *lab.Node { return b.nats[min(uplink, len(b.nats)-1)] }

func newNatbed(t *testing.T, p natPlan) *natbed {
	t.Helper()
	lab.Need(t)
	t.Parallel()
	b := &natbed{t: t, plan: p}
	dir := t.TempDir()
	node := func(name string) *lab.Node {
		n, err := lab.NewNode(name)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		return n
	}
	for i, e := range []**end{&b.client, &b.server} {
		name := []string{"client", "server"}[i]
		*e = &end{t: t, name: name, node: node(name), file: filepath.Join(dir, name+".yaml")}
	}
	sw, err := lab.NewSwitch("internet", 1500)
	must(t, err)
	t.Cleanup(func() { sw.Close() })
	plug := func(n *lab.Node, name string, a netip.Addr) {
		_, err := sw.Plug(lab.End{Node: n, Name: name}, 0)
		must(t, err)
		must(t, n.Address(name, subnet(a)))
	}
	plug(b.server.node, "net", natAddr(p.family, 1))
	for uplink := range 2 {
		if uplink == 0 || !p.oneNAT {
			n := node(fmt.Sprintf("nat%d", uplink))
			b.nats = append(b.nats, n)
			plug(n, "wan", b.wan(uplink))
			must(t, n.Sysctl("net/ipv4/ip_forward", "1"))
			must(t, n.Sysctl("net/ipv6/conf/all/forwarding", "1"))
		}
		n, lan := b.nat(uplink), fmt.Sprintf("lan%d", uplink)
		must(t, lab.Connect(lab.End{Node: b.client.node, Name: deviceName(uplink)}, lab.End{Node: n, Name: lan}, lab.Cable{}))
		must(t, n.Address(lan, subnet(lanAddr(p.family, uplink, 1))))
		must(t, b.client.node.Address(deviceName(uplink), subnet(lanAddr(p.family, uplink, 2))))
		b.addRoute(uplink)
	}
	b.masquerade()
	b.writeFiles()
	return b
}

// addRoute gives the client a default route by an uplink.
func (b *natbed) addRoute(uplink int) {
	b.t.Helper()
	h, err := link.Handle(b.client.node.NS)
	must(b.t, err)
	defer h.Close()
	l, err := h.LinkByName(deviceName(uplink))
	must(b.t, err)
	to := netip.PrefixFrom(natAddr(b.plan.family, 0), 24)
	if b.plan.family == 6 {
		to = netip.MustParsePrefix("2001:db8::/64")
	}
	dst, err := netlink.ParseIPNet(to.String())
	must(b.t, err)
	must(b.t, h.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: lanAddr(b.plan.family, uplink, 1).AsSlice(), Priority: 100 + uplink}))
}

// masquerade makes the NATs give connections random ports, and forget those that they
// have.
func (b *natbed) masquerade() {
	b.t.Helper()
	family := map[int]nftables.TableFamily{4: nftables.TableFamilyIPv4, 6: nftables.TableFamilyIPv6}[b.plan.family]
	out := make([]byte, 16)
	copy(out, "wan")
	for _, n := range b.nats {
		must(b.t, n.NS.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			table := &nftables.Table{Family: family, Name: "nat"}
			c.AddTable(table)
			c.DelTable(table)
			c.AddTable(table)
			chain := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: out},
				&expr.Masq{FullyRandom: true},
			}})
			if err := c.Flush(); err != nil {
				return err
			}
			return netlink.ConntrackTableFlush(netlink.ConntrackTable)
		}))
	}
}

// writeFiles writes both tunnel files and keys.
func (b *natbed) writeFiles() {
	b.t.Helper()
	var keys [2]secure.PrivateKey
	for i := range keys {
		var err error
		keys[i], err = secure.GenerateKey()
		must(b.t, err)
	}
	if secure.Initiates(keys[1].Public(), keys[0].Public()) != b.plan.serverInitiates {
		keys[0], keys[1] = keys[1], keys[0]
	}
	more := ""
	if b.plan.metered {
		more = ", metered: true"
	}
	for i, e := range []*end{b.client, b.server} {
		must(b.t, os.WriteFile(e.file+".key", []byte(keys[i].Text()+"\n"), 0o600))
		var s strings.Builder
		fmt.Fprintf(&s, "name: lab\ndevice: tunnel0\naddress: [%s, \"%s\"]\nkey: {private: %q, peer: %q}\npaths:\n", innerNet(i, 4), innerNet(i, 6), e.file+".key", keys[1-i].Public())
		for uplink := range 2 {
			if e == b.client {
				fmt.Fprintf(&s, "  - {device: %s, remote: %q%s}\n", deviceName(uplink), natAddr(b.plan.family, 1), more)
			} else {
				name := deviceName(uplink)
				if b.plan.names[uplink] != "" {
					name = b.plan.names[uplink]
				}
				fmt.Fprintf(&s, "  - {name: %s%s%s}\n", name, b.plan.more, more)
			}
		}
		if e == b.server && b.plan.serverRoutes != "" {
			fmt.Fprintf(&s, "routes: [%s]\n", b.plan.serverRoutes)
		}
		must(b.t, os.WriteFile(e.file, []byte(s.String()), 0o600))
	}
}

// startBoth starts both ends and waits until they use both paths.
func (b *natbed) startBoth() *natbed {
	b.t.Helper()
	b.server.start()
	b.client.start()
	b.waitLive()
	return b
}

// waitLive waits until both ends use both paths.
func (b *natbed) waitLive() {
	b.t.Helper()
	for _, e := range []*end{b.client, b.server} {
		var got []string
		eventually(b.t, 20*time.Second, func() bool { got = e.live(); return len(got) == 2 }, func() string { return fmt.Sprintf("%s uses %v", e.name, got) })
	}
}

// remotes returns the addresses that the server has learned for its paths.
func (b *natbed) remotes() (all [2]netip.AddrPort) {
	for i, p := range b.server.status().Paths {
		all[i] = p.Remote
	}
	return all
}

// waitMoved waits until a path of the server has another remote than before.
func (b *natbed) waitMoved(path int, before [2]netip.AddrPort) {
	b.t.Helper()
	eventually(b.t, 20*time.Second, func() bool { return b.remotes()[path] != before[path] },
		func() string { return fmt.Sprintf("path %d of the server is still at %s", path, before[path]) })
}

// deleteAddr removes an address of the client's first uplink.
func (b *natbed) deleteAddr(a netip.Addr) error {
	h, err := link.Handle(b.client.node.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(deviceName(0))
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(subnet(a).String())
	if err != nil {
		return err
	}
	return h.AddrDel(l, addr)
}

// TestBehindNAT joins a client behind NATs to a server that does not know its addresses.
func TestBehindNAT(t *testing.T) {
	for _, p := range []natPlan{
		{family: 4},
		{family: 4, serverInitiates: true},
		{family: 4, oneNAT: true, serverInitiates: true, names: [2]string{"first", "p0"}},
		{family: 6, serverInitiates: true, names: [2]string{"first", "second"}},
		{family: 6, oneNAT: true},
		{family: 4, more: ", device: net"},
		{family: 4, metered: true, serverInitiates: true},
		{family: 6, more: ", device: net, local: \"2001:db8::1\""},
		{family: 4, more: ", local: 198.51.100.1, mtu: 1400"},
	} {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			b := newNatbed(t, p)
			b.server.start()
			for _, path := range b.server.status().Paths {
				if !path.Open || !path.Learns || path.Remote.IsValid() || path.Live {
					t.Errorf("before the client starts, a path is %+v", path)
				}
			}
			b.client.start()
			b.waitLive()
			want := [2]netip.Addr{b.wan(0), b.wan(1)}
			if p.names[1] == "p0" { // names come before the order
				want[0], want[1] = want[1], want[0]
			}
			for i := range want {
				if got := b.remotes()[i]; got.Addr() != want[i] {
					t.Errorf("path %d of the server is at %s, want %s", i, got, want[i])
				}
			}
			if got := b.remotes(); got[0] == got[1] {
				t.Errorf("both paths are at %s", got[0])
			}
			ends := []*end{b.client, b.server}
			for from, e := range ends {
				transferTCP(t, e.node, ends[1-from].node, innerAddr(1-from, 4), 4<<20)
				transferTCP(t, e.node, ends[1-from].node, innerAddr(1-from, 6), 4<<20)
			}
		})
	}
}

// TestRemoteInsideTunnel routes the NATs' addresses through the tunnel: the server must
// report that it can't answer, and why.
func TestRemoteInsideTunnel(t *testing.T) {
	b := newNatbed(t, natPlan{family: 4, serverRoutes: "198.51.100.8/29"})
	b.server.start()
	b.client.start()
	var log []byte
	eventually(t, 20*time.Second, func() bool {
		log, _ = os.ReadFile(b.server.file + ".log")
		return strings.Contains(string(log), "from an address within the tunnel's 198.51.100.8/29")
	}, func() string { return fmt.Sprintf("the server reported %q", log) })
	if s := b.server.status(); s.Up || s.Paths[0].Remote.IsValid() {
		t.Errorf("the status is %+v", s)
	}
	if n := strings.Count(string(log), "198.51.100.8/29"); n > 2 { // once for each path
		t.Errorf("reported %d times", n)
	}
}

// stream sends TCP in both directions until stop is called, which checks that all has
// arrived.
func (b *natbed) stream() (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	failed := make(chan error, 2)
	for i, s := range []stream{
		connect(b.t, b.client.node, b.server.node, innerAddr(1, 4)),
		connect(b.t, b.server.node, b.client.node, innerAddr(0, 4)),
	} {
		go func() {
			_, err := s.send(ctx, uint64(i), 0)
			failed <- err
		}()
	}
	return func() {
		b.t.Helper()
		cancel()
		for range 2 {
			if err := <-failed; err != nil {
				b.t.Errorf("TCP through the tunnel: %v", err)
			}
		}
	}
}

// TestNATRebinds makes both NATs forget all connections and give out other ports while
// TCP connections run in both directions.
func TestNATRebinds(t *testing.T) {
	for _, p := range []natPlan{{family: 4}, {family: 6, oneNAT: true, serverInitiates: true}, {family: 4, metered: true}} {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			b := newNatbed(t, p).startBoth()
			session := b.server.status().KeyID
			stop := b.stream()
			for range 3 {
				before := b.remotes()
				b.masquerade()
				b.waitMoved(0, before)
				b.waitMoved(1, before)
				b.waitLive()
			}
			stop()
			if now := b.server.status().KeyID; now != session {
				t.Errorf("the session has changed from %s to %s", session, now)
			}
			log, err := os.ReadFile(b.server.file + ".log")
			must(t, err)
			if strings.Contains(string(log), string(tunnel.Restarted)) {
				t.Errorf("the session has restarted:\n%s", log)
			}
		})
	}
}

// TestClientAddressChanges gives the client's device another address, none for a while,
// and takes it down and up, while TCP connections run in both directions.
func TestClientAddressChanges(t *testing.T) {
	b := newNatbed(t, natPlan{family: 4}).startBoth()
	stop := b.stream()
	defer stop()
	dev := b.client.link(deviceName(0))
	waitLocal := func(paths int) {
		t.Helper()
		var got []string
		eventually(t, 20*time.Second, func() bool { got = b.client.live(); return len(got) == paths }, func() string { return fmt.Sprintf("the client uses %v", got) })
	}
	before := b.remotes()
	must(t, b.deleteAddr(lanAddr(4, 0, 2)))
	must(t, dev.AddAddr(subnet(lanAddr(4, 0, 77))))
	b.addRoute(0)
	b.waitMoved(0, before)
	b.waitLive()
	must(t, b.deleteAddr(lanAddr(4, 0, 77)))
	waitLocal(1)
	must(t, dev.AddAddr(subnet(lanAddr(4, 0, 78))))
	b.addRoute(0)
	b.waitLive()
	must(t, dev.Down())
	waitLocal(1)
	must(t, dev.Up())
	b.addRoute(0)
	b.waitLive()
}
