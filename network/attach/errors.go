package attach

import (
	"errors"
	"fmt"
)

// SpecError means that a parameter of a Spec is invalid, on this machine or on any.
type SpecError struct {
	Param    string   // the flag of `cleat attach` without dashes, "kind", "PARENT" or "CONTAINER"
	Value    string   // what was given
	Reason   string   // a sentence without its subject, which is Param or Value
	Allowed  []string // valid values; may be empty
	Use      string   // what to give instead of Value; may be empty
	Run      string   // a command for root that makes the value valid; may be empty
	AttachTo string   // KIND and PARENT that have the intended effect; may be empty
}

func (e *SpecError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Param, e.Reason)
	}
	return fmt.Sprintf("%s %q: %s", e.Param, e.Value, e.Reason)
}

// EthernetAddress is the Resource of a TakenError about --mac.
const EthernetAddress = "Ethernet address"

// TakenError means that a name, an address, a route or a network is already in use.
type TakenError struct {
	Resource string // "link", "address", "network", "route" or EthernetAddress
	Name     string
	Owner    string // who uses it, in words; may be empty

	Holder *Attachment // that uses it; nil if it is not an attachment
}

func (e *TakenError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("%s %s is already in use", e.Resource, e.Name)
	}
	return fmt.Sprintf("%s %s is in use by %s", e.Resource, e.Name, e.Owner)
}

// taken returns a TakenError. owner is the id of an attachment, or a description of
// something else.
func (s *Store) taken(resource, name, owner string) *TakenError {
	e := &TakenError{Resource: resource, Name: name, Owner: owner, Holder: s.lastKnown(owner)}
	switch {
	case e.Holder == nil:
	case resource == "link":
		e.Owner = "an attachment of " + e.Holder.Container.ShortName()
	default:
		e.Owner = e.Holder.label()
	}
	return e
}

// ErrNotAttached means that there is no such attachment.
var ErrNotAttached = errors.New("not attached")

// ErrContainerGone means that the container ended during the operation.
var ErrContainerGone = errors.New("the container is gone")
