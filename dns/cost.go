package dns

import (
	"errors"
	"sync/atomic"

	"cleat/internal/ledger"
)

// Charges to the guest's ledger, besides the bytes of messages. Bytes are rounded up from
// measurements (TestCosts).
var (
	packetsCost = ledger.Cost{Bytes: 1 << 10}
	// A reading goroutine, a query, and both ends of a net.Pipe.
	streamCost   = ledger.Cost{Bytes: stackBytes + maxQuestion + 2<<10, Goroutines: 1}
	questionCost = ledger.Cost{Bytes: stackBytes, Goroutines: 1}
	// A socket, the goroutine that reads from it, and one that waits for a connection.
	tryCost = ledger.Cost{Descriptors: 1, Bytes: 2*stackBytes + udpBuffer, Goroutines: 2}
)

const (
	stackBytes = 8 << 10 // of a goroutine a few calls deep
	// maxHeld limits the bytes of answers that the guest has caused and not yet read,
	// over all conversations: 64 answers of maximal length, thousands of the usual ones.
	maxHeld = 4 << 20
	// Limits of our own look-ups: queries in progress, and retries. Package policy looks
	// up eight names at a time, each for two record types.
	ownQueries = 16
	ownRetries = 8
)

// LookupDescriptors is the most sockets that a Forwarder uses for its own queries
// (Lookup). No Ledger is charged for them.
const LookupDescriptors = ownQueries + ownRetries

// errLimit means that the limits do not permit another socket or a longer answer.
var errLimit = errors.New("the limit of memory, goroutines or open files is reached")

// budget is the budget for queries of one origin, the guest or ourselves.
type budget struct {
	ledger  *ledger.Ledger // nil: nobody is charged
	slots   chan struct{}  // queries in progress
	retries chan struct{}  // retries in progress
	held    atomic.Int64   // bytes of answers
}

func newBudget(l *ledger.Ledger, queries, retries int) *budget {
	return &budget{ledger: l, slots: make(chan struct{}, queries), retries: make(chan struct{}, retries)}
}

// hold charges bytes of answers and reports whether the limits permit them.
func (p *budget) hold(n int) bool {
	if p.held.Add(int64(n)) > maxHeld || !p.ledger.Charge(ledger.Cost{Bytes: n}) {
		p.held.Add(-int64(n))
		return false
	}
	return true
}

// release refunds bytes that were charged by hold.
func (p *budget) release(n int) {
	p.held.Add(-int64(n))
	p.ledger.Refund(ledger.Cost{Bytes: n})
}

// account records the bytes held by the answers to one query. Its tries share it.
type account struct {
	*budget
	bytes atomic.Int64
}

// hold is budget.hold for this query.
func (b *account) hold(n int) bool {
	if !b.budget.hold(n) {
		return false
	}
	b.bytes.Add(int64(n))
	return true
}

func (b *account) release(n int) {
	b.bytes.Add(-int64(n))
	b.budget.release(n)
}

// settle adjusts the held bytes to n, for the chosen answer, and reports whether the
// limits permit them. If not, nothing stays held. It is called when all tries of the
// query have ended.
func (b *account) settle(n int) bool {
	switch more := n - int(b.bytes.Load()); {
	case more <= 0:
		b.release(-more)
	case !b.hold(more):
		b.release(n - more)
		return false
	}
	return true
}
