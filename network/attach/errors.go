package attach

import (
	"errors"
	"fmt"
)

// SpecError says that something wanted can't be.
type SpecError struct {
	Param    string   // as the flag of `cleat attach` is called, or "kind"
	Value    string   // what was given
	Reason   string   // what is wrong with it
	Allowed  []string // what would do; may be empty
	Use      string   // what to give instead of Value; may be empty
	Run      string   // a command for root that makes it possible; may be empty
	AttachTo string   // KIND and PARENT that would do what is wanted; may be empty
}

func (e *SpecError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Param, e.Reason)
	}
	return fmt.Sprintf("%s %q: %s", e.Param, e.Value, e.Reason)
}

// EthernetAddress is what of a TakenError: whoever has it, --mac is to be another.
const EthernetAddress = "Ethernet address"

// TakenError says that a name, an address or a network is somebody else's already.
type TakenError struct {
	Resource string // "link", "address", "network", "route", EthernetAddress
	Name     string
	Owner    string // who has it, in words; may be empty

	Holder *Attachment // that has it; nil: it is none of ours, or can't be told
}

func (e *TakenError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("%s %s is taken", e.Resource, e.Name)
	}
	return fmt.Sprintf("%s %s is taken by %s", e.Resource, e.Name, e.Owner)
}

// taken says that an attachment has something, or whoever else by is.
func (s *Store) taken(what, name, by string) *TakenError {
	e := &TakenError{Resource: what, Name: name, Owner: by, Holder: s.lastKnown(by)}
	switch {
	case e.Holder == nil:
	case what == "link":
		e.Owner = "an attached link of " + e.Holder.Container.ShortName()
	default:
		e.Owner = e.Holder.label()
	}
	return e
}

// ErrNotAttached says that there is no such attachment.
var ErrNotAttached = errors.New("not attached")

// ErrGone says that the container ended meanwhile.
var ErrContainerGone = errors.New("the container is gone")
