package supervisor

import "testing"

// Forgotten sockets count as rare and uncopyable, as do sockets with lower cookies. Others
// do not.
func TestRareSockets(t *testing.T) {
	r := rareSockets{sockets: lru[uint64, bool]{max: 3}}
	r.add(10, false)
	r.add(20, true)
	r.add(30, false)
	expect := func(step string, cookie uint64, rare, uncopyable bool) {
		t.Helper()
		if gotRare, gotUncopyable := r.hasCookie(cookie); gotRare != rare || gotUncopyable != uncopyable {
			t.Errorf("%s: socket %d: rare %v, uncopyable %v, want %v, %v", step, cookie, gotRare, gotUncopyable, rare, uncopyable)
		}
	}
	expect("added", 30, true, false)
	expect("added", 20, true, true)
	expect("added", 10, true, false)
	expect("never added", 5, false, false)
	expect("never added", 40, false, false)
	r.add(20, false)
	expect("added again", 20, true, true)
	expect("added again", 10, true, false) // reading it makes 30 the least recently used
	r.add(50, false)
	expect("table full", 30, true, true) // forgotten
	expect("table full", 25, true, true) // could have been forgotten
	expect("table full", 40, false, false)
	expect("table full", 50, true, false)
	expect("table full", 10, true, false)
	if r.sockets.len() != 3 {
		t.Errorf("the table has %d sockets, want 3", r.sockets.len())
	}
}
