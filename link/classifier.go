package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Classifiers are BPF programs at both hooks of a device (cls_bpf in direct action mode on a clsact queueing discipline,
// tc-bpf(8)). They come after all classifiers of others, and stay until they are removed or the device is.
type Classifiers struct {
	Name    string // by which they are known
	In, Out int    // descriptors of the programs for what the device receives and sends
}

const (
	classifierPriority = 0xffff // the last
	classifierHandle   = 1
)

var classifierHooks = []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}

func clsact(index int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
}

func (c Classifiers) filter(index int, hook uint32, fd int) *netlink.BpfFilter {
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: hook, Handle: classifierHandle, Protocol: unix.ETH_P_ALL, Priority: classifierPriority}
	return &netlink.BpfFilter{FilterAttrs: attrs, Fd: fd, Name: c.Name, DirectAction: true}
}

// SetClassifiers puts programs at a device's hooks, in place of those of the same name. h is a handle of the device's
// network namespace. It fails if the device has the queueing discipline "ingress".
func SetClassifiers(h *netlink.Handle, index int, c Classifiers) error {
	if err := h.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the queueing discipline clsact to device %d: %w", index, err)
	}
	// What leaves is seen before anything may come in that depends on it.
	err := h.FilterReplace(c.filter(index, netlink.HANDLE_MIN_EGRESS, c.Out))
	if err == nil {
		err = h.FilterReplace(c.filter(index, netlink.HANDLE_MIN_INGRESS, c.In))
	}
	if err != nil {
		return fmt.Errorf("add a BPF classifier to device %d: %w", index, err)
	}
	return nil
}

// FindClassifiers reports whether a device has programs of a name at its hooks, and whether it has classifiers of others
// there.
func FindClassifiers(h *netlink.Handle, index int, name string) (own, others bool, err error) {
	n := 0
	for _, hook := range classifierHooks {
		all, err := Dump(func() ([]netlink.Filter, error) { return h.FilterList(byIndex(index), hook) })
		if err != nil {
			return false, false, fmt.Errorf("list classifiers of device %d: %w", index, err)
		}
		for _, f := range all {
			b, ok := f.(*netlink.BpfFilter)
			switch {
			case ok && b.Name == name:
				n++
			case f.Attrs().Handle != 0: // a filter, and not the head of its list
				others = true
			}
		}
	}
	return n == len(classifierHooks), others, nil
}

// RemoveClassifiers removes programs of a name from a device, and then the queueing discipline if nothing else is on it.
func RemoveClassifiers(h *netlink.Handle, index int, name string) error {
	removed := false
	for _, hook := range classifierHooks {
		all, err := Dump(func() ([]netlink.Filter, error) { return h.FilterList(byIndex(index), hook) })
		if err != nil {
			return fmt.Errorf("list classifiers of device %d: %w", index, err)
		}
		for _, f := range all {
			if b, ok := f.(*netlink.BpfFilter); ok && b.Name == name {
				removed = true
				if err := h.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("remove a BPF classifier of device %d: %w", index, err)
				}
			}
		}
	}
	if !removed {
		return nil
	}
	_, others, err := FindClassifiers(h, index, name)
	if err == nil && !others {
		err = h.QdiscDel(clsact(index))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the queueing discipline clsact of device %d: %w", index, err)
	}
	return nil
}

// byIndex is a link of which only the index matters.
func byIndex(index int) netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
