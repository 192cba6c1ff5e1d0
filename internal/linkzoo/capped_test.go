package linkzoo

import (
	"reflect"
	"testing"
	"time"
)

func TestCapped(t *testing.T) {
	const limit = 400e6
	for seed := range uint64(300) {
		c := New(seed)
		capped := c.Capped(limit)
		if !reflect.DeepEqual(c, New(seed)) {
			t.Fatalf("seed %d: the case itself was changed", seed)
		}
		if c.sumOfRates(1) <= limit {
			if !reflect.DeepEqual(c, capped) {
				t.Errorf("seed %d: changed without need", seed)
			}
			continue
		}
		if sum := capped.sumOfRates(1); sum > limit || sum < 0.99*limit {
			t.Errorf("seed %d: the rates sum up to %.0f", seed, sum)
		}
		for i, l := range capped.Links {
			was := c.Links[i]
			if l.Rate < minRate || l.Rate > was.Rate || (l.BackRate == l.Rate) != (was.BackRate == was.Rate) {
				t.Errorf("seed %d: %v became %v", seed, &was, &l)
			}
			if l.Queue > 0 && l.Queue.Seconds()*l.Rate/8 < 3*packetBytes-1 {
				t.Errorf("seed %d: the queue of %v holds less than three packets", seed, &l)
			}
			for j := range i {
				if (was.Rate < c.Links[j].Rate) != (l.Rate < capped.Links[j].Rate) {
					t.Errorf("seed %d: the order of the rates changed", seed)
				}
			}
		}
	}
}

func TestPromising(t *testing.T) {
	plain := Link{Rate: 50e6, BackRate: 50e6, Queue: 50 * time.Millisecond}
	lossy, far, policed, dead := plain, plain, plain, plain
	lossy.Rate, lossy.Delay, lossy.Loss = 300e6, 50*time.Millisecond, 0.03
	far.Rate, far.Delay = 60e6, 300*time.Millisecond
	policed.Rate, policed.Queue = 80e6, 0
	dead.Rate, dead.Outages = 300e6, []Outage{{0, time.Hour}}
	c := Case{Links: []Link{lossy, far, dead, policed, plain}}
	if got := c.Promising(2*time.Second, 10*time.Second); got[0] != 4 || got[4] != 2 {
		t.Errorf("order %v, want the plain link first and the dead one last", got)
	}
}

// TestAlone checks that a link alone keeps the competitor of the bottleneck that it shares, and
// no other.
func TestAlone(t *testing.T) {
	c := Case{Links: []Link{{Rate: 1, Competitor: true, Bottleneck: 1}, {Rate: 2, Bottleneck: 1}, {Rate: 3}, {Rate: 4, Competitor: true}, {Rate: 5, Bottleneck: 2}}}
	for i, want := range []bool{true, true, false, true, false} {
		alone := c.Alone(i)
		if len(alone.Links) != 1 || alone.Links[0].Rate != float64(i+1) || alone.Links[0].Competitor != want {
			t.Errorf("link %d alone is %v, want a competitor: %v", i, alone.Links, want)
		}
	}
	if c.Links[1].Competitor {
		t.Error("the case itself was changed")
	}
}
