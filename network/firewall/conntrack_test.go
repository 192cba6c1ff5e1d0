package firewall_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"cleat/lab"
	"cleat/link"
	"cleat/network/firewall"
	"cleat/packet"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A UDP client that was refused before a port was published reaches the container afterwards,
// and one that reached it does not afterwards, although neither changes its own port.
func TestForgetConnections(t *testing.T) {
	t.Parallel()
	for _, bypass := range []bool{false, true} {
		for _, v := range []struct{ to, container, answer string }{
			{"198.51.100.1:8080", "192.0.2.2:80", "a 198.51.100.2"},
			{"[2001:db8:ff::1]:8080", "[2001:db8:0:1::2]:80", "a 2001:db8:ff::2"},
		} {
			t.Run(fmt.Sprintf("%s, bypass %v", v.to, bypass), func(t *testing.T) {
				w := newBed(t)
				networks := firewall.State{Networks: []firewall.Network{w.web()}}
				w.sync(networks)
				p := publish(packet.UDP, 8080, v.container)
				p.BypassFirewall = bypass
				ports := firewall.State{Ports: []firewall.Port{p}}
				collect(t, w.host, "[::]:8080") // so that the client is tracked, and gets no answer
				c := dialUDP(t, w.client, v.to)
				other := dialUDP(t, w.client, "198.51.100.66:80")
				forget := func(c firewall.Change, want int) {
					t.Helper()
					if n, err := w.table.ForgetConnections(c, 0); n != want || err != nil {
						t.Errorf("forgot %d connections, %v, want %d", n, err, want)
					}
				}
				assertAnswer(t, c, "")
				assertAnswer(t, other, "other 198.51.100.2")
				add, remove := firewall.Change{Add: ports}, firewall.Change{Remove: ports}
				forget(remove, 0) // the connection is the host's own
				must(t, w.table.Apply(add))
				assertAnswer(t, c, "")
				forget(add, 1)
				assertAnswer(t, c, v.answer)
				forget(add, 0) // clients of the container may have come in the meantime
				must(t, w.table.Apply(remove))
				assertAnswer(t, c, v.answer)
				forget(remove, 1)
				assertAnswer(t, c, "")
				assertAnswer(t, other, "other 198.51.100.2")
				forget(firewall.Change{}, 0)
			})
		}
	}
}

// The connections of an endpoint are those from and to its addresses.
func TestForgetEndpoint(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	s := firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{publish(packet.TCP, 8080, "192.0.2.2:80")}}
	w.sync(s)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2") // one to a
	w.reaches(w.a, "udp", "198.51.100.66:80", "other 198.51.100.65")  // one from a
	w.reaches(w.b, "udp", "198.51.100.66:80", "other 198.51.100.65")
	a := firewall.Network{Endpoints: w.web().Endpoints[:1]}
	if n, err := w.table.ForgetConnections(firewall.Change{Remove: firewall.State{Networks: []firewall.Network{a}}}, 0); n != 2 || err != nil {
		t.Errorf("forgot %d connections, %v, want 2", n, err)
	}
}

// Many ports at once are the same as one by one.
func TestForgetManyPorts(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	const flows = 3000
	track(t, table, flows)
	s := firewall.State{}
	for i := range 100 {
		s.Ports = append(s.Ports, publish(packet.UDP, uint16(10000+2*i), "192.0.2.2:80"))
	}
	ranges := publish(packet.UDP, 10201, "192.0.2.2:80")
	ranges.Count = 100
	s.Ports = append(s.Ports, ranges)
	if n, err := table.ForgetConnections(firewall.Change{Add: s}, 0); n != 200 || err != nil {
		t.Errorf("forgot %d connections, %v, want 200", n, err)
	}
	if n, err := table.ForgetConnections(firewall.Change{Add: s}, 0); n != 0 || err != nil {
		t.Errorf("forgot %d connections, %v, want none", n, err)
	}
}

