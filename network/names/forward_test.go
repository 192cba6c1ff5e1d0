package names

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestForward(t *testing.T) {
	needLoopback(t)
	u := startUpstream(t, resolver)
	own := startUpstream(t, "127.0.0.54:5353")
	c, _ := start(t, "nameserver 127.0.0.53\n")
	open := func(edit func(*Network)) Network {
		n := shop
		n.NoForward = false
		edit(&n)
		return n
	}
	for _, tt := range []struct {
		name    string
		network Network
		query   string
		typ     dnsmessage.Type
		want    string
		asked   bool // one of the resolvers
	}{
		{"foreign", open(func(*Network) {}), "www.example", dnsmessage.TypeA, "Success, 203.0.113.1", true},
		{"foreign, unknown", open(func(*Network) {}), "no.such", dnsmessage.TypeA, "NameError", true},
		{"own", open(func(*Network) {}), "web", dnsmessage.TypeA, "Success, 192.0.2.10", false},
		{"one label", open(func(*Network) {}), "nas", dnsmessage.TypeA, "NameError, authority SOA of . for 0 s", false},
		{"one label, forwarded", open(func(n *Network) { n.SingleLabels = true }), "nas", dnsmessage.TypeA, "Success, 203.0.113.1", true},
		{"top-level domain", open(func(*Network) {}), "example", dnsmessage.TypeNS, "Success", true},
		{"foreign reverse", open(func(*Network) {}), "1.113.0.203.in-addr.arpa", dnsmessage.TypePTR, "NameError", true},
		{"foreign reverse, subnet above ours", open(func(*Network) {}), "0.192.in-addr.arpa", dnsmessage.TypeSOA, "NameError", true},
		{"own reverse", open(func(*Network) {}), "99.2.0.192.in-addr.arpa", dnsmessage.TypePTR, "NameError, authority SOA of 2.0.192.in-addr.arpa. for 0 s", false},
		{"internal network", shop, "www.example", dnsmessage.TypeA, "NameError", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, c.Replace(t.Context(), tt.network))
			serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
			defer func() { must(t, c.Stop(t.Context(), "gw")) }()
			for _, network := range []string{"udp", "tcp"} {
				before := u.asked.Load()
				if got := exchange(t, network, tt.query, tt.typ); got != tt.want {
					t.Errorf("%s: got %s, want %s", network, got, tt.want)
				}
				if asked := u.asked.Load() > before; asked != tt.asked {
					t.Errorf("%s: the resolver was asked: %t", network, asked)
				}
			}
		})
	}
	if n := own.asked.Load(); n > 0 {
		t.Errorf("a resolver that nobody has named got %d queries", n)
	}
	must(t, c.Replace(t.Context(), open(func(*Network) {})))
	must(t, c.Replace(t.Context(), open(func(n *Network) { n.Upstream = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.54:5353")} })))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	before := u.asked.Load()
	if got := exchange(t, "udp", "www.example", dnsmessage.TypeA); got != "Success, 203.0.113.1" || own.asked.Load() == 0 || u.asked.Load() > before {
		t.Errorf("%s; the network's own resolver got %d queries", got, own.asked.Load())
	}
}

// exchange sends a query to the gateway over UDP or TCP.
func exchange(t *testing.T, network, name string, typ dnsmessage.Type) string {
	t.Helper()
	if network == "udp" {
		return lookUp(t, gateway, name, typ)
	}
	conn := dialTo(t, "tcp", gateway)
	_, err := conn.Write(onStream(ask(t, name, typ)))
	must(t, err)
	return show(readAnswer(t, conn))
}

// The resolvers are those that resolv.conf names at the time.
func TestResolvConfChanges(t *testing.T) {
	needLoopback(t)
	startUpstream(t, resolver)
	c, path := start(t, "nameserver 127.0.0.99\noptions timeout:1 attempts:1\n")
	open := shop
	open.NoForward = false
	must(t, c.Replace(t.Context(), open))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	if got := lookUp(t, gateway, "www.example", dnsmessage.TypeA); got != "ServerFailure" {
		t.Errorf("without a resolver: %s", got)
	}
	must(t, os.WriteFile(filepath.Join(filepath.Dir(path), "resolv.conf"), []byte("nameserver 127.0.0.53\n"), 0o600))
	deadline := time.Now().Add(10 * time.Second)
	for lookUp(t, gateway, "www.example", dnsmessage.TypeA) != "Success, 203.0.113.1" {
		if time.Now().After(deadline) {
			t.Fatal("the new resolver is not asked")
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestLoops(t *testing.T) {
	needLoopback(t)
	u := startUpstream(t, resolver)
	open := shop
	open.NoForward = false
	for _, tt := range []struct {
		name, conf, from, want string
		asked                  bool
	}{
		{"own address among the resolvers", "nameserver 127.0.0.11\nnameserver 127.0.0.53\n", "127.0.0.1", "Success, 203.0.113.1", true},
		{"own address is the only resolver", "nameserver 127.0.0.11\n", "127.0.0.1", "ServerFailure", false},
		{"the host's resolver asks us", "nameserver 127.0.0.53\n", "127.0.0.11", "Refused", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := start(t, tt.conf)
			must(t, c.Replace(t.Context(), open))
			serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(tt.from)}}
			conn, err := d.DialContext(t.Context(), "udp", gateway)
			must(t, err)
			defer conn.Close()
			must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			before := u.asked.Load()
			if got := show(queryOn(t, conn, "www.example", dnsmessage.TypeA)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got := show(queryOn(t, conn, "web", dnsmessage.TypeA)); got != "Success, 192.0.2.10" {
				t.Errorf("own name: %s", got)
			}
			if asked := u.asked.Load() > before; asked != tt.asked {
				t.Errorf("the resolver was asked: %t", asked)
			}
			state, err := c.State(t.Context())
			must(t, err)
			if got := state.Sockets[0].Forwarded; got > 1 {
				t.Errorf("%d queries were forwarded", got)
			}
		})
	}
}

// One client's forwarded queries leave room for those of others.
func TestClientsShare(t *testing.T) {
	needLoopback(t)
	u := startUpstream(t, resolver)
	c, _ := start(t, "nameserver 127.0.0.53\noptions timeout:30\n")
	open := shop
	open.NoForward = false
	must(t, c.Replace(t.Context(), open))
	serveAt(t, c, gateway, Socket{ID: "gw", Networks: []string{"shop"}})
	greedy := dialTo(t, "udp", gateway)
	for i := range 10 * maxForwarded {
		m := ask(t, "slow.example", dnsmessage.TypeA)
		binary.BigEndian.PutUint16(m, uint16(i))
		_, err := greedy.Write(m)
		must(t, err)
	}
	waitFor(t, "the greedy client is limited", func() bool {
		state, err := c.State(t.Context())
		must(t, err)
		k := state.Sockets[0]
		return k.Forwarded == maxForwarded && k.Dropped == 9*maxForwarded
	})
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 99)}}
	other, err := d.DialContext(t.Context(), "udp", gateway)
	must(t, err)
	defer other.Close()
	must(t, other.SetDeadline(time.Now().Add(10*time.Second)))
	if got := show(queryOn(t, other, "www.example", dnsmessage.TypeA)); got != "Success, 203.0.113.1" {
		t.Error(got)
	}
	u.unblock()
	buf := make([]byte, 1500)
	for range maxForwarded {
		_, err := greedy.Read(buf)
		must(t, err)
	}
	if got := show(queryOn(t, greedy, "www.example", dnsmessage.TypeA)); got != "Success, 203.0.113.1" {
		t.Errorf("the greedy client afterwards: %s", got)
	}
}

// waitFor waits for a condition, for at most 10 s.
func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 10 s", what)
		}
	}
}
