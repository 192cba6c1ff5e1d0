// Package ledger bounds what a guest can make its helper spend: descriptors, memory and
// goroutines, in one account for all parts of the helper.
//
// # Theory of operation
//
// A part of the helper charges the ledger before it spends something on the guest's behalf,
// and refunds it once that is freed. A charge is granted whole or not at all. Where it is
// refused the part does without: it refuses the flow, drops the datagram, or takes a way that
// costs less. So however a guest divides what it asks for among flows, questions to the
// resolver and system calls, the sum is bounded.
//
// What the helper needs for itself is not charged: answering control requests, looking up
// the names in rules, reading files. The limit is set below what the process may have, and
// the difference is the reserve for that.
//
// # Limits
//
// The ledger counts what it is told. Memory of the kernel (socket buffers, pages in pipes) is
// bounded by the kernel's own limits and by the number of descriptors.
package ledger

import "sync"

// Cost is what something takes for as long as it exists. Each field is 0 or more.
type Cost struct {
	Descriptors int `json:"descriptors"`
	Bytes       int `json:"bytes"`      // memory of this process
	Goroutines  int `json:"goroutines"` // those that block a thread count likewise
}

// Plus is the sum of two costs.
func (c Cost) Plus(o Cost) Cost {
	return Cost{c.Descriptors + o.Descriptors, c.Bytes + o.Bytes, c.Goroutines + o.Goroutines}
}

// Minus is what is left of c without o.
func (c Cost) Minus(o Cost) Cost {
	return Cost{c.Descriptors - o.Descriptors, c.Bytes - o.Bytes, c.Goroutines - o.Goroutines}
}

// within reports whether no field of c is larger than limit's.
func (c Cost) within(limit Cost) bool {
	return c.Descriptors <= limit.Descriptors && c.Bytes <= limit.Bytes && c.Goroutines <= limit.Goroutines
}

// Usage is the state of a Ledger.
type Usage struct {
	Used    Cost   `json:"used"`
	Peak    Cost   `json:"peak"` // the highest that each field has been
	Limit   Cost   `json:"limit"`
	Refused uint64 `json:"refused"` // charges that were not granted
}

// Ledger is an account. All methods are safe for concurrent use. A nil Ledger grants every
// charge and counts nothing.
type Ledger struct {
	mu    sync.Mutex
	usage Usage
}

// New makes a ledger that grants charges up to limit, field by field.
func New(limit Cost) *Ledger { return &Ledger{usage: Usage{Limit: limit}} }

// Charge adds c to what is used and reports whether the limit permits that; if not, nothing
// is added.
func (l *Ledger) Charge(c Cost) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := &l.usage
	used := u.Used.Plus(c)
	if !used.within(u.Limit) {
		u.Refused++
		return false
	}
	u.Used = used
	u.Peak = Cost{max(u.Peak.Descriptors, used.Descriptors), max(u.Peak.Bytes, used.Bytes), max(u.Peak.Goroutines, used.Goroutines)}
	return true
}

// Refund takes back a part of what was charged. It panics where more is refunded than was
// charged, since from then on the limit would not hold.
func (l *Ledger) Refund(c Cost) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.usage.Used.Minus(c)
	if !(Cost{}).within(left) {
		panic("ledger: more was refunded than charged")
	}
	l.usage.Used = left
}

// Usage is the state of the moment.
func (l *Ledger) Usage() Usage {
	if l == nil {
		return Usage{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}
