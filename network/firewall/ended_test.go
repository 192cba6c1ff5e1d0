package firewall_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/firewall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stream is a TCP connection or a UDP flow with both its ends.
type stream struct {
	client, server net.Conn
	number         byte
}

// listen returns a function that opens a stream from a node to the server through an address.
func listen(t *testing.T, network string, server *lab.Node, local string) func(from *lab.Node, to string) *stream {
	t.Helper()
	if network == "udp" {
		var u net.PacketConn
		must(t, server.NS.Do(func() (err error) {
			u, err = net.ListenPacket("udp", local)
			return err
		}))
		t.Cleanup(func() { u.Close() })
		return func(from *lab.Node, to string) *stream {
			c := dialUDP(t, from, to)
			buf := make([]byte, 10)
			for range 20 { // the first datagrams may be lost
				c.Write([]byte("hello"))
				u.SetReadDeadline(time.Now().Add(refusal))
				if _, peer, err := u.ReadFrom(buf); err == nil {
					return &stream{client: c, server: &datagrams{u, peer}}
				}
			}
			t.Fatalf("no datagram from %s to %s arrives", from, to)
			return nil
		}
	}
	var l net.Listener
	must(t, server.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", local)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return func(from *lab.Node, to string) *stream {
		s := &stream{}
		must(t, from.NS.Do(func() (err error) {
			s.client, err = net.DialTimeout("tcp", to, patience)
			return err
		}))
		l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		var err error
		s.server, err = l.Accept()
		must(t, err)
		t.Cleanup(s.close)
		return s
	}
}

// datagrams are those of one peer.
type datagrams struct {
	net.PacketConn
	peer net.Addr
}

func (d *datagrams) Write(b []byte) (int, error) { return d.WriteTo(b, d.peer) }
func (d *datagrams) RemoteAddr() net.Addr        { return d.peer }
func (d *datagrams) Read(b []byte) (int, error) {
	n, _, err := d.ReadFrom(b)
	return n, err
}

// close closes a connection without the packets that would end it.
func (s *stream) close() {
	for _, c := range []net.Conn{s.client, s.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0)
			tcp.Close()
		}
	}
}

// passes reports whether what is written at one end arrives at the other.
func (s *stream) passes(from, to net.Conn, wait time.Duration) bool {
	s.number++
	from.Write(bytes.Repeat([]byte{s.number}, 8))
	deadline := time.Now().Add(wait)
	to.SetReadDeadline(deadline)
	buf := make([]byte, 8)
	for time.Now().Before(deadline) {
		if n, err := to.Read(buf); err != nil || n > 0 && buf[n-1] == s.number {
			return err == nil
		}
	}
	return false
}

// lives asserts that a stream works in both directions.
func (s *stream) lives(t *testing.T, what string) {
	t.Helper()
	for _, ends := range [][2]net.Conn{{s.client, s.server}, {s.server, s.client}} {
		if !s.passes(ends[0], ends[1], patience) {
			t.Errorf("%s has ended", what)
			return
		}
	}
}

// ended asserts that nothing arrives at either end, whichever sends first.
func (s *stream) ended(t *testing.T, what string, serverFirst bool) {
	t.Helper()
	ends := [][2]net.Conn{{s.client, s.server}, {s.server, s.client}, {s.client, s.server}}
	if serverFirst {
		ends = ends[1:]
	}
	for _, e := range ends {
		if s.passes(e[0], e[1], 2*refusal) {
			t.Errorf("%s goes on", what)
			return
		}
	}
}

// denial is a change after which some connections are no longer permitted.
type denial struct {
	name          string
	server        string // its node
	from          string
	to4, to6      string // addresses that the client connects to
	port          uint16
	before, after func(*firewall.State)
	opposite      bool // the server may open connections to the client
}

