package firewall_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cleat/lab"
	"cleat/lab/labtest"
	"cleat/link"
	"cleat/network/firewall"
	"cleat/packet"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(ownerEnv); path != "" {
		ownUntilKilled(path)
	}
	flag.Parse()
	lab.SetParallel(8) // tests mostly wait for what must not arrive
	os.Exit(lab.RunTests(m))
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix     { return netip.MustParsePrefix(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// bed is a host with three networks and two other machines:
//
//	client 198.51.100.2 ─ nic 198.51.100.1  host  web 192.0.2.1/26 ── a 192.0.2.2, b 192.0.2.3
//	other  198.51.100.66 ─ nic2 …65                db  192.0.2.65/26 ─ c 192.0.2.66
//	                                              vd 192.0.2.129 ──── d 192.0.2.130
//	                                              ve 192.0.2.129 ──── e 192.0.2.131
//
// web and db are bridges. The third network has no device of its own: the host routes between
// d and e. IPv6 addresses are the same in 2001:db8:0:1::/64 and so on: 2001:db8:0:1::2 is a.
// Every machine runs a server for TCP and UDP at port 80 that tells who asks.
type bed struct {
	t                                  testing.TB
	host, client, other, a, b, c, d, e *lab.Node
	table                              firewall.Table
}

const serverPort = 80

func newBed(t testing.TB) *bed {
	t.Helper()
	lab.Need(t)
	w := &bed{t: t}
	for name, at := range map[string]**lab.Node{"host": &w.host, "client": &w.client, "other": &w.other, "a": &w.a, "b": &w.b, "c": &w.c, "d": &w.d, "e": &w.e} {
		*at = newNode(t, name)
	}
	w.table = firewall.Table{NS: w.host.NS, Name: "cleat-net"}
	must(t, w.host.Sysctl("net/ipv4/ip_forward", "1"), w.host.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	w.cable("nic", w.client, "198.51.100.1/26", "2001:db8:ff::1/64", "198.51.100.2/26", "2001:db8:ff::2/64")
	w.cable("nic2", w.other, "198.51.100.65/26", "2001:db8:fe::1/64", "198.51.100.66/26", "2001:db8:fe::2/64")
	w.bridge("web", "192.0.2.1/26", "2001:db8:0:1::1/64")
	w.bridge("db", "192.0.2.65/26", "2001:db8:0:2::1/64")
	w.port("web", "va", w.a, "192.0.2.2/26", "2001:db8:0:1::2/64")
	w.port("web", "vb", w.b, "192.0.2.3/26", "2001:db8:0:1::3/64")
	w.port("db", "vc", w.c, "192.0.2.66/26", "2001:db8:0:2::2/64")
	w.routed("vd", w.d, "192.0.2.130", "2001:db8:0:3::2")
	w.routed("ve", w.e, "192.0.2.131", "2001:db8:0:3::3")
	for _, n := range []*lab.Node{w.host, w.client, w.other, w.a, w.b, w.c, w.d, w.e} {
		serve(t, n, serverPort)
	}
	return w
}

func newNode(t testing.TB, name string) *lab.Node {
	t.Helper()
	n, err := lab.NewNode(name)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	must(t, n.Sysctl("net/ipv6/conf/default/accept_dad", "0"), n.Sysctl("net/ipv6/conf/all/accept_dad", "0"))
	return n
}

// cable connects a machine to the host, which is its router.
func (w *bed) cable(device string, to *lab.Node, hostAddrs4, hostAddrs6, addr4, addr6 string) {
	w.t.Helper()
	must(w.t, lab.Connect(lab.End{Node: w.host, Name: device}, lab.End{Node: to, Name: "eth0"}, lab.Cable{}),
		w.host.Address(device, prefix(hostAddrs4), prefix(hostAddrs6)),
		to.Address("eth0", prefix(addr4), prefix(addr6)))
	for _, gateway := range []string{hostAddrs4, hostAddrs6} {
		route(w.t, to, "default", prefix(gateway).Addr(), "eth0")
	}
}

func (w *bed) bridge(name, addr4, addr6 string) {
	w.t.Helper()
	_, err := link.Create(w.host.NS, link.BridgeSpec{Attrs: link.Attrs{Name: name}}, link.Target{})
	must(w.t, err, w.host.Address(name, prefix(addr4), prefix(addr6)), link.SetBridgeNetfilter(w.host.NS, false))
}

func (w *bed) port(bridge, device string, to *lab.Node, addr4, addr6 string) {
	w.t.Helper()
	must(w.t, lab.Connect(lab.End{Node: w.host, Name: device}, lab.End{Node: to, Name: "eth0"}, lab.Cable{}))
	port, err := link.Find(w.host.NS, device)
	must(w.t, err, port.SetMaster(bridge), to.Address("eth0", prefix(addr4), prefix(addr6)))
	for _, a := range []string{addr4, addr6} {
		route(w.t, to, "default", prefix(a).Masked().Addr().Next(), "eth0")
	}
}

// routed gives a container a device of its own.
func (w *bed) routed(device string, to *lab.Node, addr4, addr6 string) {
	w.t.Helper()
	gateways := []netip.Addr{addr("192.0.2.129"), addr("2001:db8:0:3::1")}
	must(w.t, lab.Connect(lab.End{Node: w.host, Name: device}, lab.End{Node: to, Name: "eth0"}, lab.Cable{}),
		w.host.Address(device, host(gateways[0]), host(gateways[1])),
		to.Address("eth0", host(addr(addr4)), host(addr(addr6))))
	for i, a := range []string{addr4, addr6} {
		route(w.t, w.host, host(addr(a)).String(), netip.Addr{}, device)
		route(w.t, to, host(gateways[i]).String(), netip.Addr{}, "eth0")
		route(w.t, to, "default", gateways[i], "eth0")
	}
}

// host returns the prefix of one address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// route adds a route to a node.
func route(t testing.TB, n *lab.Node, to string, via netip.Addr, device string) {
	t.Helper()
	h, err := link.Handle(n.NS)
	must(t, err)
	defer h.Close()
	l, err := h.LinkByName(device)
	must(t, err)
	r := netlink.Route{LinkIndex: l.Attrs().Index, Gw: via.AsSlice()}
	if to == "default" {
		to = map[bool]string{true: "0.0.0.0/0", false: "::/0"}[via.Is4()]
	}
	r.Dst, err = netlink.ParseIPNet(to)
	if !via.IsValid() {
		r.Scope, r.Gw = netlink.SCOPE_LINK, nil
	}
	must(t, err, h.RouteAdd(&r))
}

// serve answers with the node's name and the client's address.
func serve(t testing.TB, n *lab.Node, port int) {
	t.Helper()
	labtest.Serve(t, n.NS, fmt.Sprintf("[::]:%d", port), func(c net.Conn) {
		fmt.Fprintf(c, "%s %s", n, peer(c.RemoteAddr()))
	})
	// A socket for each address, since a reply must come from the address that was asked.
	must(t, n.NS.Do(func() error {
		all, err := net.InterfaceAddrs()
		bound := map[netip.Addr]bool{}
		for _, a := range all {
			if ip := prefix(a.String()).Addr(); !ip.IsLinkLocalUnicast() && !bound[ip] {
				bound[ip] = true
				u, err := net.ListenPacket("udp", netip.AddrPortFrom(ip, uint16(port)).String())
				if err != nil {
					return err
				}
				t.Cleanup(func() { u.Close() })
				go answer(u, n.String())
			}
		}
		return err
	}))
}

// answer answers datagrams until the socket is closed.
func answer(u net.PacketConn, name string) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := u.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			u.WriteTo(fmt.Appendf(nil, "%s %s\n%s", name, peer(from), buf[:n]), from)
		}
	}
}

