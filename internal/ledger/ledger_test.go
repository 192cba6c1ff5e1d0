package ledger

import (
	"math/rand/v2"
	"sync"
	"testing"
)

func TestCharge(t *testing.T) {
	l := New(Cost{Descriptors: 3, Bytes: 100, Goroutines: 1})
	for _, step := range []struct {
		name string
		cost Cost
		ok   bool
		used Cost
	}{
		{"within all limits", Cost{2, 50, 1}, true, Cost{2, 50, 1}},
		{"too many descriptors", Cost{Descriptors: 2}, false, Cost{2, 50, 1}},
		{"too many bytes, the rest would fit", Cost{1, 51, 0}, false, Cost{2, 50, 1}},
		{"too many goroutines", Cost{Goroutines: 1}, false, Cost{2, 50, 1}},
		{"just within", Cost{1, 50, 0}, true, Cost{3, 100, 1}},
		{"nothing", Cost{}, true, Cost{3, 100, 1}},
	} {
		if ok := l.Charge(step.cost); ok != step.ok || l.Usage().Used != step.used {
			t.Errorf("%s: granted %t, used %+v, want %t, %+v", step.name, ok, l.Usage().Used, step.ok, step.used)
		}
	}
	l.Refund(Cost{3, 100, 1})
	want := Usage{Peak: Cost{3, 100, 1}, Limit: Cost{3, 100, 1}, Refused: 3}
	if got := l.Usage(); got != want {
		t.Errorf("in the end %+v, want %+v", got, want)
	}
}

func TestRefundTooMuch(t *testing.T) {
	l := New(Cost{Descriptors: 3})
	l.Charge(Cost{Descriptors: 1})
	defer func() {
		if recover() == nil {
			t.Error("more was refunded than charged, and nothing happened")
		}
	}()
	l.Refund(Cost{Descriptors: 2})
}

// However many goroutines charge, the limit holds at every moment.
func TestConcurrently(t *testing.T) {
	limit := Cost{Descriptors: 50, Bytes: 5000, Goroutines: 20}
	l := New(limit)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5000 {
				c := Cost{rand.IntN(60), rand.IntN(2000), rand.IntN(8)} // some are beyond the limit alone
				if !l.Charge(c) {
					continue
				}
				if u := l.Usage(); !u.Used.within(limit) {
					t.Errorf("used %+v", u.Used)
				}
				l.Refund(c)
			}
		})
	}
	wg.Wait()
	if u := l.Usage(); u.Used != (Cost{}) || u.Refused == 0 || !u.Peak.within(limit) {
		t.Errorf("in the end %+v", u)
	}
}

func TestNil(t *testing.T) {
	var l *Ledger
	if !l.Charge(Cost{Descriptors: 1 << 40}) {
		t.Error("a nil ledger refused")
	}
	l.Refund(Cost{Descriptors: 1 << 41})
	if l.Usage() != (Usage{}) {
		t.Error("a nil ledger counts")
	}
}
