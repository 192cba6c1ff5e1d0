package usernet

import (
	"cmp"
	"fmt"
	"os"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// Costs that the ledger is charged with, apart from the packet memory of
// Limits.BufferBytes. Bytes are rounded up from what a flow was measured to take,
// including its share of maps and heaps (TestCosts).
var (
	tcpFlowCost  = ledger.Cost{Descriptors: 1, Bytes: 1536}
	udpFlowCost  = ledger.Cost{Bytes: 1024}
	socketCost   = ledger.Cost{Descriptors: 1, Bytes: 512}
	junctionCost = ledger.Cost{Descriptors: 1, Bytes: 768}
	// A forward for both families has a socket for each once the seccomp tier has lent
	// one of them.
	forwardCost = ledger.Cost{Descriptors: 2, Bytes: 1024}
	pipeCost    = ledger.Cost{Descriptors: 2, Bytes: 64}
	hookCost    = ledger.Cost{Bytes: stackBytes, Goroutines: 1}
	// One goroutine that writes, and one that reads.
	relayCost = ledger.Cost{Bytes: 2*stackBytes + 1024, Goroutines: 2}
	// Both ends of a socket pair, and the goroutines that copy between it and the
	// connection.
	bridgeCost = ledger.Cost{Descriptors: 2, Bytes: 3*stackBytes + 2*copyBytes, Goroutines: 3}
)

// engineCost is an engine's epoll instance and eventfd, and the buffers that datagrams
// are received into (udpTable.prepare).
var engineCost = ledger.Cost{Descriptors: 2, Bytes: (inboxSize + 1) * frameBytes}

const (
	stackBytes = 8 << 10  // a goroutine a few calls deep; it starts with 2 KiB or more
	copyBytes  = 32 << 10 // io.Copy's buffer
)

// Defaults of Limits.
const (
	defaultMemory = 128 << 20
	// The resolver has at most 4,096 conversations (package dns), with two goroutines
	// each. Half as many again are left for hooks and their connections.
	defaultGoroutines = 12 << 10
	// reservedDescriptors is what is left for the process's own use: clients of its
	// control socket, lookups of names in rules, files that are read again.
	reservedDescriptors = 64
	// No process needs more. With a limit of a billion, the ledger must not count on
	// having them.
	maxDescriptors = 1 << 20
)

// NewLedger returns the ledger that the limits describe, for a Stack and everything else
// that serves the same guest.
func (l Limits) NewLedger() (*ledger.Ledger, error) {
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	open := 0
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		open = len(names)
	}
	// Even with few descriptors left, a network for some flows is better than none.
	allowed := max(int(min(nofile.Cur, maxDescriptors))-open-reservedDescriptors, 16)
	return ledger.New(ledger.Cost{
		Descriptors: min(cmp.Or(l.Descriptors, allowed), allowed),
		Bytes:       cmp.Or(l.MemoryBytes, defaultMemory),
		Goroutines:  cmp.Or(l.Goroutines, defaultGoroutines),
	}), nil
}

// account is what one owner, such as a flow, was charged. It belongs to one thread.
type account struct {
	ledger *ledger.Ledger
	cost   ledger.Cost
}

// charge charges c more, and reports whether the ledger allowed it.
func (a *account) charge(c ledger.Cost) bool {
	if !a.ledger.Charge(c) {
		return false
	}
	a.cost = a.cost.Plus(c)
	return true
}

func (a *account) refund(c ledger.Cost) {
	a.ledger.Refund(c)
	a.cost = a.cost.Minus(c)
}

// close refunds the whole charge.
func (a *account) close() {
	a.ledger.Refund(a.cost)
	a.cost = ledger.Cost{}
}
