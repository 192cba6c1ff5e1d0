package dhcp

import (
	"math"
	"testing"
	"time"
)

// hourly is a lease of an hour, got at 0: T1 at 30 min, T2 at 52.5.
func hourly() *Lease {
	return &Lease{Got: at(0), Renew: at(1800).Wall, Rebind: at(3150).Wall, Expires: at(3600).Wall}
}

// TestNext is a table of moments.
func TestNext(t *testing.T) {
	const s = time.Second
	tried := func(at Stamp) *Lease {
		l := hourly()
		l.Tried = at
		return l
	}
	short := &Lease{Got: at(0), Renew: at(60).Wall, Rebind: at(105).Wall, Expires: at(120).Wall}
	shortTried := func(n int) *Lease {
		l := *short
		l.Tried = at(n)
		return &l
	}
	wall := func(s Stamp, d time.Duration) Stamp { s.Wall = s.Wall.Add(d); return s }
	reboot := func(s Stamp) Stamp { s.Boot, s.Up = "next", time.Minute; return s }
	for name, c := range map[string]struct {
		lease *Lease
		now   Stamp
		want  Step
	}{
		"new":                               {hourly(), at(0), Step{CallRenew, 1800 * s}},
		"before T1":                         {hourly(), at(1799), Step{CallRenew, s}},
		"at T1":                             {hourly(), at(1800), Step{CallRenew, 0}},
		"T1 missed":                         {hourly(), at(2000), Step{CallRenew, 0}},
		"tried at T1: half of what is left": {tried(at(1800)), at(1810), Step{CallRenew, 665 * s}},
		"time for the next":                 {tried(at(1800)), at(2475), Step{CallRenew, 0}},
		"a minute at least":                 {tried(at(3080)), at(3081), Step{CallRenew, 59 * s}},
		"no time before T2":                 {tried(at(3100)), at(3101), Step{CallRebind, 49 * s}},
		"at T2":                             {tried(at(3100)), at(3150), Step{CallRebind, 0}},
		"tried at T2":                       {tried(at(3150)), at(3150), Step{CallRebind, 225 * s}},
		"no time before the end":            {tried(at(3590)), at(3591), Step{CallAcquire, 9 * s}},
		"at the end":                        {hourly(), at(3600), Step{CallAcquire, 0}},
		"long gone":                         {hourly(), at(1 << 30), Step{CallAcquire, 0}},
		"short, tried at T1":                {shortTried(60), at(61), Step{CallRebind, 44 * s}},
		"short, tried at T2":                {shortTried(105), at(106), Step{CallAcquire, 14 * s}},
		"for ever":                          {&Lease{Got: at(0)}, at(1 << 30), Step{Keep, math.MaxInt64}},
		"clock set forward by a day":        {hourly(), wall(at(10), 24*time.Hour), Step{CallRenew, 1790 * s}},
		"clock set back by a day":           {hourly(), wall(at(1800), -24*time.Hour), Step{CallRenew, 0}},
		"clock set back, over":              {hourly(), wall(at(3600), -24*time.Hour), Step{CallAcquire, 0}},
		"slept for 40 minutes":              {hourly(), at(2400), Step{CallRenew, 0}},
		"slept for a day":                   {hourly(), at(86400), Step{CallAcquire, 0}},
		"started anew":                      {hourly(), reboot(at(1900)), Step{CallRenew, 0}},
		"started anew, over":                {hourly(), reboot(at(3600)), Step{CallAcquire, 0}},
		"started anew, in the past":         {hourly(), reboot(at(-1)), Step{CallAcquire, 0}},
		"tried before it was started anew":  {tried(at(1800)), reboot(at(1900)), Step{CallRenew, 575 * s}},
		"tried in a future that is not":     {tried(at(2000)), at(1900), Step{CallRenew, 0}},
		"no idea when it was got":           {&Lease{Expires: at(3600).Wall}, at(0), Step{CallAcquire, 0}},
	} {
		if got := c.lease.Next(c.now); got != c.want {
			t.Errorf("%s: %q in %s, want %q in %s", name, got.Action, got.In, c.want.Action, c.want.In)
		}
	}
}

// TestNextEnds follows leases of many lengths whose server has gone, by what Next says: they
// end when they must, not later, and nobody is asked more often than once a minute.
func TestNextEnds(t *testing.T) {
	for _, length := range []int{4, 10, 60, 120, 600, 3600, 86400, 10 * 365 * 86400} {
		l := &Lease{Client: Client{}}
		life := time.Duration(length) * time.Second
		l.set(terms{lifetime: life, t1: life / 2, t2: life / 8 * 7}, at(0), func() float64 { return 0.5 })
		now, last, tries := at(0), Stamp{}, map[Action]int{}
		for steps := 0; ; steps++ {
			if steps > 1000 {
				t.Fatalf("%s: no end", life)
			}
			s := l.Next(now)
			if s.In > 0 {
				now = now.add(s.In)
				continue
			}
			if s.Action == CallAcquire {
				break
			}
			if d, ok := now.since(last); ok && d < minRetry && tries[s.Action] > 0 {
				t.Errorf("%s: asked again after %s", life, d)
			}
			tries[s.Action]++
			last, l.Tried = now, now
		}
		if age, _ := now.since(l.Got); age != life {
			t.Errorf("%s: it ends after %s", life, age)
		}
		if tries[CallRenew] == 0 || tries[CallRebind] == 0 {
			t.Errorf("%s: %v", life, tries)
		}
	}
}

// TestLeft bounds attempts by what comes next.
func TestLeft(t *testing.T) {
	for name, c := range map[string]struct {
		now  Stamp
		want time.Duration
	}{
		"time enough":      {at(1800), extendWithin},
		"just before T2":   {at(3147), 3 * time.Second},
		"at T2":            {at(3150), extendWithin},
		"just before over": {at(3599), time.Second},
		"over":             {at(3600), 0},
	} {
		if got := hourly().left(c.now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := (&Lease{Got: at(0)}).left(at(1)); got != extendWithin {
		t.Errorf("for ever: %s", got)
	}
}

// TestNow has both clocks go forward.
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
