package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cleat/network/dhcp"
	"cleat/network/journal"
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

// entry is one record of a journal.
type entry struct {
	Begin *begin `json:"begin,omitempty"` // the first
	Undo  *Undo  `json:"undo,omitempty"`
	Made  *made  `json:"made,omitempty"` // the last, of an attachment that is complete
}

// begin says what the operation is.
type begin struct {
	Attachment *Attachment `json:"attachment"`
	Host       place       `json:"host"`
	Container  place       `json:"container"`
}

// made is what came of it.
type made struct {
	Index int      `json:"index"` // of the link in the container
	Peer  string   `json:"peer,omitempty"`
	Steps []string `json:"steps"`
	Notes []string `json:"notes,omitempty"`
}

// run is one operation under way.
type run struct {
	ctx     context.Context
	store   *Store
	journal *journal.Journal
	att     *Attachment
	host    *side
	cont    *side
	trial   func() error // of tests: called before and after each record and step
	undos   []Undo       // what is on record
	link    int          // number of the link in the container, once it is there
	peer    string       // name of its other end on the host, of a pair
	notes   []string

	peerLink int // number of that end

	lease      *dhcp.Lease
	came       []Step         // steps that others turned out to be made of
	announcing sync.WaitGroup // what is being told to neighbours
}

// point is where a test may have the operation fail, or stop as if it were
// killed.
func (r *run) point() error {
	if r.trial == nil {
		return nil
	}
	return r.trial()
}

// record writes down how to be rid of what comes next.
func (r *run) record(u Undo) error {
	if err := r.point(); err != nil {
		return err
	}
	if err := r.journal.Append(entry{Undo: &u}); err != nil {
		return err
	}
	r.undos = append(r.undos, u)
	return r.point()
}

// carryOut takes the steps in order.
func (r *run) carryOut(steps []Step) error {
	for _, s := range steps {
		if err := r.ctx.Err(); err != nil {
			return context.Cause(r.ctx)
		}
		if err := s.do(r); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		if err := r.point(); err != nil {
			return err
		}
	}
	return nil
}

// foreteller is a step that can see, without being taken, that somebody else has what it
// would take.
type foreteller interface{ foretell(r *run) error }

// foretell is the error that steps would end with, as far as can be seen.
func (r *run) foretell(steps []Step) error {
	for _, s := range steps {
		f, can := s.(foreteller)
		if !can {
			continue
		}
		if err := f.foretell(r); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// undoer is one undoing under way.
type undoer struct {
	store *Store
	here  *side
	trial func() error
	sides []*side // opened so far
	notes []string

	detaching bool  // for the first time: what can't be found is said
	removed   []int // links in the container, by number; two records may be of one
}

func newUndoer(store *Store, here *side, trial func() error) *undoer {
	return &undoer{store: store, here: here, trial: trial}
}

func (u *undoer) close() {
	for _, s := range u.sides {
		s.close()
	}
}

func (u *undoer) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(u.notes, n) { // two records may be of one thing
		u.notes = append(u.notes, n)
	}
}

// failed is an error of undoing, or a note of it where that is in a container: what is there is
// the container's to change, and keeps nobody from undoing the rest.
func (u *undoer) failed(where *side, err error) error {
	if where == u.here {
		return err
	}
	u.note("can't be put back in the container: %v", err)
	return nil
}

// noteMoved says of a link that is not where it was put that it may be somewhere else: a
// container may move it to a namespace of its own, which nobody finds.
func (u *undoer) noteMoved(name string) {
	if !u.detaching {
		return
	}
	u.note("%s was not there any more: somebody has removed it, or moved it to another network namespace, where it goes on to work", name)
}

// side is the side of a place that is remembered; errNoPlace when it is gone.
func (u *undoer) side(p place) (*side, error) {
	for _, s := range append(u.sides, u.here) {
		if s.place.Inode == p.Inode && s.place.Cookie == p.Cookie {
			return s, nil
		}
	}
	ns, err := p.open(u.here.ns)
	if err != nil {
		return nil, err
	}
	s, err := newSide(ns, p.Path)
	if err == nil {
		u.sides = append(u.sides, s)
	}
	return s, err
}

// all undoes records, last first, all that it can.
func (u *undoer) all(undos []Undo) error {
	var errs []error
	for _, one := range slices.Backward(undos) {
		if u.trial != nil {
			if err := u.trial(); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		if err := one.undo(u); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// parse takes a journal's records apart.
func parse(records []json.RawMessage) (first begin, undos []Undo, last *made, err error) {
	for i, raw := range records {
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return first, nil, nil, fmt.Errorf("decode record %d: %w", i+1, err)
		}
		switch {
		case e.Begin != nil:
			first = *e.Begin
		case e.Undo != nil:
			undos = append(undos, *e.Undo)
		case e.Made != nil:
			last = e.Made
		}
	}
	return first, undos, last, nil
}
