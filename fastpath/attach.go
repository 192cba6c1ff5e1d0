package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	devices "cleat/link"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// classifierName is the name of the programs on containers' devices.
const classifierName = "cleat-fastpath"

// pair is the two programs of a device that has them by tcx.
type pair struct{ in, out link.Link }

// Sync attaches the programs to devices, and detaches them from others. A device with programs or classifiers of others
// has none: packets that go the fast way would not meet them. One that no longer exists is left out. Only devices in
// changed may have other classifiers than at the last time, or all if it is nil.
func (p *Path) Sync(s Settings, wanted []Device, changed map[int]bool) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer h.Close()
	var errs []error
	if !s.equal(p.settings) {
		errs = append(errs, p.set(s))
	}
	left := map[uint32]bool{}
	for d := range maps.Clone(p.attached) {
		if slices.Contains(wanted, d) && (changed != nil && !changed[d.Index] || p.keeps(h, d)) {
			continue
		}
		_, gone := h.LinkByIndex(d.Index)
		exists := !errors.As(gone, new(netlink.LinkNotFoundError))
		errs = append(errs, p.detach(h, d, exists))
		if exists {
			left[uint32(d.Index)] = true
		}
	}
	errs = append(errs, p.forget(left))
	for _, d := range wanted {
		if _, ok := p.attached[d]; ok {
			continue
		}
		if _, others, err := p.programsOn(h, d); err == nil && !others {
			errs = append(errs, p.attach(h, d))
		}
	}
	return errors.Join(errs...)
}

// keeps reports whether a device has the programs, and nobody else's.
func (p *Path) keeps(h *netlink.Handle, d Device) bool {
	own, others, err := p.programsOn(h, d)
	return err == nil && own && !others
}

// programsOn reports whether a device has the programs, and whether it has programs or classifiers of others.
func (p *Path) programsOn(h *netlink.Handle, d Device) (own, others bool, err error) {
	own, others, err = devices.FindClassifiers(h, d.Index, classifierName)
	if err != nil || !p.tcx {
		return own, others, err
	}
	if d.Role == Wire {
		own, others = true, others || own
	}
	for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		ids, err := programs(d.Index, attach)
		if err != nil {
			return false, false, err
		}
		others = others || slices.ContainsFunc(ids, func(id ebpf.ProgramID) bool { return !p.own[id] })
		if d.Role == Wire {
			own = own && slices.ContainsFunc(ids, func(id ebpf.ProgramID) bool { return p.own[id] })
		}
	}
	return own, others, nil
}

// programs returns the ids of a device's programs (tcx).
func programs(device int, attach ebpf.AttachType) (ids []ebpf.ProgramID, err error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: device, Attach: attach})
	if err != nil {
		return nil, err
	}
	for _, one := range all.Programs {
		ids = append(ids, one.ID)
	}
	return ids, nil
}

// attach attaches the programs to a device. To remove a program by tcx, or a device that has some, the kernel waits for a
// grace period of RCU each time: that is for the few wires. Containers' devices come and go, and have classifiers.
func (p *Path) attach(h *netlink.Handle, d Device) (err error) {
	in, out := p.objects.FromContainer, p.objects.ToContainer
	if d.Role == Wire {
		in, out = p.objects.FromWire, p.objects.ToWire
	}
	var l pair
	if d.Role == Wire && p.tcx {
		l, err = attachTCX(d.Index, in, out)
	} else {
		err = devices.SetClassifiers(h, d.Index, devices.Classifiers{Name: classifierName, In: in.FD(), Out: out.FD()})
	}
	if err != nil {
		return err
	}
	p.attached[d] = l
	if d.Role == Container {
		return p.count(uint32(d.Index))
	}
	return nil
}

// attachTCX attaches programs to a device by tcx.
func attachTCX(device int, in, out *ebpf.Program) (l pair, err error) {
	if l.out, err = link.AttachTCX(link.TCXOptions{Interface: device, Program: out, Attach: ebpf.AttachTCXEgress}); err != nil {
		return pair{}, fmt.Errorf("attach a program to device %d: %w", device, err)
	}
	if l.in, err = link.AttachTCX(link.TCXOptions{Interface: device, Program: in, Attach: ebpf.AttachTCXIngress}); err != nil {
		return pair{}, errors.Join(fmt.Errorf("attach a program to device %d: %w", device, err), l.out.Close())
	}
	return l, nil
}

func (p *Path) detach(h *netlink.Handle, d Device, exists bool) (err error) {
	l := p.attached[d]
	delete(p.attached, d)
	if d.Role == Container {
		err = p.objects.CountedMap.Delete(uint32(d.Index))
	}
	if l.in != nil {
		return errors.Join(err, l.in.Close(), l.out.Close())
	}
	if exists {
		err = errors.Join(err, devices.RemoveClassifiers(h, d.Index, classifierName))
	}
	return err
}

// Clear removes the programs of a Path whose process was killed from a device, in the current network namespace. Those
// that it had by tcx are gone.
func Clear(index int) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer h.Close()
	return devices.RemoveClassifiers(h, index, classifierName)
}

// forget removes flows that come in or leave by devices, which other devices would still send there for a moment.
func (p *Path) forget(devices map[uint32]bool) error {
	if len(devices) == 0 {
		return nil
	}
	var k flowKey
	var v flowFlow
	var found []flowKey
	all := p.objects.Flows.Iterate()
	for all.Next(&k, &v) {
		if devices[v.In] || devices[v.Out] {
			found = append(found, k)
		}
	}
	var errs []error
	for _, k := range found {
		if err := p.objects.Flows.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("forget a flow: %w", err))
		}
	}
	return errors.Join(errs...)
}
