package link_test

import (
	"errors"
	"testing"
	"time"

	"cleat/link"
)

func TestShape(t *testing.T) {
	requireKind(t, "tbf")
	l, _ := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	for _, tt := range []struct {
		name        string
		give        link.Shaping
		wantBurst   int           // bytes, within a hundredth
		wantLatency time.Duration // at least
	}{
		{"slow", link.Shaping{RateBitsPerSec: 1e6}, 16 << 10, 25 * time.Millisecond},
		{"100 Mbit/s", link.Shaping{RateBitsPerSec: 100e6}, 16 << 10, 10 * time.Millisecond},
		{"1 Gbit/s", link.Shaping{RateBitsPerSec: 1e9}, 62_500, 25 * time.Millisecond},
		{"more than 32 bits of bytes", link.Shaping{RateBitsPerSec: 100e9}, 6_250_000, 25 * time.Millisecond},
		{"given", link.Shaping{RateBitsPerSec: 1e9, BurstBytes: 30_000}, 30_000, 25 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, link.Shape(l, tt.give))
			got, latency, err := link.ReadShaping(l)
			must(t, err)
			if got.RateBitsPerSec != tt.give.RateBitsPerSec {
				t.Errorf("rate is %d, want %d", got.RateBitsPerSec, tt.give.RateBitsPerSec)
			}
			if d := got.BurstBytes - tt.wantBurst; d > tt.wantBurst/100 || d < -tt.wantBurst/100 {
				t.Errorf("burst is %d bytes, want %d", got.BurstBytes, tt.wantBurst)
			}
			if latency < tt.wantLatency {
				t.Errorf("latency is %v, want %v or more", latency, tt.wantLatency)
			}
		})
	}
}

func TestShapeRefuses(t *testing.T) {
	for param, s := range map[string]link.Shaping{
		"rate":  {},
		"burst": {RateBitsPerSec: 1e6, BurstBytes: -1},
	} {
		var p *link.ParamError
		if err := link.Shape(nil, s); !errors.As(err, &p) || p.Param != param {
			t.Errorf("%+v: %v, want a *ParamError for %s", s, err, param)
		}
	}
}

// TestShapeCarriesAPacket checks that a burst smaller than a full packet is refused.
func TestShapeCarriesAPacket(t *testing.T) {
	requireKind(t, "tbf")
	l, _ := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	var p *link.ParamError
	if err := link.Shape(l, link.Shaping{RateBitsPerSec: 1e6, BurstBytes: 1513}); !errors.As(err, &p) || p.Param != "burst" {
		t.Errorf("a burst of 1513 bytes: %v, want a *ParamError for burst", err)
	}
	must(t, link.Shape(l, link.Shaping{RateBitsPerSec: 1e6, BurstBytes: 1514}))
}

// TestShapeSlows checks that a transfer is not faster than the rate allows. The test
// does not depend on the speed of the machine.
func TestShapeSlows(t *testing.T) {
	requireKind(t, "tbf")
	a, b := cable(t, newNS(t, "a"), "eth0", newNS(t, "b"), "eth0")
	from, to := newEndpoint(t, a, "192.0.2.1/24"), newEndpoint(t, b, "192.0.2.2/24")
	const bytes = 160_000
	s := link.Shaping{RateBitsPerSec: 4e6, BurstBytes: 16_000}
	must(t, link.Shape(a, s))
	start := time.Now()
	must(t, echoTCPStream(from, to, bytes))
	least := time.Duration(float64(bytes-s.BurstBytes) * 8 / float64(s.RateBitsPerSec) * float64(time.Second))
	if took := time.Since(start); took < least {
		t.Errorf("%d bytes took %v, want %v or more", bytes, took, least)
	}
}
