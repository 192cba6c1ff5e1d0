package dhcp

import (
	"math"
	"net/netip"
	"time"

	"cleat/link"
)

// Lease is an address that is granted for some time, and what comes with it. It is plain
// data that is saved as JSON and used by other processes. It is not safe for concurrent
// use.
type Lease struct {
	Client  Client       `json:"client"`
	Address netip.Prefix `json:"address"` // with the prefix length of its subnet
	Server  netip.Addr   `json:"server"`  // that granted the lease
	// Routes are the server's classless routes or, without those, one default route
	// through its first valid router (RFC 3442).
	Routes []Route      `json:"routes,omitempty"`
	DNS    []netip.Addr `json:"dns,omitempty"`
	Domain string       `json:"domain,omitempty"` // letters, digits, '-', '_' and '.' only
	MTU    int          `json:"mtu,omitempty"`    // bytes, 576 to 65535; 0: unspecified
	// NextHop is the sender of the frame with the server's last message: the server, or a
	// router or relay on the way to it. Release sends there if the kernel has no route.
	NextHop link.MAC `json:"hop,omitzero"`

	// Obtained is when the lease was requested. The three times below are by the wall
	// clock of that moment; Next translates them.
	Obtained Stamp     `json:"got"`
	Renew    time.Time `json:"renew,omitzero"`   // T1: when to ask Server for more time
	Rebind   time.Time `json:"rebind,omitzero"`  // T2: when to ask any server
	Expires  time.Time `json:"expires,omitzero"` // when the address must not be used any more; zero: never

	LastAttempt Stamp    `json:"tried,omitzero"`  // the last attempt to renew it that had no answer
	Notes       []string `json:"notes,omitempty"` // what of the server's answer is ignored or replaced, and why
}

// Route is a route from a DHCP server.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // the router; zero: the destination is on the link
	// OnLink means that the router is a neighbour although it is outside of the lease's
	// subnet. The kernel must be told (RTNH_F_ONLINK).
	OnLink bool `json:"on_link,omitempty"`
}

// Action is what has to be done about a lease.
type Action string

// The actions.
const (
	NoAction    Action = ""        // the lease does not expire
	CallRenew   Action = "renew"   // call Renew
	CallRebind  Action = "rebind"  // call Rebind
	CallAcquire Action = "acquire" // remove the address from the link, then call Acquire
)

// Step is the next action and the time until it.
type Step struct {
	Action Action
	Delay  time.Duration // 0: now; with NoAction math.MaxInt64
}

// minRetry is the shortest time between two attempts to renew a lease (RFC 2131 section
// 4.4.5).
const minRetry = time.Minute

// Next returns the next step, seen from now. It counts the time that has passed,
// including sleep, however clocks were set meanwhile. Timers stop while the machine
// sleeps, so callers that wait should call Next again every minute.
func (l *Lease) Next(now Stamp) Step {
	if l.Expires.IsZero() {
		return Step{NoAction, math.MaxInt64}
	}
	age, ok := now.since(l.Obtained)
	t1, t2, end := l.Renew.Sub(l.Obtained.Wall), l.Rebind.Sub(l.Obtained.Wall), l.Expires.Sub(l.Obtained.Wall)
	switch {
	case !ok || age >= end:
		return Step{Action: CallAcquire}
	case age < t1:
		return Step{CallRenew, t1 - age}
	case age < t2:
		return l.retryStep(age, t1, t2, CallRenew, CallRebind)
	}
	return l.retryStep(age, t2, end, CallRebind, CallAcquire)
}

// retryStep returns the next step at an age between begin and end: to try, or, if that
// would be too late, what follows.
func (l *Lease) retryStep(age, begin, end time.Duration, try, then Action) Step {
	tried, ok := l.LastAttempt.since(l.Obtained)
	if !ok || tried < begin || tried > age {
		return Step{Action: try}
	}
	at := tried + max((end-tried)/2, minRetry)
	if at >= end {
		return Step{then, end - age}
	}
	return Step{try, max(at-age, 0)}
}

// attemptTimeout returns how long an attempt may take: until the next phase begins, and
// at most attemptTime.
func (l *Lease) attemptTimeout(now Stamp) time.Duration {
	if l.Expires.IsZero() {
		return attemptTime
	}
	age, ok := now.since(l.Obtained)
	if !ok {
		return 0
	}
	for _, end := range []time.Time{l.Rebind, l.Expires} {
		if d := end.Sub(l.Obtained.Wall) - age; d > 0 {
			return min(d, attemptTime)
		}
	}
	return 0
}
