package supervisor

import (
	"sync"

	"cleat/internal/ledger"

	"golang.org/x/sys/unix"
)

// budget bounds the descriptors that the supervisor holds for all programs together. It
// divides them by a dynamic threshold: a program may hold as many descriptors as are still
// free. So one greedy program leaves half of them, and two greedy programs leave a third,
// for others. (Choudhury and Hahne, "Dynamic queue length thresholds", 1998.)
type budget struct {
	ledger *ledger.Ledger
	mu     sync.Mutex
	free   int
}

// newBudget makes a budget of half of the process's descriptors. The other half is for
// connections that take the device.
func newBudget(l *ledger.Ledger) *budget {
	const least = 256
	limit := unix.Rlimit{Cur: 2 * least}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // never fails
	return &budget{ledger: l, free: max(least, int(min(limit.Cur, 1<<20))/2)}
}

// charge reserves n more descriptors for a program that is charged for own. It reports
// whether they are granted.
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

const (
	// prepaid descriptors are charged for each program from the start: those of its
	// notifications and its epoll instance, up to six during a call, and some to cache. So
	// a call in the usual state charges nothing.
	prepaid = 16
	// alwaysHeld of the prepaid descriptors are in use all the time.
	alwaysHeld = 8
)

// programCost is the cost of a program besides descriptors: its thread, another one that
// waits for bind(2), and its tables.
var programCost = ledger.Cost{Goroutines: 2, Bytes: 128 << 10}

// account counts the descriptors held for one program. It is safe for concurrent use.
type account struct {
	budget  *budget
	mu      sync.Mutex
	least   int // minimum of charged
	held    int
	charged int
}

// openAccount charges for a new program. It reports whether the charge is granted.
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

// hold adds n descriptors to those held. It reports whether they are granted.
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

func (a *account) release(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= n
	a.settle()
}

// close ends the account of a program that has exited. The descriptors of its lent
// listeners stay charged until they are released.
func (a *account) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.least = 0
	a.held -= alwaysHeld
	a.settle()
	a.budget.ledger.Refund(programCost)
}

// settle refunds what is charged but not held. It is called with mu held.
func (a *account) settle() {
	if over := a.charged - max(a.held, a.least); over > 0 {
		a.budget.refund(over)
		a.charged -= over
	}
}
