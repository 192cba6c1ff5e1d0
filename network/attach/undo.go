package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cleat/link"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Undo is how to be rid of one thing: one of the fields is set. Undoing finds
// things as they are: not there (the step was not taken, or somebody was faster),
// half there, or somebody else's under the same name, which is left alone. Doing
// it twice is harmless.
type Undo struct {
	Link   *linkMade    `json:"link,omitempty"`
	Moved  *linkMoved   `json:"moved,omitempty"`
	Route  *routeMade   `json:"route,omitempty"`
	Taken  *routeTaken  `json:"route_taken,omitempty"`
	Addr   *addrMade    `json:"address,omitempty"`
	File   *fileWritten `json:"file,omitempty"`
	Text   *textWritten `json:"text,omitempty"`
	Claim  *claimMade   `json:"claim,omitempty"`
	Shared *sharedUse   `json:"shared,omitempty"`
	Sysctl *sysctlSet   `json:"sysctl,omitempty"`
	Rule   *ruleMade    `json:"rule,omitempty"`
	OVS    *ovsMade     `json:"ovs,omitempty"`
	Bridge *bridgeMade  `json:"bridge,omitempty"`
	Kept   *bridgeKept  `json:"bridge_kept,omitempty"`
	Lease  *leaseMade   `json:"lease,omitempty"`
}

// MarshalJSON encodes what is set. The library would first learn about the types of all
// fields, which takes longer than making a link.
func (one Undo) MarshalJSON() ([]byte, error) {
	set, v := map[string]any{}, reflect.ValueOf(one)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			set[name] = f.Interface()
		}
	}
	return json.Marshal(set)
}

func (one Undo) undo(u *undoer) error {
	switch {
	case one.Link != nil:
		return one.Link.undo(u)
	case one.Moved != nil:
		return one.Moved.undo(u)
	case one.Route != nil:
		return one.Route.undo(u)
	case one.Taken != nil:
		return one.Taken.undo(u)
	case one.Addr != nil:
		return one.Addr.undo(u)
	case one.File != nil:
		return one.File.undo(u)
	case one.Text != nil:
		return one.Text.undo(u)
	case one.Claim != nil:
		return one.Claim.undo(u)
	case one.Shared != nil:
		return one.Shared.undo(u)
	case one.Sysctl != nil:
		return one.Sysctl.undo(u)
	case one.Rule != nil:
		return one.Rule.undo(u)
	case one.Bridge != nil:
		return one.Bridge.undo(u)
	case one.Kept != nil:
		return one.Kept.undo(u)
	case one.Lease != nil:
		return one.Lease.undo(u)
	case one.OVS != nil:
		return one.OVS.undo(u)
	}
	return errors.New("undo: a record of a later cleat")
}

// linkMade is a link of ours. Before it is there we know its name and, where it
// has one of its own, the address that was chosen for it at random; afterwards
// its number, too.
type linkMade struct {
	Where place    `json:"where"`
	Name  string   `json:"name"`
	MAC   link.MAC `json:"mac,omitzero"`
	Index int      `json:"index,omitempty"`
	Type  string   `json:"type,omitempty"`
	// Parent is the number of the host's device that it stands on, which a container can't
	// change as it can names and addresses; 0: of none.
	Parent int `json:"parent,omitempty"`
}

// tempPrefix begins the names that links without an address of their own are made
// under; twelve random characters follow, so that nobody else has the name.
const tempPrefix = "cl-"

func (m *linkMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil // and its links with it
	}
	if err != nil {
		return err
	}
	l, err := m.find(s)
	if err != nil {
		return err
	}
	if l == nil {
		if m.Index != 0 && s != u.here && !slices.Contains(u.removed, m.Index) {
			u.noteMoved(m.Name)
		}
		return nil
	}
	err = s.LinkDel(byIndex(l.Attrs().Index))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %q from %s: %w", l.Attrs().Name, s.ns, err)
	}
	if s != u.here {
		u.removed = append(u.removed, l.Attrs().Index)
	}
	return nil
}

// find is the link if it is there; nil, nil otherwise. A number, which the kernel
// counts up, can be asked for by whoever makes a link: name or address must fit,
// too.
func (m *linkMade) find(s *side) (netlink.Link, error) {
	if m.Index == 0 {
		l, err := s.find(m.Name)
		if err != nil || l == nil {
			return nil, err
		}
		if strings.HasPrefix(m.Name, tempPrefix) || m.MAC != (link.MAC{}) && macOf(l) == m.MAC {
			return l, nil
		}
		return nil, nil
	}
	l, err := s.LinkByIndex(m.Index)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %d in %s: %w", m.Index, s.ns, err)
	}
	a := l.Attrs()
	outside := m.Parent != 0 && a.ParentIndex == m.Parent && a.NetNsID >= 0 // IFLA_LINK_NETNSID
	same := a.Name == m.Name || m.MAC != (link.MAC{}) && macOf(l) == m.MAC || outside
	if l.Type() != m.Type || !same {
		return nil, nil
	}
	return l, nil
}

// addrMade is an address of ours on a link that was there before, or that others
// use, too.
type addrMade struct {
	Where  place  `json:"where"`
	Index  int    `json:"index"`
	Prefix string `json:"prefix"`
}

func (m *addrMade) undo(u *undoer) error {
	s, err := u.side(m.Where)
	if errors.Is(err, errNoPlace) {
		return nil
	}
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(m.Prefix)
	if err != nil {
		return fmt.Errorf("remove address: %w", err)
	}
	err = s.AddrDel(byIndex(m.Index), a)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return u.failed(s, fmt.Errorf("remove address %s: %w", m.Prefix, err))
	}
	return nil
}
