package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cleat/usernet"
)

const time1m = time.Minute

func addrs(s string) (out []netip.Addr) {
	for word := range strings.FieldsSeq(s) {
		out = append(out, netip.MustParseAddr(word))
	}
	return out
}

// nth returns the n-th of many addresses.
func nth(i int) netip.Addr {
	var b [16]byte
	b[0], b[1] = 0x20, 0x01
	binary.BigEndian.PutUint32(b[12:], uint32(i+1))
	return netip.AddrFrom16(b)
}

func TestNamesLatestFirst(t *testing.T) {
	p := newPolicy(t, Config{})
	a := addrs("192.0.2.1")
	p.Learn("a.example", a, time1m)
	p.Learn("b.example", a, time1m)
	p.Learn("A.example.", a, time1m)
	if got := p.Names(netip.MustParseAddr("::ffff:192.0.2.1")); !slices.Equal(got, []string{"a.example", "b.example"}) {
		t.Errorf("%v", got)
	}
}

func TestCreditsExpire(t *testing.T) {
	for _, c := range []struct {
		name string
		ttl  time.Duration
		last time.Duration // still known after
	}{
		{"TTL 0", 0, minLife},
		{"a short TTL", 30 * time.Second, minLife},
		{"a long TTL", 5 * time.Hour, 5 * time.Hour},
		{"a TTL of years", 1 << 31 * time.Second, maxLife},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPolicy(t, Config{Rules: rules(t, "+example.com")})
				p.Learn("example.com", addrs("192.0.2.1"), c.ttl)
				f := flow(t, "192.0.2.1:443")
				time.Sleep(c.last - time.Second)
				if v := p.Judge(f); v.Action != usernet.Allow {
					t.Errorf("too early: %v", v.Action)
				}
				time.Sleep(2 * time.Second)
				if v := p.Judge(f); v.Action != usernet.Refuse {
					t.Errorf("after its time: %v", v.Action)
				}
				p.Learn("other.example", addrs("192.0.2.2"), time1m)
				if n := p.learned.plain.Len() + p.learned.named.Len(); n != 1 || len(p.learned.byAddr) != 1 {
					t.Errorf("%d credits and %d addresses are kept", n, len(p.learned.byAddr))
				}
			})
		})
	}
}

func TestLaterAnswerKeepsLongerTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{})
		p.Learn("example.com", addrs("192.0.2.1"), 10*time.Hour)
		p.Learn("example.com", addrs("192.0.2.1"), 0)
		time.Sleep(9 * time.Hour)
		if len(p.Names(netip.MustParseAddr("192.0.2.1"))) != 1 {
			t.Error("forgotten")
		}
	})
}

