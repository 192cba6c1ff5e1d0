package firewall_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/network/firewall"
)

// On a host whose iptables drop what is forwarded and what leaves, endpoints reach nothing and
// nobody reaches published ports, until iptables have an exception.
func TestIptablesDrop(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	tcp := protocolOf("tcp")
	w.sync(firewall.State{Networks: []firewall.Network{w.third()}, Ports: []firewall.Port{
		publish(tcp, 8080, "192.0.2.130:80"), publish(tcp, 8080, "[2001:db8:0:3::2]:80"),
	}})
	run(t, w.host, `set -e
		for i in iptables ip6tables; do
			$i -w -P FORWARD DROP; $i -w -N DOCKER-USER; $i -w -A DOCKER-USER -j RETURN; $i -w -A FORWARD -j DOCKER-USER
			$i -w -A FORWARD -i v+ -p tcp -m tcp --dport 81 -j DROP
			$i -w -A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; $i -w -A OUTPUT -d 192.0.2.0/24 -j ACCEPT || $i -w -A OUTPUT -d 2001:db8::/32 -j ACCEPT
			$i -w -A OUTPUT -j REJECT
		done
		ip6tables -w -I OUTPUT -p ipv6-icmp -j ACCEPT`, "sh")
	before := run(t, w.host, "", "sh", "-c", "iptables-save; ip6tables-save")
	reach := func(yes bool) {
		t.Helper()
		for from, answers := range map[string][]string{
			"client": {"198.51.100.1:8080", "d 198.51.100.2", "[2001:db8:ff::1]:8080", "d 2001:db8:ff::2"},
			"d":      {"198.51.100.66:80", "other 198.51.100.65", "[2001:db8:fe::2]:80", "other 2001:db8:fe::1"},
		} {
			for i := 0; i < len(answers); i += 2 {
				want := ""
				if yes {
					want = answers[i+1]
				}
				w.reaches(w.node(from), "tcp", answers[i], want)
			}
		}
	}
	reach(false)
	drops := func(want int) {
		t.Helper()
		all, err := w.table.ForeignDrops(firewall.Exempt{Devices: []string{"v"}})
		must(t, err)
		if len(all) != want || slices.ContainsFunc(all, func(d firewall.ForeignDrop) bool { return !d.Fixable || d.Program != "iptables" }) {
			t.Errorf("chains that drop: %v, want %d of iptables", all, want)
		}
	}
	drops(4)
	must(t, w.table.AcceptInIptables(firewall.Exempt{Devices: []string{"v"}}), w.table.AcceptInIptables(firewall.Exempt{Devices: []string{"v"}}))
	drops(0)
	reach(true)
	rules := run(t, w.host, "", "iptables", "-S")
	for _, line := range []string{
		"-A FORWARD -i v+ -p tcp -m tcp --dport 81 -j DROP\n-A FORWARD -i v+ -m comment --comment cleat-net -j ACCEPT\n-A FORWARD -o v+ -m comment --comment cleat-net -j ACCEPT\n",
		"-A OUTPUT -o cleat-in0 -m comment --comment cleat-net -j ACCEPT\n-A OUTPUT -j REJECT",
	} {
		if !strings.Contains(rules, line) {
			t.Errorf("iptables do not show %q:\n%s", line, rules)
		}
	}
	run(t, w.host, "", "iptables", "-w", "-A", "FORWARD", "-p", "sctp", "-j", "DROP")
	drops(1) // the exceptions came before that rule
	must(t, w.table.AcceptInIptables(firewall.Exempt{Devices: []string{"v"}}))
	drops(0)
	if rules := run(t, w.host, "", "iptables", "-S", "FORWARD"); strings.Count(rules, "cleat-net") != 2 || !strings.HasSuffix(strings.TrimSpace(rules), "-A FORWARD -o v+ -m comment --comment cleat-net -j ACCEPT") {
		t.Errorf("exceptions are not last:\n%s", rules)
	}
	run(t, w.host, "", "iptables", "-w", "-D", "FORWARD", "-p", "sctp", "-j", "DROP")
	run(t, w.host, "", "sh", "-c", "for i in iptables ip6tables; do $i-save | $i-restore -w; done")
	drops(0)
	must(t, w.table.RemoveFromIptables(), w.table.RemoveFromIptables())
	drops(4)
	if after := run(t, w.host, "", "sh", "-c", "iptables-save; ip6tables-save"); withoutComments(after) != withoutComments(before) {
		t.Errorf("rules of iptables after removal:\n%s\nbefore:\n%s", after, before)
	}
}

func withoutComments(rules string) string {
	lines := slices.DeleteFunc(strings.Split(rules, "\n"), func(l string) bool { return strings.HasPrefix(l, "#") || strings.HasPrefix(l, ":") })
	return strings.Join(lines, "\n")
}

