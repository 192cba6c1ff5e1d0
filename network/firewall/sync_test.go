package firewall_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/firewall"
	"cleat/packet"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func newTable(t testing.TB) firewall.Table {
	t.Helper()
	lab.Need(t)
	return firewall.Table{NS: newNode(t, "host").NS, Name: "cleat-net"}
}

// From any earlier state of the table, Sync makes exactly the State, also if others have
// changed the table.
func TestSync(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	for round := range 60 {
		r := rand.New(rand.NewPCG(1, uint64(round)))
		s := randomState(r)
		must(t, table.Sync(s))
		assertState(t, table, s)
		vandalise(t, table, r)
	}
}

// A change from one State to another one, in either direction, has the same result as Sync.
func TestApply(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old := firewall.State{}
	must(t, table.Sync(old))
	for round := range 60 {
		s := randomState(rand.New(rand.NewPCG(2, uint64(round))))
		err := table.Apply(firewall.Change{Add: s, Remove: old})
		if errors.Is(err, firewall.ErrDrift) && (hasVRF(s) || hasVRF(old)) {
			err = table.Sync(s)
		}
		must(t, err)
		assertState(t, table, s)
		old = s
	}
}

func hasVRF(s firewall.State) bool {
	return slices.ContainsFunc(s.Networks, func(n firewall.Network) bool { return n.VRF != "" })
}

// Endpoints and ports of a network in a VRF come and go by Apply, the network itself by Sync.
func TestApplyInVRF(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	network := firewall.Network{Devices: []string{"podman7"}, Prefixes: []netip.Prefix{prefix("192.0.2.0/24")}, MasqueradeIPv4: true, VRF: "blue"}
	with := firewall.State{Networks: []firewall.Network{network}}
	must(t, table.Sync(firewall.State{}))
	if err := table.Apply(firewall.Change{Add: with}); !errors.Is(err, firewall.ErrDrift) {
		t.Errorf("add a network in a VRF: %v, want ErrDrift", err)
	}
	must(t, table.Sync(with))
	part := network
	part.Devices, part.Prefixes = nil, nil
	part.Endpoints = []firewall.Endpoint{{Device: "podman7", Addrs: []netip.Addr{addr("192.0.2.2")}}}
	endpoint := firewall.State{Networks: []firewall.Network{part}, Ports: []firewall.Port{publishIn("blue", packet.TCP, 8080, "192.0.2.2:80")}}
	must(t, table.Apply(firewall.Change{Add: endpoint}))
	network.Endpoints = part.Endpoints
	assertState(t, table, firewall.State{Networks: []firewall.Network{network}, Ports: endpoint.Ports})
	must(t, table.Apply(firewall.Change{Remove: endpoint}))
	assertState(t, table, with)
	if err := table.Apply(firewall.Change{Remove: with}); !errors.Is(err, firewall.ErrDrift) {
		t.Errorf("remove a network in a VRF: %v, want ErrDrift", err)
	}
	must(t, table.Sync(firewall.State{}))
	assertState(t, table, firewall.State{})
}

// A change that does not fit changes nothing.
func TestApplyAllOrNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	ports := func(first uint16, count uint16) firewall.State {
		return firewall.State{Ports: []firewall.Port{{Protocol: packet.TCP, HostPort: first, To: addrPort("192.0.2.2:80"), Count: count}}}
	}
	if err := table.Apply(firewall.Change{Add: ports(80, 1)}); !errors.Is(err, firewall.ErrDrift) {
		t.Errorf("change of a missing table: %v, want ErrDrift", err)
	}
	must(t, table.Sync(ports(80, 2)))
	for name, c := range map[string]firewall.Change{
		"remove what is missing": {Add: ports(90, 2), Remove: ports(100, 1)},
		"add what exists":        {Add: ports(80, 3)},
	} {
		if err := table.Apply(c); !errors.Is(err, firewall.ErrDrift) {
			t.Errorf("%s: %v, want ErrDrift", name, err)
		}
		assertState(t, table, ports(80, 2))
	}
	must(t, table.Remove(), table.Remove())
	if all, err := table.Check(firewall.State{}); len(all) != 3 || err != nil {
		t.Errorf("differences after Remove: %v, %v, want that both tables and the devices are missing", all, err)
	}
}

