package firewall_test

import (
	"testing"

	"cleat/network/firewall"
	"cleat/network/networktest"
)

// Programs that make a host's rules decide about published ports as about the host's own, also
// after they have loaded their rules again. A port that bypasses the firewall is always reached.
func TestHostFirewallPrograms(t *testing.T) {
	t.Parallel()
	iptables := func(suffix string) func(t *testing.T, w *bed) func(string) string {
		return func(t *testing.T, w *bed) func(string) string {
			for _, p := range []string{"iptables-" + suffix, "ip6tables-" + suffix} {
				run(t, w.host, "", p, "-w", "-S")
			}
			return func(script string) string {
				return run(t, w.host, `iptables() { command iptables-`+suffix+` -w "$@"; command ip6tables-`+suffix+` -w "$@"; }`+"\n"+script, "sh", "-e")
			}
		}
	}
	for _, tt := range []struct {
		name                      string
		start                     func(t *testing.T, w *bed) func(script string) string
		deny, allow, reload, undo string
	}{
		{
			name:   "ufw",
			start:  func(t *testing.T, w *bed) func(string) string { return networktest.UFW(t, w.host.NS).Run },
			deny:   "ufw --force enable",
			allow:  "ufw allow 8080",
			reload: "ufw reload",
			undo:   "ufw delete allow 8080; ufw deny from any to any port 8080",
		},
		{
			name:   "firewalld",
			start:  func(t *testing.T, w *bed) func(string) string { return networktest.Firewalld(t, w.host.NS).Run },
			deny:   "firewall-cmd --permanent --zone=trusted --add-interface=vd && firewall-cmd --reload",
			allow:  "firewall-cmd --permanent --add-port=8080/tcp --add-port=8080/udp && firewall-cmd --reload",
			reload: "firewall-cmd --complete-reload",
			undo:   "firewall-cmd --permanent --remove-port=8080/tcp --remove-port=8080/udp && firewall-cmd --reload",
		},
		{
			name:  "iptables-nft",
			start: iptables("nft"),
			deny: `iptables -P INPUT DROP; iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A INPUT -i lo -j ACCEPT
				ip6tables-nft -w -A INPUT -p ipv6-icmp -j ACCEPT`,
			allow:  "iptables -A INPUT -p tcp --dport 8080 -j ACCEPT; iptables -A INPUT -p udp --dport 8080 -j ACCEPT",
			reload: "for i in iptables ip6tables; do $i-nft-save | $i-nft-restore -w; done",
			undo:   "iptables -D INPUT -p tcp --dport 8080 -j ACCEPT; iptables -D INPUT -p udp --dport 8080 -j ACCEPT",
		},
		{
			name:  "iptables-legacy",
			start: iptables("legacy"),
			deny: `iptables -P INPUT DROP; iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A INPUT -i lo -j ACCEPT
				ip6tables-legacy -w -A INPUT -p ipv6-icmp -j ACCEPT`,
			allow:  "iptables -A INPUT -p tcp --dport 8080 -j ACCEPT; iptables -A INPUT -p udp --dport 8080 -j ACCEPT",
			reload: "for i in iptables ip6tables; do $i-legacy-save | $i-legacy-restore -w; done",
			undo:   "iptables -D INPUT -p tcp --dport 8080 -j ACCEPT; iptables -D INPUT -p udp --dport 8080 -j ACCEPT",
		},
		{
			name: "nft",
			start: func(t *testing.T, w *bed) func(string) string {
				return func(script string) string { return run(t, w.host, script, "sh", "-e") }
			},
			deny: `nft -f - <<'R'
				table inet host {
					chain input { type filter hook input priority filter; policy drop; ct state established,related accept; iif lo accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; jump more; }
					chain more { }
				}
R`,
			allow:  "nft add rule inet host more meta l4proto { tcp, udp } th dport 8080 accept",
			reload: "{ echo flush table inet host; nft list table inet host; } | nft -f -",
			undo:   "nft flush chain inet host more",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newBed(t)
			script := tt.start(t, w)
			do := func(text string) {
				t.Helper()
				script(text)
				must(t, w.table.AcceptInIptables(firewall.Exempt{Devices: []string{"web", "db", "v"}})) // ufw drops what is forwarded
			}
			for i, network := range []string{"tcp", "udp"} {
				s := w.published(network)
				w.sync(s)
				look := func(when string, allowed bool) {
					t.Helper()
					for to, answer := range map[string]string{"198.51.100.1": "a 198.51.100.2", "[2001:db8:ff::1]": "a 2001:db8:ff::2"} {
						want := ""
						if allowed {
							want = answer
						}
						w.reaches(w.client, network, to+":8080", want)
						w.reaches(w.client, network, to+":8081", answer)
					}
					if t.Failed() {
						t.Fatalf("%s, %s", network, when)
					}
				}
				if i == 0 {
					do(tt.deny)
				}
				look("denied", false)
				do(tt.allow)
				look("allowed", true)
				do(tt.reload)
				look("allowed, after reload", true)
				do(tt.undo)
				look("denied again", false)
				do(tt.reload)
				look("denied again, after reload", false)
				if tt.name == "ufw" {
					do("ufw delete deny from any to any port 8080")
				}
				w.same(s)
			}
		})
	}
}
