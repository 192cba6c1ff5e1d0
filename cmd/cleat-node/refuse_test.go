package main

import (
	"testing"
	"testing/synctest"
	"time"

	"cleat/overlay"
	"cleat/overlay/registry"
)

// TestRefusesPlain checks when a host refuses packets that are not encrypted: never before the last of the others has
// ceased to send them, if that takes less than a minute.
func TestRefusesPlain(t *testing.T) {
	state := func(encrypted bool, only ...bool) overlay.State {
		s := overlay.State{Encrypted: encrypted}
		for _, o := range only {
			s.Hosts = append(s.Hosts, registry.Host{WireGuard: registry.WireGuard{Only: o}})
		}
		return s
	}
	type step struct {
		after time.Duration // of the step before it
		state overlay.State
		want  bool
	}
	for name, steps := range map[string][]step{
		"all change at once": {{0, state(false, false, false), false}, {0, state(true, false, false), false}, {0, state(true, true, true), false}, {linger, state(true, true, true), true}},
		"one is slow": {{0, state(false, false, false), false}, {0, state(true, true, false), false}, {leaveOff - 2*linger, state(true, true, false), false},
			{0, state(true, true, true), false}, {linger, state(true, true, true), true}},
		"one does not say it": {{0, state(false, false), false}, {0, state(true, false), false}, {leaveOff, state(true, false), true}},
		"one joins later":     {{0, state(false, true), false}, {0, state(true, true), false}, {linger, state(true, true), true}, {0, state(true, true, false), true}},
		"after a restart":     {{0, state(true, false), true}},
		"not encrypted":       {{0, state(false, true), false}, {time.Hour, state(false, true), false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dataplane{stale: make(chan struct{}, 1)}
				for i, s := range steps {
					time.Sleep(s.after)
					synctest.Wait()
					if i > 0 && s.after > 0 && s.want {
						select {
						case <-d.stale:
						default:
							t.Errorf("step %d: nobody looks again", i)
						}
					}
					if got := d.refusesPlain(s.state); got != s.want {
						t.Errorf("step %d: refuses %v, want %v", i, got, s.want)
					}
				}
				time.Sleep(2 * leaveOff) // timers end
			})
		})
	}
}