func peer(a net.Addr) netip.Addr {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap()
}

// patience is how long a client waits for an answer that must come, and refusal for one that
// must not.
const (
	patience = 5 * time.Second
	refusal  = 150 * time.Millisecond
)

// ask returns the answer of a server: its name and the address that it sees. It is empty if
// none comes in time.
func ask(t testing.TB, from *lab.Node, network, to string, wait time.Duration) string {
	t.Helper()
	answer := ""
	must(t, from.NS.Do(func() error {
		deadline := time.Now().Add(wait)
		c, err := (&net.Dialer{Deadline: deadline}).Dial(network, to)
		if err != nil {
			return nil
		}
		defer c.Close()
		c.SetDeadline(deadline)
		if network == "udp" {
			answer = askUDP(c, deadline)
			return nil
		}
		b, _ := io.ReadAll(c)
		answer = string(b)
		return nil
	}))
	return answer
}

// questions counts the calls of askUDP.
var questions atomic.Int64

// askUDP asks again and again: neighbour resolution may drop datagrams. It ignores answers to
// earlier calls.
func askUDP(c net.Conn, deadline time.Time) string {
	question := fmt.Sprint("question ", questions.Add(1))
	buf := make([]byte, 1024)
	for time.Now().Before(deadline) {
		if _, err := c.Write([]byte(question)); err != nil {
			continue
		}
		c.SetReadDeadline(time.Now().Add(refusal / 3))
		for {
			n, err := c.Read(buf)
			if err != nil {
				break
			}
			if answer, ok := strings.CutSuffix(string(buf[:n]), "\n"+question); ok {
				return answer
			}
		}
	}
	return ""
}

