package link

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"cleat/netns"

	"golang.org/x/sys/unix"
)

// creator is the state of one call of Create.
type creator struct {
	ns     *netns.NS // namespace of parents and underlay
	to     Target    // without nil
	spec   Spec
	remove func() error // becomes Link.remove
	files  []*os.File   // becomes Link.files
	sockets
}

// How a driver finds the namespace that a link's outer half belongs to.
const (
	noUnderlay      = iota // the kind has no outer half: create it where it ends up
	requestUnderlay        // the namespace of the socket that the request came by
	birthUnderlay          // the namespace in which the link was created
)

// newLink creates a link with one message, or with two if the kernel can't
// create the link in a different namespace from its underlay's.
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
		// Kernels before 6.15 look for the name in the namespace that the request
		// came from, not in the one that it asks for.
		return m.createThenMove(r, q)
	}
	return err
}

// createThenMove creates the link beside its parent under a unique name, and
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

// removeByName removes the link with one of our temporary names, if it is in ns.
func removeByName(ns *netns.NS, name string) error {
	l, err := Find(ns, name)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// linkExists reports whether ns has a link with that name. If it can't be
// determined, the result is false.
func linkExists(ns *netns.NS, name string) bool {
	_, err := Find(ns, name)
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

// explain converts the kernel's refusal to create a link into the error that
// Create documents.
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
		err = m.existsError()
	case errors.As(err, &refusal) && errors.Is(err, unix.EOPNOTSUPP) && refusal.Message != unknownKindMessage:
		return &Lack{What: fmt.Sprintf("this link of kind %q", kind), Reason: "the kernel says: " + refusal.Message}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return newLack(kind, err)
	}
	return fmt.Errorf("create %s %q: %w", kind, name, err)
}

// unknownKindMessage is the kernel's answer to a kind that it does not have
// (rtnl_newlink, net/core/rtnetlink.c).
const unknownKindMessage = "Unknown device type"

// existsError distinguishes a name in use from an identity in use.
func (m *creator) existsError() error {
	if linkExists(m.to.NS, m.spec.attrs().Name) {
		return ErrExists
	}
	if p, ok := m.spec.(paired); ok && linkExists(m.to.PeerNS, p.peer().Name) {
		return fmt.Errorf("peer %q: %w", p.peer().Name, ErrExists)
	}
	return ErrConflict
}

// paired is a Spec whose link has a peer with a name of its own.
type paired interface {
	peer() Attrs
}
