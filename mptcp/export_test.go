package mptcp

// FailBefore makes Apply fail before step n, counted from 0.
func (p *Plan) FailBefore(n int, err error) {
	p.trial = func(i int) error {
		if i == n {
			return err
		}
		return nil
	}
}

// ApplyAndDie is Apply in a process that is killed after n steps.
func (p *Plan) ApplyAndDie(n int) error {
	f, err := openState(p.ns, dirOf(p.file), true)
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.write(p.during); err != nil {
		return err
	}
	for i, s := range p.steps[:n] {
		if err := p.carryOut(i, s); err != nil {
			return err
		}
	}
	return nil
}
