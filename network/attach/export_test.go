package attach

import (
	"context"

	"github.com/vishvananda/netlink"
)

// WithHook returns c with a hook that is called before and after each record and step.
func (c Config) WithHook(hook func() error) Config {
	c.Checkpoint = hook
	return c
}

// RepairWithHook is Repair with a hook that is called before each record is undone.
func RepairWithHook(ctx context.Context, store *Store, hook func() error) ([]string, error) {
	s, err := newSession(store, hook)
	if err != nil {
		return nil, err
	}
	defer s.close()
	unlock, err := store.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.repair()
}

// IsPhysical reports whether l leads out of the machine.
func IsPhysical(l netlink.Link) bool { return (&planner{}).physical(l) }
