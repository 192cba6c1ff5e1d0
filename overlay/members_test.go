package overlay

import (
	"context"
	"errors"
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

// twoMembers is a registry of two members, as the host that leads sees it: it accepts changes while the other member
// runs, and after it was removed.
type twoMembers struct {
	other   registry.Host
	removed bool
	fails   error // removing a member does
}

func (r *twoMembers) answers() error {
	if !r.other.Member && !r.removed {
		return errors.New("no quorum: the other member has ended")
	}
	return nil
}

func (r *twoMembers) RemoveMember(context.Context, uint64) error {
	err := errors.Join(r.answers(), r.fails)
	r.removed = r.removed || err == nil
	return err
}

func (r *twoMembers) ChangeHost(_ context.Context, _ string, change func(*registry.Host)) error {
	err := r.answers()
	if err == nil {
		change(&r.other)
	}
	return err
}

// The member of a host ends when its record says that it has none. If that came before it is removed from the registry,
// a registry of two members would be lost.
func TestDropMember(t *testing.T) {
	for name, fails := range map[string]error{"removed": nil, "the leader ends before": errors.New("canceled")} {
		t.Run(name, func(t *testing.T) {
			r := &twoMembers{other: registry.Host{Name: "b", Member: true, Votes: true}, fails: fails}
			if err := dropMember(t.Context(), r, &registry.Member{ID: 1, Host: "b"}); !errors.Is(err, fails) {
				t.Errorf("%v, want %v", err, fails)
			}
			if err := r.answers(); err != nil {
				t.Error(err)
			}
			if removed := fails == nil; r.removed != removed || r.other.Member == removed || r.other.Votes == removed {
				t.Errorf("removed %v, its host's record %+v", r.removed, r.other)
			}
		})
	}
}
