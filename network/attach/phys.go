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

// ErrDefaultRoute says that the host's own way out would go.
var ErrDefaultRoute = errors.New("the host's default route goes by it")

// phys moves a device of the host's.
func (p *planner) phys() error {
	l, err := p.parent()
	if err != nil {
		return err
	}
	a := l.Attrs()
	bad := SpecError{Param: "PARENT", Value: a.Name}
	switch {
	case a.RawFlags&unix.IFF_LOOPBACK != 0:
		bad.Reason = "is the loopback device, which can't be moved"
		return &bad
	case a.MasterIndex != 0:
		bad.Reason, bad.Run = "is a port of another device", "ip link set "+columns.Word(a.Name)+" nomaster"
		return &bad
	case p.spec.Kind == "ipoib" && a.EncapType != "infiniband":
		bad.Reason, bad.Use = "is no InfiniBand device, but of type "+a.EncapType, "phys"
		return &bad
	case p.spec.MAC != (link.MAC{}) && len(a.HardwareAddr) != len(link.MAC{}):
		return &SpecError{Param: "mac", Value: p.spec.MAC.String(), Reason: a.Name + " has no Ethernet address"}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r, err := defaultRoute(p.host, family)
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
		p.note("%s will come back without its queueing disciplines (%s), classes and filters, which can't be put back: set them again then", a.Name, strings.Join(lost, ", "))
	}
	p.add(MoveLink{Device: a.Name, Name: p.spec.Name})
	if p.spec.MTU != 0 || p.spec.MAC != (link.MAC{}) {
		p.add(SetLink{Link: p.spec.Name, MTU: p.spec.MTU, MAC: p.spec.MAC})
	}
	return nil
}

// MoveLink moves a device of the host's into the container.
type MoveLink struct {
	Device string `json:"device"`
	Name   string `json:"name"` // in the container
}

func (s MoveLink) String() string {
	return fmt.Sprintf("move %s into the container as %s", s.Device, s.Name)
}

func (s MoveLink) do(r *run) error {
	l, err := r.host.LinkByName(s.Device)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	m, err := recordDevice(r.host, l)
	if err != nil {
		return err
	}
	m.To, m.ToName = r.cont.ref, s.Name
	if err := r.record(Undo{Move: m}); err != nil {
		return err
	}
	ours, err := link.Find(r.host.ns, s.Device)
	if err != nil {
		return err
	}
	if err := ours.Move(r.cont.ns, s.Name); err != nil {
		if errors.Is(err, link.ErrExists) {
			return fmt.Errorf("%w: %w", &TakenError{Resource: "link", Name: s.Name}, err)
		}
		return err
	}
	r.linkIndex = ours.Index()
	there := *m
	there.ToIndex = r.linkIndex
	return r.record(Undo{Move: &there})
}
