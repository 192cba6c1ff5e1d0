package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cleat/usernet"
)

// prefixes parses networks.
func prefixes(s string) (out []netip.Prefix) {
	for word := range strings.FieldsSeq(s) {
		out = append(out, netip.MustParsePrefix(word))
	}
	return out
}

func TestAnnounced(t *testing.T) {
	for _, c := range []struct{ name, addr, want string }{
		{"well-known prefix", "64:ff9b::192.0.0.170", "64:ff9b::/96"},
		{"well-known prefix, the other address", "64:ff9b::192.0.0.171", "64:ff9b::/96"},
		{"/32", "2001:db8:c000:aa::", "2001:db8::/32"},
		{"/40", "2001:db8:ffc0:0:aa::", "2001:db8:ff00::/40"},
		{"/48", "2001:db8:ff:c000:0:aa00::", "2001:db8:ff::/48"},
		{"/56", "2001:db8:ff:ffc0:0:aa::", "2001:db8:ff:ff00::/56"},
		{"/64", "2001:db8:ff:ff:c0:0:aa00:0", "2001:db8:ff:ff::/64"},
		{"/96", "2001:db8:ff:ff::c000:ab", "2001:db8:ff:ff::/96"},
		{"two places", "2001:db8:c000:aa::192.0.0.170", "2001:db8::/32 2001:db8:c000:aa::/96"},
		{"another address of the network", "64:ff9b::192.0.0.172", ""},
		{"not at the place of any length", "2001:db8::c000:aa:0", ""},
		{"IPv4", "192.0.0.170", ""},
		{"mapped IPv4", "::ffff:192.0.0.170", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := announced(plainAddr(netip.MustParseAddr(c.addr))); !slices.Equal(got, prefixes(c.want)) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// denied reports whether a policy refuses a TCP connection.
func denied(t *testing.T, p *Policy, to string) bool {
	return p.Judge(flow(t, to)).Action == usernet.Refuse
}

const behindNAT64 = "[2001:db8:64::10.1.2.3]:80"

// While the network's prefixes are unknown, packets to an address that could lead to a
// denied IPv4 address are dropped. Afterwards they are judged by the resolver's answer.
func TestFlowsWaitForNAT64(t *testing.T) {
	const (
		suspect  = behindNAT64
		ordinary = "[2001:db8:64::192.0.2.1]:80"
		announce = "192.0.0.170 192.0.0.171 2001:db8:64::192.0.0.170"
	)
	type outcome struct{ before, after usernet.Action }
	waits, none := outcome{usernet.Drop, usernet.Refuse}, outcome{}
	for _, c := range []struct {
		name, rules string
		addrs       string // of ipv4only.arpa
		to          string
		noDNS       bool
		want        outcome
		asked       bool
	}{
		{"a denied network", "-10.0.0.0/8", announce, suspect, false, waits, true},
		{"a denied name", "-ads.example", announce, suspect, false, waits, true},
		{"no denied address at any place", "-10.0.0.0/8", announce, ordinary, false, none, true},
		{"an exception", "-10.0.0.0/8 +10.1.2.3 default=allow", announce, suspect, false, none, true},
		{"no NAT64", "-10.0.0.0/8", "192.0.0.170 192.0.0.171", suspect, false, outcome{usernet.Drop, usernet.Allow}, true},
		{"no such name", "-10.0.0.0/8", "", suspect, false, outcome{usernet.Drop, usernet.Allow}, true},
		{"no answer", "-10.0.0.0/8", "ERROR", suspect, false, waits, true},
		{"a server refuses to answer", "-10.0.0.0/8", "REFUSED", suspect, false, outcome{usernet.Drop, usernet.Allow}, true},
		{"nothing of IPv4 is denied", "-2001:db8::/48 +all -all:25", announce, suspect, false, none, false},
		{"nothing is denied", "", announce, suspect, false, none, false},
		{"stated", "-10.0.0.0/8 nat64=2001:db8:64::/96", "ERROR", suspect, false, outcome{usernet.Refuse, usernet.Refuse}, true},
		{"stated, and announced", "-10.0.0.0/8 nat64=2001:db8:65::/96", announce, suspect, false, outcome{usernet.Allow, usernet.Refuse}, true},
		{"DNS is off", "-10.0.0.0/8", "ERROR", suspect, true, none, true},
		{"a network that is IPv4 as well", "-10.0.0.0/8", "ERROR", "192.0.2.1:80", false, none, true},
		{"mapped", "-10.0.0.0/8", "ERROR", "[fd00::2]:80", false, outcome{usernet.Redirect, usernet.Redirect}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := network()
				if c.noDNS {
					n.DNS = nil
				}
				p := newPolicy(t, Config{Rules: rules(t, c.rules), Network: n})
				z := &zone{addrs: map[string]string{nat64Name: c.addrs, "ads.example": "10.1.2.3"}, ttl: time1m}
				if err := p.Prime(t.Context(), z.lookup); err != nil || z.count(nat64Name) != 0 {
					t.Fatalf("the start waits for %d look-ups of the prefix, %v", z.count(nat64Name), err)
				}
				before := p.Judge(flow(t, c.to)).Action
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- p.Run(ctx, z.lookup) }()
				synctest.Wait()
				d := p.Explain(flow(t, c.to))
				if got := (outcome{before, p.Judge(flow(t, c.to)).Action}); got != c.want || d.Action != c.want.after {
					t.Errorf("%v, explained as %v; want %v", got, d, c.want)
				}
				if undiscovered := strings.Contains(d.Reason, "has not answered yet"); undiscovered != (c.name == "no answer") {
					t.Errorf("the reason is %q", d.Reason)
				}
				if asked := z.count(nat64Name) > 0; asked != c.asked {
					t.Errorf("asked: %t", asked)
				}
				cancel()
				<-done
			})
		})
	}
}

