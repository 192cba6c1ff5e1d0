package firewall_test

import (
	"testing"

	"cleat/network/firewall"
)

// A port published at all addresses is reachable from everywhere, and the server sees the
// client's address. Within a network whose endpoints reach each other without the host, it
// sees the host's.
func TestPublish(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		p := protocolOf(network)
		w.sync(firewall.State{Networks: []firewall.Network{w.web(), w.db(), w.third()}, Ports: []firewall.Port{
			publish(p, 8080, "192.0.2.2:80"), publish(p, 8080, "[2001:db8:0:1::2]:80"),
			publish(p, 8081, "192.0.2.130:80"), publish(p, 8081, "[2001:db8:0:3::2]:80"),
		}})
		for _, tt := range []struct {
			name, from, to string
			port           uint16
			want           string
		}{
			{"from outside", "client", "198.51.100.1", 8080, "a 198.51.100.2"},
			{"from outside", "client", "2001:db8:ff::1", 8080, "a 2001:db8:ff::2"},
			{"at another address", "client", "198.51.100.65", 8080, "a 198.51.100.2"},
			{"at another address", "client", "2001:db8:fe::1", 8080, "a 2001:db8:ff::2"},
			{"routed", "client", "198.51.100.1", 8081, "d 198.51.100.2"},
			{"routed", "client", "2001:db8:ff::1", 8081, "d 2001:db8:ff::2"},
			{"another port", "client", "198.51.100.1", 80, "host 198.51.100.2"},
			{"another machine's port", "client", "198.51.100.66", 8080, ""},
			{"from the host", "host", "198.51.100.1", 8080, "a 198.51.100.1"},
			{"from the host", "host", "2001:db8:ff::1", 8080, "a 2001:db8:ff::1"},
			{"by itself", "a", "198.51.100.1", 8080, "a 192.0.2.1"},
			{"by itself", "a", "2001:db8:ff::1", 8080, "a 2001:db8:0:1::1"},
			{"by a neighbour", "b", "198.51.100.1", 8080, "a 192.0.2.1"},
			{"by a neighbour", "b", "2001:db8:ff::1", 8080, "a 2001:db8:0:1::1"},
			{"by a neighbour at the gateway", "b", "192.0.2.1", 8080, "a 192.0.2.1"},
			{"by another network", "c", "198.51.100.1", 8080, "a 192.0.2.66"},
			{"by another network", "c", "2001:db8:ff::1", 8080, "a 2001:db8:0:2::2"},
			{"routed, by itself", "d", "198.51.100.1", 8081, "d 192.0.2.129"},
			{"routed, by itself", "d", "2001:db8:ff::1", 8081, "d 2001:db8:0:3::1"},
			{"routed, by a neighbour", "e", "198.51.100.1", 8081, "d 192.0.2.131"},
			{"routed, by a neighbour", "e", "2001:db8:ff::1", 8081, "d 2001:db8:0:3::3"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				w := w.in(t)
				w.reaches(w.node(tt.from), network, at(tt.to, tt.port), tt.want)
			})
		}
	})
}

// A port published at one address is reachable there and nowhere else.
func TestPublishAtOneAddress(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		one := publish(protocolOf(network), 8080, "192.0.2.2:80")
		one.HostAddr = addr("198.51.100.1")
		six := publish(protocolOf(network), 8080, "[2001:db8:0:1::2]:80")
		six.HostAddr = addr("2001:db8:ff::1")
		w.sync(firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{one, six}})
		w.reaches(w.client, network, "198.51.100.1:8080", "a 198.51.100.2")
		w.reaches(w.client, network, "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
		w.reaches(w.client, network, "198.51.100.65:8080", "")
		w.reaches(w.client, network, "[2001:db8:fe::1]:8080", "")
		w.reaches(w.client, network, "192.0.2.1:8080", "")
	})
}

// A range maps each port to its counterpart.
func TestPublishRange(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	serve(t, w.a, 81)
	p := publish(protocolOf("tcp"), 8080, "192.0.2.2:80")
	p.Count = 3
	w.sync(firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{p}})
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "198.51.100.1:8081", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "198.51.100.1:8079", "")
	w.reaches(w.client, "tcp", "198.51.100.1:8083", "")
}