// Lacks finds what is missing of a part, and ignores what the part does not have.
func TestLacks(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	ports := func(first uint16, count uint16) firewall.State {
		return firewall.State{Ports: []firewall.Port{{Protocol: packet.TCP, HostPort: first, To: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), first), Count: count}}}
	}
	must(t, table.Sync(ports(80, 3)))
	for _, tt := range []struct {
		part firewall.State
		want string
	}{
		{firewall.State{}, "[]"},
		{ports(81, 1), "[]"},
		{ports(80, 3), "[]"},
		{ports(81, 4), "[ip set ports-anywhere lacks 2 elements and has 0 others ip set judged-anywhere lacks 2 elements and has 0 others]"},
	} {
		lacks, err := table.Lacks(tt.part)
		must(t, err)
		if got := fmt.Sprint(lacks); got != tt.want {
			t.Errorf("of %v it lacks %s, want %s", tt.part, got, tt.want)
		}
	}
	must(t, table.Remove())
	if lacks, err := table.Lacks(firewall.State{}); len(lacks) == 0 || err != nil {
		t.Errorf("without tables: %v, %v", lacks, err)
	}
}

// Check finds whatever others change.
func TestCheck(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	found := 0
	for round := range 200 {
		r := rand.New(rand.NewPCG(3, uint64(round)))
		s := randomState(r)
		must(t, table.Sync(s))
		what := vandalise(t, table, r)
		all, err := table.Check(s)
		must(t, err)
		if len(all) == 0 && what != "" {
			t.Errorf("round %d: Check did not notice: %s", round, what)
		}
		found += len(all)
	}
	if found == 0 {
		t.Error("nothing was ever changed")
	}
}

// assertState compares the table with a State by Check, and the numbers of elements also by
// those that nft would print.
func assertState(t *testing.T, table firewall.Table, s firewall.State) {
	t.Helper()
	all, err := table.Check(s)
	must(t, err)
	for _, d := range all {
		t.Fatalf("table is not as it should be: %s", d)
	}
	ports := 0
	for _, p := range s.Ports {
		ports += max(1, int(p.Count))
	}
	devices := 0
	for _, n := range s.Networks {
		devices += len(n.Devices)
	}
	got := map[string]int{}
	must(t, table.NS.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
			sets, err := c.GetSets(&nftables.Table{Name: table.Name, Family: family})
			if err != nil {
				return err
			}
			for _, set := range sets {
				elements, err := c.GetSetElements(set)
				if err != nil {
					return err
				}
				got[set.Name] += len(elements)
			}
		}
		return nil
	}))
	if got["ports"]+got["ports-anywhere"]+got["ports-vrf"]+got["ports-anywhere-vrf"] != ports || got["own-devices"] != 2*devices {
		t.Fatalf("the kernel has %v, want %d ports and %d devices", got, ports, devices)
	}
}

func randomState(r *rand.Rand) (s firewall.State) {
	for i := range r.IntN(5) {
		s.Networks = append(s.Networks, randomNetwork(r, i))
	}
	for i := range r.IntN(40) {
		to := netip.AddrFrom4([4]byte{10, byte(r.IntN(5)), 0, byte(2 + r.IntN(3))})
		host := netip.AddrFrom4([4]byte{198, 51, 100, byte(r.IntN(3))})
		if r.IntN(2) == 0 {
			to, host = netip.AddrFrom16([16]byte{0xfd, 15: byte(2 + r.IntN(3))}), netip.AddrFrom16([16]byte{0xfe, 15: byte(r.IntN(3))})
		}
		if r.IntN(2) == 0 {
			host = netip.Addr{}
		}
		s.Ports = append(s.Ports, firewall.Port{Protocol: []packet.Protocol{packet.TCP, packet.UDP, firewall.SCTP}[r.IntN(3)],
			HostAddr: host, HostPort: uint16(1 + 100*i), To: netip.AddrPortFrom(to, uint16(1+r.IntN(3))), Count: uint16(r.IntN(4)), BypassFirewall: r.IntN(2) == 0})
		if len(s.Networks) > 0 {
			s.Ports[i].VRF = s.Networks[r.IntN(len(s.Networks))].VRF
		}
	}
	if r.IntN(2) == 0 {
		s.Allow = append(s.Allow, firewall.Pair{From: prefix("172.16.0.0/24"), To: prefix("172.17.0.0/16")}, firewall.Pair{From: prefix("fdff::/64"), To: prefix("fdfe::/64")})
	}
	return s
}