// Rules that newly deny something in IPv4 make flows wait and start the look-up of the
// prefix.
func TestNewRulesWaitForNAT64(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{Network: network()})
		z := &zone{addrs: map[string]string{nat64Name: "2001:db8:64::192.0.0.170"}, ttl: time1m}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, z.lookup) }()
		for range 2 {
			time.Sleep(time.Hour)
			n := z.count(nat64Name)
			time.Sleep(time.Hour)
			if again := z.count(nat64Name); again != n {
				t.Errorf("asked %d times where nothing is denied", again-n)
			}
			if err := p.Set(rules(t, "-10.0.0.0/8")); err != nil {
				t.Fatal(err)
			}
			if v := p.Judge(flow(t, behindNAT64)); v.Action == usernet.Allow {
				t.Error("the first packet is let through")
			}
			synctest.Wait()
			if !denied(t, p, behindNAT64) {
				t.Error("not denied")
			}
			if err := p.Set(Rules{}); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-done
	})
}

func TestRunFollowsNAT64(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{Rules: rules(t, "-10.0.0.0/8")})
		z := &zone{addrs: map[string]string{nat64Name: "ERROR"}, ttl: 24 * time.Hour}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, z.lookup) }()
		synctest.Wait()
		if denied(t, p, behindNAT64) {
			t.Error("known without an answer")
		}
		z.set(nat64Name, "192.0.0.170 2001:db8:64::192.0.0.170")
		time.Sleep(maxRetry)
		synctest.Wait()
		if !denied(t, p, behindNAT64) || !slices.Equal(p.nat64.now.Load().prefixes, prefixes("2001:db8:64::/96")) {
			t.Errorf("not found soon after the resolver is up: %v", p.nat64.now.Load().prefixes)
		}
		z.set(nat64Name, "192.0.0.170 2001:db8:65::192.0.0.170") // another network
		time.Sleep(maxAgainNAT64 + time.Second)
		synctest.Wait()
		if !denied(t, p, "[2001:db8:65::10.1.2.3]:80") {
			t.Error("the other network's prefix is not known a minute later")
		}
		if !denied(t, p, behindNAT64) {
			t.Error("the prefix of a moment ago is forgotten")
		}
		z.set(nat64Name, "192.0.0.170")
		time.Sleep(2 * maxLife)
		synctest.Wait()
		if found := p.nat64.now.Load().prefixes; len(found) != 0 {
			t.Errorf("%v are known where there is none", found)
		}
		if err := p.Set(rules(t, "-10.0.0.0/8 nat64=2001:db8:66::/96")); err != nil {
			t.Fatal(err)
		}
		if !denied(t, p, "[2001:db8:66::10.1.2.3]:80") {
			t.Error("a stated prefix does not count")
		}
		cancel()
		<-done
		if n := z.count(nat64Name); n > int(2*maxLife/maxAgainNAT64)+20 {
			t.Errorf("asked %d times", n)
		}
	})
}

// The guest can ask for the prefix, too. It must not know the answer before the policy
// does.
func TestGuestDoesNotLearnNAT64First(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "-10.0.0.0/8")})
	p.Learn("other.example", addrs("2001:db8:64::192.0.0.170"), time1m)
	if denied(t, p, behindNAT64) {
		t.Error("another name announces a prefix")
	}
	p.Learn("IPv4only.ARPA.", addrs("2001:db8:64::192.0.0.170"), time1m)
	if !denied(t, p, behindNAT64) {
		t.Error("not denied")
	}
	if known := knownNames(p); len(known) != 0 {
		t.Errorf("%v are names of rules", known)
	}
}

