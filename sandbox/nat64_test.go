package sandbox_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"cleat/lab/labtest"
	"cleat/policy"
	"cleat/sandbox"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// routeLocally makes every address of networks local to the lab (AnyIP).
func routeLocally(t *testing.T, networks ...string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range networks {
		_, dst, err := net.ParseCIDR(network)
		if err != nil {
			t.Fatal(err)
		}
		r := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteReplace(&r); err != nil {
			t.Fatalf("route %s: %v", network, err)
		}
	}
}

// serveNAT64Prefixes is a resolver that answers AAAA questions for ipv4only.arpa with
// addrs, and other questions with nothing. It answers when answer is closed.
func serveNAT64Prefixes(t *testing.T, answer <-chan struct{}, addrs ...string) netip.AddrPort {
	t.Helper()
	return serveDNS(t, outside4, func(q dnsmessage.Question) (all []dnsmessage.ResourceBody) {
		select {
		case <-answer:
		case <-t.Context().Done():
		}
		if q.Name.String() == "ipv4only.arpa." && q.Type == dnsmessage.TypeAAAA {
			for _, a := range addrs {
				all = append(all, &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(a).As16()})
			}
		}
		return all
	})
}

// A denied IPv4 address is refused in every form that the network's NAT64 would
// translate. That holds from the first packet on, even if the command starts before the
// resolver has announced the prefixes.
func TestDeniedBehindNAT64(t *testing.T) {
	fakeInternet(t)
	routeLocally(t, "2001:db8:32::/48", "2001:db8:6400::/40", "64:ff9b:1::/48")
	here := labtest.Serve(t, nil, "[::]:0", labtest.Reply("here"))
	// Forms of 192.0.2.66 behind 2001:db8:32::/48, behind /56 and /64 of
	// 2001:db8:6400::/40, behind /96, and behind the prefixes of RFC 8215, which nobody
	// announces.
	denied := []string{
		"2001:db8:32:c000:2:4200::", "2001:db8:6400:c0:0:242::", "2001:db8:6400:1:c0:2:4200::", "2001:db8:6464::c000:242",
		"64:ff9b:1:c000:2:4200::", "64:ff9b:1:c0:0:242::", "64:ff9b:1::c0:2:4200:0", "64:ff9b:1::c000:242",
	}
	announced := []string{"2001:db8:32:c000:0:aa00::", "2001:db8:6400:c0:0:aa::", "2001:db8:6400:1:c0:0:aa00:0", "2001:db8:6464::c000:aa"}
	allowed := []string{"2001:db8:32:c000:2:100::", "2001:db8:6464::c000:201", "64:ff9b:1::c000:201", outside6}
	for _, tier := range []sandbox.Tier{sandbox.TierTUN, sandbox.TierAuto} {
		for _, c := range []struct {
			name, rules string
			announced   []string
			to          []string
			want        string
		}{
			{"announced", "deny 192.0.2.66", announced, denied, "ECONNREFUSED"},
			{"announced, not denied", "deny 192.0.2.66", announced, allowed, "here"},
			{"stated", "deny 192.0.2.66\nnat64 2001:db8:6464::/96", nil, denied[3:], "ECONNREFUSED"},
			{"no NAT64", "deny 192.0.2.66", nil, denied[:4], "here"},
		} {
			t.Run(fmt.Sprint(c.name, tier), func(t *testing.T) {
				rules, err := policy.Parse("rules", strings.NewReader(c.rules))
				if err != nil {
					t.Fatal(err)
				}
				p, err := policy.New(policy.Config{Rules: rules})
				if err != nil {
					t.Fatal(err)
				}
				answer := make(chan struct{})
				cfg := sandbox.Config{Policy: p, Tier: tier, DNS: sandbox.DNS{Servers: []netip.AddrPort{serveNAT64Prefixes(t, answer, c.announced...)}}}
				if c.name == "announced" || c.name == "no NAT64" {
					release := sync.OnceFunc(func() { close(answer) })
					cfg.OnRefused = func(sandbox.Flow, sandbox.Decision) { release() } // called while the first packet waits
				} else {
					close(answer)
				}
				args := []string{"tcp"}
				for _, a := range c.to {
					args = append(args, fmt.Sprintf("[%s]:%d", a, here.Port()))
				}
				want := strings.TrimSpace(strings.Repeat(c.want+"\n", len(c.to)))
				if got := runGuest(t, cfg, "dial", args...); got != want {
					t.Errorf("%v: the guest printed %q, want %q", c.to, got, want)
				}
			})
		}
	}
}
