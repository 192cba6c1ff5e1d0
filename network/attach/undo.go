package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Undo is a journal's record of one change: one of the fields is set. It is written before
// the change, so undoing expects that the change was not made, was made in part, or was
// reverted by somebody else. Something of another origin under the same name is left alone.
// Undoing twice is harmless.
//
// The names in JSON are the journal's format, which a later cleat must still read. So some
// differ from the names of the fields.
type Undo struct {
	Link         *undoLink         `json:"link,omitempty"`
	Move         *undoMove         `json:"moved,omitempty"`
	Route        *undoRoute        `json:"route,omitempty"`
	RouteRemoval *undoRouteRemoval `json:"route_taken,omitempty"`
	Address      *undoAddress      `json:"address,omitempty"`
	File         *undoFile         `json:"file,omitempty"`
	ResolvConf   *undoResolvConf   `json:"text,omitempty"`
	Claim        *undoClaim        `json:"claim,omitempty"`
	Use          *undoUse          `json:"shared,omitempty"`
	Sysctl       *undoSysctl       `json:"sysctl,omitempty"`
	Rule         *undoRule         `json:"rule,omitempty"`
	OVS          *undoOVS          `json:"ovs,omitempty"`
	Bridge       *undoBridge       `json:"bridge,omitempty"`
	BridgeMTU    *undoBridgeMTU    `json:"bridge_kept,omitempty"`
	Lease        *undoLease        `json:"lease,omitempty"`
	SourceRule   *undoSourceRule   `json:"source_rule,omitempty"`
}

// change is the type of the fields of Undo.
type change interface{ undo(u *undoer) error }

// change returns the field that is set and its name in JSON; nil if the record was written
// by a later version.
func (one Undo) change() (name string, c change) {
	v := reflect.ValueOf(one)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsNil() {
			name, _, _ = strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name, f.Interface().(change)
		}
	}
	return "", nil
}

// MarshalJSON encodes the field that is set. Package json would first analyze the types of
// all fields, which takes longer than creating a link.
func (one Undo) MarshalJSON() ([]byte, error) {
	name, c := one.change()
	if c == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(map[string]any{name: c})
}

type undoer struct {
	*session
	notes     []string
	detaching bool   // report links that are not where they were put
	removed   []int  // indexes of links in the container; two records may be about one link
	unlisted  func() // Config.Unlisted
}

func (u *undoer) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(u.notes, n) { // two records may be about one thing
		u.notes = append(u.notes, n)
	}
}

// failed returns err if it is about the host. If it is about a container, failed only adds a
// note: a container must not be able to keep the rest from being undone.
func (u *undoer) failed(n *namespace, err error) error {
	if n == u.host {
		return err
	}
	u.note("something in the container can't be restored: %v", err)
	return nil
}

// noteMissing notes that a link is not in the container any more. The container may have
// moved it to a namespace of its own, which can't be found.
func (u *undoer) noteMissing(name string) {
	if u.detaching {
		u.note("%s was not in the container any more: somebody has removed it, or moved it to another network namespace, where it still works", name)
	}
}

// all undoes records from the last to the first. It goes on after an error.
func (u *undoer) all(undos []Undo) error {
	var errs []error
	for _, one := range slices.Backward(undos) {
		if err := u.checkpoint(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if _, c := one.change(); c != nil {
			errs = append(errs, c.undo(u))
		} else {
			errs = append(errs, errors.New("undo: the record was written by a later cleat"))
		}
	}
	return errors.Join(errs...)
}
