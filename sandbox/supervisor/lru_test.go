package supervisor

import (
	"slices"
	"testing"
)

func TestLRU(t *testing.T) {
	var dropped []string
	l := lru[int, string]{max: 3, onDrop: func(value string) { dropped = append(dropped, value) }}
	expect := func(step string, want ...string) {
		t.Helper()
		if !slices.Equal(dropped, want) || l.len() != l.order.Len() || l.len() > l.max {
			t.Errorf("%s: dropped %v, want %v; %d entries in the map, %d in the list", step, dropped, want, l.len(), l.order.Len())
		}
		dropped = nil
	}
	if l.evict() {
		t.Error("evict of an empty table returns true")
	}
	l.put(1, "one")
	l.put(2, "two")
	l.put(3, "three")
	expect("below the limit")
	if v, ok := l.get(1); !ok || v != "one" {
		t.Errorf("get: %q, %v", v, ok)
	}
	l.put(4, "four")
	expect("above the limit", "two")
	l.put(3, "again")
	expect("existing key", "three")
	if v, ok := l.take(3); !ok || v != "again" {
		t.Errorf("take: %q, %v", v, ok)
	}
	if _, ok := l.get(3); ok {
		t.Error("get returns a taken entry")
	}
	expect("take")
	if key, _, ok := l.oldest(); !ok || key != 1 {
		t.Errorf("oldest: %d, %v", key, ok)
	}
	l.clear()
	expect("clear", "one", "four")
}
