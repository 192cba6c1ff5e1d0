package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// fill takes the addresses at offsets [from, to) of the first subnet.
func fill(t testing.TB, p *Pool, from, to int) {
	t.Helper()
	s := p.Subnets[0].space()
	for i := from; i < to; i++ {
		if err := os.Symlink(fmt.Sprint("docker.", i), p.path(s.addr(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// latencies reports the median, the 99th percentile and the largest of durations.
func latencies(b *testing.B, all []time.Duration) {
	slices.Sort(all)
	for name, d := range map[string]time.Duration{"p50-µs": all[len(all)/2], "p99-µs": all[len(all)*99/100], "max-µs": all[len(all)-1]} {
		b.ReportMetric(float64(d)/1e3, name)
	}
	b.ReportMetric(0, "ns/op") // has the releases in it
}

// BenchmarkAllocate measures Allocate, without the Release that frees the address again.
func BenchmarkAllocate(b *testing.B) {
	for _, bb := range []struct {
		name     string
		prefix   string
		from, to int // taken
	}{
		{"empty 16", "10.20.0.0/16", 0, 0},
		{"60000 taken", "10.20.0.0/16", 1, 60001},
		{"one free at the far end", "10.20.0.0/16", 1, 65534},
		{"empty 8", "10.0.0.0/8", 0, 0},
		{"IPv6 64", "2001:db8::/64", 0, 0},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := newPool(b, Subnet{Prefix: prefix(bb.prefix)})
			fill(b, p, bb.from, bb.to)
			release(b, p, allocate(b, p, "docker.web", none), "docker.web") // makes the hint
			var all []time.Duration
			for b.Loop() {
				start := time.Now()
				a, err := p.Allocate(p.Subnets[0].Prefix, "docker.web", none, nil)
				all = append(all, time.Since(start))
				if err != nil {
					b.Fatal(err)
				}
				release(b, p, a, "docker.web")
			}
			latencies(b, all)
		})
	}
}

// BenchmarkAtOnce measures Allocate while 100 goroutines allocate and release, with 60,000
// addresses taken.
func BenchmarkAtOnce(b *testing.B) {
	const n = 100
	p := newPool(b, Subnet{Prefix: prefix("10.20.0.0/16")})
	fill(b, p, 1, 60001)
	allocate(b, p, "docker.web", none)
	each := make([][]time.Duration, n)
	for b.Loop() {
		var all sync.WaitGroup
		for i := range n {
			owner := Owner(fmt.Sprint("docker.", i))
			all.Go(func() {
				start := time.Now()
				a, err := p.Allocate(p.Subnets[0].Prefix, owner, none, nil)
				each[i] = append(each[i], time.Since(start))
				if err == nil {
					err = p.Release(a, owner)
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
	latencies(b, slices.Concat(each...))
}

// BenchmarkOthers measures the other methods with 60,000 addresses taken.
func BenchmarkOthers(b *testing.B) {
	p := newPool(b, Subnet{Prefix: prefix("10.20.0.0/16")})
	fill(b, p, 1, 60001)
	subnet, free, taken := p.Subnets[0].Prefix, addr("10.20.250.1"), addr("10.20.0.1")
	allocate(b, p, "docker.web", none)
	for i := range 3000 { // the notes are full
		if err := p.Remember(taken, Owner(fmt.Sprint("docker.", i))); err != nil {
			b.Fatal(err)
		}
	}
	for _, bb := range []struct {
		name string
		do   func() error
	}{
		{"claim and release", func() error {
			if err := p.Claim(free, "docker.web", nil); err != nil {
				return err
			}
			return p.Release(free, "docker.web")
		}},
		{"owner", func() error { _, err := p.Owner(taken); return err }},
		{"remember", func() error { return p.Remember(free, "docker.0") }},
		{"remembered", func() error { p.Remembered(subnet, "docker.none"); return nil }},
		{"rebuild", func() error {
			h := p.openHint(&p.Subnets[0], os.O_CREATE)
			defer h.close()
			return p.rebuild(h, true)
		}},
		{"entries", func() error { _, err := p.Entries(); return err }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			for b.Loop() {
				if err := bb.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkChooseSubnet chooses a /24 on a host with 1,000 networks.
func BenchmarkChooseSubnet(b *testing.B) {
	var taken []netip.Prefix
	for range 1000 {
		p, err := ChooseSubnet(DefaultPools4(), 24, taken)
		if err != nil {
			b.Fatal(err)
		}
		taken = append(taken, p)
	}
	for b.Loop() {
		if _, err := ChooseSubnet(DefaultPools4(), 24, taken); err != nil {
			b.Fatal(err)
		}
	}
}
