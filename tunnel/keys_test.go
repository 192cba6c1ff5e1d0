package tunnel

import (
	"testing"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// TestNumbersOfNewKeys goes on beyond 32 bits of packets with new keys: the numbers go on,
// and half of each is all that travels.
func TestNumbersOfNewKeys(t *testing.T) {
	const path = 3
	send := func(from, to *keys, kind wire.Kind, counter uint64) bool {
		t.Helper()
		shim := wire.Shim{Kind: kind, Path: path, PathSeq: uint32(counter)}
		b := make([]byte, wire.HeaderBytes+5, wire.HeaderBytes+5+secure.Overhead)
		shim.Put(b)
		from.seal(b, len(b), space(path, kind == wire.Control), counter)
		if err := shim.ParseClear(b); err != nil {
			t.Fatal(err)
		}
		_, ok := to.open(&shim, b[:cap(b)])
		return ok
	}
	for _, kind := range []wire.Kind{wire.Data, wire.Control} {
		e := newEnds(t, Config{}, false, 1)
		var at, had [4]*keys // in turn; the third brings nothing
		for i := range at {
			e.seal(t)
			at[i], had[i] = e.a.sess.keys, e.b.sess.keys
			if i > 0 {
				had[i].before = had[i-1]
			}
		}
		const high = 3<<32 - 10
		had[0].window(path, kind == wire.Control).Mark(high)
		if !send(at[0], had[0], kind, high+1) {
			t.Fatalf("%v: the keys do not open what they sealed", kind)
		}
		if !send(at[1], had[1], kind, high+20) { // the low half has begun anew
			t.Errorf("%v: new keys cannot go on with the numbers", kind)
		}
		if !send(at[0], had[0], kind, high+2) {
			t.Errorf("%v: a late packet under the last keys is refused", kind)
		}
		if !send(at[3], had[3], kind, high+21) {
			t.Errorf("%v: keys that carried nothing broke the numbers' row", kind)
		}
		if send(at[3], had[3], kind, high+21) {
			t.Errorf("%v: a packet was taken twice", kind)
		}
		if had[3].before != nil {
			t.Errorf("%v: old keys are held", kind)
		}
	}
}
