package link_test

import (
	"testing"

	"cleat/lab"
	"cleat/link"
)

func TestListing(t *testing.T) {
	lab.Need(t)
	node, err := lab.NewNode("n")
	must(t, err)
	defer node.Close()
	l, err := link.OpenListing(node.NS)
	must(t, err)
	defer l.Close()
	has := func(index int, want bool) {
		t.Helper()
		if got, err := l.Has(index); got != want || err != nil {
			t.Errorf("device %d is listed: %v, %v, want %v", index, got, err, want)
		}
	}
	lo, err := link.Find(node.NS, "lo")
	must(t, err)
	has(lo.Index(), true)
	has(4711, false)
}
