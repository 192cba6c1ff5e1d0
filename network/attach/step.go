package attach

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"cleat/network/dhcp"
	"cleat/network/journal"
	"cleat/network/segment"
)

// Step is one change that an attach makes. Its exported fields describe it completely;
// String describes it to people.
type Step interface {
	fmt.Stringer
	// do makes the change. It first records how to undo whatever does not go away together
	// with something made by an earlier step.
	do(r *run) error
}

// checker is a step that can report, without changing anything, that it would fail because
// something is already in use. Only Preview calls check.
type checker interface{ check(r *run) error }

// StepName returns the kind of a step, e.g. "MakeLink".
func StepName(s Step) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", s), "attach.")
}

// run is one attach, or one change of a complete attachment.
type run struct {
	*session
	ctx     context.Context
	journal *journal.Journal
	att     *Attachment
	cont    *namespace // of the container
	undos   []Undo     // recorded so far
	notes   []string

	linkIndex int    // of the link in the container, once it exists
	peer      string // name of the link's other end on the host, if it is a pair
	peerIndex int

	lease      *dhcp.Lease
	leaseSteps []Step // steps that only the lease determined
	announcing sync.WaitGroup
	// ended, if set, is closed when the operation has ended. Announcements wait for it and, unless it has
	// failed, for announceAfter.
	ended         chan struct{}
	failed        bool // read after ended
	announceAfter <-chan struct{}
}

// record writes down how to undo the next change.
func (r *run) record(u Undo) error {
	if err := r.checkpoint(); err != nil {
		return err
	}
	if err := r.journal.Append(entry{Undo: &u}); err != nil {
		return err
	}
	r.undos = append(r.undos, u)
	return r.checkpoint()
}

// doSteps takes steps in order, until one fails or the context ends.
func (r *run) doSteps(steps []Step) error {
	for _, s := range steps {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := s.do(r); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if err := r.checkpoint(); err != nil {
			return err
		}
	}
	return nil
}

// checkSteps returns the error with which steps would fail, as far as that can be known in
// advance.
func (r *run) checkSteps(steps []Step) error {
	for _, s := range steps {
		c, ok := s.(checker)
		if !ok {
			continue
		}
		if err := c.check(r); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// segment returns where the link is. parent is the device that it stands on; "" if there is
// none.
func (r *run) segment(parent string) (segment.Link, error) {
	at := segment.Link{NS: r.cont.ns, Index: r.linkIndex}
	if r.peer != "" {
		at.Peer, at.PeerIndex = r.host.ns, r.peerIndex
	}
	if parent == "" {
		return at, nil
	}
	l, err := r.host.mustFind(parent)
	if err != nil {
		return at, err
	}
	at.Parent, at.ParentIndex = r.host.ns, l.Attrs().Index
	return at, nil
}
