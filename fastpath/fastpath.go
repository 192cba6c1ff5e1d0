package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Path is the programs and maps of a network namespace. Its methods are called by one goroutine at a time, in that
// namespace.
type Path struct {
	objects  flowObjects
	settings Settings // whose peers are in the map
	attached map[Device]pair
	own      map[ebpf.ProgramID]bool
}

// pair is the two programs of a device.
type pair struct{ in, out link.Link }

// Role is what a device leads to.
type Role int

// Roles of devices.
const (
	Container Role = iota // the device is the host's end of a container's veth pair
	Wire                  // the device is an Ethernet device that leads to other hosts
)

// Device is a device whose packets may go the fast way.
type Device struct {
	Index int
	Role  Role
}

// UnsupportedError means that the fast path can't be had here.
type UnsupportedError struct {
	Reason string
	Err    error // with %+v, it has the log of the kernel's verifier; may be nil
}

func (e *UnsupportedError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return fmt.Sprintf("%s: %v", e.Reason, e.Err)
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// New loads the programs. They are attached to nothing yet. If that can't be, the error is an *UnsupportedError.
func New() (*Path, error) {
	if err := mayLoad(); err != nil {
		return nil, err
	}
	if _, err := programs(loopback, ebpf.AttachTCXIngress); err != nil {
		return nil, &UnsupportedError{Reason: "the kernel lacks tcx, of Linux 6.6"}
	}
	p := &Path{attached: map[Device]pair{}, own: map[ebpf.ProgramID]bool{}}
	if err := loadFlowObjects(&p.objects, nil); err != nil {
		return nil, &UnsupportedError{"the kernel refuses the programs", err}
	}
	err := p.set(Settings{})
	for _, one := range []*ebpf.Program{p.objects.FromContainer, p.objects.ToContainer, p.objects.FromWire, p.objects.ToWire} {
		info, infoErr := one.Info()
		err = errors.Join(err, infoErr)
		if infoErr == nil {
			id, _ := info.ID() // known since Linux 4.13
			p.own[id] = true
		}
	}
	for _, key := range []uint32{sealed, unsealed} {
		err = errors.Join(err, p.count(key))
	}
	if err != nil {
		return nil, errors.Join(err, p.objects.Close())
	}
	return p, nil
}

// mayLoad returns an error unless this process may load a program that does nothing.
func mayLoad() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if errors.Is(err, unix.EPERM) {
		return &UnsupportedError{Reason: "the kernel loads BPF programs only for the machine's own root"}
	}
	if err != nil {
		return &UnsupportedError{"the kernel loads no BPF programs", err}
	}
	return p.Close()
}

// loopback is the index of a namespace's loopback device.
const loopback = 1

// Supported returns why the kernel refuses the programs; nil if it does not. It tries once.
var Supported = sync.OnceValue(func() error {
	p, err := New()
	if err != nil {
		return err
	}
	return p.Close()
})

// Close detaches and removes the programs. All packets go the kernel's way again.
func (p *Path) Close() error {
	return errors.Join(p.Sync(p.settings, nil), p.objects.Close())
}

// Sync attaches the programs to devices, and detaches them from others. A device with programs of others has none:
// packets that go the fast way would not meet them. One that no longer exists is left out.
func (p *Path) Sync(s Settings, devices []Device) error {
	var errs []error
	if !s.equal(p.settings) {
		errs = append(errs, p.set(s))
	}
	left := map[uint32]bool{}
	for d, l := range maps.Clone(p.attached) {
		exists := l.isAttached()
		if !slices.Contains(devices, d) || !exists || p.isShared(d) {
			errs = append(errs, p.detach(d))
			left[uint32(d.Index)] = exists
		}
	}
	errs = append(errs, p.forget(left))
	for _, d := range devices {
		if _, ok := p.attached[d]; !ok && !p.isShared(d) {
			errs = append(errs, p.attach(d))
		}
	}
	return errors.Join(errs...)
}

func (p *Path) attach(d Device) error {
	in, out := p.objects.FromContainer, p.objects.ToContainer
	if d.Role == Wire {
		in, out = p.objects.FromWire, p.objects.ToWire
	}
	var l pair
	var err error
	if l.out, err = link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: out, Attach: ebpf.AttachTCXEgress}); err != nil {
		return fmt.Errorf("attach a program to device %d: %w", d.Index, err)
	}
	if l.in, err = link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: in, Attach: ebpf.AttachTCXIngress}); err != nil {
		return errors.Join(fmt.Errorf("attach a program to device %d: %w", d.Index, err), l.out.Close())
	}
	p.attached[d] = l
	if d.Role == Container {
		return p.count(uint32(d.Index))
	}
	return nil
}

func (p *Path) detach(d Device) error {
	l := p.attached[d]
	delete(p.attached, d)
	err := errors.Join(l.in.Close(), l.out.Close())
	if d.Role == Container {
		err = errors.Join(err, p.objects.CountedMap.Delete(uint32(d.Index)))
	}
	return err
}

// forget removes flows that come in or leave by devices, which other devices would still send there for a moment.
func (p *Path) forget(devices map[uint32]bool) error {
	if !slices.Contains(slices.Collect(maps.Values(devices)), true) {
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

// isAttached reports whether programs still have their device: they end with it.
func (l pair) isAttached() bool {
	info, err := l.in.Info()
	return err == nil && info.TCX() != nil && info.TCX().Ifindex != 0
}

// programs returns the ids of a device's programs.
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

// isShared reports whether a device has programs of others, or can't be asked.
func (p *Path) isShared(d Device) bool {
	for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		ids, err := programs(d.Index, attach)
		if err != nil || slices.ContainsFunc(ids, func(id ebpf.ProgramID) bool { return !p.own[id] }) {
			return true
		}
	}
	return false
}
