package attach

import (
	"errors"
	"fmt"
)

// WantError says that something wanted can't be.
type WantError struct {
	Param   string   // as the flag of `cleat attach` is called, or "kind"
	Value   string   // what was given
	Reason  string   // what is wrong with it
	Allowed []string // what would do; may be empty
	Remedy  string   // what to type before, or as the value; may be empty
	Instead string   // KIND and PARENT that would do what is wanted; may be empty
}

func (e *WantError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Param, e.Reason)
	}
	return fmt.Sprintf("%s %q: %s", e.Param, e.Value, e.Reason)
}

// TakenError says that a name, an address or a network is somebody else's already.
type TakenError struct {
	What string // "link", "address", "network", "route", EthernetAddress
	Name string
	By   string // who has it, in words; may be empty

	Holder *Attachment // that has it; nil: it is none of ours, or can't be told
}

// taken says that an attachment has something, or whoever else by is.
func (s *Store) taken(what, name, by string) *TakenError {
	e := &TakenError{What: what, Name: name, By: by, Holder: s.attachment(by)}
	switch {
	case e.Holder == nil:
	case what == "link":
		e.By = "an attached link of " + e.Holder.Container.Word()
	default:
		e.By = e.Holder.called()
	}
	return e
}

func (e *TakenError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("%s %s is taken", e.What, e.Name)
	}
	return fmt.Sprintf("%s %s is taken by %s", e.What, e.Name, e.By)
}

// called is what people call an attachment.
func (a *Attachment) called() string { return a.Want.Name + " of " + a.Container.Word() }

// called is the same of an id, as far as is known.
func (s *Store) called(id string) string {
	if a := s.attachment(id); a != nil {
		return a.called()
	}
	return id
}

// ErrNotAttached says that there is no such attachment.
var ErrNotAttached = errors.New("not attached")

// ErrGone says that the container ended meanwhile.
var ErrGone = errors.New("the container is gone")
