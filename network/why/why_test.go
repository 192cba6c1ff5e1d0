package why_test

import (
	"strings"
	"testing"

	"cleat/link"
	"cleat/network/named"
	"cleat/network/names"
	"cleat/network/why"
)

// Each mistake is made for real. The verdict names it, and Try what to do about it. In both, PID
// stands for the process of a.
func TestCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		make     func(tb *testbed)
		from, to string // default: a, b:80
		cause    why.Cause
		verdict  string // a part of it
		try      string
	}{
		"nothing": {make: together, verdict: "a reaches b:80 at 10.20.1.3"},
		"not connected": {
			make:  func(tb *testbed) { tb.network("web", 1, "a"); tb.listen("b", ":80") },
			cause: why.NotConnected, verdict: "b is on no network", try: "cleat net connect web b",
		},
		"source not connected": {
			make:  func(tb *testbed) { tb.network("web", 1, "b"); tb.listen("b", ":80") },
			cause: why.NotConnected, verdict: "a is on no network", try: "cleat net connect web a",
		},
		"other network": {
			make:  apart,
			cause: why.OtherNetwork, verdict: "a is on web, b on db, and networks are kept apart", try: "cleat net allow web/a to db/b:80/tcp",
		},
		"other network, without a port": {
			make: apart, to: "b",
			cause: why.OtherNetwork, verdict: "a is on web, b on db, and networks are kept apart", try: "cleat net connect db a",
		},
		"allowed to another network, but not its names": {
			make:  func(tb *testbed) { apart(tb); tb.rule("allow web/a to db/b:80/tcp") },
			cause: why.UnknownName, verdict: "a reaches 10.20.2.2, but not by the name b: b has that name on db, where a is not", try: "cleat net connect db a",
		},
		"allowed to another network": {
			make: func(tb *testbed) { apart(tb); tb.rule("allow web/a to db/b:80/tcp") }, to: "db/b:80",
			verdict: "a reaches db/b:80 at 10.20.2.2",
		},
		"a rule denies": {
			make:  func(tb *testbed) { together(tb); tb.rule("deny web/a to web/b:80") },
			cause: why.RuleDenies, verdict: `the rule "deny web/a to web/b:80" denies it`, try: "cleat net deny --remove web/a to web/b:80",
		},
		"the source's link is down": {
			make:  func(tb *testbed) { together(tb); tb.run("a ip link set eth0 down") },
			cause: why.LinkDown, verdict: "somebody brought eth0 of a down, its link to web", try: "cleat net check --repair",
		},
		"the destination's link is down": {
			make:  func(tb *testbed) { together(tb); tb.run("b ip link set eth0 down") },
			cause: why.LinkDown, verdict: "somebody brought eth0 of b down, its link to web", try: "cleat net check --repair",
		},
		"the address was removed": {
			make:  func(tb *testbed) { together(tb); tb.run("b ip addr flush dev eth0") },
			cause: why.AddressMissing, verdict: "somebody removed the address 10.20.1.3 from eth0 of b", try: "nsenter -t PID-b -n ip addr add 10.20.1.3/24 dev eth0",
		},
		"loopback only": {
			make:  func(tb *testbed) { tb.network("web", 1, "a", "b"); tb.listen("b", "127.0.0.1:80") },
			cause: why.Loopback, verdict: "of b listens only at 127.0.0.1:80, which only b itself reaches", try: "make it listen at 0.0.0.0:80 in b",
		},
		"no program": {
			make:  func(tb *testbed) { tb.network("web", 1, "a", "b") },
			cause: why.NoListener, verdict: "no program of b listens on port 80", try: "start the program of b that is to have port 80",
		},
		"another port": {
			make:  func(tb *testbed) { tb.network("web", 1, "a", "b"); tb.listen("b", ":8080") },
			cause: why.NoListener, verdict: "no program of b listens on port 80, but one does on 8080", try: "cleat net why a b:8080",
		},
		"a foreign rule": {
			make: func(tb *testbed) {
				apart(tb)
				tb.rule("allow web/a to db/b:80/tcp")
				tb.run(`host nft 'add table inet fw; add chain inet fw forward { type filter hook forward priority 0; }; add rule inet fw forward ip saddr 10.20.1.0/24 counter drop'`)
			},
			to:    "db/b:80",
			cause: why.Firewall, verdict: "a rule in chain forward of table inet fw in the host drops the packets: nfproto ipv4 ip saddr 10.20.1.0/24 counter packets", try: "nft insert rule inet fw forward ip saddr 10.20.1.2 ip daddr 10.20.2.2 accept",
		},
		"a foreign policy": {
			make: func(tb *testbed) {
				apart(tb)
				tb.rule("allow web/a to db/b:80/tcp")
				tb.run(`host nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }; add rule ip filter FORWARD ct state established,related accept'`)
			},
			to:    "db/b:80",
			cause: why.Drift, verdict: "chain FORWARD of table ip filter (iptables) drops by default at hook forward, without an exception for networks", try: "cleat net check --repair",
		},
		"wrong resolv.conf": {
			make:  func(tb *testbed) { together(tb); tb.write("a", "resolv.conf", "nameserver 192.0.2.53\n") },
			cause: why.ResolvConf, verdict: "a reaches 10.20.1.3, but not by the name b: a asks the name server 192.0.2.53, not 10.20.1.1, which knows the names of web", try: "echo nameserver 10.20.1.1 > /proc/PID/root/etc/resolv.conf",
		},
		"hosts file": {
			make:  func(tb *testbed) { together(tb); tb.write("a", "hosts", "192.0.2.9 b\n") },
			cause: why.HostsFile, verdict: "the hosts file of a has the address 192.0.2.9 for b", try: "remove the line with b from /proc/PID/root/etc/hosts",
		},
		"no name server": {
			make:  func(tb *testbed) { together(tb); tb.stopNames() },
			cause: why.NameServer, verdict: "the name server of networks does not run", try: "cleat keep",
		},
		"unknown name": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				tb.connect("web", "b", named.Connection{Aliases: []string{"backend"}})
			}, to: "backnd:80",
			cause: why.UnknownName, verdict: "the name server 10.20.1.1 knows no backnd", try: "cleat net why a backend:80",
		},
		"a port of the host's side is too small": {
			make:  func(tb *testbed) { together(tb); tb.run("host ip link set " + tb.portOf("b", "web") + " mtu 1280") },
			cause: why.MTU, verdict: "packets of more than 1280 bytes are lost: PORT-b in the host has MTU 1280", try: "ip link set PORT-b mtu 1500",
		},
		"the destination's MTU is too small for datagrams": {
			make: func(tb *testbed) { together(tb); tb.run("b ip link set eth0 mtu 1280") }, to: "b",
			cause: why.MTU, verdict: "packets of more than 1280 bytes are lost: eth0 in b has MTU 1280", try: "nsenter -t PID-b -n ip link set eth0 mtu 1500",
		},
		"the destination's MTU is small, to which TCP adapts": {
			make: func(tb *testbed) { together(tb); tb.run("b ip link set eth0 mtu 1280") }, verdict: "a reaches b:80",
		},
		"the source's MTU is too large": {
			make: func(tb *testbed) {
				together(tb)
				tb.run("a ip link set eth0 mtu 9000")
			}, to: "b",
			cause: why.MTU, verdict: "packets of more than 1500 bytes are lost", try: "nsenter -t PID -n ip link set eth0 mtu 1500",
		},
		"a route discards": {
			make:  func(tb *testbed) { together(tb); tb.run("a ip route add blackhole 10.20.1.3") },
			cause: why.WrongRoute, verdict: "a route of a discards packets to 10.20.1.3: blackhole 10.20.1.3/32", try: "nsenter -t PID -n ip route del blackhole 10.20.1.3/32",
		},
		"a route leads elsewhere": {
			make: func(tb *testbed) {
				together(tb)
				tb.run("a ip link add tap0 type veth peer name tap1 && ip link set tap1 up && ip addr add 192.0.2.1/24 dev tap0 && ip link set tap0 up && ip route add 10.20.1.3 via 192.0.2.2")
			},
			cause: why.WrongRoute, verdict: "a sends packets to 10.20.1.3 by tap0 via 192.0.2.2, not straight to its network web by eth0", try: "nsenter -t PID -n ip route del 10.20.1.3/32 via 192.0.2.2 dev tap0",
		},
		"the destination does not run": {
			make:  func(tb *testbed) { together(tb); tb.containers["b"].stopped = true },
			cause: why.NotRunning, verdict: "b does not run", try: "test start b",
		},
		"the source does not run": {
			make:  func(tb *testbed) { together(tb); tb.containers["a"].stopped = true },
			cause: why.NotRunning, verdict: "a does not run", try: "test start a",
		},
		"two networks": {
			make:    func(tb *testbed) { together(tb); tb.network("db", 2, "a") },
			verdict: "a reaches b:80 at 10.20.1.3",
		},
		"two networks, the name server of one": {
			make: func(tb *testbed) {
				together(tb)
				tb.network("db", 2, "a")
				tb.write("a", "resolv.conf", "nameserver 10.20.2.1\n")
			},
			verdict: "a reaches b:80 at 10.20.1.3", // each gateway answers for all networks of a container
		},
		"denied by default": {
			make: func(tb *testbed) {
				together(tb)
				must(tb.t, tb.onHost(func() error { return named.SetPolicy(tb.t.Context(), tb.cfg, "web", nil, true) }))
			},
			cause: why.RuleDenies, verdict: "no rule of web allows it, and its default is deny", try: "cleat net allow web/a to web/b:80/tcp",
		},
		"an internal network": {
			make: func(tb *testbed) {
				tb.create(named.NetworkSpec{Name: "web", Internal: true, Subnets: subnets(1)})
				tb.connect("web", "a", named.Connection{})
				tb.listen("outside", ":80")
			}, to: "198.51.100.2:80",
			cause: why.Internal, verdict: "web is internal: no way leads out of it", try: "cleat net create out && cleat net connect out a",
		},
		"outside": {
			make: func(tb *testbed) { tb.network("web", 1, "a"); tb.listen("outside", ":80") }, to: "198.51.100.2:80",
			verdict: "a reaches 198.51.100.2:80",
		},
		"outside, a foreign policy": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				tb.listen("outside", ":80")
				tb.run(`host nft 'add table inet fw; add chain inet fw forward { type filter hook forward priority 0; policy drop; }'`)
			}, to: "198.51.100.2:80",
			cause: why.Firewall, verdict: "chain forward of table inet fw in the host may drop what none of its rules accepts", try: "nft insert rule inet fw forward ip saddr 10.20.1.2 ip daddr 198.51.100.2 accept",
		},
		"outside, no program": {
			make: func(tb *testbed) { tb.network("web", 1, "a") }, to: "198.51.100.2:80",
			cause: why.Refused, verdict: "198.51.100.2 refuses it: no program listens on port 80 there, or its firewall rejects it", try: "start the program at 198.51.100.2 that is to have port 80",
		},
		"the host at another address": {
			make: func(tb *testbed) { tb.network("web", 1, "a"); tb.listen("host", ":80") }, to: "198.51.100.1:80",
			cause: why.HostAccess, verdict: "web lets containers reach the host at its gateway only, not at 198.51.100.1", try: "cleat net why a 10.20.1.1:80",
		},
		"the host": {
			make: func(tb *testbed) { tb.network("web", 1, "a"); tb.listen("host", ":80") }, to: "host:80",
			verdict: "a reaches host:80 at 10.20.1.1",
		},
		"the host, not published": {
			make: func(tb *testbed) { tb.network("web", 1, "a") }, to: "host:8080",
			cause: why.NoListener, verdict: "no program of the host listens on port 8080", try: "cleat net publish CONTAINER 8080:PORT",
		},
		"two machines have the address": {
			make: func(tb *testbed) {
				together(tb)
				tb.connect("web", "c", named.Connection{})
				tb.run("c ip addr add 10.20.1.3/24 dev eth0")
			},
			cause: why.Duplicate, verdict: "the address 10.20.1.3 is answered for by b and c", try: "nsenter -t PID-c -n ip addr del 10.20.1.3/24 dev eth0",
		},
		"a permanent neighbour entry": {
			make: func(tb *testbed) {
				together(tb)
				tb.run("a ip neigh replace 10.20.1.3 lladdr 02:00:5e:10:00:99 nud permanent dev eth0")
			},
			cause: why.NoNeighbour, verdict: "a has a permanent entry for 10.20.1.3 with 02:00:5e:10:00:99, but b has", try: "nsenter -t PID -n ip neigh del 10.20.1.3 dev eth0",
		},
		"nobody has the address": {
			make: func(tb *testbed) { tb.network("web", 1, "a") }, to: "10.20.1.77:80",
			cause: why.NoNeighbour, verdict: "nobody on web has the address 10.20.1.77", try: "cleat net ls web",
		},
		"a port of the bridge blocks": {
			make: func(tb *testbed) {
				together(tb)
				tb.run("host bridge link set dev " + tb.portOf("b", "web") + " state 0")
			},
			cause: why.LinkDown, verdict: "the bridge of web does not forward at PORT-b, the port of b: its state is disabled", try: "bridge link set dev PORT-b state 3",
		},
		"isolated ports": {
			make: func(tb *testbed) {
				together(tb)
				for _, c := range []string{"a", "b"} {
					tb.run("host bridge link set dev " + tb.portOf(c, "web") + " isolated on")
				}
			},
			cause: why.LinkDown, verdict: "the ports of both on the bridge of web are isolated", try: "bridge link set dev PORT-b isolated off",
		},
		"the host's end is down": {
			make:  func(tb *testbed) { together(tb); tb.run("host ip link set " + tb.portOf("b", "web") + " down") },
			cause: why.LinkDown, verdict: "PORT-b in the host is down, a link on the way to 10.20.1.3", try: "ip link set PORT-b up",
		},
		"the host does not forward": {
			make: func(tb *testbed) {
				apart(tb)
				tb.rule("allow web/a to db/b:80")
				tb.run("host echo 0 > /proc/sys/net/ipv4/ip_forward")
			}, to: "db/b:80",
			cause: why.Drift, verdict: "missing on the host: enable IPv4 forwarding on the host", try: "cleat net check --repair",
		},
		"a firewall that rejects": {
			make: func(tb *testbed) {
				together(tb)
				tb.run(`b nft 'add table inet fw; add chain inet fw input { type filter hook input priority 0; }; add rule inet fw input tcp dport 80 reject with tcp reset'`)
			},
			cause: why.Firewall, verdict: "a rule in chain input of table inet fw in b drops the packets: l4proto tcp dport 80 reject", try: "nsenter -t PID-b -n nft insert rule inet fw input ip saddr 10.20.1.2 ip daddr 10.20.1.3 accept",
		},
		"a firewall about another port": {
			make: func(tb *testbed) {
				together(tb)
				tb.run(`b nft 'add table inet fw; add chain inet fw input { type filter hook input priority 0; }; add rule inet fw input tcp dport 81 drop; add rule inet fw input udp dport 80 drop; add rule inet fw input tcp dport 80 counter drop'`)
			},
			cause: why.Firewall, verdict: "l4proto tcp dport 80 counter packets", try: "nsenter -t PID-b -n nft insert rule inet fw input ip saddr 10.20.1.2 ip daddr 10.20.1.3 accept",
		},
		"a firewall whose counters say which rule it is": {
			make: func(tb *testbed) {
				together(tb)
				tb.run(`b nft 'add table inet fw; add chain inet fw input { type filter hook input priority 0; }; add rule inet fw input meta mark 7 counter drop; add rule inet fw input ct state new counter drop'`)
			},
			cause: why.Firewall, verdict: "a rule in chain input of table inet fw in b drops the packets: ct state … counter packets", try: "nsenter -t PID-b -n nft insert rule inet fw input ip saddr 10.20.1.2 ip daddr 10.20.1.3 accept",
		},
		"the rules in the kernel are gone": {
			make: func(tb *testbed) {
				published(tb)
				tb.run(`host nft flush ruleset`)
			}, to: "host:8080",
			cause: why.Drift, verdict: "the kernel has not what networks want: rules: ip table is missing", try: "cleat net check --repair",
		},
		"internal, allowed to another network": {
			make: func(tb *testbed) {
				tb.create(named.NetworkSpec{Name: "web", Internal: true, Subnets: subnets(1)})
				tb.connect("web", "a", named.Connection{})
				tb.network("db", 2, "b")
				tb.listen("b", ":80")
				tb.rule("allow web/a to db/b:80")
			}, to: "db/b:80",
			verdict: "a reaches db/b:80 at 10.20.2.2",
		},
		"internal, and another network": {
			make: func(tb *testbed) {
				tb.create(named.NetworkSpec{Name: "web", Internal: true, Subnets: subnets(1)})
				tb.connect("web", "a", named.Connection{})
				tb.network("db", 2, "b")
				tb.listen("b", ":80")
			}, to: "db/b:80",
			cause: why.OtherNetwork, verdict: "a is on web, b on db, and networks are kept apart", try: "cleat net allow web/a to db/b:80/tcp",
		},
		"one of two that share a name": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				for _, c := range []string{"b", "c"} {
					tb.connect("web", c, named.Connection{Aliases: []string{"api"}})
				}
				tb.listen("b", ":80")
			}, to: "api:80",
			cause: why.NoListener, verdict: "no program of c listens on port 80", try: "start the program of c that is to have port 80",
		},
		"two that share a name, for different reasons": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				for _, c := range []string{"b", "c"} {
					tb.connect("web", c, named.Connection{Aliases: []string{"api"}})
					tb.listen(c, ":80")
				}
				tb.rule("deny web/a to web/c")
				tb.run(`b nft 'add table inet fw; add chain inet fw input { type filter hook input priority 0; }; add rule inet fw input tcp dport 80 drop'`)
			}, to: "api:80",
			cause: why.Firewall, verdict: "a rule in chain input of table inet fw in b drops the packets", try: "nsenter -t PID-b -n nft insert rule inet fw input ip saddr 10.20.1.2 ip daddr 10.20.1.3 accept",
		},
		"datagrams": {
			make: func(tb *testbed) { tb.network("web", 1, "a", "b") }, to: "b:5000/udp",
			cause: why.NoListener, verdict: "no program of b waits for datagrams on port 5000", try: "start the program of b that is to have port 5000",
		},
		"datagrams without an answer": {
			make: func(tb *testbed) { tb.network("web", 1, "a", "b"); tb.receive("b", ":5000") }, to: "b:5000/udp",
			verdict: "a reaches b:5000/udp at 10.20.1.3",
		},
		"a rule denies datagrams": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a", "b")
				tb.receive("b", ":5000")
				tb.rule("deny web to web:5000/udp")
			}, to: "b:5000/udp",
			cause: why.RuleDenies, verdict: `the rule "deny web to web:5000/udp" denies it`, try: "cleat net deny --remove web to web:5000/udp",
		},
		"a container of another engine's network": {
			make: func(tb *testbed) { together(tb) }, from: "web/a", to: "test:b:80",
			verdict: "a reaches test:b:80",
		},
		"a name in the hosts file": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				tb.listen("outside", ":80")
				tb.write("a", "hosts", "198.51.100.2 www.example.com # ours\n")
			}, to: "www.example.com:80",
			verdict: "a reaches www.example.com:80 at 198.51.100.2",
		},
		"its own loopback": {
			make: func(tb *testbed) { together(tb); tb.listen("a", "127.0.0.1:80") }, to: "127.0.0.1:80",
			verdict: "a reaches 127.0.0.1:80",
		},
		"the host's firewall drops queries": {
			make: func(tb *testbed) {
				together(tb)
				tb.run(`host nft 'add table ip filter; add chain ip filter INPUT { type filter hook input priority 0; policy drop; }; add rule ip filter INPUT ct state established,related accept'`)
			},
			cause: why.Firewall, verdict: "the name server 10.20.1.1 does not answer a: chain INPUT of table ip filter in the host may drop", try: "iptables -I INPUT -s 10.20.1.2 -d 10.20.1.1 -j ACCEPT",
		},
		"the name server has lost a name": {
			make: func(tb *testbed) {
				together(tb)
				c, err := names.Dial(tb.t.Context(), named.NameServerPath(tb.store))
				must(tb.t, err)
				defer c.Close()
				must(tb.t, c.Set(tb.t.Context(), "web", names.Change{Delete: []string{"test.b"}}))
			},
			cause: why.StaleName, verdict: "the name server does not know b of web", try: "cleat net check --repair",
		},
		"somebody removed the link": {
			make:  func(tb *testbed) { together(tb); tb.run("b ip link del eth0") },
			cause: why.LinkDown, verdict: "somebody removed eth0 of b, its link to web", try: "cleat net check --repair",
		},
		"routed": {
			make: func(tb *testbed) { tb.routed(); tb.listen("b", ":80") }, to: "web/b:80", verdict: "a reaches web/b:80",
		},
		"routed, a wrong route": {
			make: func(tb *testbed) {
				tb.routed()
				tb.listen("b", ":80")
				tb.run("a ip link add tap0 type veth peer name tap1 && ip link set tap1 up && ip link set tap0 up && ip route add 10.20.1.3 dev tap0")
			}, to: "web/b:80",
			cause: why.WrongRoute, verdict: "a sends packets to 10.20.1.3 by tap0, not straight to its network web by eth0", try: "nsenter -t PID -n ip route del 10.20.1.3/32 dev tap0",
		},
		"IPv6": {
			make: func(tb *testbed) { tb.dual(); tb.listen("b", "[fd00:1::3]:80") }, to: "[fd00:1::3]:80", verdict: "a reaches [fd00:1::3]:80",
		},
		"both families, one listens": {
			make: func(tb *testbed) { tb.dual(); tb.listen("b", "0.0.0.0:80") }, verdict: "a reaches b:80 at 10.20.1.3",
		},
		"IPv6 only, on loopback": {
			make: func(tb *testbed) { tb.dual(); tb.listen("b", "[::1]:80") }, to: "[fd00:1::3]:80",
			cause: why.Loopback, verdict: "of b listens only at [::1]:80, which only b itself reaches", try: "make it listen at [::]:80 in b",
		},
		"IPv6, a rule denies": {
			make: func(tb *testbed) { tb.dual(); tb.listen("b", ":80"); tb.rule("deny web/a to web/b") }, to: "[fd00:1::3]:80",
			cause: why.RuleDenies, verdict: `the rule "deny web/a to web/b" denies it`, try: "cleat net deny --remove web/a to web/b",
		},
		"IPv6, a foreign rule, which is not found because the path is followed for IPv4": {
			make: func(tb *testbed) {
				tb.dual()
				tb.listen("b", ":80")
				tb.run(`b nft 'add table ip6 fw; add chain ip6 fw in { type filter hook input priority 0; }; add rule ip6 fw in tcp dport 80 drop'`)
			}, to: "[fd00:1::3]:80",
			cause: why.UnknownCause, verdict: "nothing was found that explains it", try: "cleat doctor a b",
		},
		"published": {
			make: published, to: "host:8080", verdict: "a reaches host:8080 at 10.20.1.1",
		},
		"the container of a published port does not run": {
			make: func(tb *testbed) { published(tb); tb.run("b ip link del eth0"); tb.containers["b"].stopped = true }, to: "host:8080",
			cause: why.NotRunning, verdict: "port 8080 of the host is published to b, which does not run", try: "test start b",
		},
		"no route back": {
			make: func(tb *testbed) {
				apart(tb)
				tb.rule("allow web/a to db/b:80")
				tb.run("b ip route del default")
			}, to: "db/b:80",
			cause: why.NoRoute, verdict: "b has no route back to 10.20.1.2", try: "nsenter -t PID-b -n ip route add 10.20.1.2/32 via 10.20.2.1",
		},
		"a route back that discards": {
			make: func(tb *testbed) { together(tb); tb.run("b ip route add blackhole 10.20.1.2") }, to: "web/b:80",
			cause: why.NoRoute, verdict: "a route of b discards packets back to 10.20.1.2: blackhole 10.20.1.2/32", try: "nsenter -t PID-b -n ip route del blackhole 10.20.1.2/32",
		},
		"published on an internal network": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				tb.create(named.NetworkSpec{Name: "db", Internal: true, Subnets: subnets(2)})
				tb.connect("db", "b", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80, BypassFirewall: true}}})
				tb.listen("b", ":80")
			}, to: "host:8080",
			verdict: "a reaches host:8080 at 10.20.1.1",
		},
		"its own published port, and bridge netfilter": {
			make: func(tb *testbed) {
				published(tb)
				must(tb.t, link.SetBridgeNetfilter(tb.host, true))
				tb.run("host bridge link set dev " + tb.portOf("b", "db") + " hairpin off")
			}, from: "b", to: "host:8080",
			cause: why.Hairpin, verdict: "the bridge of db does not send packets back to b, which reaches itself by a published port", try: "bridge link set dev PORT-db-b hairpin on",
		},
		"its own published port": {
			make: published, from: "b", to: "host:8080", verdict: "b reaches host:8080",
		},
		"a name outside": {
			make: func(tb *testbed) { tb.network("web", 1, "a") }, to: "www.example.com:443",
			cause: why.NameServer, verdict: "the host's own name servers do not answer for www.example.com", try: "getent ahosts www.example.com",
		},
		"published for the host only": {
			make: func(tb *testbed) {
				tb.network("web", 1, "a")
				port, err := named.ParsePort("127.0.0.1:8080:80")
				must(tb.t, err)
				tb.connect("web", "b", named.Connection{Ports: []named.Port{port}})
			},
			to:    "198.51.100.1:8080",
			cause: why.NotPublished, verdict: "port 8080 of the host is published at 127.0.0.1 only, for the host's own programs", try: "cleat net publish b 198.51.100.1:8080:80",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTestbed(t, "a", "b", "c")
			tt.make(tb)
			if tt.from == "" {
				tt.from = "a"
			}
			if tt.to == "" {
				tt.to = "b:80"
			}
			a := tb.ask(tt.from, tt.to)
			verdict, try := tb.fill(tt.verdict), tb.fill(tt.try)
			if a.Cause != tt.cause || !strings.Contains(a.Verdict, verdict) || a.Try != try || a.Reached != (tt.cause == "") {
				t.Errorf("cause %q, verdict %q, try %q;\nwant  %q, with    %q, and %q:\n%s", a.Cause, a.Verdict, a.Try, tt.cause, verdict, try, text(t, a))
			}
			for line := range strings.Lines(text(t, a)) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 && !strings.HasPrefix(line, "try: ") {
					t.Errorf("a line has %d columns: %s", n, line)
				}
			}
		})
	}
}
