package supervisor

import (
	"sync"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// budget bounds the descriptors that all programs hold of ours together. It divides them
// by a dynamic threshold: a program may hold as many as are free. So one that takes all
// it can leaves half, and two leave a third, for whoever comes. (Choudhury and Hahne,
// "Dynamic queue length thresholds", 1998.)
type budget struct {
	ledger *ledger.Ledger
	mu     sync.Mutex
	free   int
}

// share of the process's descriptors is for programs. The rest is for connections that
// take the device.
const share = 2

func newBudget(l *ledger.Ledger) *budget {
	const least = 256
	limit := unix.Rlimit{Cur: least * share}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // never fails
	return &budget{ledger: l, free: max(least, int(min(limit.Cur, 1<<20))/share)}
}

// charge grants n more descriptors to a program that has own.
func (b *budget) charge(own, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own+n > b.free || !b.ledger.Charge(ledger.Cost{Descriptors: n}) {
		return false
	}
	b.free -= n
	return true
}

func (b *budget) refund(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.ledger.Refund(ledger.Cost{Descriptors: n})
}

// prepaid is how many descriptors a program is charged for from its beginning: those of
// its notifications and its epoll instance, at most six in the course of a call, and some
// to remember, so that a program in the usual state charges nothing for a call.
const prepaid = 16

// alwaysHeld of these are in use all the time.
const alwaysHeld = 8

// programCost is what a program takes besides descriptors: its thread, another one that
// waits for bind(2), and its tables.
var programCost = ledger.Cost{Goroutines: 2, Bytes: 128 << 10}

// account is the descriptors that one program holds. It is safe for concurrent use.
type account struct {
	budget  *budget
	mu      sync.Mutex
	least   int // charged at any time
	held    int
	charged int
}

// openAccount charges for a program. ok is false where that is refused.
func openAccount(b *budget) (a *account, ok bool) {
	if !b.ledger.Charge(programCost) {
		return nil, false
	}
	if !b.charge(0, prepaid) {
		b.ledger.Refund(programCost)
		return nil, false
	}
	return &account{budget: b, least: prepaid, held: alwaysHeld, charged: prepaid}, true
}

// hold reports whether the program may hold n more descriptors, and counts them.
func (a *account) hold(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if more := a.held + n - a.charged; more > 0 {
		if !a.budget.charge(a.charged, more) {
			return false
		}
		a.charged += more
	}
	a.held += n
	return true
}

// release takes n descriptors back.
func (a *account) release(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= n
	a.settle()
}

// close is for a program that has ended. What it still holds, listeners of the host's,
// stays charged until it is released.
func (a *account) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.least = 0
	a.held -= alwaysHeld
	a.settle()
	a.budget.ledger.Refund(programCost)
}

func (a *account) settle() {
	if over := a.charged - max(a.held, a.least); over > 0 {
		a.budget.refund(over)
		a.charged -= over
	}
}