func flow(accept, inbound bool, from, to string, port uint16) firewall.Flow {
	a, b := prefix(from), prefix(to)
	f := firewall.Flow{FromFirst: a.Addr(), FromLast: lastOf(a), ToFirst: b.Addr(), ToLast: lastOf(b), LastProtocol: 255, FirstPort: port, LastPort: port, Accept: accept, Inbound: inbound}
	if port == 0 {
		f.LastPort = 65535
	}
	return f
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// flows returns a change that adds a flow for each family.
func flows(accept, inbound bool, port uint16, ends ...string) func(*firewall.State) {
	return func(s *firewall.State) {
		for i := 0; i < len(ends); i += 2 {
			s.Flows = append(s.Flows, flow(accept, inbound, ends[i], ends[i+1], port))
		}
	}
}

func changes(all ...func(*firewall.State)) func(*firewall.State) {
	return func(s *firewall.State) {
		for _, f := range all {
			f(s)
		}
	}
}

func denials() []denial {
	const d4, e4, d6, e6 = "192.0.2.130/32", "192.0.2.131/32", "2001:db8:0:3::2/128", "2001:db8:0:3::3/128"
	same := func(*firewall.State) {}
	return []denial{
		{"a flow inside a network", "e", "d", "192.0.2.131", "2001:db8:0:3::3", 7000, same, flows(false, false, 7000, d4, e4, d6, e6), true},
		{"a flow inside a network, whose opposite is allowed", "e", "d", "192.0.2.131", "2001:db8:0:3::3", 7000,
			flows(true, false, 0, e4, d4, e6, d6), changes(flows(true, false, 0, e4, d4, e6, d6), flows(false, false, 7000, d4, e4, d6, e6)), true},
		{"a flow that was an exception to isolation", "c", "a", "192.0.2.66", "2001:db8:0:2::2", 7000,
			flows(true, false, 7000, "192.0.2.2/32", "192.0.2.66/32", "2001:db8:0:1::2/128", "2001:db8:0:2::2/128"), same, false},
		{"an allowed pair", "c", "a", "192.0.2.66", "2001:db8:0:2::2", 7000, func(s *firewall.State) {
			s.Allow = []firewall.Pair{{From: prefix("192.0.2.0/26"), To: prefix("192.0.2.64/26")}, {From: prefix("2001:db8:0:1::/64"), To: prefix("2001:db8:0:2::/64")}}
		}, same, false},
		{"a flow to the outside", "other", "a", "198.51.100.66", "2001:db8:fe::2", 7000, same,
			flows(false, false, 7000, "192.0.2.2/32", "198.51.100.0/24", "2001:db8:0:1::2/128", "2001:db8:fe::/64"), false},
		{"an internal network", "other", "a", "198.51.100.66", "2001:db8:fe::2", 7000, same, func(s *firewall.State) { s.Networks[0].Internal = true }, false},
		{"a client of a published port", "a", "client", "198.51.100.1", "2001:db8:ff::1", 8080, same,
			flows(false, true, 7000, "198.51.100.2/32", "192.0.2.2/32", "2001:db8:ff::2/128", "2001:db8:0:1::2/128"), false},
		{"a client of a port that bypasses the firewall", "a", "client", "198.51.100.1", "2001:db8:ff::1", 8081, same,
			flows(false, true, 7000, "198.51.100.2/32", "192.0.2.2/32", "2001:db8:ff::2/128", "2001:db8:0:1::2/128"), false},
		{"access to the host", "host", "d", "192.0.2.129", "2001:db8:0:3::1", 7000,
			func(s *firewall.State) { s.Networks[2].HostAccess = firewall.HostAccessGateway }, same, false},
	}
}

// What a change denies ends, whichever end sends the next packet and whatever the kernel thinks
// of connections that it sees the middle of. All else goes on, with its translation.
func TestEndConnections(t *testing.T) {
	t.Parallel()
	for _, loose := range []string{"0", "1"} {
		for _, liberal := range []string{"0", "1"} {
			t.Run(fmt.Sprintf("tcp, loose %s, liberal %s", loose, liberal), func(t *testing.T) {
				t.Parallel()
				w := newBed(t)
				must(t, w.host.Sysctl("net/netfilter/nf_conntrack_tcp_loose", loose), w.host.Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal", liberal))
				w.testDenials("tcp")
			})
		}
	}
	t.Run("udp", func(t *testing.T) {
		t.Parallel()
		newBed(t).testDenials("udp")
	})
}

func (w *bed) testDenials(network string) {
	for _, d := range denials() {
		w.t.(*testing.T).Run(d.name, func(t *testing.T) { w.in(t).testDenial(t, network, d) })
	}
}

func (w *bed) testDenial(t *testing.T, network string, d denial) {
	p := protocolOf(network)
	state := func(change func(*firewall.State)) firewall.State {
		s := firewall.State{Networks: []firewall.Network{w.web(), w.db(), w.third()}, Ports: []firewall.Port{
			publish(p, 8080, "192.0.2.2:7000"), publish(p, 8080, "[2001:db8:0:1::2]:7000"),
			publish(p, 8081, "192.0.2.2:7000"), publish(p, 8081, "[2001:db8:0:1::2]:7000"),
		}}
		s.Ports[2].BypassFirewall, s.Ports[3].BypassFirewall = true, true
		change(&s)
		return s
	}
	before, after := state(d.before), state(d.after)
	w.table.Ended = filepath.Join(t.TempDir(), "ended")
	noted := func(when string, want bool) {
		t.Helper()
		if _, err := os.Stat(w.table.Ended); (err == nil) != want {
			t.Errorf("%s, ended connections are noted: %v, want %v", when, err == nil, want)
		}
	}
	forgetAll(t, w.host)
	w.sync(before)
	var doomed, others []*stream
	open := listen(t, network, w.node(d.server), "[::]:7000")
	for _, to := range []string{d.to4, d.to6, d.to4, d.to6} {
		doomed = append(doomed, open(w.node(d.from), at(to, d.port)))
	}
	// Others: to the outside with a translated source, to a published port, and inside.
	for _, o := range []struct {
		server, from string
		to           []string
		port         uint16
	}{
		{"client", "c", []string{"198.51.100.2", "2001:db8:ff::2"}, 7001},
		{"e", "d", []string{"192.0.2.131", "2001:db8:0:3::3"}, 7001},
		{"a", "other", []string{"198.51.100.1", "2001:db8:ff::1"}, 8080},
	} {
		open := open
		if o.server != d.server || o.port != 8080 {
			local := "[::]:7001"
			if o.port == 8080 {
				local = "[::]:7000"
			}
			open = listen(t, network, w.node(o.server), local)
		}
		for _, to := range o.to {
			others = append(others, open(w.node(o.from), at(to, o.port)))
		}
	}
	for _, s := range append(doomed, others...) {
		s.lives(t, "a stream before the change")
	}
	must(t, w.table.Sync(after))
	if n, err := w.table.EndConnections(before, after); n != len(doomed) || err != nil {
		t.Errorf("ended %d connections, %v, want %d", n, err, len(doomed))
	}
	noted("after the change", network == "tcp")
	var waiting sync.WaitGroup
	for i, s := range doomed {
		// What the host itself sends is not the table's business, and what a UDP server sends to a
		// client that it may reach is as good as a new flow.
		if d.server == "host" || network == "udp" && d.opposite {
			waiting.Go(func() {
				if s.passes(s.client, s.server, 2*refusal) {
					t.Errorf("the server of a denied stream is still reached")
				}
			})
			continue
		}
		waiting.Go(func() { s.ended(t, "a denied stream", i >= 2) })
	}
	waiting.Wait()
	for i, s := range others {
		s.lives(t, fmt.Sprintf("allowed stream %d", i))
	}
	if n, err := w.table.EndConnections(after, after); n != 0 || err != nil {
		t.Errorf("without a change, ended %d connections, %v", n, err)
	}
	must(t, w.table.Sync(before))
	if _, err := w.table.EndConnections(after, before); err != nil {
		t.Error(err)
	}
	noted("after its reversal", false)
	open(w.node(d.from), at(d.to4, d.port)).lives(t, "a stream that is permitted again")
	for _, s := range append(doomed, others...) {
		s.close()
	}
}

// A TCP connection that the kernel sees the middle of first belongs to the client with the higher
// port, whichever end has sent the packet.
func TestEndPickedUp(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("tracked before the change: %v", known), func(t *testing.T) {
			w := newBed(t)
			before := firewall.State{Networks: []firewall.Network{w.third()}}
			after := before
			after.Flows = []firewall.Flow{flow(false, false, "192.0.2.130/32", "192.0.2.131/32", 7000)}
			w.sync(before)
			doomed := listen(t, "tcp", w.e, "[::]:7000")(w.d, "192.0.2.131:7000")
			other := listen(t, "tcp", w.e, "[::]:7001")(w.d, "192.0.2.131:7001")
			forgetAll(t, w.host)
			if known {
				for _, s := range []*stream{doomed, other} {
					if !s.passes(s.server, s.client, patience) {
						t.Fatal("the connection is not picked up")
					}
				}
			}
			must(t, w.table.Sync(after))
			want := map[bool]int{true: 1}[known]
			if n, err := w.table.EndConnections(before, after); n != want || err != nil {
				t.Errorf("ended %d connections, %v, want %d", n, err, want)
			}
			doomed.ended(t, "a denied stream", true)
			other.lives(t, "an allowed stream")
		})
	}
}

func forgetAll(t *testing.T, n *lab.Node) {
	t.Helper()
	must(t, n.NS.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		return h.ConntrackTableFlush(netlink.ConntrackTable)
	}))
}

// BenchmarkEndConnections changes a flow where some connections are tracked, none of which ends.
func BenchmarkEndConnections(b *testing.B) {
	for _, connections := range []int{100, 50_000} {
		table := newTable(b)
		track(b, table, connections)
		for _, flows := range []int{1, 10_000} {
			for _, from := range []string{"198.51.100.77/32", "198.51.100.64/26"} {
				b.Run(fmt.Sprintf("%d connections, %d flows, from %s", connections, flows, from), func(b *testing.B) {
					s := firewall.State{Networks: []firewall.Network{{Prefixes: []netip.Prefix{prefix("198.51.100.0/24")}}}}
					for i := range flows {
						f := flow(false, false, from, "203.0.113.0/24", 0)
						f.ToLast = netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
						f.ToFirst = f.ToLast.Prev()
						s.Flows = append(s.Flows, f)
					}
					before := s
					before.Flows = s.Flows[1:]
					for b.Loop() {
						if _, err := table.EndConnections(before, s); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
