package overlay

import (
	"testing"
	"time"

	"cleat/overlay/registry"
)

// TestPlan checks what the leader does with members of hosts that are dead, or that have lost theirs.
func TestPlan(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, row := range []struct {
		name       string
		listed     time.Time // when the leader has started
		since      time.Time // when c has died, as far as the leader has seen it
		members    []registry.Member
		dead, left string
	}{
		{"dead for long", ago(time.Hour), ago(time.Hour), []registry.Member{{Host: "a"}, {Host: "b"}, {Host: "c"}}, "c", ""},
		{"just dead", ago(time.Hour), ago(time.Second), []registry.Member{{Host: "a"}, {Host: "b"}, {Host: "c"}}, "", ""},
		{"dead when the leader has started, a second ago", ago(time.Second), time.Time{}, []registry.Member{{Host: "a"}, {Host: "b"}, {Host: "c"}}, "", ""},
		{"dead when the leader has started, an hour ago", ago(time.Hour), time.Time{}, []registry.Member{{Host: "a"}, {Host: "b"}, {Host: "c"}}, "c", ""},
		{"removed, and its record says otherwise", ago(time.Hour), ago(time.Hour), []registry.Member{{Host: "a"}, {Host: "b"}}, "", "c"},
	} {
		n := &Node{settings: &Settings{Host: "a"}, mirror: newMirror(), since: map[string]time.Time{"c": row.since}, listedAt: row.listed}
		for _, name := range []string{"a", "b", "c"} {
			n.mirror.Hosts[name] = registry.Host{Name: name, Member: true, Votes: true}
		}
		n.mirror.alive["a"], n.mirror.alive["b"] = registry.Alive{}, registry.Alive{}
		p := n.plan(row.members)
		dead := ""
		if p.dead != nil {
			dead = p.dead.Host
		}
		if dead != row.dead || p.left != row.left {
			t.Errorf("%s: dead is %q and without a member %q, want %q and %q", row.name, dead, p.left, row.dead, row.left)
		}
	}
}
