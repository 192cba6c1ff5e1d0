package container

import (
	"testing"

	"cleat/netns/find"
)

// A drawing distinguishes another user's container from root's of the same name.
func TestShownName(t *testing.T) {
	for want, f := range map[string]*find.Found{
		"web": {Name: "web"}, "0123456789ab": {ID: "0123456789abcdef"}, "alice/web": {Name: "web", Space: "alice", Owner: 1500}, "incus-box": {Name: "incus-box", Space: "incus"},
	} {
		if got := shownName(f); got != want {
			t.Errorf("%+v is %q, want %q", f, got, want)
		}
	}
}
