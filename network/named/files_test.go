package named_test

import (
	"fmt"
	"testing"
	"time"

	"cleat/network/named"
)

// A process that remembers files sees each change of a directory, by whomever, at once.
func TestRememberedEndpoints(t *testing.T) {
	tb := newTestbed(t, "a", "b", "c")
	must(t, tb.create(named.NetworkSpec{Name: "web", Subnets: subnets(1)}))
	remembering := named.StoreOf(tb.cfg) // the testbed's commands remember files as well
	names := func() (all []string) {
		t.Helper()
		endpoints, err := remembering.Endpoints("web")
		must(t, err)
		for _, e := range endpoints {
			all = append(all, e.Container.Name)
			e.Container.Name = "changed" // the caller's copy
		}
		return all
	}
	is := func(want ...string) {
		t.Helper()
		for range 2 {
			if got := names(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("endpoints of %v, want %v", got, want)
			}
		}
	}
	is()
	for _, pause := range []time.Duration{0, 2 * named.Settled} { // as old as a change must be to be remembered
		for i, c := range []string{"a", "b", "c"} {
			_, err := tb.connect("web", c, named.Connection{})
			must(t, err)
			time.Sleep(pause)
			is([]string{"a", "b", "c"}[:i+1]...)
		}
		must(t, tb.disconnect("web", "b"))
		time.Sleep(pause)
		is("a", "c")
		must(t, tb.disconnect("web", "a"))
		must(t, tb.disconnect("web", "c"))
		is()
	}
}
