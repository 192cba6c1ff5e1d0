package why_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cleat/network/named"
	"cleat/network/why"
)

// text returns an answer as people see it.
func text(t *testing.T, a *why.Answer) string {
	t.Helper()
	var b strings.Builder
	must(t, a.WriteText(&b))
	return b.String()
}

func (tb *testbed) write(container, name, text string) {
	tb.t.Helper()
	must(tb.t, os.WriteFile(filepath.Join(tb.containers[container].root, "etc", name), []byte(text), 0o644))
}

// together puts a and b on web, with a program at port 80 of b.
func together(tb *testbed) {
	tb.network("web", 1, "a", "b")
	tb.listen("b", ":80")
}

// apart puts a on web and b on db, with a program at port 80 of b.
func apart(tb *testbed) {
	tb.network("web", 1, "a")
	tb.network("db", 2, "b")
	tb.listen("b", ":80")
}

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
			cause: why.UnknownName, verdict: "b has that name on db, where a is not", try: "cleat net connect db a",
		},
		"allowed to another network": {
			make: func(tb *testbed) { apart(tb); tb.rule("allow web/a to db/b:80/tcp") }, to: "db/b:80",
			verdict: "a reaches db/b:80 at 10.20.2.2",
		},
		"a rule denies": {
			make:  func(tb *testbed) { together(tb); tb.rule("deny web/a to web/b:80") },
			cause: why.RuleDenies, verdict: "“deny web/a to web/b:80” decides", try: "cleat net deny --remove web/a to web/b:80",
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
			cause: why.Firewall, verdict: "chain FORWARD of table ip filter in the host may drop what none of its rules accepts", try: "iptables -I FORWARD -s 10.20.1.2 -d 10.20.2.2 -j ACCEPT",
		},
		"wrong resolv.conf": {
			make:  func(tb *testbed) { together(tb); tb.write("a", "resolv.conf", "nameserver 192.0.2.53\n") },
			cause: why.ResolvConf, verdict: "a asks the name server 192.0.2.53, not 10.20.1.1, which knows the names of web", try: "echo nameserver 10.20.1.1 > /proc/PID/root/etc/resolv.conf",
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
			make:  func(tb *testbed) { together(tb); tb.run("host ip link set " + tb.portOf("b") + " mtu 1280") },
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
		"published": {
			make: published, to: "host:8080", verdict: "a reaches host:8080 at 10.20.1.1",
		},
		"the container of a published port does not run": {
			make: func(tb *testbed) { published(tb); tb.run("b ip link del eth0"); tb.containers["b"].stopped = true }, to: "host:8080",
			cause: why.NotRunning, verdict: "port 8080 of the host is published to b, which does not run", try: "test start b",
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
			tb := newTestbed(t, "a", "b")
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

// published puts a on web, and b on db with port 80 on port 8080 of the host.
func published(tb *testbed) {
	tb.network("web", 1, "a")
	tb.network("db", 2)
	tb.connect("db", "b", named.Connection{Ports: []named.Port{{Protocol: "tcp", HostPort: 8080, Port: 80, BypassFirewall: true}}})
	tb.listen("b", ":80")
}