func randomNetwork(r *rand.Rand, i int) firewall.Network {
	n := firewall.Network{
		Prefixes:       []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 1}), 16+r.IntN(3)), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1: byte(i)}), 48)},
		Gateways:       []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i), 0, 1})},
		MasqueradeIPv4: r.IntN(2) == 0, MasqueradeIPv6: r.IntN(2) == 0, Internal: r.IntN(2) == 0,
		HostAccess: firewall.HostAccess(r.IntN(3)),
	}
	if r.IntN(2) == 0 {
		n.Devices = []string{fmt.Sprintf("bridge%d", i)}
	}
	for j := range r.IntN(4) {
		n.Devices = append(n.Devices, fmt.Sprintf("veth%d.%d", i, j))
		n.Endpoints = append(n.Endpoints, firewall.Endpoint{Device: n.Devices[len(n.Devices)-1], Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i), 0, byte(2 + j)})}})
	}
	if r.IntN(2) == 0 {
		n.Outbound = []netip.Addr{addr("192.0.2.9"), addr("2001:db8::9")}[:1+r.IntN(2)]
	}
	if r.IntN(3) == 0 {
		n.VRF = fmt.Sprintf("vrf%d", i%2)
	}
	return n
}

// vandalise changes the table as others might. It returns what it did, "" for nothing.
func vandalise(t *testing.T, table firewall.Table, r *rand.Rand) (what string) {
	t.Helper()
	family := []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}[r.IntN(2)]
	theirs := &nftables.Table{Name: table.Name, Family: family}
	must(t, table.NS.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return err
		}
		chain := chains[r.IntN(len(chains))]
		rules, err := c.GetRules(theirs, chain)
		if err != nil {
			return err
		}
		switch r.IntN(8) {
		case 0:
			what = "flush ruleset"
			c.FlushRuleset()
		case 1:
			what = "delete table"
			c.DelTable(theirs)
		case 2:
			what = "delete rule of " + chain.Name
			if err := c.DelRule(rules[r.IntN(len(rules))]); err != nil {
				return err
			}
		case 3:
			what = "insert rule into " + chain.Name
			c.InsertRule(&nftables.Rule{Table: theirs, Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
		case 4:
			what = "replace rule of " + chain.Name
			rule := rules[r.IntN(len(rules))]
			rule.Exprs = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
			c.ReplaceRule(rule)
		case 5:
			what = "add chain"
			c.AddChain(&nftables.Chain{Name: "theirs", Table: theirs})
		case 6:
			what = "add element"
			set, err := c.GetSetByName(theirs, "own-devices")
			if err != nil {
				return err
			}
			return errors.Join(c.SetAddElements(set, []nftables.SetElement{{Key: []byte("intruder\x00\x00\x00\x00\x00\x00\x00\x00")}}), c.Flush())
		case 7:
			chain.Table = theirs
			if chain.Hooknum == nil {
				return nil
			}
			what = "change policy of " + chain.Name
			drop := nftables.ChainPolicyDrop
			if chain.Type == nftables.ChainTypeNAT {
				what = ""
				return nil
			}
			c.AddChain(&nftables.Chain{Name: chain.Name, Table: theirs, Type: chain.Type, Hooknum: chain.Hooknum, Priority: chain.Priority, Policy: &drop})
		}
		return c.Flush()
	}))
	return what
}

// What nft prints of the tables it can read again, and the result is the same.
func TestReloadByNFT(t *testing.T) {
	t.Parallel()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("no program nft")
	}
	table := newTable(t)
	s := randomState(rand.New(rand.NewPCG(4, 4)))
	must(t, table.Sync(s))
	var saved []byte
	must(t, table.NS.Do(func() (err error) {
		saved, err = exec.Command(nft, "list", "ruleset").Output()
		return err
	}), table.NS.Do(func() error {
		cmd := exec.Command(nft, "-f", "-")
		cmd.Stdin = strings.NewReader("flush ruleset\n" + string(saved))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("nft -f: %s\nof %s", out, saved)
		}
		return err
	}))
	assertState(t, table, s)
}

