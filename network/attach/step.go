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

// Step is one thing to be done. Its exported fields are all there is to know of
// it, and String says it to people.
type Step interface {
	fmt.Stringer
	// do takes the step. Before it changes anything that does not go away with
	// what another step made, it has r write down how to be rid of it.
	do(r *run) error
}

// Name is the kind of a step, e.g. "MakeLink".
func StepName(s Step) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", s), "attach.")
}

// foreteller is a step that can see, without being taken, that somebody else has what it
// would take.
type checker interface{ check(r *run) error }

// run is one operation under way.
type run struct {
	ctx       context.Context
	store     *Store
	journal   *journal.Journal
	att       *Attachment
	host      *namespace
	cont      *namespace
	testHook  func() error // of tests: called before and after each record and step
	undos     []Undo       // what is on record
	linkIndex int          // number of the link in the container, once it is there
	peer      string       // name of its other end on the host, of a pair
	notes     []string

	peerIndex int // number of that end

	lease      *dhcp.Lease
	leaseSteps []Step         // steps that others turned out to be made of
	announcing sync.WaitGroup // what is being told to neighbours
}

// point is where a test may have the operation fail, or stop as if it were
// killed.
func (r *run) checkpoint() error {
	if r.testHook == nil {
		return nil
	}
	return r.testHook()
}

// record writes down how to be rid of what comes next.
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

// carryOut takes the steps in order.
func (r *run) doSteps(steps []Step) error {
	for _, s := range steps {
		if err := r.ctx.Err(); err != nil {
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

// foretell is the error that steps would end with, as far as can be seen.
func (r *run) checkSteps(steps []Step) error {
	for _, s := range steps {
		f, can := s.(checker)
		if !can {
			continue
		}
		if err := f.check(r); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// segment is where the link is that the operation made.
func (r *run) segment(parent string) (segment.Link, error) {
	at := segment.Link{NS: r.cont.ns, Index: r.linkIndex}
	if r.peer != "" {
		at.Other, at.OtherIndex = r.host.ns, r.peerIndex
	}
	if parent == "" {
		return at, nil
	}
	l, err := r.host.LinkByName(parent)
	if err != nil {
		return at, fmt.Errorf("find %q: %w", parent, err)
	}
	at.Parent, at.ParentIndex = r.host.ns, l.Attrs().Index
	return at, nil
}
