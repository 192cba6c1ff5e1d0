package attach

import "fmt"

func (p *planner) ipvlan() error {
	parent, err := p.lowerLink()
	if err != nil {
		return err
	}
	p.add(SameMode{Parent: parent, Mode: p.mode},
		MakeLink{Kind: "ipvlan", Name: p.spec.Name, Params: p.params("mode", p.mode, "parent", parent), Rename: true, HandOver: p.spec.HandOver})
	return nil
}

// SameMode rejects an ipvlan device whose mode differs from that of others on the parent. The
// kernel would change the mode of all of them. SameMode is a resource that consists of its users
// only: it is ready while attachments with this mode are on the parent.
type SameMode struct {
	Parent string `json:"parent"`
	Mode   string `json:"mode"`
}

func (s SameMode) String() string {
	return fmt.Sprintf("check that all ipvlan devices on %s have mode %s", s.Parent, s.Mode)
}

func (s SameMode) do(r *run) error { return r.use(s) }

func (s SameMode) key() string { return "ipvlan " + s.Parent + " " + s.Mode }

func (s SameMode) exists(r *run) (bool, error) {
	for _, mode := range Modes("ipvlan") {
		other := SameMode{Parent: s.Parent, Mode: mode}
		if mode != s.Mode && sharedReady(r.store.sharedDir(r.sharedKey(other))) {
			return false, &SpecError{Param: "mode", Value: s.Mode, Allowed: []string{mode},
				Reason: fmt.Sprintf("the ipvlan devices on %s have mode %s, and all on one parent must have the same", s.Parent, mode)}
		}
	}
	return true, nil
}

func (s SameMode) create(r *run, _ func(Undo) error) error {
	_, err := s.exists(r)
	return err
}
