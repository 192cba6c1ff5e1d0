package gate

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestPlaces(t *testing.T) {
	var p places
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	take := func(a netip.Addr, host bool) (all []*place) {
		for {
			one := p.take(a, host)
			if one == nil {
				return all
			}
			all = append(all, one)
		}
	}
	of4, of6 := take(v4, false), take(v6, false)
	if len(of4) != maxPerAddress || len(of6) != maxPerAddress {
		t.Errorf("%d and %d places", len(of4), len(of6))
	}
	if p.take(netip.MustParseAddr("2001:db8::2"), false) != nil {
		t.Error("another address of the same prefix gets a place")
	}
	more := take(netip.MustParseAddr("2001:db8:0:1::1"), false)
	last := take(netip.MustParseAddr("192.0.2.2"), false)
	if n := len(of4) + len(of6) + len(more) + len(last); n != maxStrangers || p.take(netip.MustParseAddr("192.0.2.3"), false) != nil {
		t.Errorf("%d places of strangers", n)
	}
	hosts := take(v4, true)
	if len(hosts) != maxHosts {
		t.Errorf("%d places of hosts", len(hosts))
	}
	for _, all := range [][]*place{of4, of6, more, last, hosts} {
		for _, one := range all {
			one.leave()
		}
	}
	if p.hosts != 0 || p.strangers != 0 || len(p.from) != 0 {
		t.Errorf("left: %d, %d, %v", p.hosts, p.strangers, p.from)
	}
}

func TestRefusals(t *testing.T) {
	var r refusals
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i, tt := range []struct {
		after  time.Duration
		missed int
		ok     bool
	}{{0, 0, true}, {1, 0, false}, {logEvery - 1, 0, false}, {logEvery, 2, true}, {logEvery + 1, 0, false}, {3 * logEvery, 1, true}} {
		if missed, ok := r.due(at.Add(tt.after)); missed != tt.missed || ok != tt.ok {
			t.Errorf("%d: %d, %v, want %d, %v", i, missed, ok, tt.missed, tt.ok)
		}
	}
}

func TestPlain(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"text":           {"host a: no", "host a: no"},
		"lines, escapes": {"a\nb\x1b[2J", "a?b?[2J"},
		"long":           {strings.Repeat("é", 200), strings.Repeat("é", 150) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plain(tt.in); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
