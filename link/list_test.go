package link_test

import (
	"fmt"
	"slices"
	"testing"

	"cleat/link"
)

func TestList(t *testing.T) {
	if (link.List[int]{}) != link.ListOf[int]() {
		t.Error("the zero list is not the empty one")
	}
	if a, b := link.ListOf(1, 2), link.ListOf(1, 2); a != b {
		t.Error("equal lists differ")
	}
	if link.ListOf(1, 2) == link.ListOf(2, 1) || link.ListOf(1) == link.ListOf(1, 1) {
		t.Error("different lists are equal")
	}
	if got := link.ListOf(3, 1, 2).All(); !slices.Equal(got, []int{3, 1, 2}) {
		t.Errorf("elements are %v, want 3, 1, 2", got)
	}
	if got := link.ListOf(link.QoSMap{From: 1, To: 2}, link.QoSMap{From: 3, To: 4}).String(); got != "1:2,3:4" {
		t.Errorf("text is %q, want 1:2,3:4", got)
	}
}

// formats returns v in every format that a log may use.
func formats(v any) string { return fmt.Sprintf("%v %+v %#v %s", v, v, v, v) }
