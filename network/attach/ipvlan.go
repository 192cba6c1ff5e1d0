package attach

import (
	"fmt"
)

func (p *planner) ipvlan() error {
	parent, err := p.lowerLink()
	if err != nil {
		return err
	}
	p.add(SameMode{Parent: parent, Mode: p.mode},
		MakeLink{Kind: "ipvlan", Name: p.spec.Name, Params: p.params("mode", p.mode, "parent", parent), Rename: true})
	return nil
}

// SameMode keeps the mode of a parent's ipvlan devices: a device that is made with
// another changes that of all.
type SameMode struct {
	Parent string `json:"parent"`
	Mode   string `json:"mode"`
}

func (s SameMode) String() string {
	return fmt.Sprintf("see to it that all ipvlan devices of %s have mode %s", s.Parent, s.Mode)
}

func (s SameMode) do(r *run) error { return r.use(s) }

func (s SameMode) key() string { return "ipvlan " + s.Parent + " " + s.Mode }

func (s SameMode) exists(r *run) (bool, error) {
	for _, mode := range modesOf("ipvlan") {
		other := SameMode{Parent: s.Parent, Mode: mode}
		if mode != s.Mode && sharedReady(r.store.sharedDir(r.sharedKey(other))) {
			return false, &SpecError{Param: "mode", Value: s.Mode, Allowed: []string{mode},
				Reason: fmt.Sprintf("the ipvlan devices of %s have mode %s, and all of a parent have the same", s.Parent, mode)}
		}
	}
	return true, nil
}

func (s SameMode) create(r *run, _ func(Undo) error) error {
	_, err := s.exists(r)
	return err
}
