package supervisor

import (
	"testing"

	"cleat/internal/ledger"
)

// A program is charged for the descriptors that it holds beyond the prepaid ones, a greedy
// program leaves some for others, and nothing is charged after the last release.
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
		t.Fatal("openAccount refused the first program")
	}
	if !first.hold(prepaid-alwaysHeld) || l.Usage().Used.Descriptors != prepaid {
		t.Errorf("charged %d descriptors for the prepaid part, want %d", l.Usage().Used.Descriptors, prepaid)
	}
	first.release(prepaid - alwaysHeld)
	greedy := take(first)
	second, ok := openAccount(b)
	if !ok || greedy < 190 || greedy > 200 {
		t.Fatalf("the first program holds %d of 400 descriptors, want 190 to 200; second account opened: %v", greedy, ok)
	}
	if n := take(second); n < 90 {
		t.Errorf("the second program got %d descriptors beside the first, want at least 90", n)
	} else {
		second.release(n)
	}
	if used := l.Usage().Used.Descriptors; used+b.free != 400 {
		t.Errorf("charged %d, free %d, want a sum of 400", used, b.free)
	}
	second.close()
	first.release(greedy - 1)
	first.close()
	if used := l.Usage().Used; used != (ledger.Cost{Descriptors: 1}) {
		t.Errorf("charged %+v for one remaining listener, want one descriptor", used)
	}
	first.release(1)
	if used := l.Usage().Used; used != (ledger.Cost{}) || b.free != 400 {
		t.Errorf("charged %+v, free %d at the end, want nothing charged and 400 free", used, b.free)
	}
}

// A refused program is not charged.
func TestAccountRefusedByLedger(t *testing.T) {
	l := ledger.New(ledger.Cost{Descriptors: prepaid - 1, Bytes: 1 << 30, Goroutines: 100})
	if _, ok := openAccount(&budget{ledger: l, free: 400}); ok || l.Usage().Used != (ledger.Cost{}) {
		t.Errorf("granted %v, charged %+v, want a refusal that charges nothing", ok, l.Usage().Used)
	}
}
