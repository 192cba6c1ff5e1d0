package tunnel_test

import (
	"bytes"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"cleat/tunnel"
	"cleat/tunnel/sched"
	"cleat/tunnel/tunneltest"
)

// withAndWithoutKey runs a test with a key and without.
func withAndWithoutKey(t *testing.T, test func(t *testing.T, w *harness)) {
	for _, name := range []string{"plain", "keyed"} {
		t.Run(name, func(t *testing.T) {
			w := newHarness(t, tunnel.Config{Form: tunnel.Native}, 3)
			if name == "keyed" {
				w.withKeys()
			}
			test(t, w)
		})
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	key := uint32(7)
	tests := []struct {
		name  string
		forms [2]tunnel.Config
		want  tunnel.Form
	}{
		{"native", [2]tunnel.Config{{Form: tunnel.Native}, {Form: tunnel.Native}}, tunnel.Native},
		{"auto", [2]tunnel.Config{}, tunnel.Native},
		{"compat", [2]tunnel.Config{{Form: tunnel.Compat, CompatKey: &key}, {Form: tunnel.Compat, CompatKey: &key}}, tunnel.Compat},
		{"compat without numbers", [2]tunnel.Config{{Form: tunnel.Compat, NoSequence: true}, {Form: tunnel.Compat, NoSequence: true}}, tunnel.Compat},
		{"auto against compat", [2]tunnel.Config{{}, {Form: tunnel.Compat}}, tunnel.Compat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t, tunnel.Config{}, 3)
			for i, c := range tt.forms {
				w.ends[i].cfg.Form, w.ends[i].cfg.CompatKey, w.ends[i].cfg.NoSequence = c.Form, c.CompatKey, c.NoSequence
			}
			w.startBoth().passBothWays()
			for i, e := range w.ends {
				if s := e.tunnel.Status(); s.Form != tt.want || s.Cipher != "" || s.WriteErrors > 0 {
					t.Errorf("end %d: %+v, want %s", i, s, tt.want)
				}
			}
		})
	}
}

func TestKeyed(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{}, 2).withKeys().startBoth()
	w.passBothWays()
	for i, e := range w.ends {
		if s := e.tunnel.Status(); s.Cipher == "" || s.Form != tunnel.Native {
			t.Errorf("end %d: %+v", i, s)
		}
	}
}

func TestWrongKey(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{}, 2).withKeys()
	first := w.ends[0].cfg.Key
	other := newHarness(t, tunnel.Config{}, 0).withKeys().ends[0].cfg.Key
	first.Private = other.Private
	w.start(0)
	w.start(1)
	w.send(0, 500, nil)
	w.send(1, 500, nil)
	for i, e := range w.ends {
		if s := e.tunnel.Status(); s.Up || s.Written > 0 {
			t.Errorf("end %d: %+v", i, s)
		}
	}
}

// TestNoKey runs one end without a key: the other end must behave as if it were alone,
// and count what it receives, whichever of the two would initiate.
func TestNoKey(t *testing.T) {
	t.Parallel()
	for keyed, role := range []string{"begins", "answers"} {
		for _, form := range []tunnel.Form{tunnel.Native, tunnel.Compat} {
			t.Run(role+", other "+string(form), func(t *testing.T) {
				t.Parallel()
				w := newHarness(t, tunnel.Config{}, 2).withKeys()
				e, other := w.ends[keyed], w.ends[1-keyed]
				other.cfg.Key, other.cfg.Form = nil, form
				w.start(0)
				w.start(1)
				w.send(0, 100, nil)
				w.send(1, 100, nil)
				w.wait("invalid packets to be counted", 5*time.Second, func() bool {
					return e.tunnel.Status().Invalid > 0
				})
				if s := e.tunnel.Status(); s.Up || s.Written > 0 || s.Sent > 0 || s.Form == tunnel.Compat {
					t.Errorf("end with a key: %+v", s)
				}
				if s := other.tunnel.Status(); s.Written > 0 {
					t.Errorf("end without a key: %+v", s)
				}
			})
		}
	}
}

