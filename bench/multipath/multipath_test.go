package multipath

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	rates := func(links []Link) (out []float64) {
		for _, l := range links {
			out = append(out, l.RateBitsPerSec/1e6)
		}
		return out
	}
	delays := func(links []Link) (out []time.Duration) {
		for _, l := range links {
			out = append(out, l.Delay)
		}
		return out
	}
	spec := Spec{Links: 5, RateBitsPerSec: 100e6, Variant: Rates}
	if got := rates(spec.Plan()); !slices.Equal(got, []float64{100, 100, 50, 20, 100}) {
		t.Errorf("rates %v", got)
	}
	spec = Spec{Links: 3, RateBitsPerSec: 100e6, Variant: Delays}
	if got := delays(spec.Plan()); !slices.Equal(got, []time.Duration{time.Millisecond, 25500 * time.Microsecond, 50 * time.Millisecond}) {
		t.Errorf("delays %v", got)
	}
	spec.Links = 1
	if got := delays(spec.Plan()); !slices.Equal(got, []time.Duration{time.Millisecond}) {
		t.Errorf("delay of one link %v", got)
	}
	for share, want := range map[float64]float64{0: 0.01, 0.001: 0.001} {
		got := Spec{Links: 4, Variant: Loss, LossShare: share}.Plan()
		if got[3].LossShare != want || got[0].LossShare+got[1].LossShare+got[2].LossShare != 0 {
			t.Errorf("loss %v: %+v", share, got)
		}
	}
	for _, l := range (Spec{Links: 2, RateBitsPerSec: 7}).Plan() {
		if l != (Link{RateBitsPerSec: 7}) {
			t.Errorf("a plain link is %+v", l)
		}
	}
}

func TestEvents(t *testing.T) {
	second := time.Second
	for _, tt := range []struct {
		variant string
		whole   time.Duration
		want    []Event
	}{
		{Plain, 5 * second, nil},
		{Loss, 5 * second, nil},
		{BlackHole, 5 * second, []Event{{Link: 3, From: 2500 * time.Millisecond, To: 5 * second, Silent: true}}},
		{Flap, 2200 * time.Millisecond, []Event{{Link: 3, From: second / 2, To: second}, {Link: 3, From: 3 * second / 2, To: 2 * second}}},
		{Flap, 1700 * time.Millisecond, []Event{{Link: 3, From: second / 2, To: second}, {Link: 3, From: 3 * second / 2, To: 1700 * time.Millisecond}}},
		{Flap, 400 * time.Millisecond, nil},
	} {
		if got := (Spec{Links: 4, Variant: tt.variant}).Events(tt.whole); !slices.Equal(got, tt.want) {
			t.Errorf("%s of %s: %+v, want %+v", tt.variant, tt.whole, got, tt.want)
		}
	}
}

