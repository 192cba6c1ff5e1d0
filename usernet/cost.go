package usernet

import (
	"fmt"
	"os"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// What the ledger is charged with, beside the packet memory of Limits.BufferBytes. Bytes are
// rounded up from what a flow was measured to take with its places in maps and heaps
// (TestCosts).
var (
	tcpFlowCost  = ledger.Cost{Descriptors: 1, Bytes: 1536}
	udpFlowCost  = ledger.Cost{Bytes: 1024}
	socketCost   = ledger.Cost{Descriptors: 1, Bytes: 512}
	junctionCost = ledger.Cost{Descriptors: 1, Bytes: 768}
	// A port of both families that the seccomp tier has lent one of has a socket of each.
	forwardCost = ledger.Cost{Descriptors: 2, Bytes: 1024}
	pipeCost    = ledger.Cost{Descriptors: 2, Bytes: 64}
	hookCost    = ledger.Cost{Bytes: stackBytes, Goroutines: 1}
	// A goroutine that writes, and one that reads.
	relayCost = ledger.Cost{Bytes: 2*stackBytes + 1024, Goroutines: 2}
	// Both ends of a socket pair, and goroutines that copy to and from it.
	bridgeCost = ledger.Cost{Descriptors: 2, Bytes: 3*stackBytes + 2*copyBytes, Goroutines: 3}
)

// engineCost is an engine's epoll instance and eventfd, and what datagrams are received into
// (udpTable.prepare).
var engineCost = ledger.Cost{Descriptors: 2, Bytes: (inboxSize + 1) * frameBytes}

const (
	stackBytes = 8 << 10  // of a goroutine a few calls deep; it begins with 2 KiB or more
	copyBytes  = 32 << 10 // io.Copy's buffer
)

// Defaults of Limits.
const (
	defaultMemory = 128 << 20
	// The resolver has 4,096 conversations at most (package dns), with two goroutines
	// each; as many as half of that are left for hooks and their connections.
	defaultGoroutines = 12 << 10
	// Descriptors that are left for the helper's own use: clients of its control socket,
	// look-ups of names in rules, files that are read again.
	reservedDescriptors = 64
	// A process needs no more; with a limit of a billion it must not think it has them.
	maxDescriptors = 1 << 20
)

// NewLedger makes the ledger that the limits describe, for a Stack and whatever else serves
// the same guest.
func (l Limits) NewLedger() (*ledger.Ledger, error) {
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	open := 0
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		open = len(names)
	}
	// With few left there is a network all the same, for some flows.
	allowed := max(int(min(nofile.Cur, maxDescriptors))-open-reservedDescriptors, 16)
	limit := ledger.Cost{Descriptors: l.Descriptors, Bytes: l.MemoryBytes, Goroutines: l.Goroutines}
	if limit.Descriptors == 0 {
		limit.Descriptors = allowed
	}
	limit.Descriptors = min(limit.Descriptors, allowed)
	if limit.Bytes == 0 {
		limit.Bytes = defaultMemory
	}
	if limit.Goroutines == 0 {
		limit.Goroutines = defaultGoroutines
	}
	return ledger.New(limit), nil
}

// account is what one flow or the like was charged with. It belongs to one thread.
type account struct {
	ledger *ledger.Ledger
	cost   ledger.Cost
}

// charge charges more, and reports whether that was granted.
func (a *account) charge(c ledger.Cost) bool {
	if !a.ledger.Charge(c) {
		return false
	}
	a.cost = a.cost.Plus(c)
	return true
}

// refund refunds a part of what was charged.
func (a *account) refund(c ledger.Cost) {
	a.ledger.Refund(c)
	a.cost = a.cost.Minus(c)
}

// close refunds all.
func (a *account) close() {
	a.ledger.Refund(a.cost)
	a.cost = ledger.Cost{}
}
