package firewall_test

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"cleat/lab"
	"cleat/link"
	"cleat/netns"
)

// counted returns how many packets each counter of a table has counted, in the order of the
// rules.
func counted(t *testing.T, n *lab.Node, family string) (all []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(run(t, n, "", "nft", "list", "table", family, "assume"), -1) {
		all = append(all, m[1])
	}
	return all
}

// pair gives the host the devices in0 and in1 without ARP and with one address, and a route to
// the routers of duplicates through in0.
func pair(t *testing.T, host *netns.NS) {
	t.Helper()
	mac := link.MAC{2, 0, 0, 0, 0, 1}
	_, err := link.Create(host, link.VethSpec{Attrs: link.Attrs{Name: "in0", MAC: mac}, Peer: link.Attrs{Name: "in1", MAC: mac}}, link.Target{})
	must(t, err)
	run(t, &lab.Node{NS: host}, `set -e
		ip link set in0 arp off up; ip link set in1 arp off up
		ip route add 192.0.0.8 dev in0; ip -6 route add 100::1 dev in0`, "sh")
}

// A duplicate that has left one end of a veth pair and come in at the other is tracked as a
// new packet: the kernel resets its connection twice (nf_dup_ipv4 and nf_dup_ipv6 in net/ipv*;
// skb_scrub_packet, net/core/skbuff.c). It keeps its mark. Its hop limit is one less.
func TestAssumeDuplicateIsNew(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	pair(t, w.host.NS)
	for _, f := range []struct{ family, router, hops, to string }{
		{"ip", "192.0.0.8", "ip ttl 63", "198.51.100.1:7000"},
		{"ip6", "100::1", "ip6 hoplimit 63", "[2001:db8:ff::1]:7000"},
	} {
		nft(t, w.host, fmt.Sprintf(`table %s assume {
			chain input { type filter hook input priority %d; udp dport 7000 iifname nic ct state new counter meta mark set 7 dup to %s counter drop; }
			chain prerouting { type filter hook prerouting priority -150; iifname in1 udp dport 7000 ct state new counter meta mark 7 counter %s counter; }
			chain nat { type nat hook prerouting priority -100; iifname in1 udp dport 7000 counter; }
		}`, f.family, math.MaxInt32-2, f.router, f.hops))
		c := dialUDP(t, w.client, f.to)
		got := collect(t, w.host, "[::]:7000") // the duplicate arrives here, as nothing translates it
		_, err := c.Write([]byte("first"))
		must(t, err)
		if s := next(t, got); s != "first" {
			t.Errorf("%s: the host got %q", f.family, s)
		}
		if all := counted(t, w.host, f.family); strings.Join(all, " ") != "1 1 1 1 1 1" {
			t.Errorf("%s: counters %v, want each 1", f.family, all)
		}
		nft(t, w.host, "flush ruleset")
		got.Close()
	}
}

// The chain with the last priority of the package sees connections that are not confirmed yet,
// in both families, and drops them without a trace. One step later IPv6 connections are.
func TestAssumeUnconfirmed(t *testing.T) {
	t.Parallel()
	w := newBed(t)
	for _, tt := range []struct {
		family    string
		priority  int
		confirmed string
	}{{"ip", math.MaxInt32 - 2, "0"}, {"ip6", math.MaxInt32 - 2, "0"}, {"ip", math.MaxInt32 - 1, "0"}, {"ip6", math.MaxInt32 - 1, "1"}} {
		nft(t, w.host, fmt.Sprintf(`table %s assume {
			chain input { type filter hook input priority %d; udp dport 7000 counter ct status confirmed counter; }
		}`, tt.family, tt.priority))
		got := collect(t, w.host, "[::]:7000")
		to := map[string]string{"ip": "198.51.100.1:7000", "ip6": "[2001:db8:ff::1]:7000"}[tt.family]
		_, err := dialUDP(t, w.client, to).Write([]byte("first"))
		must(t, err)
		next(t, got)
		if all := counted(t, w.host, tt.family); strings.Join(all, " ") != "1 "+tt.confirmed {
			t.Errorf("%s at priority %d: counters %v, want 1 and %s", tt.family, tt.priority, all, tt.confirmed)
		}
		nft(t, w.host, "flush ruleset")
		got.Close()
	}
}
