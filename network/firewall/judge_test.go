package firewall_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cleat/lab"
	"cleat/network/firewall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nft applies rules to a node.
func nft(t testing.TB, n *lab.Node, rules string) {
	t.Helper()
	run(t, n, rules, "nft", "-f", "-")
}

// run runs a program on a node, and skips the test if the machine does not have it.
func run(t testing.TB, n *lab.Node, stdin string, args ...string) string {
	t.Helper()
	script := strings.Join(args, " ") + " " + stdin
	for _, program := range append([]string{"nft", "iptables", "sysctl"}, args[0]) {
		if _, err := exec.LookPath(program); err != nil && strings.Contains(script, program) {
			t.Skipf("no program %s", program)
		}
	}
	var out []byte
	must(t, n.NS.Do(func() (err error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s: %w: %s", args, err, out)
		}
		return err
	}))
	return string(out)
}

// published returns a State with all networks in which a's port 80 is published as 8080, and
// as 8081 past the host's firewall.
func (w *bed) published(network string) firewall.State {
	p := protocolOf(network)
	s := firewall.State{Networks: []firewall.Network{w.web(), w.db(), w.third()}, Ports: []firewall.Port{
		publish(p, 8080, "192.0.2.2:80"), publish(p, 8080, "[2001:db8:0:1::2]:80"),
		publish(p, 8081, "192.0.2.2:80"), publish(p, 8081, "[2001:db8:0:1::2]:80"),
	}}
	s.Ports[2].BypassFirewall, s.Ports[3].BypassFirewall = true, true
	return s
}

// What the host's rules for incoming packets refuse is refused at published ports, whatever
// program has made the rules and wherever they are; all else is not. Ports that bypass the
// firewall are published all the same.
func TestHostFirewall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		program []string
		rules   string
		allows  []string // clients that the rules allow
	}{
		{"nft, deny by default", []string{"nft", "-f", "-"}, `table inet host {
			chain input { type filter hook input priority filter; policy drop; ct state established,related accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; iif lo accept; tcp dport 22 accept; }
		}`, nil},
		{"nft, one source", []string{"nft", "-f", "-"}, `table inet host {
			chain input { type filter hook input priority filter; policy drop; ct state established,related accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; iif lo accept
				ct state new ip saddr 198.51.100.2 meta l4proto { tcp, udp } th dport 8080 accept
				ct state new ip6 saddr 2001:db8:ff::2 meta l4proto { tcp, udp } th dport 8080 accept; }
		}`, []string{"client"}},
		{"nft, one device, rejects", []string{"nft", "-f", "-"}, `table inet host {
			chain input { type filter hook input priority 10; iifname "nic2" meta l4proto { tcp, udp } th dport 8080 reject; }
		}`, []string{"client", "a", "c", "d"}},
		{"nft, later chain", []string{"nft", "-f", "-"}, `table inet host {
			chain input { type filter hook input priority 300; meta l4proto { tcp, udp } th dport 8080 iifname { "nic", "nic2" } drop; }
		}`, []string{"a", "c", "d"}},
		{"iptables, deny by default", []string{"sh"}, `set -e
			for i in iptables ip6tables; do $i -w -P INPUT DROP; $i -w -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; $i -w -A INPUT -i lo -j ACCEPT; done
			ip6tables -w -A INPUT -p ipv6-icmp -j ACCEPT`, nil},
		{"iptables, one source", []string{"sh"}, `set -e
			for i in iptables ip6tables; do $i -w -P INPUT DROP; $i -w -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; $i -w -A INPUT -i lo -j ACCEPT; done
			ip6tables -w -A INPUT -p ipv6-icmp -j ACCEPT
			for p in tcp udp; do iptables -w -A INPUT -s 198.51.100.66 -p $p -m $p --dport 8080 -j ACCEPT; ip6tables -w -A INPUT -s 2001:db8:fe::2 -p $p -m $p --dport 8080 -j ACCEPT; done`, []string{"other"}},
		{"iptables, rejects", []string{"sh"}, `set -e
			iptables -w -A INPUT -i nic -j REJECT; ip6tables -w -A INPUT -i nic -p tcp -j REJECT; ip6tables -w -A INPUT -i nic -p udp -j REJECT`, []string{"other", "a", "c", "d"}},
		{"no rules", []string{"true"}, "", []string{"client", "other", "a", "c", "d"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, network string) {
				w := newBed(t)
				w.sync(w.published(network))
				run(t, w.host, tt.rules, tt.program...)
				for _, c := range []struct{ name, is4, is6 string }{
					{"client", "198.51.100.2", "2001:db8:ff::2"}, {"other", "198.51.100.66", "2001:db8:fe::2"},
					{"a", "192.0.2.1", "2001:db8:0:1::1"}, {"c", "192.0.2.66", "2001:db8:0:2::2"}, {"d", "192.0.2.130", "2001:db8:0:3::2"},
				} {
					allowed := strings.Contains(" "+strings.Join(tt.allows, " ")+" ", " "+c.name+" ")
					for to, seen := range map[string]string{"198.51.100.1:8080": c.is4, "[2001:db8:ff::1]:8080": c.is6} {
						answer := ""
						if allowed {
							answer = "a " + seen
						}
						w.reaches(w.node(c.name), network, to, answer)
					}
					w.reaches(w.node(c.name), network, "198.51.100.1:8081", "a "+c.is4)
					w.reaches(w.node(c.name), network, "[2001:db8:ff::1]:8081", "a "+c.is6)
				}
				w.reaches(w.host, network, "198.51.100.1:8080", "a 198.51.100.1")
			})
		})
	}
}