// The number of rules does not depend on the State.
func TestConstantRules(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	count := func(s firewall.State) (n int) {
		must(t, table.Sync(s))
		must(t, table.NS.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			chains, err := c.ListChains()
			for _, chain := range chains {
				rules, err := c.GetRules(chain.Table, chain)
				if err != nil {
					return err
				}
				n += len(rules)
			}
			return err
		}))
		return n
	}
	none := count(firewall.State{})
	for _, size := range []struct{ endpoints, ports int }{{1, 1}, {100, 500}, {1000, 10000}} {
		if n := count(largeState(size.endpoints, size.ports)); n != none || n == 0 {
			t.Errorf("%d endpoints, %d ports: %d rules, without any %d", size.endpoints, size.ports, n, none)
		}
	}
}

// largeState returns networks of 50 endpoints with a device each, and published ports.
func largeState(endpoints, ports int) (s firewall.State) {
	for i := range endpoints {
		if i%50 == 0 {
			net := byte(i / 50)
			s.Networks = append(s.Networks, firewall.Network{MasqueradeIPv4: true, Prefixes: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, net, 0, 0}), 24), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1: net}), 64)},
				Gateways: []netip.Addr{netip.AddrFrom4([4]byte{10, net, 0, 1}), netip.AddrFrom16([16]byte{0xfd, 1: net, 15: 1})}})
		}
		n := &s.Networks[len(s.Networks)-1]
		n.Devices, n.Endpoints = append(n.Devices, endpoint(i).Device), append(n.Endpoints, endpoint(i))
	}
	for i := range ports {
		s.Ports = append(s.Ports, firewall.Port{Protocol: packet.TCP, HostPort: uint16(10000 + i), To: netip.AddrPortFrom(endpoint(i % endpoints).Addrs[i/2%2], uint16(80+i/endpoints)), BypassFirewall: i%2 == 0})
	}
	return s
}

func endpoint(i int) firewall.Endpoint {
	net, n := byte(i/50), byte(2+i%50)
	return firewall.Endpoint{Device: fmt.Sprintf("cl%d", i), Addrs: []netip.Addr{
		netip.AddrFrom4([4]byte{10, net, 0, n}), netip.AddrFrom16([16]byte{0xfd, 1: net, 15: n})}}
}

// BenchmarkApply publishes a port and removes it, in a table of some size.
func BenchmarkApply(b *testing.B) {
	for _, size := range []struct{ endpoints, ports int }{{1, 1}, {100, 500}, {1000, 10000}} {
		b.Run(fmt.Sprintf("%d endpoints, %d ports", size.endpoints, size.ports), func(b *testing.B) {
			table := newTable(b)
			must(b, table.Sync(largeState(size.endpoints, size.ports)))
			port := firewall.State{Ports: []firewall.Port{{Protocol: packet.TCP, HostPort: 80, To: addrPort("10.0.0.2:80")}}}
			n := firewall.Network{Devices: []string{"new"}, Endpoints: []firewall.Endpoint{{Device: "new", Addrs: []netip.Addr{addr("10.0.0.250")}}}}
			endpoint := firewall.State{Networks: []firewall.Network{n}}
			for name, s := range map[string]firewall.State{"port": port, "endpoint": endpoint} {
				b.Run(name, func(b *testing.B) {
					for range b.N {
						must(b, table.Apply(firewall.Change{Add: s}), table.Apply(firewall.Change{Remove: s}))
					}
				})
			}
		})
	}
}

// BenchmarkSync makes a whole table, and then finds that nothing is to be done.
func BenchmarkSync(b *testing.B) {
	table := newTable(b)
	s := largeState(1000, 10000)
	b.Run("new", func(b *testing.B) {
		for range b.N {
			must(b, table.Remove(), table.Sync(s))
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for range b.N {
			must(b, table.Sync(s))
		}
	})
}