func TestTableIsBounded(t *testing.T) {
	allowed, denied := addrs("192.0.2.1"), addrs("192.0.2.2")
	check := func(t *testing.T, p *Policy) {
		t.Helper()
		l := &p.learned
		bytes, credits := 0, 0
		for _, cs := range l.byAddr {
			credits += len(cs)
			for _, c := range cs {
				bytes += len(c.name)
			}
			if len(cs) > maxNamesPerAddress {
				t.Errorf("%d names at one address", len(cs))
			}
		}
		if credits != l.plain.Len()+l.named.Len() || bytes != l.nameBytes {
			t.Errorf("%d credits of %d bytes, counted %d of %d", credits, bytes, l.plain.Len()+l.named.Len(), l.nameBytes)
		}
		if credits > maxCredits || bytes > maxNameBytes {
			t.Errorf("%d credits, %d bytes", credits, bytes)
		}
	}
	long := strings.Repeat(strings.Repeat("x", 60)+".", 3)
	for _, c := range []struct {
		name  string
		flood func(p *Policy)
		keeps bool // names that rules mention
	}{
		{"names of its own, an address each", func(p *Policy) {
			for i := range 2 * maxCredits {
				p.Learn(fmt.Sprintf("h%d.evil.test", i), []netip.Addr{nth(i)}, time1m)
			}
		}, true},
		{"long names", func(p *Policy) {
			for i := range maxCredits {
				p.Learn(fmt.Sprintf("h%d.%sevil.test", i, long), []netip.Addr{nth(i)}, time1m)
			}
		}, true},
		{"names of its own for the allowed and the denied address", func(p *Policy) {
			for i := range 100 {
				p.Learn(fmt.Sprintf("h%d.evil.test", i), slices.Concat(allowed, denied), time1m)
			}
		}, true},
		{"answers with very many addresses", func(p *Policy) {
			for i := range 50 {
				var many []netip.Addr
				for j := range 1000 {
					many = append(many, nth(i*1000+j))
				}
				p.Learn("evil.test", many, time1m)
			}
		}, true},
		{"names below a domain that rules speak of", func(p *Policy) {
			for i := range 2 * maxCredits {
				p.Learn(fmt.Sprintf("h%d.ads.example", i), []netip.Addr{nth(i)}, time1m)
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPolicy(t, Config{Rules: rules(t, "+good.example -*.ads.example")})
			p.Learn("good.example", allowed, time1m)
			p.Learn("x.ads.example", denied, time1m)
			c.flood(p)
			check(t, p)
			if has := len(p.Names(allowed[0])) > 0; c.keeps && !has {
				t.Error("the allowed name is forgotten")
			}
			if d := p.Explain(flow(t, "192.0.2.2:80")); c.keeps && d.Rule == nil {
				t.Errorf("the denied name is forgotten: %s", d.Reason)
			}
		})
	}
}

func TestLearnedNamesApplyToNewRules(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "+a.example")})
	p.Learn("b.example", addrs("192.0.2.1"), time1m)
	f := flow(t, "192.0.2.1:80")
	if v := p.Judge(f); v.Action != usernet.Refuse {
		t.Errorf("before: %v", v.Action)
	}
	if err := p.Set(rules(t, "+b.example")); err != nil {
		t.Fatal(err)
	}
	if v := p.Judge(f); v.Action != usernet.Allow {
		t.Errorf("after: %v", v.Action)
	}
	for i := range 2 * maxCredits {
		p.Learn(fmt.Sprintf("h%d.evil.test", i), []netip.Addr{nth(i)}, time1m)
	}
	if v := p.Judge(f); v.Action != usernet.Allow {
		t.Errorf("after a flood: %v", v.Action)
	}
}

// zone is a fake resolver.
type zone struct {
	mu    sync.Mutex
	addrs map[string]string // "ERROR" means that the look-up fails
	ttl   time.Duration
	asked map[string]int
}

func (z *zone) lookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.asked == nil {
		z.asked = map[string]int{}
	}
	z.asked[name]++
	switch z.addrs[name] {
	case "ERROR":
		return nil, 0, errors.New("no servers")
	case "REFUSED":
		return nil, 0, refusedError{}
	}
	return addrs(z.addrs[name]), z.ttl, nil
}

// refusedError is a server's answer with an error code.
type refusedError struct{}

func (refusedError) Error() string  { return "server answered REFUSED" }
func (refusedError) Answered() bool { return true }

func (z *zone) set(name, a string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addrs[name] = a
}

func (z *zone) count(name string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked[name]
}

func TestPrime(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "-ads.example +*.example default=allow -gone.example -broken.example")})
	z := &zone{addrs: map[string]string{"ads.example": "192.0.2.1 2001:db8::1", "broken.example": "ERROR"}, ttl: time1m}
	err := p.Prime(t.Context(), z.lookup)
	if err == nil || err.Error() != "look up broken.example: no servers" {
		t.Errorf("error is %v", err)
	}
	if got := knownNames(p)["ads.example"]; !slices.Equal(got, addrs("192.0.2.1 2001:db8::1")) {
		t.Errorf("found %v", got)
	}
	if z.count("example") != 0 || len(z.asked) != 3 {
		t.Errorf("asked for %v", z.asked)
	}
	if again := p.Prime(t.Context(), z.lookup); again == nil || again.Error() != err.Error() || z.count("ads.example") != 1 {
		t.Errorf("a second time the error is %v, after %v", again, z.asked)
	}
	for _, s := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:80"} {
		if v := p.Judge(flow(t, s)); v.Action != usernet.Refuse {
			t.Errorf("%s: %v", s, v.Action)
		}
	}
}

func TestPrimeCancelled(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "-ads.example")})
	ctx, cancel := context.WithCancel(t.Context())
	err := p.Prime(ctx, func(ctx context.Context, _ string) ([]netip.Addr, time.Duration, error) {
		cancel()
		return nil, 0, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "ads.example") {
		t.Errorf("error is %v", err)
	}
}

func TestRunFollowsAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{Rules: rules(t, "-ads.example")})
		z := &zone{addrs: map[string]string{"ads.example": "192.0.2.1"}, ttl: 30 * time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, z.lookup) }()
		synctest.Wait()
		denied := func(a string) bool { return p.Judge(flow(t, a+":80")).Action == usernet.Refuse }
		if !denied("192.0.2.1") {
			t.Error("not looked up at once")
		}
		z.set("ads.example", "192.0.2.2")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if !denied("192.0.2.2") {
			t.Error("not looked up when the TTL ended")
		}
		if !denied("192.0.2.1") {
			t.Error("an address of a moment ago is forgotten")
		}
		time.Sleep(minLife + time.Minute)
		synctest.Wait()
		if denied("192.0.2.1") || !denied("192.0.2.2") {
			t.Error("an address of long ago is kept, or the new one is not")
		}

		z.set("ads.example", "ERROR")
		time.Sleep(10 * minLife)
		synctest.Wait()
		if !denied("192.0.2.2") {
			t.Error("forgotten because the resolver is down")
		}
		z.set("ads.example", "192.0.2.3")
		time.Sleep(maxRetry)
		synctest.Wait()
		if !denied("192.0.2.3") {
			t.Error("not looked up soon after the resolver is up again")
		}

		z.set("new.example", "192.0.2.4")
		if err := p.Set(rules(t, "-new.example")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !denied("192.0.2.4") {
			t.Error("a new rule's name is not looked up at once")
		}
		if denied("192.0.2.3") {
			t.Error("the name of a rule that is gone still counts")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRunLimitsLookUps(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		ttl        time.Duration
		most       int // look-ups in an hour
	}{
		{"TTL 0", "192.0.2.1", 0, int(time.Hour/minAgain) + 1},
		{"TTL of a minute", "192.0.2.1", time.Minute, 61},
		{"TTL of a week", "192.0.2.1", 7 * 24 * time.Hour, int(time.Hour/maxAgain) + 1},
		{"resolver down", "ERROR", 0, int(time.Hour/maxRetry) + 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPolicy(t, Config{Rules: rules(t, "-ads.example")})
				z := &zone{addrs: map[string]string{"ads.example": c.addr}, ttl: c.ttl}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				p.Run(ctx, z.lookup)
				if n := z.count("ads.example"); n > c.most || n < c.most*9/10 {
					t.Errorf("asked %d times, want %d", n, c.most)
				}
			})
		})
	}
}

func TestAddressesOfOneNameAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicy(t, Config{Rules: rules(t, "-pool.example")})
		for i := range 40 {
			var some []netip.Addr
			for j := range 100 {
				some = append(some, nth(i*100+j))
			}
			p.own.answer("pool.example", some, time1m, nil)
			time.Sleep(time.Second)
		}
		known := knownNames(p)["pool.example"]
		if len(known) != maxOwnAddresses || !slices.Contains(known, nth(3999)) || slices.Contains(known, nth(0)) {
			t.Errorf("%d addresses are known", len(known))
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	p := newPolicy(t, Config{Rules: rules(t, "+*.example -ads.example"), Network: network()})
	sets := []Rules{rules(t, "+*.example -ads.example"), rules(t, "-*.example"), {}}
	f := flow(t, "192.0.2.1:80")
	z := &zone{addrs: map[string]string{"ads.example": "192.0.2.1"}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go p.Run(ctx, z.lookup)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				switch g {
				case 0:
					p.Judge(f)
					p.Explain(f)
				case 1:
					p.Learn(fmt.Sprintf("h%d.example", i), addrs("192.0.2.1"), time1m)
				case 2:
					if err := p.Set(sets[i%len(sets)]); err != nil {
						t.Error(err)
					}
				case 3:
					p.Bind(network())
					p.Names(f.Destination.Addr())
					knownNames(p)
				}
			}
		})
	}
	wg.Wait()
}

// knownNames returns the exact names of rules with the addresses that the Policy itself found
// for them.
func knownNames(p *Policy) map[string][]netip.Addr {
	p.own.mu.Lock()
	defer p.own.mu.Unlock()
	known := map[string][]netip.Addr{}
	for name, e := range p.own.entries {
		known[name] = slices.SortedFunc(maps.Keys(e.addrs), netip.Addr.Compare)
	}
	return known
}
