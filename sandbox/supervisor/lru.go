package supervisor

import "container/list"

// lru is a table of at most max entries: put drops the least recently used entry of a full
// table. An lru with max set is ready to use.
type lru[K comparable, V any] struct {
	max    int
	onDrop func(V)   // called when put, drop, evict or clear removes an entry; may be nil
	order  list.List // of *entry, most recently used first
	at     map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (l *lru[K, V]) len() int { return len(l.at) }

// get returns an entry and marks it as used.
func (l *lru[K, V]) get(key K) (v V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// put sets an entry. It drops an existing entry with the same key.
func (l *lru[K, V]) put(key K, value V) {
	l.drop(key)
	for len(l.at) >= l.max {
		l.evict()
	}
	if l.at == nil {
		l.at = map[K]*list.Element{}
	}
	l.at[key] = l.order.PushFront(&entry[K, V]{key, value})
}

// take removes an entry and returns it, without a call of onDrop.
func (l *lru[K, V]) take(key K) (v V, ok bool) {
	e, ok := l.at[key]
	if !ok {
		return v, false
	}
	delete(l.at, key)
	return l.order.Remove(e).(*entry[K, V]).value, true
}

func (l *lru[K, V]) drop(key K) {
	if v, ok := l.take(key); ok && l.onDrop != nil {
		l.onDrop(v)
	}
}

func (l *lru[K, V]) oldest() (key K, value V, ok bool) {
	e := l.order.Back()
	if e == nil {
		return key, value, false
	}
	last := e.Value.(*entry[K, V])
	return last.key, last.value, true
}

// evict drops the least recently used entry. It reports whether there was one.
func (l *lru[K, V]) evict() bool {
	key, _, ok := l.oldest()
	if ok {
		l.drop(key)
	}
	return ok
}

func (l *lru[K, V]) clear() {
	for l.evict() {
	}
}
