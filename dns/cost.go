package dns

import (
	"errors"
	"sync/atomic"

	"cleat/internal/ledger"
)

// What the guest's ledger is charged with, beside the bytes of messages. Bytes are rounded
// up from what was measured (TestCosts).
var (
	packetsCost = ledger.Cost{Bytes: 1 << 10}
	// The goroutine that reads questions, a question, and both ends of a net.Pipe.
	streamCost   = ledger.Cost{Bytes: stackBytes + maxQuestion + 2<<10, Goroutines: 1}
	questionCost = ledger.Cost{Bytes: stackBytes, Goroutines: 1}
	// A socket, the goroutine that reads from it, and one that waits for a connection.
	tryCost = ledger.Cost{Descriptors: 1, Bytes: 2*stackBytes + udpBuffer, Goroutines: 2}
)

const (
	stackBytes = 8 << 10 // of a goroutine some calls deep
	// Answers that the guest has caused and has not read yet: bytes, of all conversations
	// together. That is 64 answers of the longest kind, and thousands of the usual ones.
	maxHeld = 4 << 20
	// Look-ups of our own: questions under way, and further tries. Rules are looked up
	// eight names at a time (package policy), each for two types of records.
	ownQueries = 16
	ownRetries = 8
)

// LookupDescriptors is how many sockets a Forwarder has at most for questions that are not
// the guest's (Lookup). No Ledger is charged with them.
const LookupDescriptors = ownQueries + ownRetries

// errLimit: the limits don't permit another socket or a longer answer.
var errLimit = errors.New("the limit of memory, goroutines or open files is reached")

// purse is what questions of one origin, the guest's or ours, may spend.
type purse struct {
	ledger  *ledger.Ledger // nil: charged to nobody
	slots   chan struct{}  // questions under way
	retries chan struct{}  // further tries under way
	held    atomic.Int64   // bytes of answers
}

func newPurse(l *ledger.Ledger, queries, retries int) *purse {
	return &purse{ledger: l, slots: make(chan struct{}, queries), retries: make(chan struct{}, retries)}
}

// hold charges bytes of answers, and reports whether the limits permit them.
func (p *purse) hold(n int) bool {
	if p.held.Add(int64(n)) > maxHeld || !p.ledger.Charge(ledger.Cost{Bytes: n}) {
		p.held.Add(-int64(n))
		return false
	}
	return true
}

// release refunds bytes that were held.
func (p *purse) release(n int) {
	p.held.Add(-int64(n))
	p.ledger.Refund(ledger.Cost{Bytes: n})
}

// bill is what the answers to one question hold. Its tries share it.
type bill struct {
	*purse
	bytes atomic.Int64
}

// hold is purse.hold for this question.
func (b *bill) hold(n int) bool {
	if !b.purse.hold(n) {
		return false
	}
	b.bytes.Add(int64(n))
	return true
}

func (b *bill) release(n int) {
	b.bytes.Add(-int64(n))
	b.purse.release(n)
}

// settle leaves n bytes held, for the answer that was chosen, and reports whether the limits
// permit them; if not, nothing is held. The question's tries have ended.
func (b *bill) settle(n int) bool {
	switch more := n - int(b.bytes.Load()); {
	case more <= 0:
		b.release(-more)
	case !b.hold(more):
		b.release(n - more)
		return false
	}
	return true
}
