package link

import (
	"crypto/rand"
	"errors"
	"fmt"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// maker is one run of Create.
type creator struct {
	ns     *netns.NS // where parents are
	to     Target    // filled in
	spec   Spec
	remove func() error // becomes Link.remove
	sockets
}

// Where the outer half of a new link belongs.
const (
	noUnderlay      = iota // the kind has none: it is made where it ends up
	requestUnderlay        // the driver remembers the namespace the request came to
	birthUnderlay          // the driver remembers the namespace the link was born in
)

// newLink makes a link with one message, or, where the kernel can't make it in
// another namespace than its underlay's, with two.
func (m *creator) newLink(q request, underlay int) error {
	from := m.ns
	if underlay == noUnderlay {
		from = m.to.NS
	}
	r, err := m.dial(from)
	if err != nil {
		return err
	}
	same, err := sameNS(from, m.to.NS)
	if err != nil {
		return err
	}
	if same {
		return r.newLink(q, from)
	}
	if underlay == birthUnderlay {
		return m.createThenMove(r, q)
	}
	err = r.newLink(q, m.to.NS)
	if errors.Is(err, unix.EEXIST) && linkExists(from, q.attrs.Name) && !linkExists(m.to.NS, q.attrs.Name) {
		// Kernels before 6.15 look for the name in the namespace the request
		// came to, not in the one it asks for.
		return m.createThenMove(r, q)
	}
	return err
}

// detour makes the link beside its parent under a name nobody else uses, and
// then moves it.
func (m *creator) createThenMove(r *rtnl, q request) error {
	final := q.attrs.Name
	q.attrs.Name = "cleat" + rand.Text()[:8]
	if err := r.newLink(q, r.ns); err != nil {
		return err
	}
	i, err := r.index(q.attrs.Name)
	if err == nil {
		err = r.moveAndRename(i, m.to.NS, final)
	}
	if err != nil {
		return errors.Join(err, removeByName(r.ns, q.attrs.Name), removeByName(m.to.NS, q.attrs.Name))
	}
	return nil
}

// removeByName ends a link that has our own temporary name, if it is here.
func removeByName(ns *netns.NS, name string) error {
	r, err := dial(ns)
	if err != nil {
		return err
	}
	defer r.Close()
	i, err := r.index(name)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.delLink(i)
}

// has tells whether ns has a link of that name; if it can't be told, not.
func linkExists(ns *netns.NS, name string) bool {
	r, err := dial(ns)
	if err != nil {
		return false
	}
	defer r.Close()
	_, err = r.find(name)
	return err == nil
}

func sameNS(a, b *netns.NS) (bool, error) {
	if a == b {
		return true, nil
	}
	i, err := a.ID()
	if err != nil {
		return false, err
	}
	j, err := b.ID()
	return i == j, err
}

// explain turns the kernel's refusal to create into the error a caller can
// decide on.
func (m *creator) explain(err error) error {
	kind, name := m.spec.Kind(), m.spec.attrs().Name
	var param *ParamError
	var lack *Lack
	var ignored *ignoredError
	var refusal *KernelError
	switch {
	case errors.As(err, &param), errors.As(err, &lack):
		return err
	case errors.As(err, &ignored):
		return ignored.lack()
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create %s %q: %w", kind, name, m.existsError())
	case errors.As(err, &refusal) && errors.Is(err, unix.EOPNOTSUPP) && refusal.Message != unknownKindMessage:
		return &Lack{What: fmt.Sprintf("this link of kind %q", kind), Reason: "the kernel says: " + refusal.Message}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return newLack(kind, err)
	}
	return fmt.Errorf("create %s %q: %w", kind, name, err)
}

// unknownKind is what the kernel says to a kind that it does not have
// (rtnl_newlink, net/core/rtnetlink.c).
const unknownKindMessage = "Unknown device type"

// whatExists tells a name that is taken from an identity that is.
func (m *creator) existsError() error {
	if linkExists(m.to.NS, m.spec.attrs().Name) {
		return ErrExists
	}
	if p, ok := m.spec.(paired); ok && linkExists(m.to.PeerNS, p.peer().Name) {
		return fmt.Errorf("peer %q: %w", p.peer().Name, ErrExists)
	}
	return ErrConflict
}

// paired is a Spec whose link has another end with a name of its own.
type paired interface {
	peer() Attrs
}
