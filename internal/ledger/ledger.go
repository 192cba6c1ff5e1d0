// Package ledger limits what a guest can make its helper spend: descriptors, memory and
// goroutines, in one account for all parts of the helper.
//
// # Theory of operation
//
// A part of the helper charges the ledger before it spends something on the guest's
// behalf, and refunds it once that is freed. A charge is granted whole or not at all.
// When a charge is refused, the part refuses the flow, drops the datagram, or takes a
// cheaper way. However a guest spreads its requests over flows, DNS queries and system
// calls, the sum is bounded.
//
// The helper's own needs are not charged: answering control requests, looking up the
// names in rules, reading files. The limit is set below what the process may have, and
// the difference is the reserve for those needs.
//
// # Limits
//
// The ledger counts only what it is told. Kernel memory (socket buffers, pages in pipes)
// is bounded by the kernel's own limits and by the number of descriptors.
package ledger

import "sync"

// Cost is what something uses for as long as it exists. Each field is 0 or more.
type Cost struct {
	Descriptors int `json:"descriptors"`
	Bytes       int `json:"bytes"`      // memory of this process
	Goroutines  int `json:"goroutines"` // including those that block a thread
}

// Plus returns the sum of two costs.
func (c Cost) Plus(o Cost) Cost {
	return Cost{c.Descriptors + o.Descriptors, c.Bytes + o.Bytes, c.Goroutines + o.Goroutines}
}

// Minus returns c less o.
func (c Cost) Minus(o Cost) Cost {
	return Cost{c.Descriptors - o.Descriptors, c.Bytes - o.Bytes, c.Goroutines - o.Goroutines}
}

// within reports whether no field of c exceeds limit's.
func (c Cost) within(limit Cost) bool {
	return c.Descriptors <= limit.Descriptors && c.Bytes <= limit.Bytes && c.Goroutines <= limit.Goroutines
}

// Usage is the state of a Ledger.
type Usage struct {
	Used    Cost   `json:"used"`
	Peak    Cost   `json:"peak"` // the highest value of each field so far
	Limit   Cost   `json:"limit"`
	Refused uint64 `json:"refused"` // charges that were refused
}

// Ledger is an account. All methods are safe for concurrent use. A nil Ledger grants every
// charge and counts nothing.
type Ledger struct {
	mu    sync.Mutex
	usage Usage
}

// New returns a ledger that grants charges up to limit, field by field.
func New(limit Cost) *Ledger { return &Ledger{usage: Usage{Limit: limit}} }

// Charge adds c to the used amount and reports whether the limit permits it. If not,
// nothing is added.
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

// Refund returns a part of what was charged. It panics if more is refunded than was
// charged, because the limit would no longer hold.
func (l *Ledger) Refund(c Cost) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.usage.Used.Minus(c)
	if !(Cost{}).within(left) {
		panic("ledger: refund exceeds charges")
	}
	l.usage.Used = left
}

// Usage returns the current state.
func (l *Ledger) Usage() Usage {
	if l == nil {
		return Usage{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}
