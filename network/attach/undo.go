package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Undo is how to be rid of one thing: one of the fields is set. Undoing finds
// things as they are: not there (the step was not taken, or somebody was faster),
// half there, or somebody else's under the same name, which is left alone. Doing
// it twice is harmless.
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
}

// MarshalJSON encodes what is set. The library would first learn about the types of all
// fields, which takes longer than making a link.
func (one Undo) MarshalJSON() ([]byte, error) {
	set, v := map[string]any{}, reflect.ValueOf(one)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			set[name] = f.Interface()
		}
	}
	return json.Marshal(set)
}

func (one Undo) undo(u *undoer) error {
	switch {
	case one.Link != nil:
		return one.Link.undo(u)
	case one.Move != nil:
		return one.Move.undo(u)
	case one.Route != nil:
		return one.Route.undo(u)
	case one.RouteRemoval != nil:
		return one.RouteRemoval.undo(u)
	case one.Address != nil:
		return one.Address.undo(u)
	case one.File != nil:
		return one.File.undo(u)
	case one.ResolvConf != nil:
		return one.ResolvConf.undo(u)
	case one.Claim != nil:
		return one.Claim.undo(u)
	case one.Use != nil:
		return one.Use.undo(u)
	case one.Sysctl != nil:
		return one.Sysctl.undo(u)
	case one.Rule != nil:
		return one.Rule.undo(u)
	case one.Bridge != nil:
		return one.Bridge.undo(u)
	case one.BridgeMTU != nil:
		return one.BridgeMTU.undo(u)
	case one.Lease != nil:
		return one.Lease.undo(u)
	case one.OVS != nil:
		return one.OVS.undo(u)
	}
	return errors.New("undo: a record of a later cleat")
}

// undoer is one undoing under way.
type undoer struct {
	store    *Store
	host     *namespace
	testHook func() error
	opened   []*namespace // opened so far
	notes    []string

	detaching bool  // for the first time: what can't be found is said
	removed   []int // links in the container, by number; two records may be of one
}

func newUndoer(store *Store, here *namespace, trial func() error) *undoer {
	return &undoer{store: store, host: here, testHook: trial}
}

func (u *undoer) close() {
	for _, s := range u.opened {
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
func (u *undoer) failed(where *namespace, err error) error {
	if where == u.host {
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
func (u *undoer) namespace(p nsRef) (*namespace, error) {
	for _, s := range append(u.opened, u.host) {
		if s.ref.Inode == p.Inode && s.ref.Cookie == p.Cookie {
			return s, nil
		}
	}
	ns, err := p.open(u.host.ns)
	if err != nil {
		return nil, err
	}
	s, err := newNamespace(ns, p.Path)
	if err == nil {
		u.opened = append(u.opened, s)
	}
	return s, err
}

// all undoes records, last first, all that it can.
func (u *undoer) all(undos []Undo) error {
	var errs []error
	for _, one := range slices.Backward(undos) {
		if u.testHook != nil {
			if err := u.testHook(); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		if err := one.undo(u); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
