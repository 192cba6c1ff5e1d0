package announce

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"
)

// Timing says how long Check asks. The zero Timing is what the standards say: for IPv4
// four to eight seconds (RFC 5227 section 1.1), for IPv6 one to two (RFC 4862 section 5.1,
// RFC 4861 section 10).
type Timing struct {
	Wait     time.Duration // the first probe waits a random part of it, so that many hosts don't start at once
	Probes   int           // how many are sent
	Min, Max time.Duration // between two probes: a random time between these
	After    time.Duration // how long an answer to the last is waited for
}

// Fast is for people who wait, and links of one building: 270 to 350 ms. On a wire answers
// take less than a millisecond. A Wi-Fi station that sleeps gets broadcasts with every
// beacon to every third, 102 to 307 ms apart, and so one probe of these at least.
func Fast() Timing {
	return Timing{Probes: 3, Min: 60 * time.Millisecond, Max: 100 * time.Millisecond, After: 150 * time.Millisecond}
}

// standard is what RFCs say for the family of addr.
func standard(addr netip.Addr) Timing {
	if addr.Is4() {
		// PROBE_WAIT, PROBE_NUM, PROBE_MIN, PROBE_MAX, ANNOUNCE_WAIT (RFC 5227 section 1.1).
		return Timing{Wait: time.Second, Probes: 3, Min: time.Second, Max: 2 * time.Second, After: 2 * time.Second}
	}
	// MAX_RTR_SOLICITATION_DELAY, DupAddrDetectTransmits, RetransTimer.
	return Timing{Wait: time.Second, Probes: 1, After: time.Second}
}

// pauses are how long to wait before each probe, and after the last. chance is from [0, 1).
func (t Timing) pauses(chance func() float64) []time.Duration {
	out := []time.Duration{part(t.Wait, chance())}
	for range t.Probes - 1 {
		out = append(out, t.Min+part(max(t.Max-t.Min, 0), chance()))
	}
	return append(out, t.After)
}

func part(d time.Duration, of float64) time.Duration { return time.Duration(of * float64(d)) }

// Repeat says how often Address tells everyone. The zero Repeat is once, at once.
type Repeat struct {
	Times int           // 0: once
	Every time.Duration // between two times; 0: every 2 s (ANNOUNCE_INTERVAL, RFC 5227 section 1.1)
}

// announceInterval is ANNOUNCE_INTERVAL (RFC 5227 section 1.1), and long enough for IPv6
// (RetransTimer, 1 s: RFC 4861 section 7.2.6).
const announceInterval = 2 * time.Second

// Thorough is for links where frames get lost: three times within 4 s, the most that IPv6
// allows (MAX_NEIGHBOR_ADVERTISEMENT, RFC 4861 section 10) and one more than RFC 5227 asks
// for.
func Thorough() Repeat { return Repeat{Times: 3, Every: announceInterval} }

func (r Repeat) orOnce() Repeat {
	r.Times = max(r.Times, 1)
	if r.Every <= 0 {
		r.Every = announceInterval
	}
	return r
}

// pause waits until d is over or ctx has ended, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// chance is a random number from [0, 1).
func chance() float64 { return rand.Float64() }
