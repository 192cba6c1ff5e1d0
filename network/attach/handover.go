package attach

import (
	"errors"
	"slices"
	"strings"

	"cleat/internal/statedir"
	"cleat/link"
	"cleat/netns"

	"github.com/vishvananda/netlink"
)

// A link with Spec.HandOver is made on the host. The container's engine moves it into the container,
// renames it, and configures it. The container's namespace need not exist when the link is made, and
// the engine tells nobody when it has moved the link. So the link is found again:
//
//   - of a pair by its other end, which stays on the host and goes when the container's end does,
//   - otherwise on the host or, by its kind and parent, in the namespace at Container.Path.
//
// The journal has no namespace of the container (nsRef.Inode is 0).

// handOverKinds are the kinds of links that can be handed over.
var handOverKinds = []string{"bridge", "routed", "macvlan", "ipvlan", "vlan"}

// checkHandOver returns a *SpecError if s has what only a link that is configured here can have.
func (s Spec) checkHandOver(kind) error {
	if !s.HandOver {
		return nil
	}
	bad := func(param, value, reason string) error { return &SpecError{Param: param, Value: value, Reason: reason} }
	in, out := s.rates()
	switch {
	case !slices.Contains(handOverKinds, s.Kind):
		return bad("kind", s.Kind, "can't be handed over to an engine")
	case s.Name == "":
		return bad("name", "", "a link that is handed over needs a name on the host")
	case s.DHCP, s.Keep, len(s.DNS) > 0:
		return bad("kind", s.Kind, "the container's engine configures a link that is handed over")
	case max(in, out) > 0 && s.Kind != "bridge" && s.Kind != "routed":
		return bad("rate", "", "a link of kind "+s.Kind+" that is handed over has no end on the host, which could be limited")
	}
	return nil
}

// configureHost plans what the host's end of a link that is handed over needs.
func (p *planner) configureHost() {
	if in, out := p.spec.rates(); in > 0 || out > 0 {
		p.shape()
	}
}

// containerRef returns the container's namespace for the journal.
func (r *run) containerRef() nsRef {
	if r.att.Spec.HandOver {
		return nsRef{Path: r.att.Container.Path}
	}
	return r.cont.ref
}

// handedOver returns the state of a link that was handed over, and the link or, of a pair, the
// end on the host.
func (s *session) handedOver(all records) (State, netlink.Link, error) {
	m := all.madeLink()
	if m == nil {
		return Gone, nil, nil
	}
	l, err := m.find(s.host)
	if l != nil || err != nil {
		return Attached, l, err
	}
	if m.MovedTo == "" {
		return Gone, nil, nil
	}
	in, l, err := m.findMoved(s)
	switch {
	case in == nil:
		return Gone, nil, err
	case l == nil:
		return Missing, nil, err
	}
	return Attached, l, nil
}

// madeLink returns the last record about the attachment's link; nil if there is none.
func (r records) madeLink() *undoLink {
	for _, one := range slices.Backward(r.undos) {
		if m := one.Link; m != nil && m.Index != 0 && m.Type != "ifb" {
			return m
		}
	}
	return nil
}

// findMoved finds a link in the namespace to which an engine has moved it. It returns no namespace if
// that is gone.
func (m *undoLink) findMoved(s *session) (*namespace, netlink.Link, error) {
	ns, err := netns.Open(m.MovedTo)
	if err != nil {
		return nil, nil, nil
	}
	n, err := s.open(ns, m.MovedTo)
	if err != nil {
		return nil, nil, err
	}
	if n.ref.same(s.host.ref) {
		return nil, nil, nil
	}
	all, err := link.Dump(n.LinkList)
	if err != nil {
		return n, nil, err
	}
	i := slices.IndexFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() == m.Type && a.ParentIndex == m.Parent && a.NetNsID >= 0 && (m.MAC == link.MAC{} || m.hasMAC(l))
	})
	if i < 0 {
		return n, nil, nil
	}
	return n, all[i], nil
}

// undoMoved removes a link that an engine has moved.
func (m *undoLink) undoMoved(u *undoer) error {
	n, l, err := m.findMoved(u.session)
	if l == nil {
		return err
	}
	return m.delete(u, n, l)
}

// OnHost reports whether a link that is to be handed over is still on the host, or is again: then
// its engine has not moved it yet, or has moved it back.
func OnHost(store *Store, a *Attachment) (bool, error) {
	s, err := newSession(store, nil)
	if err != nil {
		return false, err
	}
	defer s.close()
	l, err := s.host.find(a.Spec.Name)
	return l != nil, err
}

// InterfaceOf returns the name that an engine has given to a link that was handed over; "" if it can't be
// found.
func InterfaceOf(ns *netns.NS, a *Attachment) string {
	h, err := link.Handle(ns)
	if err != nil {
		return ""
	}
	defer h.Close()
	all, err := link.Dump(h.LinkList)
	if err != nil {
		return ""
	}
	for _, l := range all {
		hasAddress := func() bool {
			addrs, err := link.Dump(func() ([]netlink.Addr, error) { return h.AddrList(l, netlink.FAMILY_ALL) })
			return err == nil && slices.ContainsFunc(addrs, func(has netlink.Addr) bool {
				return len(a.Spec.Addresses) > 0 && prefixOf(has.IPNet).Addr() == a.Spec.Addresses[0].Addr()
			})
		}
		if a.Spec.MAC != (link.MAC{}) && macOf(l) == a.Spec.MAC || a.Spec.MAC == (link.MAC{}) && hasAddress() {
			return l.Attrs().Name
		}
	}
	return ""
}

// OpenContainer opens the network namespace into which an engine moves a link that is handed over; nil
// if there is none yet, or none any more.
func OpenContainer(c Container) *netns.NS {
	ns, err := netns.Open(c.Path)
	if err != nil {
		return nil
	}
	own, err := netns.Current()
	if err != nil {
		return nil
	}
	defer own.Close()
	theirs, err := ns.ID()
	mine, ownErr := own.ID()
	if errors.Join(err, ownErr) != nil || theirs == mine || !strings.HasPrefix(c.Path, "/") {
		ns.Close()
		return nil
	}
	return ns
}

// handedOverGone is NamespaceGone for a link that was handed over.
func handedOverGone(store *Store, all records) (gone bool, exists Sign, err error) {
	s, err := newSession(store, nil)
	if err != nil {
		return false, Sign{}, err
	}
	defer s.close()
	state, _, err := s.handedOver(all)
	if m := all.madeLink(); m != nil && state == Attached && err == nil && m.Type == "veth" {
		exists.index = m.Index
	}
	return state == Gone, exists, err
}

// inspectHandedOver is inspect for a link that was handed over.
func (s *session) inspectHandedOver(st *Status, all records) (State, error) {
	state, l, err := s.handedOver(all)
	if err != nil {
		return Unknown, err
	}
	if l != nil {
		st.MTU = l.Attrs().MTU
		if st.Peer == "" {
			st.Address = l.Attrs().HardwareAddr.String()
		}
	}
	if st.Spec.MAC != (link.MAC{}) {
		st.Address = st.Spec.MAC.String()
	}
	return state, nil
}

// Identify replaces what is known of the container of an attachment. The container must be the same:
// its Manager and Key stay.
func Identify(store *Store, id string, c Container) error {
	a, err := store.Attachment(id)
	if err != nil {
		return err
	}
	a.Container = c
	return statedir.WriteJSON(store.file(id), a)
}