// Chains of others than iptables are listed with what to do about them.
func TestForeignDrops(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	must(t, table.Sync(firewall.State{}))
	node := &lab.Node{NS: table.NS}
	nft(t, node, `
		table inet mine {
			chain f { type filter hook forward priority 5; policy drop; ct state established accept; }
			chain o { type filter hook output priority 5; policy accept; tcp dport 25 drop; }
			chain i { type filter hook input priority 5; policy drop; }
		}
		table inet firewalld {
			chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct status dnat accept; reject with icmpx admin-prohibited; }
		}
		table bridge b {
			chain f { type filter hook forward priority 0; policy drop; }
		}`)
	all, err := table.ForeignDrops(firewall.Exempt{Devices: []string{"cl"}})
	must(t, err)
	var got []string
	for _, d := range all {
		if d.Program == "iptables-legacy" {
			continue
		}
		got = append(got, fmt.Sprint(d))
		if d.Fixable || d.Remedy == "" {
			t.Errorf("%s: fixable %v, remedy %q", d, d.Fixable, d.Remedy)
		}
	}
	slices.Sort(got)
	want := []string{
		"chain f of table inet mine (nft) drops by default at hook forward",
		"chain filter_FORWARD of table inet firewalld (firewalld) drops by default at hook forward",
	}
	if !slices.Equal(got, want) {
		t.Errorf("chains that drop: %q, want %q", got, want)
	}
}

// Exceptions for a network in a VRF are about its addresses, since the packets come from the VRF.
func TestExemptInVRF(t *testing.T) {
	t.Parallel()
	x := firewall.Exempt{Devices: []string{"podman7"}, Sources: []firewall.VRFPrefix{{VRF: "blue", Prefix: prefix("192.0.2.0/25")}, {VRF: "blue", Prefix: prefix("198.51.100.0/24")}, {VRF: "blue", Prefix: prefix("2001:db8::/32")}}}
	lines := func(name string, table firewall.Table) string {
		return run(t, &lab.Node{NS: table.NS}, "", name, "-S", "FORWARD")
	}
	drops := func(table firewall.Table) (all []string) {
		found, err := table.ForeignDrops(x)
		must(t, err)
		for _, d := range found {
			all = append(all, d.Program+": "+d.Remedy)
		}
		return all
	}
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			table := newTable(t)
			host := &lab.Node{NS: table.NS}
			run(t, host, "", "sh", "-ec", fmt.Sprintf("iptables-%s -w -P FORWARD DROP; ip6tables-%[1]s -w -P FORWARD DROP", kind))
			if all := drops(table); len(all) < 2 {
				t.Errorf("chains that drop: %q", all)
			}
			must(t, table.AcceptInIptables(x))
			const start, end = "-P FORWARD DROP\n-A FORWARD -i podman7+ -m comment --comment cleat-net -j ACCEPT\n-A FORWARD -o podman7+ -m comment --comment cleat-net -j ACCEPT\n", " -i blue -m comment --comment cleat-net -j ACCEPT\n"
			for name, want := range map[string]string{
				"iptables-" + kind:  start + "-A FORWARD -s 192.0.2.0/25" + end + "-A FORWARD -s 198.51.100.0/24" + end,
				"ip6tables-" + kind: start + "-A FORWARD -s 2001:db8::/32" + end,
			} {
				if got := lines(name, table); got != want {
					t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
				}
			}
			// iptables writes the rules in its own way.
			for range 2 {
				if all := drops(table); len(all) > 0 {
					t.Errorf("chains that drop: %q", all)
				}
				run(t, host, "", "sh", "-ec", fmt.Sprintf("for i in iptables ip6tables; do $i-%s-save | $i-%[1]s-restore -w; done", kind))
			}
			must(t, table.RemoveFromIptables())
			if got := lines("iptables-"+kind, table); got != "-P FORWARD DROP\n" {
				t.Errorf("after removal:\n%s", got)
			}
		})
	}
	for _, tt := range []struct{ name, rules, want string }{
		{"nft", `table inet mine { chain f { type filter hook forward priority 5; policy drop; }; }`,
			"[\"nft: Run `nft 'insert rule inet mine f iifname \\\"podman7*\\\" accept; insert rule inet mine f oifname \\\"podman7*\\\" accept; " +
				"insert rule inet mine f iifname \\\"blue\\\" ip saddr 192.0.2.0/25 accept; insert rule inet mine f iifname \\\"blue\\\" ip saddr 198.51.100.0/24 accept; " +
				"insert rule inet mine f iifname \\\"blue\\\" ip6 saddr 2001:db8::/32 accept'`.\"]"},
		{"remedied", `table inet mine { chain f { type filter hook forward priority 5; policy drop; iifname "podman7*" accept; oifname "podman7*" accept
			iifname "blue" ip saddr 192.0.2.0/25 accept; iifname "blue" ip saddr 198.51.100.0/24 accept
			iifname "blue" ip6 saddr 2001:db8::/32 accept; }; }`, "[]"},
		{"firewalld", `table inet firewalld {
			chain filter_FORWARD_ZONES { iifname "podman7*" accept; }
			chain filter_FORWARD { type filter hook forward priority 10; jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited; }; }`,
			"[\"firewalld: Run `firewall-cmd --permanent --zone=trusted --add-interface=podman7+ --add-source=192.0.2.0/25 --add-source=198.51.100.0/24 --add-source=2001:db8::/32 && firewall-cmd --reload`.\"]"},
		{"firewalld, remedied", `table inet firewalld {
			chain trusted { accept; }
			chain filter_FORWARD_ZONES { ip saddr 192.0.2.0/25 goto trusted; ip saddr 198.51.100.0/24 goto trusted; ip6 saddr 2001:db8::/32 goto trusted; iifname "podman7*" goto trusted; }
			chain filter_FORWARD { type filter hook forward priority 10; jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited; }; }`, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := newTable(t)
			nft(t, &lab.Node{NS: table.NS}, tt.rules+"\n")
			if got := fmt.Sprintf("%q", drops(table)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
