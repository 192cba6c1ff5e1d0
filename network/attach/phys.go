package attach

import (
	"errors"
	"fmt"
	"strings"

	"cleat/internal/columns"
	"cleat/link"
	"cleat/network/qdisc"

	"golang.org/x/sys/unix"
)

// ErrDefaultRoute means that moving a device would cut the host off.
var ErrDefaultRoute = errors.New("the host's default route uses it")

func (p *planner) phys() error {
	l, err := p.parent()
	if err != nil {
		return err
	}
	a := l.Attrs()
	bad := &SpecError{Param: "PARENT", Value: a.Name}
	switch {
	case a.RawFlags&unix.IFF_LOOPBACK != 0:
		bad.Reason = "is the loopback device, which can't be moved"
		return bad
	case a.MasterIndex != 0:
		bad.Reason, bad.Run = "is a port of another device", "ip link set "+columns.Word(a.Name)+" nomaster"
		return bad
	case p.spec.Kind == "ipoib" && a.EncapType != "infiniband":
		bad.Reason, bad.Use = "is not an InfiniBand device, but of type "+a.EncapType, "phys"
		return bad
	case p.spec.MAC != (link.MAC{}) && len(a.HardwareAddr) != len(link.MAC{}):
		return &SpecError{Param: "mac", Value: p.spec.MAC.String(), Reason: a.Name + " has no Ethernet address"}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r, err := p.host.defaultRoute(family)
		if err != nil {
			return err
		}
		if r != nil && r.Index == a.Index {
			return fmt.Errorf("move %s: %w", a.Name, ErrDefaultRoute)
		}
	}
	_, lost, err := qdisc.Save(p.host.ns, a.Index)
	if err != nil {
		return err
	}
	if len(lost) > 0 {
		p.note("the queueing disciplines of %s (%s), with classes and filters, can't be restored; set them again when it is back", a.Name, strings.Join(lost, ", "))
	}
	p.add(MoveLink{Device: a.Name, Name: p.spec.Name})
	if p.spec.MTU != 0 || p.spec.MAC != (link.MAC{}) {
		p.add(SetLink{Link: p.spec.Name, MTU: p.spec.MTU, MAC: p.spec.MAC})
	}
	return nil
}

// MoveLink moves a device of the host into the container.
type MoveLink struct {
	Device string `json:"device"`
	Name   string `json:"name"` // in the container
}

func (s MoveLink) String() string {
	return fmt.Sprintf("move %s into the container as %s", s.Device, s.Name)
}

func (s MoveLink) do(r *run) error {
	l, err := r.host.mustFind(s.Device)
	if err != nil {
		return err
	}
	m, err := newUndoMove(r.host, l)
	if err != nil {
		return err
	}
	m.To, m.ToName = r.cont.ref, s.Name
	if err := r.record(Undo{Move: m}); err != nil {
		return err
	}
	device, err := link.Find(r.host.ns, s.Device)
	if err != nil {
		return err
	}
	err = device.Move(r.cont.ns, s.Name)
	if errors.Is(err, link.ErrExists) {
		err = fmt.Errorf("%w: %w", &TakenError{Resource: "link", Name: s.Name}, err)
	}
	if err != nil {
		return err
	}
	r.linkIndex = device.Index()
	moved := *m
	moved.ToIndex = r.linkIndex
	return r.record(Undo{Move: &moved})
}
