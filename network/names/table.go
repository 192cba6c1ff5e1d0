package names

import (
	"hash/maphash"
	"iter"
	"maps"
)

// table is a map whose copies share what neither has changed: to copy one of 10,000 entries and change a few
// takes microseconds. It is safe for concurrent use as long as nobody changes it.
type table[V any] struct {
	shards [tableShards]map[string]V
	own    [tableShards]bool // whether no copy has the shard as well
	size   int
}

const tableShards = 256

var tableSeed = maphash.MakeSeed()

// copy returns a copy. The table must not be changed after that.
func (t *table[V]) copy() table[V] { return table[V]{shards: t.shards, size: t.size} }

// get returns the value of a key, or the zero value. It allocates nothing.
func (t *table[V]) get(key []byte) (V, bool) {
	v, ok := t.shards[maphash.Bytes(tableSeed, key)%tableShards][string(key)]
	return v, ok
}

// shard returns the part of the table that has a key, or would have it, to be changed.
func (t *table[V]) shard(key string) map[string]V {
	i := maphash.String(tableSeed, key) % tableShards
	if !t.own[i] {
		t.shards[i], t.own[i] = maps.Clone(t.shards[i]), true
	}
	if t.shards[i] == nil {
		t.shards[i] = map[string]V{}
	}
	return t.shards[i]
}

func (t *table[V]) set(key string, v V) {
	s := t.shard(key)
	before := len(s)
	s[key] = v
	t.size += len(s) - before
}

func (t *table[V]) delete(key string) {
	s := t.shard(key)
	before := len(s)
	delete(s, key)
	t.size += len(s) - before
}

// all yields all entries in no order.
func (t *table[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, s := range t.shards {
			for k, v := range s {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}
