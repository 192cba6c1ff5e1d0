package dhcp

import (
	"math"
	"net/netip"
	"time"

	"cleat/link"
)

// Lease is an address for some time, and what comes with it: plain data, to be kept as JSON
// and picked up by another process. It is not safe for concurrent use.
type Lease struct {
	Client  Client       `json:"client"`
	Address netip.Prefix `json:"address"` // with the length of its subnet
	Server  netip.Addr   `json:"server"`  // who gave it, and is asked for more
	// Routes are those that the server wants, never empty of meaning: where it gives
	// classless routes its routers don't count (RFC 3442).
	Routes []Route      `json:"routes,omitempty"`
	DNS    []netip.Addr `json:"dns,omitempty"`
	Domain string       `json:"domain,omitempty"` // letters, digits, '-', '_' and '.' only
	MTU    int          `json:"mtu,omitempty"`    // bytes, 576 to 65535; 0: not said
	// Hop is who sent the frame with the server's last word: the server, or the router or
	// relay on the way to it. Release goes there where the kernel knows no way.
	Hop link.MAC `json:"hop,omitzero"`

	// Got is when it was asked for. The three times are by the clock of then: what
	// they mean now is for Next to say.
	Got     Stamp     `json:"got"`
	Renew   time.Time `json:"renew,omitzero"`   // T1: from when on Server is asked to extend it
	Rebind  time.Time `json:"rebind,omitzero"`  // T2: from when on any server is
	Expires time.Time `json:"expires,omitzero"` // when the address must no longer be used; zero: never

	Tried Stamp    `json:"tried,omitzero"`  // the last attempt to extend it that had no answer
	Notes []string `json:"notes,omitempty"` // what of the server's answer was not taken as it was, and why
}

// Route is where packets for some addresses go.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // the router; invalid: they are neighbours
	// OnLink says that the router is a neighbour though outside of the lease's subnet:
	// the kernel must be told (RTNH_F_ONLINK).
	OnLink bool `json:"on_link,omitempty"`
}

// Action is what is to be done about a lease.
type Action string

// The actions.
const (
	Keep        Action = ""        // nothing, ever: it does not expire
	CallRenew   Action = "renew"   // call Renew
	CallRebind  Action = "rebind"  // call Rebind
	CallAcquire Action = "acquire" // take the address off the link, then call Acquire
)

// Step is what is to be done next, and in how long.
type Step struct {
	Action Action
	In     time.Duration // 0: now; for Keep the longest there is
}

// minRetry is the least time between two attempts to extend a lease (RFC 2131
// section 4.4.5).
const minRetry = time.Minute

// Next says what is to be done about the lease, seen from now, and when. It is a matter of
// time that passed, of sleep too, and not of what clocks were set to meanwhile. As a
// sleeping machine's timers sleep as well, whoever waits should ask again every minute.
func (l *Lease) Next(now Stamp) Step {
	if l.Expires.IsZero() {
		return Step{Keep, math.MaxInt64}
	}
	age, ok := now.since(l.Got)
	t1, t2, end := l.Renew.Sub(l.Got.Wall), l.Rebind.Sub(l.Got.Wall), l.Expires.Sub(l.Got.Wall)
	switch {
	case !ok || age >= end:
		return Step{Action: CallAcquire}
	case age < t1:
		return Step{CallRenew, t1 - age}
	case age < t2:
		return l.retry(age, t1, t2, CallRenew, CallRebind)
	}
	return l.retry(age, t2, end, CallRebind, CallAcquire)
}

// retry is the next step at an age from begin to end: to try, or, when that would be too
// late, what comes then.
func (l *Lease) retry(age, begin, end time.Duration, try, then Action) Step {
	tried, ok := l.Tried.since(l.Got)
	if !ok || tried < begin || tried > age {
		return Step{Action: try}
	}
	at := tried + max((end-tried)/2, minRetry)
	if at >= end {
		return Step{then, end - age}
	}
	return Step{try, max(at-age, 0)}
}

// left is how much time an attempt may take before the next phase begins.
func (l *Lease) left(now Stamp) time.Duration {
	if l.Expires.IsZero() {
		return extendWithin
	}
	age, ok := now.since(l.Got)
	if !ok {
		return 0
	}
	for _, end := range []time.Time{l.Rebind, l.Expires} {
		if d := end.Sub(l.Got.Wall) - age; d > 0 {
			return min(d, extendWithin)
		}
	}
	return 0
}

// Gateway is the router of the default route, if there is one.
func (l *Lease) Gateway() (netip.Addr, bool) {
	for _, r := range l.Routes {
		if r.To.Bits() == 0 && r.Via.IsValid() {
			return r.Via, true
		}
	}
	return netip.Addr{}, false
}
