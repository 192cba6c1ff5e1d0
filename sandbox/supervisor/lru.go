package supervisor

import "container/list"

// lru is a table of bounded size: where it is full, put drops the entry that was used
// least recently. Its zero value with max set is empty.
type lru[K comparable, V any] struct {
	max   int
	drop  func(K, V) // called for entries that leave by put, evict and clear; nil: nothing
	order list.List  // of *entry, the most recently used one first
	at    map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (l *lru[K, V]) len() int { return len(l.at) }

// get returns an entry, which counts as a use.
func (l *lru[K, V]) get(key K) (v V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// put sets an entry. One of the same key is dropped.
func (l *lru[K, V]) put(key K, value V) {
	if old, ok := l.take(key); ok {
		l.dropped(key, old)
	}
	for len(l.at) >= l.max {
		l.evict()
	}
	if l.at == nil {
		l.at = map[K]*list.Element{}
	}
	l.at[key] = l.order.PushFront(&entry[K, V]{key, value})
}

// take removes an entry and returns it.
func (l *lru[K, V]) take(key K) (v V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return v, false
	}
	delete(l.at, key)
	return l.order.Remove(e).(*entry[K, V]).value, true
}

// oldest is the entry that was used least recently.
func (l *lru[K, V]) oldest() (key K, value V, ok bool) {
	e := l.order.Back()
	if e == nil {
		return key, value, false
	}
	last := e.Value.(*entry[K, V])
	return last.key, last.value, true
}

// evict drops the oldest entry. It reports whether there was one.
func (l *lru[K, V]) evict() bool {
	key, value, ok := l.oldest()
	if ok {
		l.take(key)
		l.dropped(key, value)
	}
	return ok
}

// clear drops all entries.
func (l *lru[K, V]) clear() {
	for l.evict() {
	}
}

func (l *lru[K, V]) dropped(key K, value V) {
	if l.drop != nil {
		l.drop(key, value)
	}
}
