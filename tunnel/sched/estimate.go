package sched

import (
	"math"
	"slices"
	"time"
)

// windowedMin is the minimum of recent values: those of the current half of minimumAge and of
// the half before it.
type windowedMin struct {
	current, previous float64
	since             time.Duration
	valid             bool
}

func (m *windowedMin) add(now time.Duration, v float64) {
	switch {
	case !m.valid:
		m.set(now, v)
	case now-m.since > minimumAge/2:
		m.previous, m.current, m.since = m.current, v, now
	default:
		m.current = min(m.current, v)
	}
}

func (m *windowedMin) set(now time.Duration, v float64) {
	*m = windowedMin{current: v, previous: v, since: now, valid: true}
}

func (m *windowedMin) get() float64 { return min(m.current, m.previous) }

// windowedMax is the maximum of the values of the current half of an age and of the half
// before it.
type windowedMax struct {
	current, previous float64
	since             time.Duration
}

func (m *windowedMax) add(now time.Duration, v float64, age time.Duration) {
	if now-m.since > age/2 {
		m.previous, m.current, m.since = m.current, v, now
		return
	}
	m.current = max(m.current, v)
}

func (m *windowedMax) get() float64 { return max(m.current, m.previous) }

// differences is the median of the differences between the latest consecutive values.
type differences struct {
	last   float64
	values [15]float32
	n      int // values added so far
	median float64
}

func (d *differences) add(v float64) {
	if d.n > 0 {
		d.values[(d.n-1)%len(d.values)] = float32(math.Abs(v - d.last))
	}
	d.last = v
	if d.n++; d.n > len(d.values) {
		sorted := d.values
		slices.Sort(sorted[:])
		d.median = float64(sorted[len(sorted)/2])
	}
}

// get returns the median, or 0 if there are few values.
func (d *differences) get() float64 { return d.median }

// meter measures a rate over about half a second.
type meter struct {
	rate  float64 // bytes/s
	bytes float64 // counted since `since`
	since time.Duration
}

func (m *meter) add(now time.Duration, bytes float64) {
	m.bytes += bytes
	if d := now - m.since; d > 500*time.Millisecond {
		m.rate, m.bytes, m.since = m.bytes/d.Seconds(), 0, now
	}
}
