package dhcp

import (
	"math"
	"testing"
	"time"
)

// hourly is a lease of an hour, obtained at 0: T1 at 30 min, T2 at 52.5 min.
func hourly() *Lease {
	return &Lease{Obtained: at(0), Renew: at(1800).Wall, Rebind: at(3150).Wall, Expires: at(3600).Wall}
}

// Next returns these steps.
func TestNext(t *testing.T) {
	const s = time.Second
	tried := func(at Stamp) *Lease {
		l := hourly()
		l.LastAttempt = at
		return l
	}
	short := &Lease{Obtained: at(0), Renew: at(60).Wall, Rebind: at(105).Wall, Expires: at(120).Wall}
	shortTried := func(n int) *Lease {
		l := *short
		l.LastAttempt = at(n)
		return &l
	}
	wall := func(s Stamp, d time.Duration) Stamp { s.Wall = s.Wall.Add(d); return s }
	reboot := func(s Stamp) Stamp { s.Boot, s.Up = "next", time.Minute; return s }
	for name, c := range map[string]struct {
		lease *Lease
		now   Stamp
		want  Step
	}{
		"new":                           {hourly(), at(0), Step{CallRenew, 1800 * s}},
		"before T1":                     {hourly(), at(1799), Step{CallRenew, s}},
		"at T1":                         {hourly(), at(1800), Step{CallRenew, 0}},
		"T1 missed":                     {hourly(), at(2000), Step{CallRenew, 0}},
		"tried at T1: half of the rest": {tried(at(1800)), at(1810), Step{CallRenew, 665 * s}},
		"due again":                     {tried(at(1800)), at(2475), Step{CallRenew, 0}},
		"at least a minute":             {tried(at(3080)), at(3081), Step{CallRenew, 59 * s}},
		"no time before T2":             {tried(at(3100)), at(3101), Step{CallRebind, 49 * s}},
		"at T2":                         {tried(at(3100)), at(3150), Step{CallRebind, 0}},
		"tried at T2":                   {tried(at(3150)), at(3150), Step{CallRebind, 225 * s}},
		"no time before the end":        {tried(at(3590)), at(3591), Step{CallAcquire, 9 * s}},
		"at the end":                    {hourly(), at(3600), Step{CallAcquire, 0}},
		"long expired":                  {hourly(), at(1 << 30), Step{CallAcquire, 0}},
		"short, tried at T1":            {shortTried(60), at(61), Step{CallRebind, 44 * s}},
		"short, tried at T2":            {shortTried(105), at(106), Step{CallAcquire, 14 * s}},
		"unlimited":                     {&Lease{Obtained: at(0)}, at(1 << 30), Step{NoAction, math.MaxInt64}},
		"clock set forward by a day":    {hourly(), wall(at(10), 24*time.Hour), Step{CallRenew, 1790 * s}},
		"clock set back by a day":       {hourly(), wall(at(1800), -24*time.Hour), Step{CallRenew, 0}},
		"clock set back, expired":       {hourly(), wall(at(3600), -24*time.Hour), Step{CallAcquire, 0}},
		"slept for 40 minutes":          {hourly(), at(2400), Step{CallRenew, 0}},
		"slept for a day":               {hourly(), at(86400), Step{CallAcquire, 0}},
		"restarted":                     {hourly(), reboot(at(1900)), Step{CallRenew, 0}},
		"restarted, expired":            {hourly(), reboot(at(3600)), Step{CallAcquire, 0}},
		"restarted, clock in the past":  {hourly(), reboot(at(-1)), Step{CallAcquire, 0}},
		"tried before the restart":      {tried(at(1800)), reboot(at(1900)), Step{CallRenew, 575 * s}},
		"tried in the future":           {tried(at(2000)), at(1900), Step{CallRenew, 0}},
		"unknown time of request":       {&Lease{Expires: at(3600).Wall}, at(0), Step{CallAcquire, 0}},
	} {
		if got := c.lease.Next(c.now); got != c.want {
			t.Errorf("%s: %q after %s, want %q after %s", name, got.Action, got.Delay, c.want.Action, c.want.Delay)
		}
	}
}

// Leases of many lengths, whose server is gone, expire in time if Next is followed, and
// no server is asked more often than once a minute.
func TestNextEnds(t *testing.T) {
	for _, length := range []int{4, 10, 60, 120, 600, 3600, 86400, 10 * 365 * 86400} {
		l := &Lease{Client: Client{}}
		life := time.Duration(length) * time.Second
		l.set(terms{lifetime: life, t1: life / 2, t2: life / 8 * 7}, at(0), func() float64 { return 0.5 })
		now, last, tries := at(0), Stamp{}, map[Action]int{}
		for steps := 0; ; steps++ {
			if steps > 1000 {
				t.Fatalf("%s: it never expires", life)
			}
			s := l.Next(now)
			if s.Delay > 0 {
				now = now.add(s.Delay)
				continue
			}
			if s.Action == CallAcquire {
				break
			}
			if d, ok := now.since(last); ok && d < minRetry && tries[s.Action] > 0 {
				t.Errorf("%s: tried again after %s", life, d)
			}
			tries[s.Action]++
			last, l.LastAttempt = now, now
		}
		if age, _ := now.since(l.Obtained); age != life {
			t.Errorf("%s: it expires after %s", life, age)
		}
		if tries[CallRenew] == 0 || tries[CallRebind] == 0 {
			t.Errorf("%s: %v", life, tries)
		}
	}
}

// An attempt ends when the next phase begins.
func TestAttemptTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		now  Stamp
		want time.Duration
	}{
		"enough time":         {at(1800), attemptTime},
		"just before T2":      {at(3147), 3 * time.Second},
		"at T2":               {at(3150), attemptTime},
		"just before the end": {at(3599), time.Second},
		"over":                {at(3600), 0},
	} {
		if got := hourly().attemptTimeout(c.now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := (&Lease{Obtained: at(0)}).attemptTimeout(at(1)); got != attemptTime {
		t.Errorf("unlimited: %s", got)
	}
}

// Both clocks advance.
func TestNow(t *testing.T) {
	a, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := b.since(a); !ok || d < 0 || d > time.Minute || a.Boot == "" {
		t.Errorf("from %+v to %+v: %s", a, b, d)
	}
}
