package overlay

import (
	"context"
	"errors"
	"testing"

	"cleat/overlay/registry"
)

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
