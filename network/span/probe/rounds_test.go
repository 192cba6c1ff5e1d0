package probe

import (
	"net/netip"
	"testing"
	"time"
)

// With many peers each has its turn once in some rounds, but in each round while it is new, or its way is unknown. Which
// round it is depends on its number, so here all are the turn of about as many.
func TestRounds(t *testing.T) {
	way := []Way{{netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("10.64.0.2")}}
	for _, tt := range []struct{ peers, rounds int }{{1, 1}, {16, 1}, {17, 2}, {50, 4}, {1000, mostRounds}} {
		p := New(Config{})
		var setup Setup
		for i := range tt.peers {
			setup.Peers = append(setup.Peers, Peer{Name: string(rune('A' + i)), Ways: way})
		}
		p.Set(setup)
		for i, one := range setup.Peers {
			p.peers[one.Name].own[0] = byte(i)
		}
		now := time.Unix(1000, 0)
		round := func() (due int) {
			for _, one := range p.peers {
				if p.isDue(one, now) {
					due++
				}
			}
			return due
		}
		for range lostAfter {
			if due := round(); due != tt.peers {
				t.Fatalf("%d new peers: it is the turn of %d", tt.peers, due)
			}
		}
		for _, one := range p.peers {
			one.heard, one.results[has4] = now, Works
		}
		all, most := 0, 0
		for range tt.rounds {
			due := round()
			all, most = all+due, max(most, due)
		}
		if all != tt.peers || most > max(perRound, tt.peers/tt.rounds+5) {
			t.Errorf("%d peers: in %d rounds it is the turn of %d, in one of %d", tt.peers, tt.rounds, all, most)
		}
		if got, want := p.lost(), lostAfter*Interval*time.Duration(tt.rounds); got != want {
			t.Errorf("%d peers: one is lost after %s, want %s", tt.peers, got, want)
		}
		for _, one := range p.peers {
			one.results[has4] = Unknown
		}
		if due := round(); due != tt.peers {
			t.Errorf("%d peers with an unknown way: it is the turn of %d", tt.peers, due)
		}
	}
}