// reaches asserts that a client gets an answer: the server's name and the client's address as
// the server sees it. An empty answer means that it gets none.
func (w *bed) reaches(from *lab.Node, network, to, answer string) {
	w.t.Helper()
	wait := patience
	if answer == "" {
		wait = refusal
	}
	if got := ask(w.t, from, network, to, wait); got != answer {
		w.t.Errorf("%s asks %s %s: answer %q, want %q", from, network, to, got, answer)
	}
}

// web, db and third return the networks.
func (w *bed) web() firewall.Network {
	return firewall.Network{Devices: []string{"web"}, Endpoints: []firewall.Endpoint{
		{Device: "web", Addrs: []netip.Addr{addr("192.0.2.2"), addr("2001:db8:0:1::2")}},
		{Device: "web", Addrs: []netip.Addr{addr("192.0.2.3"), addr("2001:db8:0:1::3")}},
	}, MasqueradeIPv4: true, MasqueradeIPv6: true,
		Prefixes: []netip.Prefix{prefix("192.0.2.0/26"), prefix("2001:db8:0:1::/64")},
		Gateways: []netip.Addr{addr("192.0.2.1"), addr("2001:db8:0:1::1")}}
}

func (w *bed) db() firewall.Network {
	return firewall.Network{Devices: []string{"db"}, Endpoints: []firewall.Endpoint{
		{Device: "db", Addrs: []netip.Addr{addr("192.0.2.66"), addr("2001:db8:0:2::2")}},
	}, MasqueradeIPv4: true, MasqueradeIPv6: true,
		Prefixes: []netip.Prefix{prefix("192.0.2.64/26"), prefix("2001:db8:0:2::/64")},
		Gateways: []netip.Addr{addr("192.0.2.65"), addr("2001:db8:0:2::1")}}
}

func (w *bed) third() firewall.Network {
	return firewall.Network{Devices: []string{"vd", "ve"}, MasqueradeIPv4: true, MasqueradeIPv6: true,
		Endpoints: []firewall.Endpoint{
			{Device: "vd", Addrs: []netip.Addr{addr("192.0.2.130"), addr("2001:db8:0:3::2")}},
			{Device: "ve", Addrs: []netip.Addr{addr("192.0.2.131"), addr("2001:db8:0:3::3")}},
		},
		Prefixes: []netip.Prefix{prefix("192.0.2.128/26"), prefix("2001:db8:0:3::/64")},
		Gateways: []netip.Addr{addr("192.0.2.129"), addr("2001:db8:0:3::1")}}
}

func (w *bed) sync(s firewall.State) {
	w.t.Helper()
	must(w.t, w.table.Sync(s))
	w.same(s)
}

// same asserts that the kernel's tables are as a State wants them.
func (w *bed) same(s firewall.State) {
	w.t.Helper()
	all, err := w.table.Check(s)
	must(w.t, err)
	for _, d := range all {
		w.t.Errorf("table is not as it should be: %s", d)
	}
}

func publish(proto packet.Protocol, hostPort uint16, to string) firewall.Port {
	return firewall.Port{Protocol: proto, HostPort: hostPort, To: addrPort(to)}
}

// publishIn is publish for a network in a VRF.
func publishIn(vrf string, proto packet.Protocol, hostPort uint16, to string) firewall.Port {
	p := publish(proto, hostPort, to)
	p.VRF = vrf
	return p
}

// both runs a test for TCP and UDP.
func both(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

func protocolOf(network string) packet.Protocol {
	if network == "udp" {
		return packet.UDP
	}
	return packet.TCP
}

// at returns an address as net.Dial wants it.
func at(address string, port uint16) string {
	return netip.AddrPortFrom(addr(address), port).String()
}

// in returns the bed for a subtest.
func (w bed) in(t testing.TB) *bed {
	w.t = t
	return &w
}

func (w *bed) node(name string) *lab.Node {
	for _, n := range []*lab.Node{w.host, w.client, w.other, w.a, w.b, w.c, w.d, w.e} {
		if n.String() == name {
			return n
		}
	}
	w.t.Fatalf("no node %q", name)
	return nil
}
