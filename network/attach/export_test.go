package attach

import (
	"context"

	"github.com/vishvananda/netlink"
)

// ErrStop has an operation end as if its process were killed.
var ErrStop = errKilled

// WithTrial has f called before and after each record and step.
func (c Config) WithTrial(f func() error) Config {
	c.testHook = f
	return c
}

// RepairTrial is Repair with f called before each thing undone.
func RepairTrial(ctx context.Context, s *Store, f func() error) ([]string, error) {
	host, err := hostNamespace()
	if err != nil {
		return nil, err
	}
	defer host.close()
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.repair(host, f)
}

// Physical tells whether a device leads out of the machine.
func Physical(l netlink.Link) bool { return (&planner{}).physical(l) }
