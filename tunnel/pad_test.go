package tunnel

import "testing"

// TestPaddingOfSizes pads paths of different sizes in turn: all of it is understood.
func TestPaddingOfSizes(t *testing.T) {
	e := newEnds(t, Config{}, false, 1)
	for _, size := range []int{1400, 1300, 1400, 1401} {
		o, p := e.a.out, e.a.paths[0]
		o.run.begin(e.a, p)
		o.run.padding(0, size, 2)
		o.run.commit(e.a, e.a.send.Path(0), e.a.now())
		o.run.send(e.a)
		e.b.in.drain(e.b.paths[0], e.b.paths[0].fd)
	}
	if n, came := e.b.stats.strange.Load(), e.b.in.paths[0].report.Packets; n != 0 || came != 8 {
		t.Errorf("%d packets of 8 came, %d were strange", came, n)
	}
}