// Calls of an owner that may be put off are joined, and begin with the first that may not.
func TestForgetTogether(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	owner, err := table.Own()
	must(t, err)
	defer owner.Close()
	track(t, table, 100)
	port := func(n uint16) firewall.Change {
		return firewall.Change{Add: firewall.State{Ports: []firewall.Port{publish(packet.UDP, n, "192.0.2.2:80")}}}
	}
	got := make(chan int, 3)
	forget := func(n uint16, within time.Duration) {
		n2, err := owner.ForgetConnections(port(n), within)
		if err != nil {
			t.Error(err)
		}
		got <- n2
	}
	go forget(10001, time.Hour)
	go forget(10002, time.Hour)
	select {
	case n := <-got:
		t.Errorf("forgot %d connections at once", n)
	case <-time.After(50 * time.Millisecond):
	}
	forget(10003, 0)
	for range 3 {
		if n := <-got; n != 3 {
			t.Errorf("forgot %d connections in one search, want 3", n)
		}
	}
	forget(10004, time.Millisecond)
	if n := <-got; n != 1 {
		t.Errorf("forgot %d connections after a millisecond, want 1", n)
	}
}

// track adds UDP connections from 198.51.100.2 to ports from 10000 on of 192.0.2.1, which is
// the node's own address.
func track(t testing.TB, table firewall.Table, n int) {
	t.Helper()
	h, err := link.Handle(table.NS)
	must(t, err)
	defer h.Close()
	lo, err := h.LinkByName("lo")
	must(t, err, h.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(32, 32)}}), table.Sync(firewall.State{}))
	must(t, table.NS.Do(func() error {
		c, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range n {
			src, dst := net.IPv4(198, 51, 100, byte(2+i/50000)).To4(), net.IPv4(192, 0, 2, 1).To4()
			sport, dport := uint16(1024+i), uint16(10000+i%50000)
			flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 1000,
				Forward: netlink.IPTuple{SrcIP: src, DstIP: dst, SrcPort: sport, DstPort: dport, Protocol: unix.IPPROTO_UDP},
				Reverse: netlink.IPTuple{SrcIP: dst, DstIP: src, SrcPort: dport, DstPort: sport, Protocol: unix.IPPROTO_UDP}}
			if err := c.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
		}
		return nil
	}))
}

func dialUDP(t *testing.T, from *lab.Node, to string) (c net.Conn) {
	t.Helper()
	must(t, from.NS.Do(func() (err error) {
		c, err = net.Dial("udp", to)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

func assertAnswer(t *testing.T, c net.Conn, want string) {
	t.Helper()
	wait := patience
	if want == "" {
		wait = refusal
	}
	if got := askUDP(c, time.Now().Add(wait)); got != want {
		t.Errorf("answer of %s is %q, want %q", c.RemoteAddr(), got, want)
	}
}

// BenchmarkForgetConnections publishes ports where many connections are tracked, none of
// which is to be forgotten.
func BenchmarkForgetConnections(b *testing.B) {
	table := newTable(b)
	track(b, table, 100_000)
	for _, ports := range []int{1, 8, 1000} {
		b.Run(fmt.Sprintf("%d ports", ports), func(b *testing.B) {
			p := firewall.Port{Protocol: packet.TCP, HostPort: 1, Count: uint16(ports), To: netip.MustParseAddrPort("192.0.2.2:80")}
			for range b.N {
				_, err := table.ForgetConnections(firewall.Change{Add: firewall.State{Ports: []firewall.Port{p}}}, 0)
				must(b, err)
			}
		})
	}
	b.Run("50,000 of 100,000", func(b *testing.B) {
		for range b.N {
			p := firewall.Port{Protocol: packet.UDP, HostPort: 10000, Count: 25000, To: netip.MustParseAddrPort("192.0.2.2:80")}
			n, err := table.ForgetConnections(firewall.Change{Add: firewall.State{Ports: []firewall.Port{p}}}, 0)
			must(b, err)
			b.Log(n)
		}
	})
}