// An internal network's ports are published, but its endpoints reach nobody else's.
func TestPublishInternal(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	internal := w.db()
	internal.Internal = true
	tcp := protocolOf("tcp")
	w.sync(firewall.State{Networks: []firewall.Network{w.web(), internal}, Ports: []firewall.Port{
		publish(tcp, 8080, "192.0.2.2:80"), publish(tcp, 8082, "192.0.2.66:80"),
	}})
	w.reaches(w.client, "tcp", "198.51.100.1:8082", "c 198.51.100.2")
	w.reaches(w.c, "tcp", "198.51.100.1:8080", "")
}

// The host reaches published ports at its loopback address, and endpoints do not reach the
// host's loopback.
func TestLoopback(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		n := w.web()
		n.HostAccess = firewall.HostAccessAll
		w.sync(firewall.State{Networks: []firewall.Network{n}, Ports: []firewall.Port{publish(protocolOf(network), 8080, "192.0.2.2:80"), publish(protocolOf(network), 8080, "[2001:db8:0:1::2]:80")}})
		must(t, w.table.RouteLoopback("web"), w.table.RouteLoopback("web"), w.table.RouteLoopback("vd"))
		w.reaches(w.host, network, "127.0.0.1:8080", "a 192.0.2.1")
		w.reaches(w.host, network, "[::1]:8080", "a 2001:db8:0:1::1")
		w.reaches(w.host, network, "127.0.0.1:80", "host 127.0.0.1")
		w.reaches(w.host, network, "[::1]:80", "host ::1")
	})
	w := newBed(t)
	n := w.web()
	n.HostAccess = firewall.HostAccessAll
	w.sync(firewall.State{Networks: []firewall.Network{n}})
	must(t, w.table.RouteLoopback("web"))
	got := collect(t, w.host, "[::]:5000")
	for _, to := range []struct{ src, loopback, own string }{
		{"192.0.2.2:5001", "127.0.0.1:5000", "192.0.2.1:5000"},
		{"[2001:db8:0:1::2]:5001", "[::1]:5000", "[2001:db8:0:1::1]:5000"},
	} {
		for _, dst := range []string{to.loopback, to.own} {
			inject(t, w.a, w.host, "web", addrPort(to.src), addrPort(dst), dst)
		}
		if first := next(t, got); first != to.own {
			t.Errorf("the host's loopback got a datagram of an endpoint: %q", first)
		}
	}
}

// What is published at the host's loopback only is reachable from the host only, and not by
// packets to that address from elsewhere.
func TestPublishAtLoopback(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		p := protocolOf(network)
		one, six := publish(p, 8080, "192.0.2.2:80"), publish(p, 8080, "[2001:db8:0:1::2]:80")
		one.HostAddr, six.HostAddr = addr("127.0.0.1"), addr("::1")
		bypass := publish(p, 5000, "192.0.2.2:5000")
		bypass.HostAddr, bypass.BypassFirewall = addr("127.0.0.1"), true
		s := firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{one, six, bypass}}
		w.sync(s)
		must(t, w.table.RouteLoopback("web"))
		w.reaches(w.host, network, "127.0.0.1:8080", "a 192.0.2.1")
		w.reaches(w.host, network, "[::1]:8080", "a 2001:db8:0:1::1")
		w.reaches(w.client, network, "198.51.100.1:8080", "")
		w.reaches(w.client, network, "[2001:db8:ff::1]:8080", "")
		if network == "udp" {
			got := collect(t, w.a, "[::]:5000")
			inject(t, w.client, w.host, "nic", addrPort("198.51.100.2:5001"), addrPort("127.0.0.1:5000"), "intruder")
			inject(t, w.b, w.host, "web", addrPort("192.0.2.3:5001"), addrPort("127.0.0.1:5000"), "intruder")
			inject(t, w.b, w.a, "eth0", addrPort("192.0.2.3:5001"), addrPort("192.0.2.2:5000"), "neighbour")
			if first := next(t, got); first != "neighbour" {
				t.Errorf("a port published at 127.0.0.1 got a datagram of an %s", first)
			}
		}
	})
}