// TestReplayed replays all packets.
func TestReplayed(t *testing.T) {
	t.Parallel()
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		type recorded struct {
			p  *tunneltest.Path
			to tunneltest.Side
			b  []byte
		}
		var mu sync.Mutex
		var all []recorded
		for _, p := range w.paths {
			p.SetTap(func(to tunneltest.Side, b []byte) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, recorded{p, to, bytes.Clone(b)})
			})
		}
		w.startBoth().passBothWays()
		mu.Lock()
		again := all
		mu.Unlock()
		lives := [2]uint64{w.ends[0].tunnel.SessionName(), w.ends[1].tunnel.SessionName()}
		for _, r := range again {
			r.p.Inject(r.to, bytes.Clone(r.b))
		}
		w.passBothWays()
		w.checkNoDuplicates()
		for i, e := range w.ends {
			if e.tunnel.SessionName() != lives[i] {
				t.Errorf("end %d has started a new session", i)
			}
		}
	})
}

// TestForged sends forged packets to an end with a key.
func TestForged(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{}, 2).withKeys()
	var mu sync.Mutex
	var seen [][]byte
	w.paths[0].SetTap(func(to tunneltest.Side, b []byte) {
		if mu.Lock(); to == 1 {
			seen = append(seen, bytes.Clone(b))
		}
		mu.Unlock()
	})
	w.startBoth().passBothWays()
	e := w.ends[1]
	before, life := e.tunnel.Status(), e.tunnel.SessionName()
	mu.Lock()
	forged := seen
	mu.Unlock()
	for i, b := range forged {
		b[len(b)-1-i%16] ^= 1 // the seal
		w.paths[0].Inject(1, b)
	}
	for kind := range byte(5) { // each kind of packet, with nothing but the right tag
		b := make([]byte, 300)
		copy(b, forged[len(forged)-1][:8])
		b[13] = kind << 4
		w.paths[0].Inject(1, b)
		b = make([]byte, 300) // a handshake message, which has no tag
		copy(b, []byte{0, 0, 0x88, 0xb5, 2, 1, kind})
		w.paths[0].Inject(1, b)
	}
	w.wait("all packets to be counted", time.Second, func() bool {
		return e.tunnel.Status().Invalid-before.Invalid >= uint64(len(forged))
	})
	if s := e.tunnel.Status(); e.tunnel.SessionName() != life || s.KeyID != before.KeyID || !s.Up {
		t.Error("the session has changed")
	}
	w.passBothWays()
}

// TestRestart restarts one end while the other keeps running.
func TestRestart(t *testing.T) {
	t.Parallel()
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		w.startBoth().passBothWays()
		for i := range w.ends {
			w.ends[i].stop()
			w.start(i)
			w.waitTraffic(2 * time.Second)
			w.passBothWays()
		}
	})
}

// TestPathsChange removes and adds paths during traffic.
func TestPathsChange(t *testing.T) {
	t.Parallel()
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		w.startBoth().passBothWays()
		first := w.ends[0].tunnel
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		sent := w.send(0, 2000, func(i int) {
			switch i {
			case 200:
				must(first.SetPath("path0", false))
			case 500:
				must(first.SetPath("path0", true))
			case 800:
				must(first.RemovePath("path1"))
			case 1100:
				must(first.AddPath(w.paths[1].Config(0)))
			case 1400:
				must(first.SetPath("path2", false))
			case 1401:
				must(first.SetPath("path2", true))
			}
		})
		w.waitArrived(1, sent)
		w.wait("all paths to be in use", 3*time.Second, func() bool {
			n := 0
			for _, p := range first.Status().Paths {
				if p.Live {
					n++
				}
			}
			return n == 3
		})
		w.passBothWays()
	})
}

// TestBlackhole makes paths drop everything during traffic.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		w.startBoth().passBothWays()
		sent := w.send(0, 1500, func(i int) {
			switch i {
			case 300:
				w.paths[0].SetBlackhole(true)
			case 700:
				w.paths[2].SetBlackhole(true)
			case 1000:
				w.paths[0].SetBlackhole(false)
			}
		})
		w.waitArrived(1, sent)
		w.paths[2].SetBlackhole(false)
		w.wait("all paths to be in use", 4*time.Second, func() bool {
			for _, p := range w.ends[0].tunnel.Status().Paths {
				if !p.Live {
					return false
				}
			}
			return true
		})
	})
}

