package sched

import "time"

// pacer spreads a path's packets over time: a bucket that the caller fills with runs and
// that drains at the path's rate.
type pacer struct {
	rate         float64       // set by the rate controller
	backlogBytes float64       // given to the path and not yet drained; negative: credit for a late wake-up
	drainedAt    time.Duration // time up to which backlogBytes accounts for the rate
	heldBackAt   time.Duration // when packets last waited because the path had no room
	pausedUntil  time.Duration // nothing is sent until then, see drain
	maxBurst     float64       // bytes that may be sent at once, less than what backlogTime allows; 0: unlimited
}

// The constants suit links from 1 Mbit/s to 100 Gbit/s.
const (
	// runTime is how much of a path's rate is sent in one run. Shorter runs cost a system
	// call each (0.25 ms: 68–85 % of 12 × 100 Mbit/s here), longer ones cause reordering.
	runTime = time.Millisecond
	// A run has at least minRunBytes, so that it is worth its system call. On fast paths it
	// is no longer than minRunTime or minRunBytes, so that it is one message and fits the
	// burst of a shaper. A token bucket splits a longer message, which costs one operation
	// per packet from there on, or makes it wait for a timer. Links of 1 Gbit/s with bursts
	// of 0.5 ms carried, with runs of 1 ms in messages of 64 KiB, with messages of 0.4 ms,
	// and with runs of 0.3 ms: 2.2, 3.6 and 3.6 Gbit/s (four links); –, 3.8 and 6.1 Gbit/s
	// (eight links).
	minRunBytes = 12 << 10
	minRunTime  = 300 * time.Microsecond
	// backlogTime is how far ahead of its rate a path may be filled, a run included.
	backlogTime = 2 * time.Millisecond
	// lateCredit is how late a wake-up may be without the path losing throughput.
	lateCredit = 2 * time.Millisecond
)

// advance drains the backlog up to now.
func (c *pacer) advance(now time.Duration) {
	elapsed := now - c.drainedAt
	if elapsed <= 0 {
		return
	}
	c.drainedAt = now
	c.backlogBytes -= c.rate * elapsed.Seconds()
	floor := 0.0
	if c.heldBackAt+backlogTime+lateCredit > now { // the caller is late, the path not idle
		floor = -c.burst(lateCredit)
	}
	c.backlogBytes = max(c.backlogBytes, floor)
}

// runBytes returns the size of a run.
func (c *pacer) runBytes() float64 {
	return min(c.burst(runTime), max(minRunBytes, c.rate*minRunTime.Seconds()))
}

// burst returns how many bytes may be sent at once of what the rate carries in a time.
func (c *pacer) burst(d time.Duration) float64 {
	if bytes := c.rate * d.Seconds(); c.maxBurst == 0 || bytes < c.maxBurst {
		return bytes
	}
	return c.maxBurst
}

// minBurst is the least that maxBurst is set to, in bytes.
const minBurst = 3 * fullPacketBytes

// shrinkBursts halves what may be sent at once: the path has lost packets of a burst although
// it was not full.
func (c *pacer) shrinkBursts() { c.maxBurst = max(c.burst(backlogTime)/2, minBurst) }

// growBursts takes back some of what shrinkBursts did.
func (c *pacer) growBursts() {
	if c.maxBurst *= 1.05; c.maxBurst > c.rate*backlogTime.Seconds() {
		c.maxBurst = 0
	}
}

// room returns the number of bytes that the path may be given now.
func (p *Path) room(now time.Duration) int {
	c := &p.pacer
	c.advance(now)
	if now < c.pausedUntil || p.SocketFull {
		return 0
	}
	return int(c.burst(backlogTime) - c.backlogBytes)
}

// roomAt returns when there will be room for a whole run.
func (c *pacer) roomAt(now time.Duration) time.Duration {
	at := max(now, c.pausedUntil)
	excess := c.backlogBytes - (c.burst(backlogTime) - c.runBytes())
	if excess <= 0 {
		return at
	}
	return max(at, now+time.Duration(excess/c.rate*1e9))
}

// MaxMessageBytes returns the maximum number of bytes that should be sent as one message: no
// more than the path has been seen to deliver in minRunTime, because the rate may be a guess that
// is far too high, and a longer message than the path's token bucket takes costs so much time
// that nothing waits for the path and corrects the guess. Four links of 1 Gbit/s with buckets
// of 64 KiB carried 45 % of their sum by messages as long as the guess allows, and 97 % now.
func (p *Path) MaxMessageBytes() int {
	seen := max(p.control.topRate, p.control.peakRate.get())
	return max(minRunBytes, int(min(p.pacer.runBytes(), seen*minRunTime.Seconds())))
}

// TransmitTime returns how long the path takes to carry so many bytes.
func (p *Path) TransmitTime(bytes int) time.Duration {
	return time.Duration(float64(bytes) / p.pacer.rate * 1e9)
}

// padding is the state of measuring a new path with padding.
type padding struct {
	since  time.Duration // when measuring began; 0: not yet
	lastAt time.Duration // when padding last had a turn, or was reported
	due    bool          // the next run is padding
	bytes  int           // of padding sent so far

	unreported bool   // no report has reached the end of what was sent
	endSeq     uint32 // path sequence number after that
}

const (
	paddingTime    = 200 * time.Millisecond // measuring a new path lasts this and eight round trips
	maxPaddingRate = 1e9 / 8                // bytes/s; a faster path is measured with data
)

// MaxPaddingBytes bounds the padding of a path, headers included, from when it was added
// until it is removed. It measures an empty path of 200 Mbit/s with a round trip of 10 ms,
// and half the rate of one with 40 ms; data measures the rest. Without a bound, padding
// took 0.5 to 55 MB (simulated: 50 to 2000 Mbit/s, round trips of 0.6 to 600 ms).
const MaxPaddingBytes = 1_000_000

// Measuring reports whether the path is new and padding is still finding out its rate. The
// queue that padding causes does not prolong it. A metered path is never measured so.
func (p *Path) Measuring(now time.Duration) bool {
	return p.Live() && !p.Metered && float64(MaxPaddingBytes-p.padding.bytes) >= p.pacer.runBytes()/2 && !p.control.saturated && p.pacer.rate < maxPaddingRate &&
		p.padding.since > 0 && now-p.padding.since < paddingTime+8*p.delay.minRTT
}

// PaddingRoom returns how many bytes of padding may be sent now on a path that is being
// measured. The first call starts the measurement.
func (p *Path) PaddingRoom(now time.Duration) (room int, ok bool) {
	if p.padding.since == 0 && !p.Metered {
		p.padding.since = now
	}
	if !p.Measuring(now) {
		return 0, false
	}
	p.pacer.heldBackAt, p.padding.lastAt = now, now
	room = min(p.room(now), MaxPaddingBytes-p.padding.bytes)
	p.padding.due = float64(room) >= p.pacer.runBytes()/2
	return room, p.padding.due
}

// PostponeMeasuring restarts the measurement of a path later, from the beginning. A
// measurement that had most of its time counts as done.
func (p *Path) PostponeMeasuring(now time.Duration) {
	if p.Measuring(now) && now-p.padding.since < paddingTime {
		p.padding.since = 0
	}
}