// The same without a program.
func TestHostFirewallRule(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		w.sync(w.published(network))
		must(t, w.host.NS.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "host"})
			chain := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{8080 >> 8, 8080 & 0xff}},
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("nic\x00")},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
			return c.Flush()
		}))
		for _, to := range []string{"198.51.100.1", "2001:db8:ff::1"} {
			seen := map[string]string{"198.51.100.1": "198.51.100.2", "2001:db8:ff::1": "2001:db8:ff::2"}[to]
			w.reaches(w.client, network, at(to, 8080), "")
			w.reaches(w.client, network, at(to, 8081), "a "+seen)
		}
		w.reaches(w.other, network, "198.51.100.1:8080", "a 198.51.100.66")
		w.reaches(w.other, network, "[2001:db8:ff::1]:8080", "a 2001:db8:fe::2")
	})
}

// Rules that count connections count those to published ports, one by one.
func TestHostFirewallCounts(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	w.sync(w.published("tcp"))
	nft(t, w.host, `table ip host {
		chain input { type filter hook input priority filter; tcp dport 8080 ct state new limit rate over 3/day burst 3 packets drop; }
	}`)
	for range 3 {
		w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	}
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "")
}

// Hosts that check where packets come from, in the kernel or by rules, let through what comes
// out of the doorway.
func TestReversePathFilter(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]string{
		"kernel": "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.nic.rp_filter=1",
		"nft, as firewalld": `nft -f - <<'E'
table inet host {
	chain prerouting { type filter hook prerouting priority -140; icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept; fib saddr . mark . iif oif missing drop; }
}
E`,
		"iptables": `for i in iptables ip6tables; do $i -w -t raw -A PREROUTING -p icmpv6 -j ACCEPT; $i -w -t raw -A PREROUTING -m rpfilter --validmark --invert -j DROP; done`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newBed(t)
			w.sync(w.published("tcp"))
			run(t, w.host, rules, "sh")
			w.sync(w.published("tcp")) // as Watch has it done
			w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
			w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
			w.reaches(w.d, "tcp", "198.51.100.1:8080", "a 192.0.2.130")
		})
	}
}

// Connections to published ports leave one entry in the table of connections each, and none
// if they are refused.
func TestConnectionsAreTrackedOnce(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	s := w.published("tcp")
	w.sync(s)
	w.reaches(w.client, "tcp", "198.51.100.1:8080", "a 198.51.100.2")
	w.reaches(w.client, "tcp", "[2001:db8:ff::1]:8080", "a 2001:db8:ff::2")
	if n := strings.Count(tracked(t, w.host), "dport=8080"); n != 2 {
		t.Errorf("%d connections are tracked, want 2:\n%s", n, tracked(t, w.host))
	}
	nft(t, w.host, `table inet host {
		chain input { type filter hook input priority filter; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
	}`)
	w.reaches(w.other, "tcp", "198.51.100.1:8080", "")
	w.reaches(w.other, "tcp", "[2001:db8:ff::1]:8080", "")
	if n := strings.Count(tracked(t, w.host), "dport=8080"); n != 2 {
		t.Errorf("%d connections are tracked after refused ones, want 2:\n%s", n, tracked(t, w.host))
	}
}

// tracked returns the kernel's list of connections. The file is that of the namespace of the
// reading thread.
func tracked(t testing.TB, n *lab.Node) string {
	t.Helper()
	var b []byte
	must(t, n.NS.Do(func() (err error) {
		b, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	}))
	return string(b)
}

// The first datagrams of a flow pass as others do: larger than the MTU, and several before the
// first answer, in order.
func TestFirstDatagrams(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"198.51.100.1:5000", "[2001:db8:ff::1]:5000"} {
		w := newBed(t)
		w.sync(firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{
			publish(protocolOf("udp"), 5000, "192.0.2.2:5000"), publish(protocolOf("udp"), 5000, "[2001:db8:0:1::2]:5000"),
		}})
		got := collect(t, w.a, "[::]:5000")
		var c net.Conn
		must(t, w.client.NS.Do(func() (err error) {
			c, err = net.Dial("udp", to)
			return err
		}))
		defer c.Close()
		large := bytes.Repeat([]byte("x"), 9000)
		for i := range 5 {
			_, err := c.Write(append([]byte{byte('0' + i)}, large...))
			must(t, err)
		}
		for i := range 5 {
			if s := next(t, got); len(s) != 9001 || s[0] != byte('0'+i) {
				t.Errorf("datagram %d has %d bytes and starts with %q", i, len(s), s[:1])
			}
		}
	}
}

// A published port where nobody listens refuses connections as any other.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, network string) {
		w := newBed(t)
		w.sync(firewall.State{Networks: []firewall.Network{w.web()}, Ports: []firewall.Port{
			publish(protocolOf(network), 8080, "192.0.2.2:9"), publish(protocolOf(network), 8080, "[2001:db8:0:1::2]:9"),
		}})
		for _, to := range []string{"198.51.100.1:8080", "[2001:db8:ff::1]:8080"} {
			err := w.client.NS.Do(func() error {
				c, err := (&net.Dialer{Timeout: patience}).Dial(network, to)
				if err != nil {
					return err
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				if _, err := c.Write([]byte("x")); err != nil {
					return err
				}
				_, err = c.Read(make([]byte, 1))
				return err
			})
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s %s: %v, want connection refused", network, to, err)
			}
		}
	})
}
