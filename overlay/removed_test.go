package overlay

import (
	"slices"
	"testing"
	"time"
)

// TestRemovedStays checks that the settings say that a host was removed also after something else in them has changed,
// and not any more when the host takes part again, also after a restart.
func TestRemovedStays(t *testing.T) {
	n := &Node{cfg: Config{Log: t.Logf}, dir: dir(t.TempDir()), settings: &Settings{Host: "a"}, problems: map[string]string{}, problemSince: map[string]time.Time{}}
	var got []bool
	step := func(do func()) {
		t.Helper()
		do()
		s, err := Load(string(n.dir))
		must(t, err)
		got = append(got, s.Removed)
		n.settings = s
	}
	step(func() { n.setRemoved(true) })
	step(func() { n.settings.Incarnation = "000001-a"; must(t, n.dir.writeSettings(*n.settings)) })
	step(func() { n.removal = removal{}; n.setRemoved(false) })
	if len(n.problems) != 0 || len(n.problemSince) != 0 {
		t.Errorf("problems are left: %v, since %v", n.problems, n.problemSince)
	}
	if want := []bool{true, true, false}; !slices.Equal(got, want) {
		t.Errorf("the settings say removed: %v, want %v", got, want)
	}
}
