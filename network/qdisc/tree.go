package qdisc

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"cleat/netns"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tree is the queueing discipline at a device's root with everything attached to it.
type Tree struct {
	Kind    string `json:"kind"`
	Handle  uint32 `json:"handle"`
	Options []byte `json:"options,omitempty"`
	Parts   []part `json:"below,omitempty"` // in an order in which they can be created
}

// classless are the kinds without classes whose options the kernel accepts as it dumps them.
var classless = []string{"bfifo", "cake", "codel", "fq", "fq_codel", "fq_pie", "netem", "pfifo", "pfifo_fast", "pfifo_head_drop", "pie", "sfq", "tbf"}

// classful is the kind with classes for which the same holds, of the classes as well.
const classful = "htb"

// Save returns the tree of the device with this index. If the device has queueing
// disciplines that can't be restored, Save returns their kinds instead. It returns neither
// if the device only has the kernel's default.
func Save(ns *netns.NS, index int) (t *Tree, lost []string, err error) {
	err = ns.Do(func() error {
		qdiscs, err := list(index)
		if err != nil {
			return err
		}
		if t, err = read(index, qdiscs); err != nil || t != nil {
			return err
		}
		for _, q := range qdiscs {
			if !slices.Contains(lost, q.Kind) {
				lost = append(lost, q.Kind)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list queueing disciplines of link %d: %w", index, err)
	}
	return t, lost, nil
}

// list returns the queueing disciplines of a device except the kernel's defaults.
func list(index int) ([]part, error) {
	all, err := dump(index, unix.RTM_GETQDISC, unix.RTM_NEWQDISC, 0)
	return slices.DeleteFunc(all, func(q part) bool { return q.Handle == 0 }), err
}

// read returns the tree of a device with these queueing disciplines; nil if it can't be
// restored.
func read(index int, qdiscs []part) (*Tree, error) {
	i := slices.IndexFunc(qdiscs, func(q part) bool { return q.Parent == netlink.HANDLE_ROOT })
	if i < 0 || slices.ContainsFunc(qdiscs, func(q part) bool { return q.extra }) {
		return nil, nil
	}
	root := qdiscs[i]
	inner := slices.Delete(slices.Clone(qdiscs), i, i+1)
	t := &Tree{Kind: root.Kind, Handle: root.Handle, Options: root.Options}
	ok := false
	var err error
	switch {
	case root.Kind == classful:
		t.Parts, ok, err = attached(index, root.Handle, inner)
	case slices.Contains(classless, root.Kind) && len(inner) == 0:
		// Some kinds without classes have filters: sfq, fq_codel, cake.
		var filters []part
		filters, err = dump(index, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, root.Handle)
		ok = len(filters) == 0
	}
	if err != nil || !ok {
		return nil, err
	}
	return t, nil
}

// attached returns everything attached to the queueing discipline with this handle, in an
// order in which it can be created: each queueing discipline before its classes, filters
// last. inner are the other queueing disciplines of the device. ok is false if there is
// anything that can't be restored.
func attached(index int, root uint32, inner []part) (all []part, ok bool, err error) {
	classes, err := dump(index, unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, 0)
	if err != nil {
		return nil, false, err
	}
	// Classless kinds present their queues as classes.
	classes = slices.DeleteFunc(classes, func(c part) bool { return slices.Contains(classless, c.Kind) })
	handles := []uint32{root}
	for waiting := append(classes, inner...); len(waiting) > 0; {
		before := len(waiting)
		waiting = slices.DeleteFunc(waiting, func(p part) bool {
			top := p.Message == unix.RTM_NEWTCLASS && p.Parent == netlink.HANDLE_ROOT && slices.Contains(handles, p.Handle&0xffff0000)
			if !top && !slices.Contains(handles, p.Parent) {
				return false
			}
			p.Info = 0 // of a class: the handle of its queueing discipline; of that: its references
			all, handles = append(all, p), append(handles, p.Handle)
			return true
		})
		if len(waiting) == before {
			return nil, false, nil // attached to something else
		}
	}
	for _, p := range all {
		if p.Kind != classful && (p.Message == unix.RTM_NEWTCLASS || !slices.Contains(classless, p.Kind)) {
			return nil, false, nil
		}
	}
	filters, ok, err := filtersOf(index, handles)
	return append(all, filters...), ok, err
}

// Restore sets the tree on a device. A classful tree that differs from the saved one is
// replaced as a whole, because the kernel can't change it.
func (t *Tree) Restore(ns *netns.NS, index int) error {
	return ns.Do(func() error {
		root := part{Message: unix.RTM_NEWQDISC, Parent: netlink.HANDLE_ROOT, Handle: t.Handle, Kind: t.Kind, Options: t.Options}
		if t.Kind == classful {
			qdiscs, err := list(index)
			if err != nil {
				return err
			}
			if now, err := read(index, qdiscs); err != nil || reflect.DeepEqual(now, t) {
				return err
			}
			if err := removeRoot(index); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		for _, p := range append([]part{root}, t.Parts...) {
			if err := p.create(index); err != nil {
				return fmt.Errorf("%s %x:%x: %w", p.Kind, p.Handle>>16, p.Handle&0xffff, err)
			}
		}
		return nil
	})
}
