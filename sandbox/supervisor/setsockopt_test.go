package supervisor

import "testing"

// TestRareSockets: sockets that were forgotten count as rare and peculiar, and only they
// and older ones do.
func TestRareSockets(t *testing.T) {
	r := rareSockets{sockets: lru[uint64, bool]{max: 3}}
	r.note(10, false)
	r.note(20, true)
	r.note(30, false)
	expect := func(step string, cookie uint64, rare, peculiar bool) {
		t.Helper()
		if gotRare, gotPeculiar := r.known(cookie); gotRare != rare || gotPeculiar != peculiar {
			t.Errorf("%s: socket %d: rare %v, peculiar %v; want %v, %v", step, cookie, gotRare, gotPeculiar, rare, peculiar)
		}
	}
	expect("noted", 30, true, false)
	expect("noted", 20, true, true)
	expect("noted", 10, true, false)
	expect("never seen", 5, false, false)
	expect("never seen", 40, false, false)
	r.note(20, false)
	expect("noted again", 20, true, true)
	expect("noted again", 10, true, false) // it is used now, and 30 the oldest
	r.note(50, false)
	expect("one too many", 30, true, true) // forgotten
	expect("one too many", 25, true, true) // it could have been
	expect("one too many", 40, false, false)
	expect("one too many", 50, true, false)
	expect("one too many", 10, true, false)
	if r.sockets.len() != 3 {
		t.Errorf("%d sockets are remembered", r.sockets.len())
	}
}
