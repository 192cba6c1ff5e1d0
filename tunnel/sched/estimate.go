package sched

import "time"

// least keeps the least of recent values in two halves of an age.
type least struct {
	now, before float64
	since       time.Duration
	some        bool
}

func (l *least) add(now time.Duration, v float64) {
	switch {
	case !l.some:
		l.now, l.before, l.since, l.some = v, v, now, true
	case now-l.since > baseAge/2:
		l.before, l.now, l.since = l.now, v, now
	default:
		l.now = min(l.now, v)
	}
}

func (l *least) set(now time.Duration, v float64) {
	*l = least{now: v, before: v, since: now, some: true}
}

func (l *least) get() float64 { return min(l.now, l.before) }

// highest keeps the highest of recent values likewise.
type highest struct {
	now, before float64
	since       time.Duration
}

func (h *highest) add(now time.Duration, v float64, age time.Duration) {
	if now-h.since > age/2 {
		h.before, h.now, h.since = h.now, v, now
		return
	}
	h.now = max(h.now, v)
}

func (h *highest) get() float64 { return max(h.now, h.before) }

// meter is a rate over about a second, for people.
type meter struct {
	rate  float64 // bytes/s
	bytes float64
	since time.Duration
}

func (m *meter) add(now time.Duration, bytes float64) {
	m.bytes += bytes
	if d := now - m.since; d > 500*time.Millisecond {
		m.rate, m.bytes, m.since = m.bytes/d.Seconds(), 0, now
	}
}
