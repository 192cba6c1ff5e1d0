package attach_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"

	"cleat/network/attach"
)

// listed returns the states of all attachments.
func (tb *testbed) listed() (states []attach.State) {
	tb.t.Helper()
	must(tb.t, tb.onHost(func() error {
		all, err := attach.List(tb.t.Context(), tb.store)
		for _, s := range all {
			states = append(states, s.State)
		}
		return err
	}))
	return states
}

// TestListBusy checks that an attachment is listed as busy while it is being made or
// removed, and after the command that did so was killed, at any point after its first
// record.
func TestListBusy(t *testing.T) {
	tb := newTestbed(t)
	spec := attach.Spec{Kind: "bridge", Parent: "br0"}
	busy := func(at string) {
		t.Helper()
		if got := tb.listed(); !slices.Equal(got, []attach.State{attach.Busy}) {
			t.Errorf("%s: listed %v, want busy", at, got)
		}
	}
	points := 0
	_, err := tb.attach(spec, func() error {
		if points++; points > 2 { // the first point is before the first record
			busy("while attaching, at point " + strconv.Itoa(points))
		}
		return nil
	})
	must(t, err)
	must(t, tb.detach("eth0", func() error { busy("while detaching"); return nil }))
	if got := tb.listed(); len(got) != 0 {
		t.Errorf("detached: listed %v", got)
	}

	if _, err := tb.attach(spec, killAt(points/2)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	busy("killed while attaching")
	tb.repair()
	if got := tb.listed(); len(got) != 0 {
		t.Errorf("repaired: listed %v", got)
	}

	_, err = tb.attach(spec, nil)
	must(t, err)
	if err := tb.detach("eth0", killAt(3)); !errors.Is(err, attach.ErrKilled) {
		t.Fatal(err)
	}
	busy("killed while detaching")
}
