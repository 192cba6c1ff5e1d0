package tunnel

import (
	"testing"

	"cleat/tunnel/secure"
	"cleat/tunnel/wire"
)

// TestCountersOfNewKeys checks that counters continue with new keys beyond 32 bits,
// although packets carry only half of them.
func TestCountersOfNewKeys(t *testing.T) {
	const path = 3
	send := func(from, to *keys, kind wire.Kind, counter uint64) bool {
		t.Helper()
		shim := wire.Shim{Kind: kind, Path: path, PathSeq: uint32(counter)}
		b := make([]byte, wire.HeaderBytes+5, wire.HeaderBytes+5+secure.Overhead)
		shim.Put(b)
		from.seal(b, len(b), nonceSpace(path, kind), counter)
		if err := shim.ParseClear(b); err != nil {
			t.Fatal(err)
		}
		_, ok := to.open(&shim, b[:cap(b)])
		return ok
	}
	for _, kind := range []wire.Kind{wire.Data, wire.Control} {
		e := newEnds(t, Config{}, false, 1)
		var at, had [4]*keys // in turn; the third one delivers nothing
		for i := range at {
			e.seal(t)
			at[i], had[i] = e.a.session.keys, e.b.session.keys
			if i > 0 {
				had[i].previous = had[i-1]
			}
		}
		const high = 3<<32 - 10
		had[0].highestBefore[path][numbering(kind)] = high
		if !send(at[0], had[0], kind, high+1) {
			t.Fatalf("%v: the keys do not open what they sealed", kind)
		}
		if !send(at[1], had[1], kind, high+20) { // the low half has wrapped
			t.Errorf("%v: new keys don't continue the counters", kind)
		}
		if !send(at[0], had[0], kind, high+2) {
			t.Errorf("%v: a late packet under the previous keys is refused", kind)
		}
		if !send(at[3], had[3], kind, high+21) {
			t.Errorf("%v: keys that carried nothing broke the sequence of counters", kind)
		}
		if send(at[3], had[3], kind, high+21) {
			t.Errorf("%v: a packet was accepted twice", kind)
		}
		if had[3].previous != nil {
			t.Errorf("%v: old keys are kept", kind)
		}
	}
}
