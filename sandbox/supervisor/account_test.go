package supervisor

import (
	"testing"

	"cleat/internal/ledger"
)

// TestAccount: a program is charged for what it holds beyond its prepaid part, one that
// takes all it can leaves room for others, and at the end nothing is charged.
func TestAccount(t *testing.T) {
	l := ledger.New(ledger.Cost{Descriptors: 1 << 20, Bytes: 1 << 30, Goroutines: 100})
	b := &budget{ledger: l, free: 400}
	take := func(a *account) (n int) {
		for a.hold(1) {
			n++
		}
		return n
	}
	first, ok := openAccount(b)
	if !ok {
		t.Fatal("the first program is refused")
	}
	if !first.hold(prepaid-alwaysHeld) || l.Usage().Used.Descriptors != prepaid {
		t.Errorf("within the prepaid part %d descriptors are charged, want %d", l.Usage().Used.Descriptors, prepaid)
	}
	first.release(prepaid - alwaysHeld)
	greedy := take(first)
	second, ok := openAccount(b)
	if !ok || greedy < 190 || greedy > 200 {
		t.Fatalf("the first program took %d of 400; the second may begin: %v", greedy, ok)
	}
	if n := take(second); n < 90 {
		t.Errorf("the second program got %d beside the first", n)
	} else {
		second.release(n)
	}
	if used := l.Usage().Used.Descriptors; used+b.free != 400 {
		t.Errorf("%d descriptors are charged, and %d are free, of 400", used, b.free)
	}
	second.close()
	first.release(greedy - 1)
	first.close()
	if used := l.Usage().Used; used != (ledger.Cost{Descriptors: 1}) {
		t.Errorf("one listener is left: charged %+v", used)
	}
	first.release(1)
	if used := l.Usage().Used; used != (ledger.Cost{}) || b.free != 400 {
		t.Errorf("at the end %+v is charged, and %d are free", used, b.free)
	}
}

// TestAccountWhoseLedgerIsFull: a refused program costs nothing.
func TestAccountWhoseLedgerIsFull(t *testing.T) {
	l := ledger.New(ledger.Cost{Descriptors: prepaid - 1, Bytes: 1 << 30, Goroutines: 100})
	if _, ok := openAccount(&budget{ledger: l, free: 400}); ok || l.Usage().Used != (ledger.Cost{}) {
		t.Errorf("granted: %v; charged %+v", ok, l.Usage().Used)
	}
}
