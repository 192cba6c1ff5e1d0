package fastpath

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Path is the programs and maps of a network namespace. Its methods are called by one goroutine at a time, in that
// namespace.
type Path struct {
	objects  flowObjects
	settings Settings // whose peers are in the map
	attached map[Device]pair
	tcx      bool // wires have their programs by tcx
	own      map[ebpf.ProgramID]bool
}

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
	if err := MayLoad(); err != nil {
		return nil, err
	}
	if err := loadTracking(); err != nil {
		return nil, err
	}
	_, lacksTCX := programs(loopback, ebpf.AttachTCXIngress) // of Linux 6.6
	p := &Path{attached: map[Device]pair{}, tcx: lacksTCX == nil, own: map[ebpf.ProgramID]bool{}}
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

// MayLoad returns an *UnsupportedError unless this process may load a program that does nothing.
func MayLoad() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if errors.Is(err, unix.EPERM) {
		return &UnsupportedError{Reason: "the kernel loads BPF programs only for the machine's own root"}
	}
	if err != nil {
		return &UnsupportedError{"the kernel loads no BPF programs", err}
	}
	return p.Close()
}

// loadTracking has the kernel load connection tracking, which it does when it is asked about it: the programs use it.
func loadTracking() error {
	const getStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5 // IPCTNL_MSG_CT_GET_STATS
	r := nl.NewNetlinkRequest(getStats, unix.NLM_F_ACK)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return &UnsupportedError{"the kernel lacks connection tracking", err}
	}
	return nil
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
	return errors.Join(p.Sync(p.settings, nil, nil), p.objects.Close())
}
