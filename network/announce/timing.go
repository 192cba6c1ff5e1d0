package announce

import (
	"net/netip"
	"time"
)

// Timing says when Check sends probes. The zero Timing is that of the RFCs: four to eight
// seconds for IPv4 (RFC 5227 section 1.1), one to two for IPv6 (RFC 4862 section 5.1, RFC 4861
// section 10).
type Timing struct {
	InitialDelay             time.Duration // largest random delay before the first probe, so that many hosts don't start at once
	Probes                   int
	MinInterval, MaxInterval time.Duration // between two probes, random
	LastWait                 time.Duration // for an answer to the last probe
}

// Fast takes 270 to 350 ms. It is for people who wait, and for networks within one building,
// where answers take less than a millisecond on a wire. A sleeping Wi-Fi station receives
// broadcasts after every beacon to every third, 102 to 307 ms apart, and so at least one of the
// probes.
func Fast() Timing {
	return Timing{Probes: 3, MinInterval: 60 * time.Millisecond, MaxInterval: 100 * time.Millisecond, LastWait: 150 * time.Millisecond}
}

// rfcTiming returns the timing of the RFCs for the family of addr.
func rfcTiming(addr netip.Addr) Timing {
	if addr.Is4() {
		// PROBE_WAIT, PROBE_NUM, PROBE_MIN, PROBE_MAX, ANNOUNCE_WAIT (RFC 5227 section 1.1).
		return Timing{InitialDelay: time.Second, Probes: 3, MinInterval: time.Second, MaxInterval: 2 * time.Second, LastWait: 2 * time.Second}
	}
	// MAX_RTR_SOLICITATION_DELAY, DupAddrDetectTransmits, RetransTimer.
	return Timing{InitialDelay: time.Second, Probes: 1, LastWait: time.Second}
}

// pauses returns the pauses before each probe and after the last. random returns numbers in
// [0, 1).
func (t Timing) pauses(random func() float64) []time.Duration {
	out := []time.Duration{scale(t.InitialDelay, random())}
	for range t.Probes - 1 {
		out = append(out, t.MinInterval+scale(max(t.MaxInterval-t.MinInterval, 0), random()))
	}
	return append(out, t.LastWait)
}

func scale(d time.Duration, of float64) time.Duration { return time.Duration(of * float64(d)) }