// TestIdeal compares the ideals with results computed by hand.
func TestIdeal(t *testing.T) {
	whole := Interval{Whole: 4 * time.Second, To: 4 * time.Second}
	first := Interval{Whole: 4 * time.Second, To: 2 * time.Second}
	rest := Interval{Whole: 4 * time.Second, From: 2 * time.Second, To: 4 * time.Second}
	plain := Spec{Links: 4, RateBitsPerSec: 100e6}
	variant := func(v string) Spec { return Spec{Links: 4, RateBitsPerSec: 100e6, Variant: v} }
	const tunnel = 1500.0 - 20 - 8 - 12 - 12 // inner MTU
	for _, tt := range []struct {
		name   string
		spec   Spec
		load   Load
		during Interval
		want   float64
	}{
		{"single", Spec{Links: 1, RateBitsPerSec: 100e6}, Load{Network: "single"}, whole, 100e6 * 1448 / 1514},
		{"single, IPv6", Spec{Links: 1, RateBitsPerSec: 100e6}, Load{Network: "single", IPv6: true}, whole, 100e6 * 1428 / 1514},
		{"single, MTU 9000", Spec{Links: 1, RateBitsPerSec: 100e6}, Load{Network: "single", MTU: 9000}, whole, 100e6 * 8948 / 9014},
		{"mptcp", plain, Load{Network: "mptcp"}, whole, 400e6 * 1424 / 1514},
		{"tunnel", plain, Load{Network: "tunnel"}, whole, 400e6 * (tunnel - 52) / 1514},
		{"tunnel, IPv6", plain, Load{Network: "tunnel", IPv6: true}, whole, 400e6 * (tunnel - 20 - 52) / 1514},
		{"tunnel, encrypted", plain, Load{Network: "tunnel", Encrypted: true}, whole, 400e6 * (tunnel - 16 - 52) / 1514},
		{"tunnel, datagrams", plain, Load{Network: "tunnel", Datagrams: true, MessageBytes: 1400}, whole, 400e6 * 1400 / (1400 + 28 + 52 + 14)},
		{"tunnel, duplicates", variant(Rates), Load{Network: "tunnel", Duplicate: true}, whole, 100e6 * (tunnel - 52) / 1514},
		{"mpt", plain, Load{Network: "mpt"}, whole, 400e6 * (1464 - 52) / 1514},
		{"glorytun", plain, Load{Network: "glorytun"}, whole, 400e6 * (1472 - 52) / 1514},
		{"rates", variant(Rates), Load{Network: "mptcp"}, whole, 270e6 * 1424 / 1514},
		{"delays", variant(Delays), Load{Network: "mptcp"}, whole, 400e6 * 1424 / 1514},
		{"loss", variant(Loss), Load{Network: "mptcp"}, whole, 399e6 * 1424 / 1514},
		{"black hole, whole", variant(BlackHole), Load{Network: "mptcp"}, whole, 350e6 * 1424 / 1514},
		{"black hole, before", variant(BlackHole), Load{Network: "mptcp"}, first, 400e6 * 1424 / 1514},
		{"black hole, after", variant(BlackHole), Load{Network: "mptcp"}, rest, 300e6 * 1424 / 1514},
		{"flap", variant(Flap), Load{Network: "mptcp"}, rest, 350e6 * 1424 / 1514},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.spec.Ideal(tt.load, tt.during)
			if !ok || math.Abs(got-tt.want) > 1 {
				t.Errorf("%.0f bit/s, %t, want %.0f", got, ok, tt.want)
			}
		})
	}
	for name, unknown := range map[string]func() (float64, bool){
		"no rate": func() (float64, bool) { return Spec{Links: 4}.Ideal(Load{Network: "tunnel"}, whole) },
		"no time": func() (float64, bool) { return plain.Ideal(Load{Network: "tunnel"}, Interval{}) },
		"fragments": func() (float64, bool) {
			return plain.Ideal(Load{Network: "tunnel", Datagrams: true, MessageBytes: 1421}, whole)
		},
		"no datagram":   func() (float64, bool) { return plain.Ideal(Load{Network: "tunnel", Datagrams: true}, whole) },
		"only a header": func() (float64, bool) { return plain.Ideal(Load{Network: "tunnel", MTU: 100}, whole) },
	} {
		if got, ok := unknown(); ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		spec Spec
		ok   bool
	}{
		"one": {Spec{Links: 1}, true}, "most": {Spec{Links: MaxLinks, Variant: Flap}, true},
		"none": {Spec{}, false}, "too many": {Spec{Links: MaxLinks + 1}, false},
		"variant": {Spec{Links: 1, Variant: "plane"}, false}, "loss": {Spec{Links: 1, LossShare: 1.5}, false},
	} {
		if err := tt.spec.Validate(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"1%": 0.01, "0.01": 0.01, "0.1%": 0.001, "100%": 1, "0": 0} {
		if got, err := ParseShare(text); err != nil || math.Abs(got-want) > 1e-12 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "2", "-1%", "NaN", "one"} {
		if got, err := ParseShare(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