func TestNAT64PrefixesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{Rules: rules(t, "-10.0.0.0/8")})
		for i := range 100 {
			var some []netip.Addr
			for j := range 100 {
				some = append(some, netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::192.0.0.170", i*100+j)))
			}
			p.Learn(nat64Name, some, time1m)
			time.Sleep(time.Second)
		}
		p.Learn(nat64Name, addrs("2001:db8:64::192.0.0.170"), time1m)
		if found := p.nat64.now.Load().prefixes; len(found) != maxNAT64 || !denied(t, p, behindNAT64) {
			t.Errorf("%d prefixes are known: %v", len(found), found)
		}
		if n := len(p.nat64.own.entries[nat64Name].addrs); n > maxOwnAddresses {
			t.Errorf("%d addresses are kept", n)
		}
	})
}

func TestStatedNAT64(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"nat64 2001:db8:64::/96", ""},
		{"nat64 2001:db8::/32\nnat64 2001:db8:64::/96\nnat64 2001:db8::/32", ""},
		{"nat64", "without a value"},
		{"nat64 2001:db8::", "want a prefix"},
		{"nat64 none", "want a prefix"},
		{"nat64 2001:db8::/33", "of 32, 40, 48, 56, 64 or 96 bits"},
		{"nat64 192.0.2.0/32", "of 32, 40, 48, 56, 64 or 96 bits"},
		{"nat64 ::ffff:0:0/96", "of 32, 40, 48, 56, 64 or 96 bits"},
		{"nat64 2001:db8::1/96", "want 2001:db8::/96"},
	} {
		r, err := Parse("f", strings.NewReader(c.in))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.in, err, c.want)
		}
		if err == nil {
			newPolicy(t, Config{Rules: r})
		}
	}
	for _, bad := range []Rules{
		{NAT64: prefixes("2001:db8::/33")},
		{NAT64: []netip.Prefix{{}}},
		{NAT64: slices.Repeat(prefixes("2001:db8::/32"), maxNAT64Stated+1)},
	} {
		if _, err := New(Config{Rules: bad}); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

// FuzzNAT64 checks, for any prefix of the network, that an IPv4 address behind it is
// found, and that the prefix is found in the resolver's answer.
func FuzzNAT64(f *testing.F) {
	f.Add([]byte("\x20\x01\x0d\xb8\x00\x64\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{10, 1, 2, 3}, uint8(5))
	f.Add([]byte("\x00\x64\xff\x9b\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{169, 254, 169, 254}, uint8(2))
	f.Add([]byte("\x20\x02\x0a\x00\x00\x01\x00\x00\x00\x00\x5e\xfe\x00\x00\x00\x00"), []byte{192, 0, 0, 170}, uint8(0))
	f.Fuzz(func(t *testing.T, prefix, v4 []byte, which uint8) {
		if len(prefix) != 16 || len(v4) != 4 {
			return
		}
		l := nat64Lengths[int(which)%len(nat64Lengths)]
		embed := func(v4 [4]byte) netip.Addr {
			b := [16]byte(prefix)
			for i, at := range l.at {
				b[at] = v4[i]
			}
			return netip.AddrFrom16(b)
		}
		network, err := embed([4]byte(v4)).Prefix(l.bits)
		if err != nil || network.Addr().Is4In6() {
			return
		}
		a := plainAddr(embed([4]byte(v4)))
		if !a.Is6() { // judged as IPv4
			return
		}
		for _, everyPlace := range []bool{false, true} {
			forms := appendForms(nil, a, everyPlace, []netip.Prefix{network})
			if len(forms) > maxForms || !slices.Contains(forms, netip.AddrFrom4([4]byte(v4))) {
				t.Fatalf("%s behind %s holds %v, want %v", a, network, forms, v4)
			}
		}
		if forms := appendForms(nil, a, true); v4[0] != 0 && !slices.Contains(forms, netip.AddrFrom4([4]byte(v4))) {
			t.Fatalf("%s holds %v, want %v", a, forms, v4)
		}
		if got := announced(embed([4]byte{192, 0, 0, 171})); !slices.Contains(got, network) {
			t.Fatalf("%s announces %v, want %s", embed([4]byte{192, 0, 0, 171}), got, network)
		}
	})
}
