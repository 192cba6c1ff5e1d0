package attach

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// queue is a queueing discipline as the kernel tells it, and takes it again: its
// options are nobody's but its own.
type queue struct {
	Kind    string `json:"kind"`
	Handle  uint32 `json:"handle"`
	Options []byte `json:"options,omitempty"`
	Below   []part `json:"below,omitempty"`

	parent uint32
	beside bool // as of a part
}

// queuesOf are the queueing disciplines of a device that somebody set: those that
// the kernel gives by itself have no handle.
func queuesOf(s *side, index int) ([]queue, error) {
	var out []queue
	err := s.ns.Do(func() error {
		all, err := partsOf(index, unix.RTM_GETQDISC, unix.RTM_NEWQDISC, 0)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.Handle != 0 {
				out = append(out, queue{Kind: p.Kind, Handle: p.Handle, Options: p.Options, parent: p.Parent, beside: p.beside})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines of link %d: %w", index, err)
	}
	return out, nil
}

// classless are the kinds that are all there is to them, and whose options the
// kernel takes as it tells them.
var classless = []string{"bfifo", "cake", "codel", "fq", "fq_codel", "fq_pie", "netem", "pfifo", "pfifo_fast", "pfifo_head_drop", "pie", "sfq", "tbf"}

// restorable is what comes back with its device: the one at its root with what hangs from
// it, if that is all that there is. nil: there is nothing, or something else.
func restorable(s *side, index int, all []queue) (*queue, error) {
	i := slices.IndexFunc(all, func(q queue) bool { return q.parent == netlink.HANDLE_ROOT })
	if i < 0 || slices.ContainsFunc(all, func(q queue) bool { return q.beside }) {
		return nil, nil
	}
	root, others := all[i], slices.Delete(slices.Clone(all), i, i+1)
	root.parent = 0 // as on record
	switch {
	case slices.Contains(classless, root.Kind):
		if len(others) > 0 {
			return nil, nil
		}
		filters, err := filtersAt(s, index, root.Handle)
		if err != nil || filters {
			return nil, err
		}
		return &root, nil
	case !slices.Contains(classful, root.Kind):
		return nil, nil
	}
	ok := false
	err := s.ns.Do(func() (err error) {
		root.Below, ok, err = below(index, root, others)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list classes and filters of link %d: %w", index, err)
	}
	if !ok {
		return nil, nil
	}
	return &root, nil
}

// filtersAt tells whether a queueing discipline has filters, as some without classes do:
// sfq, fq_codel, cake.
func filtersAt(s *side, index int, handle uint32) (has bool, err error) {
	err = s.ns.Do(func() error {
		all, err := partsOf(index, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, handle)
		has = len(all) > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list filters of link %d: %w", index, err)
	}
	return has, nil
}

// queuesLost notes what a device has, and comes back without.
func (p *planner) queuesLost(l netlink.Link) error {
	all, err := queuesOf(p.host, l.Attrs().Index)
	if err != nil || len(all) == 0 {
		return err
	}
	if q, err := restorable(p.host, l.Attrs().Index, all); err != nil || q != nil {
		return err
	}
	var kinds []string
	for _, q := range all {
		if !slices.Contains(kinds, q.Kind) {
			kinds = append(kinds, q.Kind)
		}
	}
	p.note("%s will come back without its queueing disciplines (%s), classes and filters, which can't be put back: set them again then", l.Attrs().Name, strings.Join(kinds, ", "))
	return nil
}

// set gives a device the queueing discipline, and what hangs from it. What classes hang from
// can't be changed: if it is there, and not as it was, it is made anew.
func (q *queue) set(s *side, index int) error {
	if slices.Contains(classful, q.Kind) {
		all, err := queuesOf(s, index)
		if err != nil {
			return err
		}
		if now, err := restorable(s, index, all); err != nil || reflect.DeepEqual(now, q) {
			return err
		}
	}
	return s.ns.Do(func() error {
		root := part{Message: unix.RTM_NEWQDISC, Parent: netlink.HANDLE_ROOT, Handle: q.Handle, Kind: q.Kind, Options: q.Options}
		if slices.Contains(classful, q.Kind) {
			if err := root.remove(index); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		for _, p := range append([]part{root}, q.Below...) {
			if err := p.make(index); err != nil {
				return fmt.Errorf("%s %x:%x: %w", p.Kind, p.Handle>>16, p.Handle&0xffff, err)
			}
		}
		return nil
	})
}
