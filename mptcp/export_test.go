package mptcp

import "path/filepath"

// FailBefore makes Apply fail before step n, counted from 0.
func (p *Plan) FailBefore(n int, err error) {
	p.steps[n].do = func() error { return err }
}

// ApplyAndDie is Apply in a process that is killed after n steps.
func (p *Plan) ApplyAndDie(n int) error {
	f, err := openState(p.ns, filepath.Dir(p.file.path), true)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.write(p.during); err != nil {
		return err
	}
	for _, s := range p.steps[:n] {
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}
