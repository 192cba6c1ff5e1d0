package supervisor

import (
	"slices"
	"testing"
)

func TestLRU(t *testing.T) {
	var dropped []int
	l := lru[int, string]{max: 3, drop: func(key int, _ string) { dropped = append(dropped, key) }}
	expect := func(step string, want ...int) {
		t.Helper()
		if !slices.Equal(dropped, want) || l.len() != l.order.Len() || l.len() > l.max {
			t.Errorf("%s: dropped %v, want %v; %d entries, %d in order", step, dropped, want, l.len(), l.order.Len())
		}
		dropped = nil
	}
	if l.evict() {
		t.Error("an empty table evicts")
	}
	for key := 1; key <= 3; key++ {
		l.put(key, "one")
	}
	expect("within the limit")
	if v, ok := l.get(1); !ok || v != "one" {
		t.Errorf("get: %q, %v", v, ok)
	}
	l.put(4, "four")
	expect("one too many", 2)
	l.put(3, "again")
	expect("one of the same key", 3)
	if v, ok := l.take(3); !ok || v != "again" {
		t.Errorf("take: %q, %v", v, ok)
	}
	if _, ok := l.get(3); ok {
		t.Error("an entry that was taken is there")
	}
	expect("taken")
	if key, _, ok := l.oldest(); !ok || key != 1 {
		t.Errorf("oldest: %d, %v", key, ok)
	}
	l.clear()
	expect("cleared", 1, 4)
}
