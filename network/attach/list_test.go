package attach_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"cleat/network/attach"
)

// listed returns the states of all attachments.
func (w *world) listed() (states []attach.State) {
	w.t.Helper()
	must(w.t, w.do(func() error {
		all, err := attach.List(w.t.Context(), w.store)
		for _, s := range all {
			states = append(states, s.State)
		}
		return err
	}))
	return states
}

// An attachment is listed as busy while it is being made or removed, and after the command that
// did so was killed: at any point from its first record on.
func TestListBusy(t *testing.T) {
	w := newWorld(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0"}
	busy := func(at string) {
		t.Helper()
		if got := w.listed(); !slices.Equal(got, []attach.State{attach.Busy}) {
			t.Errorf("%s: listed %v, want busy", at, got)
		}
	}
	points := 0
	_, err := w.attach(spec, func() error {
		if points++; points > 2 { // the first point is before the first record
			busy("while attaching, at point " + strconv.Itoa(points))
		}
		return nil
	})
	must(t, err)
	must(t, w.detach("eth0", func() error { busy("while detaching"); return nil }))
	if got := w.listed(); len(got) != 0 {
		t.Errorf("detached: listed %v", got)
	}

	if _, err := w.attach(spec, stopAt(points/2)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	busy("killed while attaching")
	w.repair()
	if got := w.listed(); len(got) != 0 {
		t.Errorf("repaired: listed %v", got)
	}

	_, err = w.attach(spec, nil)
	must(t, err)
	if err := w.detach("eth0", stopAt(3)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	busy("killed while detaching")
}