func TestDuplicate(t *testing.T) {
	t.Parallel()
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		for _, e := range w.ends {
			e.cfg.Mode = sched.Duplicate
		}
		w.startBoth().passBothWays()
		sent := w.send(0, 600, func(i int) { w.paths[i/100%3].SetBlackhole(i%100 == 0) })
		w.waitArrived(1, sent)
		if s := w.ends[1].tunnel.Status(); s.Order.Duplicates == 0 {
			t.Errorf("no packet arrived twice: %+v", s)
		}
	})
}

// TestRekey changes keys during traffic.
func TestRekey(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{}, 2).withKeys().startBoth()
	w.passBothWays()
	life := w.ends[0].tunnel.SessionName()
	for range 5 {
		was := w.ends[0].tunnel.Status().KeyID
		w.ends[0].tunnel.Rekey()
		w.waitArrived(1, w.send(0, 200, nil))
		w.waitArrived(0, w.send(1, 200, nil))
		for i, e := range w.ends {
			if e.tunnel.Status().KeyID == was {
				t.Errorf("end %d has the old keys", i)
			}
		}
	}
	if w.ends[0].tunnel.SessionName() != life {
		t.Error("a new session has begun")
	}
}

// TestMemory sends much over paths that delay it: kept memory must be reused.
func TestMemory(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{Form: tunnel.Native}, 2)
	w.paths[0].SetDelay(5 * time.Millisecond)
	w.startBoth()
	for range 10 {
		w.waitArrived(1, w.send(0, 300, nil))
	}
	w.wait("memory to be freed", 2*time.Second, func() bool { return w.ends[0].tunnel.Status().KeptBytes <= 1<<20 })
}

// TestLongQueue sends much more than slow paths carry: it takes longer than stallTime until
// all of it has arrived, and nothing is lost.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	w := newHarness(t, tunnel.Config{}, 2)
	for i := range w.ends[0].cfg.Paths {
		w.ends[0].cfg.Paths[i].MaxRate = 64_000
	}
	w.startBoth()
	begun := time.Now()
	w.waitArrived(1, w.send(0, 250, nil))
	if d := time.Since(begun); d < stallTime {
		t.Errorf("it took only %v", d)
	}
}

func TestEnd(t *testing.T) {
	withAndWithoutKey(t, func(t *testing.T, w *harness) {
		before := []int{descriptors(t), runtime.NumGoroutine()}
		w.startBoth().passBothWays()
		for _, e := range w.ends {
			begun := time.Now()
			e.stop()
			if d := time.Since(begun); d > time.Second {
				t.Errorf("Run returned after %v", d)
			}
		}
		w.wait("goroutines to end", time.Second, func() bool { return runtime.NumGoroutine() <= before[1] })
		if n := descriptors(t); n > before[0] {
			t.Errorf("%d descriptors, %d before", n, before[0])
		}
	})
}

// descriptors returns the number of open descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestOnlyPathReturns disables the only path at both ends and enables it again.
func TestOnlyPathReturns(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*harness) *harness{
		"plain": func(w *harness) *harness { return w },
		"keyed": (*harness).withKeys,
	}
	for name, with := range tests {
		t.Run(name, func(t *testing.T) {
			w := with(newHarness(t, tunnel.Config{}, 1)).startBoth()
			w.passBothWays()
			life := w.ends[0].tunnel.SessionName()
			for _, up := range []bool{false, true} {
				for _, e := range w.ends {
					if err := e.tunnel.SetPath("path0", up); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(50 * time.Millisecond) // reports about earlier packets have arrived
			}
			w.wait("the path to be in use at both ends", 6*time.Second, func() bool {
				return w.ends[0].tunnel.Status().Paths[0].Live && w.ends[1].tunnel.Status().Paths[0].Live
			})
			w.passBothWays()
			if got := w.ends[0].tunnel.SessionName(); got != life {
				t.Error("a new session has begun")
			}
		})
	}
}
